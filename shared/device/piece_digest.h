// PieceDigest: a digest of bytes in device memory. A GPU computes it at memory speed, in any order
// and with any number of threads, and the host computes the same value. It detects bytes that were
// changed, moved or swapped by accident. It does not protect against an attacker who chooses the
// bytes.
//
// The bytes are divided into granules of 16; the last one is padded with zeros. Granule i, read as
// two little-endian 64-bit words (a, b), contributes
//
//    (a + k(i)) * (b + k'(i))  mod 2^128,   additions mod 2^64, the product in full,
//
// and the sum is over all granules, mod 2^128. This is the hash family NH (Black, Halevi, Krawczyk,
// Krovetz, Rogaway: UMAC, CRYPTO 1999, section 4.2) with keys derived from the position: k(i) =
// splitmix64(i) (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014),
// k'(i) = rotl(k(i), 32) ^ 0x9e3779b97f4a7c15. The sum of the parts equals the sum of the whole,
// for any partition and order. finish_digest() mixes in the length.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace wsync::device {

inline constexpr std::uint64_t kDigestGranule = 16;

struct PieceDigest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const PieceDigest&, const PieceDigest&) = default;
};

// Returns `sum` plus `part`, mod 2^128.
[[nodiscard]] PieceDigest add(const PieceDigest& sum, const PieceDigest& part) noexcept;
// Returns the contribution of `bytes` at offset `position` of the digested bytes, a multiple of
// kDigestGranule. The number of bytes must also be a multiple, except at the end of the digested
// bytes.
[[nodiscard]] PieceDigest digest_sum(std::span<const std::byte> bytes,
                                     std::uint64_t position) noexcept;
// Returns the digest of `bytes` bytes whose granules have this sum.
[[nodiscard]] PieceDigest finish_digest(const PieceDigest& sum, std::uint64_t bytes) noexcept;
// Computes the digest of `bytes` in one call.
[[nodiscard]] PieceDigest piece_digest(std::span<const std::byte> bytes) noexcept;
// Returns 64 bits of the digest, for messages that carry one number for each of many pieces.
[[nodiscard]] std::uint64_t fold(const PieceDigest& digest) noexcept;
// Returns 32 hexadecimal digits.
[[nodiscard]] std::string to_string(const PieceDigest& digest);

}  // namespace wsync::device
