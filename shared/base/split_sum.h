// SplitSum: the sum of a range of a tensor that may begin and end within words, as the columns of a
// matrix do that one rank holds. What WordSum says of a word holds only of the word as a whole. So
// the words that lie in the range are summed as they are, and those that its ends cut are summed
// apart, with zeros in place of the bytes that are not in the range. Both are additive.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shared/base/word_sum.h"

namespace wsync {

struct SplitSum {
  WordSum words;  // of the words that lie in the range as a whole
  WordSum edges;  // of the words that its ends cut
  SplitSum& operator+=(const SplitSum& part) noexcept {
    words += part.words;
    edges += part.edges;
    return *this;
  }
  friend bool operator==(const SplitSum&, const SplitSum&) = default;
};

// Where a range lies in its tensor.
struct RangePlace {
  std::uint64_t seed = 0;          // of the tensor
  std::uint64_t position = 0;      // of the first byte, anywhere
  std::uint64_t tensor_bytes = 0;  // its last word may be short, and is not cut by its end
};

[[nodiscard]] SplitSum split_sum(std::span<const std::byte> bytes,
                                 const RangePlace& place) noexcept;
// Copies as copy_streaming_sum() and returns the sum of the source.
[[nodiscard]] SplitSum copy_split_sum(std::span<std::byte> destination,
                                      std::span<const std::byte> source,
                                      const RangePlace& place) noexcept;

}  // namespace wsync
