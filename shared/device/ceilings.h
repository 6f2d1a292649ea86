// What a GPU can do with the driver's plain calls and nothing around them: measured beside what the
// streams of device.h do, for `wsync bench gpu`.
#pragma once

#include <chrono>

#include "shared/base/error.h"

namespace wsync::device {

// One GPU and memory for it: pinned on the host, and two allocations on the GPU, of equal sizes.
// Each function does its work `times` times (1 at least), one behind the other on one stream,
// waits, and returns the time from before the first call until the last is known to be complete.
// Errors are the driver's; kDeadline after a minute. Thread: one at a time.
class Ceilings {
 public:
  virtual ~Ceilings() = default;
  Ceilings(const Ceilings&) = delete;
  Ceilings& operator=(const Ceilings&) = delete;

  // From pinned memory of the driver's own to the GPU.
  [[nodiscard]] virtual Result<std::chrono::nanoseconds> host_to_device(unsigned times) = 0;
  // Within the GPU.
  [[nodiscard]] virtual Result<std::chrono::nanoseconds> device_copy(unsigned times) = 0;
  // By a kernel that only reads.
  [[nodiscard]] virtual Result<std::chrono::nanoseconds> device_read(unsigned times) = 0;

 protected:
  Ceilings() = default;
};

}  // namespace wsync::device
