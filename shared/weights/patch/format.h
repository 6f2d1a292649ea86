// Constants of the format of patches (README.md), and its varints.
//
// A varint is an unsigned number in groups of seven bits, the lowest first; the highest bit of each
// byte says whether another one follows. It is as short as possible: only 0 ends with a zero byte.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "shared/base/bytes.h"
#include "shared/base/planted.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"

namespace wsync::patch {

inline constexpr std::uint32_t kFormatVersion = 1;
inline constexpr std::uint32_t kIndexMagic = 0x58505357;  // "WSPX"
inline constexpr std::uint64_t kBlockBytes = 256 * limits::kKiB;
inline constexpr std::uint64_t kSumBytes = 32;  // of the two sums of a block
// Bytes of a bucket that every block fits into: its values, and its entry in the directory.
inline constexpr std::uint64_t kEntryBytesMax = kSumBytes + 20;
inline constexpr std::uint64_t kBucketCountMax =
    limits::kModelBytesMax / limits::kBucketBytesMin * 2;

static_assert(kBlockBytes + kEntryBytesMax <= limits::kBucketBytesMin, "a bucket holds any block");
static_assert(limits::kLeafBytes % kBlockBytes == 0, "a leaf consists of whole blocks");

inline constexpr std::uint64_t kVarintBytesMax = 10;

[[nodiscard]] inline std::uint64_t varint_bytes(std::uint64_t value) noexcept {
  std::uint64_t bytes = 1;
  while (value >= 0x80) {
    value >>= 7U;
    ++bytes;
  }
  return bytes;
}

// Writes the number to `to`, which has room for it, and returns the end of it.
inline std::byte* put_varint(std::byte* to, std::uint64_t value) noexcept {
  const std::uint64_t last = planted("patch_miscounts_a_varint") ? 0x80 : 0x7f;
  while (value > last) {
    *to++ = static_cast<std::byte>((value & 0x7fU) | 0x80U);
    value >>= 7U;
  }
  *to++ = static_cast<std::byte>(value);
  return to;
}

// The same where there is room for kVarintBytesMax, without a branch that depends on a small
// number.
inline std::byte* put_short_varint(std::byte* to, std::uint64_t value) noexcept {
  if (value >= 0x4000) return put_varint(to, value);
  const std::uint64_t two = value >= 0x80 ? 1 : 0;
  to[0] = static_cast<std::byte>((value & 0x7fU) | two << 7U);
  to[1] = static_cast<std::byte>(value >> 7U);
  return to + 1 + two;
}

inline void put_varint(Bytes& to, std::uint64_t value) {
  std::byte buffer[kVarintBytesMax];
  to.insert(to.end(), buffer, put_varint(buffer, value));
}

// Takes a number of at most `max` from the front of `bytes`. Returns std::nullopt if they end
// within it, if it is longer than it has to be, or larger.
[[nodiscard]] inline std::optional<std::uint64_t> take_varint(std::span<const std::byte>& bytes,
                                                              std::uint64_t max) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size() && i < kVarintBytesMax; ++i) {
    const auto byte = static_cast<std::uint64_t>(bytes[i]);
    const std::uint64_t bits = byte & 0x7fU;
    const unsigned shift = 7 * static_cast<unsigned>(i);
    if (bits << shift >> shift != bits) return std::nullopt;
    value |= bits << shift;
    if (byte >= 0x80) continue;
    if ((i != 0 && byte == 0) || value > max) return std::nullopt;
    bytes = bytes.subspan(i + 1);
    return value;
  }
  return std::nullopt;
}

}  // namespace wsync::patch
