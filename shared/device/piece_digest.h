// PieceDigest: a digest of bytes in device memory that a GPU computes at memory speed, in any order
// and by any number of threads, and that the host computes to the same value. It finds bytes that
// changed, moved or were swapped by accident; it is no defence against somebody who chooses them.
//
// The bytes are cut into granules of 16 (the last one filled up with zeros). Granule i, read as two
// little-endian 64-bit words (a, b), counts
//
//   (a + k(i)) * (b + k'(i))  mod 2^128,   additions mod 2^64, the product in full,
//
// and the sum is over all granules, mod 2^128: the hash family NH (Black, Halevi, Krawczyk,
// Krovetz, Rogaway: UMAC, CRYPTO 1999, section 4.2), whose keys are made from the position: k(i) =
// splitmix64(i) (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014),
// k'(i) = rotl(k(i), 32) ^ 0x9e3779b97f4a7c15. The sum of parts is the sum of the whole, whatever
// the parts and their order. The length is mixed in at the end (finish_digest).
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

// `sum` plus `part`, mod 2^128.
[[nodiscard]] PieceDigest add(const PieceDigest& sum, const PieceDigest& part) noexcept;
// What `bytes` count that lie at `position` of what is digested, a multiple of kDigestGranule.
// Their number is one too, unless they are its end.
[[nodiscard]] PieceDigest digest_sum(std::span<const std::byte> bytes,
                                     std::uint64_t position) noexcept;
// The digest of `bytes` bytes whose granules have this sum.
[[nodiscard]] PieceDigest finish_digest(const PieceDigest& sum, std::uint64_t bytes) noexcept;
// All at once.
[[nodiscard]] PieceDigest piece_digest(std::span<const std::byte> bytes) noexcept;
// 64 bits of it, for messages that carry one number for each of many pieces.
[[nodiscard]] std::uint64_t fold(const PieceDigest& digest) noexcept;
// 32 hexadecimal digits.
[[nodiscard]] std::string to_string(const PieceDigest& digest);

}  // namespace wsync::device
