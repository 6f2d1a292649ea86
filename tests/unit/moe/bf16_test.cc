// Products with bfloat16 weights are those with the same weights in float32.
#include "shared/moe/bf16.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

namespace wsync::moe {
namespace {

// Bytes of bfloat16 values from `offset` on, and the same values as float32.
struct Weights {
  Weights(std::size_t rows, std::size_t columns, std::size_t offset = 0)
      : bytes(offset + rows * columns * kBf16Bytes),
        matrix(std::span(bytes).subspan(offset), rows, columns) {
    std::mt19937 random(static_cast<unsigned>(rows * 31 + columns));
    for (std::size_t i = 0; i < rows * columns; ++i) {
      const auto value = static_cast<float>(static_cast<int>(random() % 255) - 127) / 64.0F;
      const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U);
      std::memcpy(bytes.data() + offset + i * kBf16Bytes, &bits, sizeof bits);
      values.push_back(std::bit_cast<float>(std::uint32_t{bits} << 16U));
    }
  }
  std::vector<std::byte> bytes;
  std::vector<float> values;
  Bf16Matrix matrix;
};

std::vector<float> some_values(std::size_t count) {
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(std::sin(static_cast<float>(i)));
  return values;
}

TEST(Bf16, WidensEveryBitPatternExactly) {
  std::vector<std::uint16_t> bits(1U << 16U);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  std::vector<float> values(bits.size());
  widen(std::as_bytes(std::span(bits)), values);
  for (std::size_t i = 0; i < bits.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), static_cast<std::uint32_t>(i) << 16U);
  EXPECT_EQ(values[0x3f80], 1.0F);
  EXPECT_EQ(values[0xff80], -std::numeric_limits<float>::infinity());
}

TEST(Bf16, WidensAnyNumberAtAnyAddress) {
  for (const std::size_t offset : {0U, 1U, 2U, 3U})
    for (std::size_t count = 0; count < 50; ++count) {
      const Weights weights(1, count, offset);
      std::vector<float> values(count + 2, 77.0F);
      widen(weights.matrix.bytes(), std::span(values).subspan(1, count));
      EXPECT_EQ(values.front(), 77.0F);
      EXPECT_EQ(values.back(), 77.0F);
      EXPECT_TRUE(std::equal(weights.values.begin(), weights.values.end(), values.begin() + 1))
          << count << " at " << offset;
    }
}

// Few rows and many, of weights at any address.
TEST(Bf16, ProductsAreThoseOfTheWidenedWeights) {
  struct Case {
    std::size_t rows, inner, outputs, offset;
  };
  for (const auto& [rows, inner, outputs, offset] :
       {Case{1, 64, 48, 0}, Case{4, 17, 5, 1}, Case{5, 17, 5, 1}, Case{40, 96, 256, 2},
        Case{1, 1000, 300, 1}, Case{7, 1000, 300, 0}, Case{6, 70'000, 3, 3}, Case{5, 1, 1, 0},
        Case{0, 8, 8, 0}, Case{2, 0, 3, 0}, Case{2, 3, 0, 0}, Case{9, 0, 3, 0}, Case{9, 3, 0, 0}}) {
    const Weights weights(outputs, inner, offset);
    const std::vector<float> x = some_values(rows * inner);
    std::vector<float> expected = some_values(rows * outputs);
    std::vector<float> y = expected;
    for (const Into into : {Into::kAdd, Into::kReplace}) {
      linear({x, rows, inner}, {weights.values, outputs, inner}, {expected, rows, outputs}, into);
      linear_bf16({x, rows, inner}, weights.matrix, {y, rows, outputs}, into);
      for (std::size_t i = 0; i < y.size(); ++i)
        ASSERT_EQ(y[i], expected[i]) << rows << " x " << inner << " x " << outputs << " at " << i;
    }
  }
}

TEST(Bf16DeathTest, AMatrixHasItsElements) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::vector<std::byte> bytes(10);
  EXPECT_DEATH(Bf16Matrix(bytes, 2, 3), "a matrix has its elements and no more");
  std::vector<float> y(4);
  const std::vector<float> x(2);
  EXPECT_DEATH(linear_bf16({x, 1, 2}, Bf16Matrix(bytes, 5, 1), {y, 1, 4}), "shapes");
}

}  // namespace
}  // namespace wsync::moe
