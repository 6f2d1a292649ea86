// BucketTaker: where the buckets of a load lie, and how a rank's bytes get from there to their
// destinations. One for host memory, one for the memory of a GPU (device_weights.h).
//
// Thread: confined to the thread that serves the link.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "inference_side/reload/load_plan.h"
#include "shared/base/clock.h"
#include "shared/base/shared_memory.h"
#include "shared/base/unique_fd.h"

namespace wsync::engine {

// What is to be taken of one bucket. Borrowed for the call.
struct BucketCopy {
  const reload::LoadPlan* plan = nullptr;
  std::uint64_t bucket = 0;
  TimePoint deadline;
  // The rank's whole tensor. Not asked for where the taker knows it.
  std::function<std::span<std::byte>(std::uint32_t tensor)> destination;
  // Group `index` of the plan lies in place, with this checksum. In the plan's order; an error ends
  // the copy.
  std::function<Result<>(std::size_t index, std::uint64_t checksum)> on_group;
};

class BucketTaker {
 public:
  virtual ~BucketTaker() = default;
  BucketTaker(const BucketTaker&) = delete;
  BucketTaker& operator=(const BucketTaker&) = delete;

  // The buffers that it has, and the size of one.
  [[nodiscard]] virtual std::uint32_t slots() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t slot_bytes(std::uint32_t slot) const noexcept = 0;
  // Copies every group of the bucket in buffer `slot`, which holds it whole. When it returns, also
  // with an error, nothing reads the buffer any more. kDeadline when the time is up, else the first
  // error of on_group, or of the device.
  [[nodiscard]] virtual Result<> take(std::uint32_t slot, const BucketCopy& copy) = 0;

 protected:
  BucketTaker() = default;
};

class HostTaker final : public BucketTaker {
 public:
  // Borrowed buffers.
  explicit HostTaker(std::vector<std::span<const std::byte>> slots) : slots_(std::move(slots)) {}
  // Maps two memfds of sealed size, `bytes` of each. kRefused, naming what is wrong with them.
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
