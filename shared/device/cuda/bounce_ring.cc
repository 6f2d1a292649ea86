#include "shared/device/cuda/bounce_ring.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"
#include "shared/device/cuda/poll_pause.h"

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
    slot = {.at = std::exchange(at, at + kSlotBytes), .done = OwnedEvent(context, event)};
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
    const Batch batch{.begin = done, .bytes = part.size(), .half = next_};
    std::array<Result<>, kTogether> results;
    for_each_index(&helpers_, kTogether, [&](std::size_t i) {
      const auto [from, bytes] = batch.share(i);
      if (bytes == 0) return;
      results[i] = pass(slots_[next_ * kTogether + i], to + done + from, part.subspan(from, bytes),
                        stream, limit, stop);
    });
    for (const auto& result : results) WSYNC_TRY(result);
    next_ = 1 - next_;
    done += part.size();
  }
  return {};
}

// Small copies are divided among the threads, too. Shares begin at whole pages.
std::pair<std::size_t, std::size_t> BounceRing::Batch::share(std::size_t slot) const {
  constexpr std::size_t kLine = 4096;
  const std::size_t each = ((bytes + kTogether - 1) / kTogether + kLine - 1) / kLine * kLine;
  const std::size_t from = std::min(slot * each, bytes);
  return {from, std::min(each, bytes - from)};
}

Result<> BounceRing::copy_back(std::span<std::byte> to, CUdeviceptr from, CUstream stream,
                               std::chrono::nanoseconds limit, const std::stop_token& stop) {
  const std::lock_guard lock(copying_);
  // One half is emptied while the GPU fills the other one.
  Batch last;
  for (std::size_t begin = 0; begin < to.size() || last.bytes > 0;) {
    const Batch next{.begin = begin,
                     .bytes = std::min(to.size() - begin, kTogether * kSlotBytes),
                     .half = next_};
    if (next.bytes > 0) WSYNC_TRY(fill(next, from, stream, limit, stop));
    if (last.bytes > 0) WSYNC_TRY(empty(last, to, limit, stop));
    last = next;
    begin += next.bytes;
    next_ = 1 - next_;
  }
  return {};
}

Result<> BounceRing::fill(const Batch& batch, CUdeviceptr from, CUstream stream,
                          std::chrono::nanoseconds limit, const std::stop_token& stop) {
  const Driver& cuda = context_->cuda();
  for (std::size_t i = 0; i < kTogether; ++i) {
    const auto [at, bytes] = batch.share(i);
    if (bytes == 0) continue;
    Slot& slot = slots_[batch.half * kTogether + i];
    WSYNC_TRY(until_done(slot, limit, stop));
    WSYNC_TRY(check(cuda, cuda.cuMemcpyDtoHAsync(slot.at, from + batch.begin + at, bytes, stream),
                    "a copy from the GPU"));
    WSYNC_TRY(
        check(cuda, cuda.cuEventRecord(slot.done.get(), stream), "an event of a pinned buffer"));
  }
  return {};
}

Result<> BounceRing::empty(const Batch& batch, std::span<std::byte> to,
                           std::chrono::nanoseconds limit, const std::stop_token& stop) {
  std::array<Result<>, kTogether> results;
  for_each_index(&helpers_, kTogether, [&](std::size_t i) {
    const auto [at, bytes] = batch.share(i);
    if (bytes == 0) return;
    const ContextGuard guard(*context_);
    const Slot& slot = slots_[batch.half * kTogether + i];
    results[i] = guard.entered();
    if (results[i]) results[i] = until_done(slot, limit, stop);
    if (results[i]) copy_streaming(to.subspan(batch.begin + at, bytes), {slot.at, bytes});
  });
  for (const auto& result : results) WSYNC_TRY(result);
  return {};
}

Result<> BounceRing::pass(Slot& slot, CUdeviceptr to, std::span<const std::byte> part,
                          CUstream stream, std::chrono::nanoseconds limit,
                          const std::stop_token& stop) {
  const Driver& cuda = context_->cuda();
  const ContextGuard guard(*context_);
  WSYNC_TRY(guard.entered());
  WSYNC_TRY(until_done(slot, limit, stop));
  copy_streaming({slot.at, part.size()}, part);
  WSYNC_TRY(
      check(cuda, cuda.cuMemcpyHtoDAsync(to, slot.at, part.size(), stream), "a copy to the GPU"));
  return check(cuda, cuda.cuEventRecord(slot.done.get(), stream), "an event of a pinned buffer");
}

Result<> BounceRing::until_done(const Slot& slot, std::chrono::nanoseconds limit,
                                const std::stop_token& stop) const {
  const Driver& cuda = context_->cuda();
  for (const TimePoint begin = now();;) {
    const CUresult code = cuda.cuEventQuery(slot.done.get());
    if (code != CUDA_ERROR_NOT_READY) return check(cuda, code, "a copy through a pinned buffer");
    if (stop.stop_requested())
      return fail(ErrorCode::kCancelled, "the stream was closed while the GPU used a buffer");
    const auto waited = now() - begin;
    if (waited >= limit)
      context_->abandon(
          fmt::format("the GPU has not used a pinned buffer within {} s", seconds(limit)));
    if (context_->abandoned()) return fail(ErrorCode::kDeadline, context_->why_abandoned());
    std::this_thread::sleep_for(poll_pause(waited, kReadPause));
  }
}

}  // namespace wsync::device::cuda
