// Copies that bypass the caches and compute a checksum in the same loop. Engines use them at a
// switch. An ordinary copy of a whole model would evict everything else from the caches, and would
// read each destination line before writing it. Non-temporal stores avoid both.
//
// The checksum has 64 bits and is the same on every machine and for every kind of copy:
//   words    the input, zero-padded to a multiple of 64 bytes, as little-endian 64-bit words;
//            w(s, i) is word i = 0..7 of stripe s
//   keys     k(s, i), fixed random numbers that repeat after a block of 64 stripes
//   streams  block b belongs to stream b mod 4; four blocks are read side by side, which hides the
//            latency of memory
//   lanes    of each stream: product[i] += low32(w ^ k) * high32(w ^ k)   and   sum[i] += w   for
//            each stripe; after each whole block a bijection scrambles the products of its stream,
//            so that the order of blocks affects the value
//   value    the 16 lanes of each stream, then the streams and the length in bytes, which a
//            bijective mixer folds one after the other
// The sum detects every change of a single word. The keyed product detects words that change
// places. The checksum detects accidents, not attackers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace wsync {

// How bytes are copied. All kinds give the same bytes and the same checksum.
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

// Copies without a checksum. This is the baseline for the other kinds of copy.
void copy_streaming(std::span<std::byte> destination, std::span<const std::byte> source,
                    CopyKind kind = best_copy_kind()) noexcept;
// Copies and returns the checksum of the source. The source must not change during the call: with
// an unaligned destination it is read twice, 16 KiB at a time.
[[nodiscard]] std::uint64_t copy_streaming_checksum(std::span<std::byte> destination,
                                                    std::span<const std::byte> source,
                                                    CopyKind kind = best_copy_kind()) noexcept;
// Returns the same checksum without copying.
[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes,
                                     CopyKind kind = best_copy_kind()) noexcept;

}  // namespace wsync
