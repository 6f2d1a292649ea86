// Finds the bytes in which two ranges of memory differ, at about the speed of memory where they are
// equal, and sums one of them meanwhile. Bytes are compared as bits. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "shared/base/stream_copy.h"
#include "shared/base/word_sum.h"

namespace wsync::patch {

inline constexpr std::size_t kStripeBytes = 64;
inline constexpr std::size_t kDifferenceBytes = 4096;
// So many chunks are read at the same time. That is faster than one after the other, because more
// lines of memory are on their way.
inline constexpr std::size_t kChunksAtOnce = 4;

// How two chunks of kDifferenceBytes differ.
struct ChunkDifference {
  // One for each stripe of 64 bytes. Bit i says whether its byte i differs. Not specified if
  // `stripes` is 0.
  std::array<std::uint64_t, kDifferenceBytes / kStripeBytes> masks{};
  std::uint64_t stripes = 0;  // bit i says whether stripe i differs
  // The sum of the words of the second chunk, without the factor of a block: the caller multiplies
  // the product.
  WordSum second;
};

// Compares as many chunks as `found` has, which lie one after the other at both addresses. These
// may have any alignment. All kinds give the same.
void find_differences(const std::byte* a, const std::byte* b, std::span<ChunkDifference> found,
                      CopyKind kind = best_copy_kind()) noexcept;

}  // namespace wsync::patch
