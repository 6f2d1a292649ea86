// Float formats of weights, and the conversion of one value between them, shared by the host and
// the kernels of GPUs. It consists of functions without branches on the bits of values that both a
// C++ compiler and NVRTC accept. shared/weights/cast.h describes the rounding. Pure; any thread.
#pragma once

#include <cstdint>

#include "shared/base/word_terms.h"

// The loops of the host are vectors only if the functions are inlined into them.
#ifdef __CUDACC__
#define WSYNC_INLINED WSYNC_HOST_DEVICE inline
#else
#define WSYNC_INLINED [[gnu::always_inline]] inline
#endif

namespace wsync {

// kF8E4M3 can only be converted into.
enum class FloatFormat : std::uint8_t { kF32, kF16, kBF16, kF8E4M3 };

WSYNC_HOST_DEVICE constexpr std::uint32_t float_bytes(FloatFormat format) noexcept {
  return format == FloatFormat::kF32 ? 4 : format == FloatFormat::kF8E4M3 ? 1 : 2;
}

// A conversion of elements; none if both formats are the same.
struct FloatCast {
  FloatFormat from = FloatFormat::kF32;
  FloatFormat to = FloatFormat::kF32;
  [[nodiscard]] WSYNC_HOST_DEVICE constexpr bool is_none() const noexcept { return from == to; }
  // The size of what becomes of `bytes` bytes, which are whole elements.
  [[nodiscard]] WSYNC_HOST_DEVICE constexpr std::uint64_t converted(
      std::uint64_t bytes) const noexcept {
    return is_none() ? bytes : bytes / float_bytes(from) * float_bytes(to);
  }
  friend bool operator==(const FloatCast&, const FloatCast&) = default;
};

namespace float_formats {

inline constexpr std::uint32_t kSign = 0x80000000U;
inline constexpr std::uint32_t kF8E4M3MaxBits = 0x43e00000U;  // 448

WSYNC_INLINED float value_of(std::uint32_t bits) noexcept {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

WSYNC_INLINED std::uint32_t bits_of(float value) noexcept {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(std::uint32_t, value);
#endif
}

WSYNC_INLINED std::uint32_t select(bool which, std::uint32_t yes, std::uint32_t no) noexcept {
  return which ? yes : no;
}

// Rounds to kBits bits of mantissa and drops the other bits. The exponent keeps the float's bias.
template <unsigned kBits>
WSYNC_INLINED std::uint32_t round_mantissa(std::uint32_t magnitude) noexcept {
  constexpr unsigned kDrop = 23 - kBits;
  constexpr std::uint32_t kHalf = (1U << (kDrop - 1)) - 1U;
  return (magnitude + kHalf + ((magnitude >> kDrop) & 1U)) >> kDrop;
}

}  // namespace float_formats

// Each function takes or returns the bits of an F32.

WSYNC_INLINED std::uint32_t from_bf16(std::uint16_t x) noexcept {
  return static_cast<std::uint32_t>(x) << 16U;
}

WSYNC_INLINED std::uint16_t to_bf16(std::uint32_t x) noexcept {
  const std::uint32_t rounded = (x + 0x7fffU + ((x >> 16U) & 1U)) >> 16U;
  // A NaN keeps its upper bits and is made quiet, because rounding might turn it into an infinity.
  const std::uint32_t nan = (x >> 16U) | 0x40U;
  return static_cast<std::uint16_t>(
      float_formats::select((x & ~float_formats::kSign) > 0x7f800000U, nan, rounded));
}

WSYNC_INLINED std::uint32_t from_f16(std::uint16_t half) noexcept {
  namespace f = float_formats;
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16U;
  const std::uint32_t magnitude = half & 0x7fffU;
  // The exponent's bias is 15 instead of 127. A subnormal is a multiple of 2^-24.
  const std::uint32_t normal = (magnitude << 13U) + ((127U - 15U) << 23U);
  const std::uint32_t special = (magnitude << 13U) | 0x7f800000U;
  const std::uint32_t subnormal =
      f::bits_of(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24F);
  const std::uint32_t finite = f::select(magnitude < 0x400U, subnormal, normal);
  return sign | f::select(magnitude >= 0x7c00U, special, finite);
}

WSYNC_INLINED std::uint16_t to_f16(std::uint32_t x) noexcept {
  namespace f = float_formats;
  const std::uint32_t sign = (x & f::kSign) >> 16U;
  const std::uint32_t magnitude = x & ~f::kSign;
  const std::uint32_t normal = f::round_mantissa<10>(magnitude) - ((127U - 15U) << 10U);
  // Added to 0.5, whose last bit is worth 2^-24, a value below 2^-14 is rounded to the multiples of
  // the smallest subnormal.
  const std::uint32_t subnormal = f::bits_of(f::value_of(magnitude) + 0.5F) - 0x3f000000U;
  std::uint32_t half = f::select(magnitude < 0x38800000U, subnormal, normal);  // 2^-14
  half = f::select(magnitude >= 0x477ff000U, 0x7c00U, half);                   // 65520
  half = f::select(magnitude > 0x7f800000U, 0x7e00U | ((magnitude >> 13U) & 0x3ffU), half);
  return static_cast<std::uint16_t>(sign | half);
}

WSYNC_INLINED std::uint8_t to_f8e4m3(std::uint32_t x) noexcept {
  namespace f = float_formats;
  const std::uint32_t sign = (x & f::kSign) >> 24U;
  const std::uint32_t magnitude = x & ~f::kSign;
  const std::uint32_t limited =
      f::select(magnitude > f::kF8E4M3MaxBits, f::kF8E4M3MaxBits, magnitude);
  const std::uint32_t normal = f::round_mantissa<3>(limited) - ((127U - 7U) << 3U);
  // As in to_f16(): the last bit of 2^14 is worth 2^-9, the smallest subnormal.
  const std::uint32_t subnormal = f::bits_of(f::value_of(limited) + 0x1p14F) - f::bits_of(0x1p14F);
  std::uint32_t byte = f::select(limited < 0x3c800000U, subnormal, normal);  // 2^-6
  byte = f::select(magnitude > 0x7f800000U, 0x7fU, byte);
  return static_cast<std::uint8_t>(sign | byte);
}

// An element of any format but kF8E4M3 as the bits of an F32. `element` has float_bytes(format)
// valid bytes, the others are ignored.
WSYNC_INLINED std::uint32_t read_float(FloatFormat format, std::uint32_t element) noexcept {
  if (format == FloatFormat::kF32) return element;
  const auto half = static_cast<std::uint16_t>(element);
  return format == FloatFormat::kF16 ? from_f16(half) : from_bf16(half);
}

// The element of the format that is nearest to the F32 with these bits.
WSYNC_INLINED std::uint32_t write_float(FloatFormat format, std::uint32_t bits) noexcept {
  if (format == FloatFormat::kF32) return bits;
  if (format == FloatFormat::kF8E4M3) return to_f8e4m3(bits);
  return format == FloatFormat::kF16 ? to_f16(bits) : to_bf16(bits);
}

}  // namespace wsync
