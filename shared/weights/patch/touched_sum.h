// TouchedSum: a WordSum of single words, added one by one. Not thread-safe.
#pragma once

#include <cstdint>

#include "shared/base/word_sum.h"

namespace wsync::patch {

inline constexpr SumKeys kTouchedKeys = make_sum_keys();

class TouchedSum {
 public:
  // `seed` is that of the tensor.
  explicit TouchedSum(std::uint64_t seed) noexcept : seed_(seed) {}

  // Adds word number `index` of the tensor. Fastest in ascending order.
  void add(std::uint64_t word, std::uint64_t index) noexcept {
    if (const std::uint64_t block = index / kSumKeyCount; block != block_) {
      close();
      block_ = block;
    }
    product_ += keyed_product(word, kTouchedKeys.words[index % kSumKeyCount]);
    total_.sum += word;
  }
  // Adds words that were summed elsewhere.
  void add(const WordSum& sum) noexcept { total_ += sum; }
  [[nodiscard]] WordSum total() noexcept {
    close();
    return total_;
  }

 private:
  void close() noexcept {
    if (product_ != 0) total_.product += product_ * sum_factor(seed_, block_);
    product_ = 0;
  }
  std::uint64_t seed_;
  std::uint64_t block_ = 0;    // of 4 KiB
  std::uint64_t product_ = 0;  // of its words, without its factor
  WordSum total_;
};

}  // namespace wsync::patch
