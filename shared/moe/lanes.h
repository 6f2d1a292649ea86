// Eight float32 side by side, for loops that compilers leave scalar. Nothing is contracted to a
// fused operation (CMakeLists.txt): the same inputs give the same bits whether a processor adds
// four at once or eight.
//
// The functions have no code of their own: they become part of their callers, which are compiled
// for the smallest processor and once more for one with AVX2 (WSYNC_FOR_AVX2) where there is such.
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

// Whether functions that are compiled for AVX2 can run here.
[[nodiscard]] inline bool has_avx2() noexcept {
#if defined(__x86_64__)
  static const bool there = __builtin_cpu_supports("avx2") != 0;
  return there;
#else
  return false;
#endif
}

// Vectors are passed by reference: by value, each kind of processor would do it in a way of its
// own.
[[gnu::always_inline]] inline void load_lanes(const float* from, Lanes& lanes) noexcept {
  std::memcpy(&lanes, from, sizeof lanes);
}
[[gnu::always_inline]] inline void store_lanes(const Lanes& lanes, float* to) noexcept {
  std::memcpy(to, &lanes, sizeof lanes);
}
// Eight bfloat16, from any address.
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
// One bfloat16 as it lies in memory, at any address.
struct Bf16 {
  std::byte bytes[2];
};
[[gnu::always_inline]] inline float widen_one(const std::byte* from) noexcept {
  std::uint16_t half = 0;
  std::memcpy(&half, from, sizeof half);
  return std::bit_cast<float>(std::uint32_t{half} << 16U);
}

}  // namespace wsync::moe
