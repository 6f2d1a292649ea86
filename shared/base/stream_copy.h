// Copies that bypass the caches and compute the sum of the bytes in the same loop (word_sum.h).
// Engines use them at a switch, and trainers for a snapshot. An ordinary copy of a whole model
// would evict everything else from the caches, and would read each destination line before writing
// it. Non-temporal stores avoid both. The sum is the same on every machine and for every kind of
// copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "shared/base/word_sum.h"

namespace wsync {

// How bytes are copied. All kinds give the same bytes and the same sum.
enum class CopyKind : std::uint8_t {
  kPortable,  // plain C++
  kAvx2,
  kAvx512,
};
// "portable", "avx2", "avx512".
[[nodiscard]] std::string_view copy_kind_name(CopyKind kind) noexcept;

// The kinds that this processor supports, slowest first. kPortable is always included.
[[nodiscard]] std::span<const CopyKind> available_copy_kinds() noexcept;
// Returns the last of available_copy_kinds(), the default of the functions below.
[[nodiscard]] CopyKind best_copy_kind() noexcept;

// All functions below accept any alignment; a destination aligned to 64 bytes is fastest.
// Destination and source have equal sizes and do not overlap. A store fence is issued before the
// call returns, so the bytes are visible to every thread that synchronises with this one in the
// usual way.

// Copies without a sum. This is the baseline for the other kinds of copy.
void copy_streaming(std::span<std::byte> destination, std::span<const std::byte> source,
                    CopyKind kind = best_copy_kind()) noexcept;
// Copies and returns the sum of the source, whose first byte lies at `place`. The source
// must not change during the call: if the destination's address and the position differ mod 64, it
// is read twice, 16 KiB at a time. Only the end of a tensor may cut a word.
[[nodiscard]] WordSum copy_streaming_sum(std::span<std::byte> destination,
                                         std::span<const std::byte> source, const SumPlace& place,
                                         CopyKind kind = best_copy_kind()) noexcept;
// Returns the same sum without copying.
[[nodiscard]] WordSum word_sum(std::span<const std::byte> bytes, const SumPlace& place,
                               CopyKind kind = best_copy_kind()) noexcept;

// The sum of rows of `row_bytes` bytes each, which follow one another in `rows` and lie `stride`
// bytes apart in what is summed. The first row lies at `first`. All are multiples of kSumWordBytes,
// but the last row of a tensor may end within its last word.
[[nodiscard]] WordSum word_sum_rows(std::span<const std::byte> rows, std::uint64_t row_bytes,
                                    std::uint64_t stride, const SumPlace& first,
                                    CopyKind kind = best_copy_kind()) noexcept;

}  // namespace wsync
