#include "shared/device/cuda/bounce_ring.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"

namespace wsync::device::cuda {
namespace {

constexpr std::chrono::microseconds kReadPause{20};

}  // namespace

BounceRing::BounceRing(std::shared_ptr<const Context> context)
    : context_(std::move(context)), helpers_(kTogether - 1) {}

Result<std::unique_ptr<BounceRing>> BounceRing::make(
    const std::shared_ptr<const Context>& context) {
  std::unique_ptr<BounceRing> ring(new BounceRing(context));
  const ContextGuard guard(*context);
  WSYNC_TRY(guard.entered());
  ring->memory_ = WSYNC_TRY(allocate_pinned(context, ring->slots_.size() * kSlotBytes));
  auto* at = static_cast<std::byte*>(ring->memory_.get());
  for (Slot& slot : ring->slots_) {
    CUevent event = nullptr;
    WSYNC_TRY(check(context->cuda(), context->cuda().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING),
                    "an event of a pinned buffer cannot be created"));
    slot = {.at = std::exchange(at, at + kSlotBytes), .read = OwnedEvent(context, event)};
  }
  return ring;
}

Result<> BounceRing::copy(CUdeviceptr to, std::span<const std::byte> source, CUstream stream,
                          std::chrono::nanoseconds limit, const std::stop_token& stop) {
  const std::lock_guard lock(copying_);
  for (std::size_t done = 0; done < source.size();) {
    if (stop.stop_requested())
      return fail(ErrorCode::kCancelled,
                  fmt::format("copy stopped at byte {} of {}", done, source.size()));
    const auto part = source.subspan(done, std::min(source.size() - done, kTogether * kSlotBytes));
    // Small copies are divided among the threads, too. Copies to the device begin at cache lines.
    constexpr std::size_t kLine = 4096;
    const std::size_t share =
        ((part.size() + kTogether - 1) / kTogether + kLine - 1) / kLine * kLine;
    std::array<Result<>, kTogether> results;
    for_each_index(&helpers_, kTogether, [&](std::size_t i) {
      const std::size_t from = std::min(i * share, part.size());
      const auto own = part.subspan(from, std::min(share, part.size() - from));
      if (own.empty()) return;
      results[i] = pass(slots_[next_ * kTogether + i], to + done + from, own, stream, limit, stop);
    });
    for (const auto& result : results) WSYNC_TRY(result);
    next_ = 1 - next_;
    done += part.size();
  }
  return {};
}

Result<> BounceRing::pass(Slot& slot, CUdeviceptr to, std::span<const std::byte> part,
                          CUstream stream, std::chrono::nanoseconds limit,
                          const std::stop_token& stop) {
  const Driver& cuda = context_->cuda();
  const ContextGuard guard(*context_);
  WSYNC_TRY(guard.entered());
  WSYNC_TRY(until_read(slot, limit, stop));
  copy_streaming({slot.at, part.size()}, part);
  WSYNC_TRY(
      check(cuda, cuda.cuMemcpyHtoDAsync(to, slot.at, part.size(), stream), "a copy to the GPU"));
  return check(cuda, cuda.cuEventRecord(slot.read.get(), stream), "an event of a pinned buffer");
}

Result<> BounceRing::until_read(const Slot& slot, std::chrono::nanoseconds limit,
                                const std::stop_token& stop) const {
  const Driver& cuda = context_->cuda();
  for (const TimePoint begin = now();;) {
    const CUresult code = cuda.cuEventQuery(slot.read.get());
    if (code != CUDA_ERROR_NOT_READY) return check(cuda, code, "a copy to the GPU");
    if (stop.stop_requested())
      return fail(ErrorCode::kCancelled, "the stream was closed while the GPU read a buffer");
    if (now() - begin >= limit)
      context_->abandon(
          fmt::format("the GPU has not read a pinned buffer within {} s", seconds(limit)));
    if (context_->abandoned()) return fail(ErrorCode::kDeadline, context_->why_abandoned());
    std::this_thread::sleep_for(kReadPause);
  }
}

}  // namespace wsync::device::cuda
