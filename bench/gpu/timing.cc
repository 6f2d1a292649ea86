#include "bench/gpu/timing.h"

namespace wsync::bench {

Result<TimedStream> TimedStream::create(device::Device& device, device::StreamRole role) {
  auto stream = WSYNC_TRY(device.create_stream(role));
  auto event = WSYNC_TRY(device.create_event());
  return TimedStream(std::move(stream), std::move(event));
}

Result<std::chrono::nanoseconds> TimedStream::run(
    unsigned times, const std::function<Result<>(device::Stream&)>& enqueue) {
  const TimePoint begin = now();
  for (unsigned i = 0; i < times; ++i) WSYNC_TRY(enqueue(*stream_));
  WSYNC_TRY(stream_->record(*event_));
  WSYNC_TRY(event_->wait(begin + kGpuWorkDeadline));
  return now() - begin;
}

}  // namespace wsync::bench
