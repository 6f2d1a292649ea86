// Measures the plain calls of the GPU driver without any overhead. `wsync bench gpu` compares these
// results with the streams of device.h.
#pragma once

#include <chrono>

#include "shared/base/error.h"

namespace wsync::device {

// One GPU with three memories of equal size: pinned host memory and two allocations on the GPU.
// Each function performs its operation `times` times (at least 1) in sequence on one stream and
// waits. It returns the time from before the first call until the last operation is known to be
// complete. Errors are the driver's; kDeadline after one minute. Thread: one at a time.
class Ceilings {
 public:
  virtual ~Ceilings() = default;
  Ceilings(const Ceilings&) = delete;
  Ceilings& operator=(const Ceilings&) = delete;

  // Copies from pinned memory of the driver to the GPU.
  [[nodiscard]] virtual Result<std::chrono::nanoseconds> host_to_device(unsigned times) = 0;
  // Copies from the GPU to pinned memory of the driver.
  [[nodiscard]] virtual Result<std::chrono::nanoseconds> device_to_host(unsigned times) = 0;
  // Copies within the GPU.
  [[nodiscard]] virtual Result<std::chrono::nanoseconds> device_copy(unsigned times) = 0;
  // Reads with a kernel that writes nothing back.
  [[nodiscard]] virtual Result<std::chrono::nanoseconds> device_read(unsigned times) = 0;

 protected:
  Ceilings() = default;
};

}  // namespace wsync::device
