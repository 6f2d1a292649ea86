// Copies that go past the caches, with a checksum fused into their loop: what engines run at a
// switch. A copy of a whole model would evict everything else and read each destination line before
// writing it; non-temporal stores do neither.
//
// The checksum (64 bits; the same value on every machine and for every way of copying):
//   words    the input, zero-padded to a multiple of 64 bytes, as little-endian 64-bit words;
//            w(s, i) is word i = 0..7 of stripe s
//   keys     k(s, i), fixed random numbers that repeat after a block of 64 stripes
//   streams  block b belongs to stream b mod 4; four blocks are read side by side, which hides the
//            latency of memory
//   lanes    of each stream: product[i] += low32(w ^ k) * high32(w ^ k)   and   sum[i] += w   for
//            each stripe; after each whole block its stream's products are scrambled by a
//            bijection, so that the order of blocks counts
//   value    the 16 lanes of each stream, then the streams and the length in bytes, folded by a
//            bijective mixer one after the other
// The sum sees every change of one word for certain; the keyed product sees what moves words
// around. It detects accidents, not attackers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace wsync {

// How bytes are moved. All ways give the same bytes and the same checksum.
enum class CopyKind : std::uint8_t {
  kPortable,  // plain C++
  kAvx2,
  kAvx512,
};
// "portable", "avx2", "avx512".
[[nodiscard]] std::string_view copy_kind_name(CopyKind kind) noexcept;

// The kinds that this processor can run, slowest first; kPortable is always among them.
[[nodiscard]] std::span<const CopyKind> available_copy_kinds() noexcept;
// The last of available_copy_kinds(): what the functions below use by default.
[[nodiscard]] CopyKind best_copy_kind() noexcept;

// For all: any alignment; destination and source have equal sizes and do not overlap; when the call
// returns, the bytes are visible to every thread that is told so in the usual way (a store fence
// has been issued). A destination aligned to 64 bytes is fastest.

// Copies without a checksum: the floor that other ways are measured against.
void copy_streaming(std::span<std::byte> destination, std::span<const std::byte> source,
                    CopyKind kind = best_copy_kind()) noexcept;
// Copies and returns the checksum of the source, computed on the way. The source must not change
// meanwhile: with an unaligned destination it is read twice, 16 KiB at a time.
[[nodiscard]] std::uint64_t copy_streaming_checksum(std::span<std::byte> destination,
                                                    std::span<const std::byte> source,
                                                    CopyKind kind = best_copy_kind()) noexcept;
// The same checksum without copying.
[[nodiscard]] std::uint64_t checksum(std::span<const std::byte> bytes,
                                     CopyKind kind = best_copy_kind()) noexcept;

}  // namespace wsync
