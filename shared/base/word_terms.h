// The arithmetic of one word of a WordSum (word_sum.h), shared by the host and the kernels of GPUs.
// It consists of plain integer functions that both a C++ compiler and NVRTC accept. Pure; any
// thread.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define WSYNC_HOST_DEVICE __host__ __device__
#else
#define WSYNC_HOST_DEVICE
#endif

namespace wsync {

inline constexpr std::uint64_t kSumWordBytes = 8;
inline constexpr std::uint64_t kSumBlockBytes = 4096;
inline constexpr std::uint32_t kSumKeyCount =
    static_cast<std::uint32_t>(kSumBlockBytes / kSumWordBytes);

// The step of the state of splitmix64.
inline constexpr std::uint64_t kSplitmixStep = 0x9e3779b97f4a7c15;

// The output function of splitmix64: a bijection of 64 bits with full avalanche.
[[nodiscard]] WSYNC_HOST_DEVICE constexpr std::uint64_t splitmix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111eb;
  return x ^ (x >> 31U);
}

// The factor m(b) of a block; always odd.
[[nodiscard]] WSYNC_HOST_DEVICE constexpr std::uint64_t sum_factor(std::uint64_t seed,
                                                                   std::uint64_t block) noexcept {
  return splitmix(seed + (block + 1) * kSplitmixStep) | 1U;
}

// The contribution of a word to the product of its block.
[[nodiscard]] WSYNC_HOST_DEVICE constexpr std::uint64_t keyed_product(std::uint64_t word,
                                                                      std::uint64_t key) noexcept {
  const std::uint64_t keyed = word ^ key;
  return (keyed & 0xffffffffU) * (keyed >> 32U);
}

// The keys k of the words of a block. They have no arithmetic relation to each other: with keys in
// arithmetic progression, some pairs of flipped bits cancel.
struct alignas(64) SumKeys {
  std::uint64_t words[kSumKeyCount] = {};
};
[[nodiscard]] constexpr SumKeys make_sum_keys() noexcept {
  SumKeys keys;
  std::uint64_t state = 0x7773796e63;  // "wsync"
  for (std::uint64_t& word : keys.words) word = splitmix(state += kSplitmixStep);
  return keys;
}

}  // namespace wsync
