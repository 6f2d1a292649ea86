// Whether a patch is worth making: it must have few bytes, and a rank must write it in less time
// than it loads everything. Both who makes a patch beside a snapshot and who compares held versions
// give up as soon as it is not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "shared/base/error.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/layout.h"

namespace wsync::patch {

// What it costs in the pause to write one value that changes alone, in bytes that a load of
// everything copies in the same time. In host memory its cache line is fetched and written back,
// and its word is summed twice: 1 % of the values of 1 GiB of BF16 took 0.6 of the time of all of
// it on two cores of an EPYC, which is 120 bytes a value.
inline constexpr std::uint64_t kHostValueCost = 120;
// On a GPU the host only reads the patch and makes words of it, several threads at once, and a load
// of everything is limited by the bus. This is an estimate: it was not measured on a GPU.
inline constexpr std::uint64_t kGpuValueCost = 100;
// A patch that has a larger share of the model's bytes is never made: it would save too little.
inline constexpr double kPatchShareMax = 0.07;

// Counts the blocks of a patch against both limits. Thread: any.
class PatchWorth {
 public:
  // `model_bytes`: of all tensors; `max_bytes`: of the patch; `value_cost`: as above.
  PatchWorth(std::uint64_t model_bytes, std::uint64_t max_bytes, std::uint64_t value_cost) noexcept;

  void add(const BlockView& block) noexcept;
  [[nodiscard]] bool is_exceeded() const noexcept {
    return bytes_ > max_bytes_ || cost_ > max_cost_;
  }
  // kRefused, with the limit, if a limit is exceeded.
  [[nodiscard]] Result<> check() const;

  // Bytes of a tensor in the base and in the target; std::nullopt if the target cannot be read yet.
  struct Pair {
    std::span<const std::byte> base;
    std::span<const std::byte> target;
  };
  using Read = std::function<std::optional<Pair>(std::uint32_t tensor, std::uint64_t at,
                                                 std::uint64_t bytes)>;
  // Estimates the whole patch from half a MiB from all over the model. kRefused if a limit will be
  // exceeded by far. A small model is not sampled.
  [[nodiscard]] Result<> sample(const Layout& layout, const Read& read) const;

 private:
  [[nodiscard]] std::uint64_t cost_of(const BlockView& block) const noexcept;
  std::uint64_t model_bytes_;
  std::uint64_t max_bytes_;
  std::uint64_t value_cost_;
  std::uint64_t max_cost_;
  std::atomic<std::uint64_t> bytes_ = 0;
  std::atomic<std::uint64_t> cost_ = 0;
};

}  // namespace wsync::patch
