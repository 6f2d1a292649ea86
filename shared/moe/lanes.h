// Vectors of eight float32, for loops that compilers do not vectorize. Multiplication and addition
// are never fused (CMakeLists.txt), so that the same inputs give the same bits whether a processor
// adds four elements at once or eight.
//
// The functions are always inlined into their callers. Callers are compiled twice where AVX2
// exists: for the baseline processor and for AVX2 (WSYNC_FOR_AVX2).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#define WSYNC_FOR_AVX2 [[gnu::target("avx2")]]
#else
#define WSYNC_FOR_AVX2
#endif

namespace wsync::moe {

using Lanes [[gnu::vector_size(32)]] = float;
inline constexpr std::size_t kLanes = sizeof(Lanes) / sizeof(float);

// Returns true if this processor can run functions that are compiled for AVX2.
[[nodiscard]] inline bool has_avx2() noexcept {
#if defined(__x86_64__)
  static const bool there = __builtin_cpu_supports("avx2") != 0;
  return there;
#else
  return false;
#endif
}

// Vectors are passed by reference because the calling convention for vectors by value depends on
// the processor options.
[[gnu::always_inline]] inline void load_lanes(const float* from, Lanes& lanes) noexcept {
  std::memcpy(&lanes, from, sizeof lanes);
}
[[gnu::always_inline]] inline void store_lanes(const Lanes& lanes, float* to) noexcept {
  std::memcpy(to, &lanes, sizeof lanes);
}
// Widens eight bfloat16; `from` needs no alignment.
[[gnu::always_inline]] inline void widen_lanes(const std::byte* from, Lanes& lanes) noexcept {
  using Halves [[gnu::vector_size(16)]] = std::uint16_t;
  using Words [[gnu::vector_size(32)]] = std::uint32_t;
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  const Words words = __builtin_convertvector(halves, Words) << 16U;
  std::memcpy(&lanes, &words, sizeof lanes);
}
[[gnu::always_inline]] inline float sum_of(const Lanes& lanes) noexcept {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}
// One bfloat16 in memory; needs no alignment.
struct Bf16 {
  std::byte bytes[2];
};
[[gnu::always_inline]] inline float widen_one(const std::byte* from) noexcept {
  std::uint16_t half = 0;
  std::memcpy(&half, from, sizeof half);
  return std::bit_cast<float>(std::uint32_t{half} << 16U);
}

}  // namespace wsync::moe
