// Random bytes, and whether bytes are the same. Tests are compiled without the optimizer, where a
// loop over the bytes of a model takes most of the time of its test.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>

namespace wsync {

// Fills `bytes` with the next numbers of `random`, eight bytes from each.
inline void fill_random(std::mt19937_64& random, std::span<std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

// Whether both have the same number of bytes, and the same bytes.
inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace wsync
