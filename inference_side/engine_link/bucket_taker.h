// BucketTaker: the device buffers in which the buckets of a load arrive, and the copy of a rank's
// bytes from there to their destinations. One implementation is for host memory, another for GPU
// memory (device_weights.h).
//
// Thread: confined to the thread that serves the link.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "inference_side/engine_link/destination.h"
#include "inference_side/reload/load_plan.h"
#include "shared/base/clock.h"
#include "shared/base/shared_memory.h"
#include "shared/base/unique_fd.h"

namespace wsync::engine {

// What to copy out of one bucket. Borrowed for the call.
struct BucketCopy {
  const reload::LoadPlan* plan = nullptr;
  std::uint64_t bucket = 0;
  TimePoint deadline;
  // The memory of the rank's part of a tensor. Not called if the taker knows it.
  std::function<Destination(std::uint32_t tensor)> destination;
  // Called in the order of the plan when group `index` is in place, with the sum of what was read.
  // An error ends the copy.
  std::function<Result<>(std::size_t index, const SplitSum& sum)> on_group;
};

class BucketTaker {
 public:
  virtual ~BucketTaker() = default;
  BucketTaker(const BucketTaker&) = delete;
  BucketTaker& operator=(const BucketTaker&) = delete;

  // The number of buffers, and the size of one in bytes.
  [[nodiscard]] virtual std::uint32_t slots() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t slot_bytes(std::uint32_t slot) const noexcept = 0;
  // Copies every group of the bucket in buffer `slot`, which must be complete. When it returns,
  // even with an error, nothing reads the buffer any more. Returns kDeadline if the deadline has
  // passed, otherwise the first error of on_group or of the device.
  [[nodiscard]] virtual Result<> take(std::uint32_t slot, const BucketCopy& copy) = 0;

 protected:
  BucketTaker() = default;
};

class HostTaker final : public BucketTaker {
 public:
  // The buffers are borrowed.
  explicit HostTaker(std::vector<std::span<const std::byte>> slots) : slots_(std::move(slots)) {}
  // Maps two memfds of sealed size, `bytes` each. Returns kRefused, with the defect, if they are
  // not valid.
  [[nodiscard]] static Result<std::unique_ptr<BucketTaker>> map(std::span<const UniqueFd> fds,
                                                                std::uint64_t bytes);

  [[nodiscard]] std::uint32_t slots() const noexcept override {
    return static_cast<std::uint32_t>(slots_.size());
  }
  [[nodiscard]] std::uint64_t slot_bytes(std::uint32_t slot) const noexcept override {
    return slots_[slot].size();
  }
  [[nodiscard]] Result<> take(std::uint32_t slot, const BucketCopy& copy) override;

 private:
  HostTaker() = default;
  std::vector<std::span<const std::byte>> slots_;
  std::vector<MappedRegion> mapped_;
  reload::CopyScratch scratch_;
};

}  // namespace wsync::engine
