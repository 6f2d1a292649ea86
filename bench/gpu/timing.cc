#include "bench/gpu/timing.h"

namespace wsync::bench {

Result<TimedStream> TimedStream::create(device::Device& device, device::StreamRole role) {
  auto stream = device.create_stream(role);
  if (!stream) return fail(std::move(stream).error());
  auto event = device.create_event();
  if (!event) return fail(std::move(event).error());
  return TimedStream(std::move(*stream), std::move(*event));
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
