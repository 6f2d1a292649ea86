// A stream with timed work.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "bench/harness/child.h"
#include "shared/base/error.h"
#include "shared/device/device.h"

namespace wsync::bench {

inline constexpr std::chrono::minutes kGpuWorkDeadline{2};

// Thread: one.
class TimedStream {
 public:
  // `device` outlives it.
  [[nodiscard]] static Result<TimedStream> create(device::Device& device, device::StreamRole role);
  // Calls the enqueue function `times` times, waits for the work, and returns the time from before
  // the first call until the last work is known to be complete. kDeadline after kGpuWorkDeadline.
  [[nodiscard]] Result<std::chrono::nanoseconds> run(
      unsigned times, const std::function<Result<>(device::Stream&)>& enqueue);

 private:
  TimedStream(std::unique_ptr<device::Stream> stream, std::unique_ptr<device::Event> event)
      : event_(std::move(event)), stream_(std::move(stream)) {}
  std::unique_ptr<device::Event> event_;
  std::unique_ptr<device::Stream> stream_;
};

}  // namespace wsync::bench
