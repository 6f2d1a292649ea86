// Every result is compared with the nearest of all values of the format, found by search.
#include "shared/weights/cast.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "shared/base/format.h"

namespace wsync {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class To, class From>
std::vector<To> converted(DType from, const std::vector<From>& values, DType to,
                          float scale = 1.0F) {
  std::vector<To> out(values.size());
  cast(from, bytes_of(values), to, std::as_writable_bytes(std::span(out)), scale);
  return out;
}

// The value of a number of `exponent` and `mantissa` bits, by the definition of the format.
double value_of(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto mantissa = static_cast<int>(bits & ((1U << mantissa_bits) - 1));
  const auto exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1));
  const double sign = ((bits >> (exponent_bits + mantissa_bits)) & 1U) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

// The nearest of `count` rising values to a magnitude; of two, the one with an even number.
std::uint32_t nearest(const std::vector<double>& rising, double magnitude) {
  const auto above = std::ranges::lower_bound(rising, magnitude);
  if (above == rising.begin()) return 0;
  if (above == rising.end()) return static_cast<std::uint32_t>(rising.size() - 1);
  const auto upper = static_cast<std::uint32_t>(above - rising.begin());
  const double up = rising[upper] - magnitude;
  const double down = magnitude - rising[upper - 1];
  if (up == down) return upper % 2 == 0 ? upper : upper - 1;
  return up < down ? upper : upper - 1;
}

std::vector<float> samples() {
  std::mt19937 random(7);
  std::vector<float> values = {0.0F,     -0.0F,      1.0F,       448.0F,    449.0F,   464.0F,
                               -480.0F,  65504.0F,   65519.99F,  65520.0F,  -1e30F,   0x1p-6F,
                               0x1p-9F,  0x1p-10F,   0x1.8p-10F, 0x1.8p-9F, 0x1p-14F, 0x1p-24F,
                               0x1p-25F, 0x1.8p-24F, 0x1.8p-25F, 0x1p-149F, 0x1p-126F};
  for (int i = 0; i < 200'000; ++i) {  // every exponent, and many ties
    std::uint32_t bits = static_cast<std::uint32_t>(random());
    if (i % 3 == 0) bits &= 0xfff80000U;
    if (i % 3 == 1) bits &= 0xfffff000U;
    const auto value = std::bit_cast<float>(bits);
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

TEST(Cast, EveryHalfIsTheFloatOfItsDefinition) {
  std::vector<std::uint16_t> all(1U << 16U);
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto of_bf16 = converted<float>(DType::kBF16, all, DType::kF32);
  const auto of_f16 = converted<float>(DType::kF16, all, DType::kF32);
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(of_bf16[i]), i << 16U);
    if ((i & 0x7c00U) != 0x7c00U) {
      ASSERT_EQ(of_f16[i], static_cast<float>(value_of(i, 5, 10))) << i;
    } else if ((i & 0x3ffU) == 0) {
      ASSERT_EQ(of_f16[i], (i & 0x8000U) != 0 ? -INFINITY : INFINITY);
    } else {
      ASSERT_TRUE(std::isnan(of_f16[i])) << i;
    }
    ASSERT_EQ(std::signbit(of_f16[i]), (i & 0x8000U) != 0) << i;
  }
  // And back, all but the NaNs.
  const auto bf16 = converted<std::uint16_t>(DType::kF32, of_bf16, DType::kBF16);
  const auto f16 = converted<std::uint16_t>(DType::kF32, of_f16, DType::kF16);
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(std::isnan(of_bf16[i]) || bf16[i] == i) << i;
    ASSERT_TRUE(std::isnan(of_f16[i]) || f16[i] == i) << i;
  }
}

TEST(Cast, EachValueBecomesTheNearestOneTiesToEven) {
  std::vector<double> f16;
  for (std::uint32_t i = 0; i < 0x7c00U; ++i) f16.push_back(value_of(i, 5, 10));
  f16.push_back(65536);  // where infinity would be, if it were a number
  std::vector<double> f8;
  for (std::uint32_t i = 0; i < 0x7fU; ++i) f8.push_back(value_of(i, 4, 3));
  ASSERT_EQ(f8.back(), kF8E4M3Max);
  const auto values = samples();
  const auto halves = converted<std::uint16_t>(DType::kF32, values, DType::kF16);
  const auto eights = converted<std::uint8_t>(DType::kF32, values, DType::kF8E4M3);
  const auto brains = converted<std::uint16_t>(DType::kF32, values, DType::kBF16);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t sign = std::signbit(values[i]) ? 1 : 0;
    const double magnitude = std::fabs(static_cast<double>(values[i]));
    ASSERT_EQ(halves[i], sign << 15U | nearest(f16, magnitude)) << values[i];
    ASSERT_EQ(eights[i], sign << 7U | nearest(f8, magnitude)) << values[i];
    // The two neighbours of a float among bfloat16 differ in its upper half.
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint32_t low = bits & 0xffffU;
    const std::uint32_t upper = bits >> 16U;
    const bool up = low > 0x8000U || (low == 0x8000U && upper % 2 == 1);
    ASSERT_EQ(brains[i], upper + (up ? 1 : 0)) << values[i];
  }
}

TEST(Cast, WhatIsNoNumberStaysSoAndInfinityIsTheLargest) {
  const float nan = std::bit_cast<float>(0x7f800001U);  // rounding would make an infinity of it
  const std::vector<float> values = {nan, -nan, INFINITY, -INFINITY};
  EXPECT_THAT(converted<std::uint8_t>(DType::kF32, values, DType::kF8E4M3),
              testing::ElementsAre(0x7f, 0xff, 0x7e, 0xfe));
  const auto brains = converted<std::uint16_t>(DType::kF32, values, DType::kBF16);
  EXPECT_THAT(brains, testing::ElementsAre(0x7fc0, 0xffc0, 0x7f80, 0xff80));
  const auto halves = converted<std::uint16_t>(DType::kF32, values, DType::kF16);
  EXPECT_THAT(halves, testing::ElementsAre(0x7e00, 0xfe00, 0x7c00, 0xfc00));
}

TEST(Cast, BetweenHalvesGoesThroughFloat) {
  std::vector<std::uint16_t> all;
  for (std::uint32_t i = 0; i < 0x7c00U; i += 3) all.push_back(static_cast<std::uint16_t>(i));
  const auto wide = converted<float>(DType::kF16, all, DType::kF32);
  EXPECT_EQ(converted<std::uint16_t>(DType::kF16, all, DType::kBF16),
            converted<std::uint16_t>(DType::kF32, wide, DType::kBF16));
  EXPECT_EQ(converted<std::uint8_t>(DType::kF16, all, DType::kF8E4M3, 0.75F),
            converted<std::uint8_t>(DType::kF32, wide, DType::kF8E4M3, 0.75F));
}

TEST(Cast, EveryLengthAndAlignment) {
  std::vector<float> values(700);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.37F - 90;
  const auto expected = converted<std::uint16_t>(DType::kF32, values, DType::kBF16);
  std::vector<std::byte> in(values.size() * 4 + 1);
  std::memcpy(in.data() + 1, values.data(), values.size() * 4);
  for (const std::size_t n : {0UL, 1UL, 127UL, 128UL, 129UL, 700UL}) {
    std::vector<std::byte> out(n * 2 + 3, std::byte{0x77});
    cast(DType::kF32, std::span(in).subspan(1, n * 4), DType::kBF16,
         std::span(out).subspan(1, n * 2));
    EXPECT_EQ(std::memcmp(out.data() + 1, expected.data(), n * 2), 0) << n;
    EXPECT_EQ(out[0], std::byte{0x77});
    EXPECT_EQ(out[n * 2 + 1], std::byte{0x77}) << "bytes after the last element";
  }
}

TEST(Cast, AWideningIsUndoneBitForBit) {
  std::vector<std::uint16_t> all(1U << 16U);
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const DType narrow : {DType::kBF16, DType::kF16}) {
    EXPECT_TRUE(is_exact_cast(narrow, DType::kF32));
    EXPECT_FALSE(is_exact_cast(DType::kF32, narrow));
    auto wide = converted<float>(narrow, all, DType::kF32);
    std::vector<std::uint16_t> back(all.size());
    const auto out = std::as_writable_bytes(std::span(back));
    EXPECT_TRUE(cast_back(DType::kF32, bytes_of(wide), narrow, out));
    EXPECT_EQ(back, all) << dtype_name(narrow);  // all NaNs too
    // The smallest change that rounding would hide.
    for (const std::size_t at : {std::size_t{0}, std::size_t{0x3c00}, std::size_t{0x7fff}}) {
      auto changed = wide;
      std::uint32_t bits = 0;
      std::memcpy(&bits, &changed[at], sizeof bits);
      bits ^= 1U;
      std::memcpy(&changed[at], &bits, sizeof bits);
      EXPECT_FALSE(cast_back(DType::kF32, bytes_of(changed), narrow, out)) << at;
    }
  }
  EXPECT_FALSE(is_exact_cast(DType::kF16, DType::kBF16));
  EXPECT_FALSE(is_exact_cast(DType::kBF16, DType::kF16));
}

TEST(Cast, LargestMagnitude) {
  std::vector<float> values(1000, 0.25F);
  EXPECT_EQ(largest_magnitude(DType::kF32, bytes_of(values)), 0.25F);
  values[777] = -3.5F;
  EXPECT_EQ(largest_magnitude(DType::kF32, bytes_of(values)), 3.5F);
  EXPECT_EQ(largest_magnitude(DType::kBF16, bytes_of(converted<std::uint16_t>(DType::kF32, values,
                                                                              DType::kBF16))),
            3.5F);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(largest_magnitude(DType::kF32, bytes_of(values))));
  EXPECT_EQ(largest_magnitude(DType::kF32, {}), 0.0F);
}

TEST(Cast, TellsWhatItConverts) {
  EXPECT_TRUE(can_cast(DType::kI64, DType::kI64));
  EXPECT_TRUE(can_cast(DType::kBF16, DType::kF8E4M3));
  EXPECT_FALSE(can_cast(DType::kF8E4M3, DType::kF32));
  EXPECT_FALSE(can_cast(DType::kF64, DType::kF32));
  EXPECT_FALSE(can_cast(DType::kF32, DType::kF8E5M2));
}

}  // namespace
}  // namespace wsync
