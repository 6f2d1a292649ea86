#include "bench/schedule/metered_group.h"

#include <algorithm>
#include <ctime>

namespace wsync::bench {
namespace {

std::chrono::nanoseconds processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

Result<> MeteredGroup::exchange(std::span<const collective::Send> sends,
                                std::span<const collective::Receive> receives, TimePoint deadline) {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (const collective::Send& send : sends) sent += send.bytes.size();
  for (const collective::Receive& receive : receives) received += receive.bytes.size();
  Exchange one{.bytes = std::max(sent, received)};
  const std::chrono::nanoseconds worked = processor_time();
  one.time.begin = now();
  auto done = group_->exchange(sends, receives, deadline);
  one.time.end = now();
  one.processor = processor_time() - worked;
  exchanges_.push_back(one);
  return done;
}

}  // namespace wsync::bench
