// An element of a product has the bits of the plain loop, whatever the shape, its place in it and
// the loops that the processor runs. Libraries that multiply do not promise that: with OpenBLAS
// 0.3.21, a product of 2 to 80 rows had other bits than its rows one by one in 1660 of 2964 shapes
// with the kernels for Haswell and Zen, in 798 with those for SkylakeX and Cooperlake, in 2450 with
// those for Prescott, and in none with those for Sandybridge.
#include "shared/moe/product.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "shared/moe/arithmetic.h"
#include "shared/moe/bf16.h"

namespace wsync::moe {
namespace {

std::vector<float> drawn(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {  // what bfloat16 has exactly, so that all orders can be compared
    value = normal(random);
    value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffff0000U);
  }
  return values;
}

// A call, so that no compiler joins it with the addition.
[[gnu::noinline]] float times(float a, float b) { return a * b; }

struct Case {
  Case(std::size_t m, std::size_t n, std::size_t k)
      : rows(m),
        columns(n),
        inner(k),
        a(drawn(m * k, 1)),
        b(drawn(k * n, 2)),
        out(drawn(m * n, 3)) {
    a_turned.resize(a.size());
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t p = 0; p < k; ++p) a_turned[p * m + i] = a[i * k + p];
    b_turned.resize(b.size());
    b_bf16.resize(1 + b.size() * kBf16Bytes);  // at an odd address
    for (std::size_t p = 0; p < k; ++p)
      for (std::size_t j = 0; j < n; ++j) b_turned[j * k + p] = b[p * n + j];
    for (std::size_t i = 0; i < b.size(); ++i) {
      const auto bits =
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(b_turned[i]) >> 16U);
      std::memcpy(b_bf16.data() + 1 + i * kBf16Bytes, &bits, sizeof bits);
    }
  }
  [[nodiscard]] std::vector<float> plain(bool add) const {
    std::vector<float> result = out;
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) {
        float sum = 0;
        for (std::size_t p = 0; p < inner; ++p) sum += times(a[i * inner + p], b[p * columns + j]);
        float& to = result[i * columns + j];
        to = add ? to + sum : sum;
      }
    return result;
  }
  std::size_t rows, columns, inner;
  std::vector<float> a, b, out, a_turned, b_turned;
  std::vector<std::byte> b_bf16;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check(const Case& of, Loops loops) {
  for (const bool add : {false, true}) {
    const std::vector<float> expected = of.plain(add);
    for (const bool a_turned : {false, true})
      for (const RightOrder order :
           {RightOrder::kRows, RightOrder::kTurned, RightOrder::kTurnedBf16}) {
        const LeftFactor a{.values = a_turned ? of.a_turned.data() : of.a.data(),
                           .row_step = a_turned ? 1 : of.inner,
                           .inner_step = a_turned ? of.rows : 1};
        const void* b = order == RightOrder::kRows ? static_cast<const void*>(of.b.data())
                        : order == RightOrder::kTurned
                            ? static_cast<const void*>(of.b_turned.data())
                            : of.b_bf16.data() + 1;
        std::vector<float> out = of.out;
        multiply({.rows = of.rows, .columns = of.columns, .inner = of.inner}, a,
                 {.values = b,
                  .order = order,
                  .step = order == RightOrder::kRows ? of.columns : of.inner},
                 {.values = out.data(), .step = of.columns, .add = add}, loops);
        ASSERT_TRUE(same_bits(out, expected))
            << of.rows << " x " << of.columns << " x " << of.inner << ", order "
            << static_cast<int>(order) << (a_turned ? ", turned" : "") << (add ? ", added" : "");
      }
  }
}

TEST(Product, HasTheBitsOfThePlainLoopForEveryShape) {
  for (const Loops loops : {Loops::kFastest, Loops::kSmallest}) {
    for (const std::size_t rows : {0U, 1U, 2U, 3U, 4U, 5U, 6U, 7U, 11U, 12U, 13U})
      for (const std::size_t columns : {0U, 1U, 7U, 8U, 15U, 16U, 17U, 24U, 31U, 33U, 66U})
        for (const std::size_t inner : {0U, 1U, 7U, 8U, 9U, 63U, 64U, 65U, 129U})
          check(Case(rows, columns, inner), loops);
    // Pieces and blocks that are joined.
    for (const std::size_t rows : {1U, 2U, 3U, 4U, 95U, 96U, 97U, 200U})
      check(Case(rows, 40, 300), loops);
  }
}

// The same row as one of many, at each place, and alone.
TEST(Product, ARowIsTheSameAmongAnyOthers) {
  const Case all(110, 37, 150);
  const std::vector<float> expected = all.plain(false);
  for (const std::size_t count : {1U, 2U, 3U, 4U, 5U, 8U, 33U, 109U})
    for (std::size_t first = 0; first + count <= all.rows; first += 1 + count / 4) {
      std::vector<float> out(count * all.columns);
      multiply({.rows = count, .columns = all.columns, .inner = all.inner},
               {.values = all.a.data() + first * all.inner, .row_step = all.inner, .inner_step = 1},
               {.values = all.b_turned.data(), .order = RightOrder::kTurned, .step = all.inner},
               {.values = out.data(), .step = all.columns});
      ASSERT_EQ(std::memcmp(out.data(), expected.data() + first * all.columns,
                            out.size() * sizeof(float)),
                0)
          << count << " rows from " << first;
    }
}

// A long sum is as exact as sums in float32 are: |computed - exact| <= gamma(k) * sum of |terms|,
// gamma(k) = k u / (1 - k u), u = 2^-24 (Higham 2002, section 3.1).
TEST(Product, IsWithinTheBoundOfASumInOrder) {
  const Case of(5, 9, 2000);
  std::vector<float> out(of.out.size());
  multiply({.rows = of.rows, .columns = of.columns, .inner = of.inner},
           {.values = of.a.data(), .row_step = of.inner, .inner_step = 1},
           {.values = of.b.data(), .order = RightOrder::kRows, .step = of.columns},
           {.values = out.data(), .step = of.columns});
  const double unit = 0x1p-24 * static_cast<double>(of.inner);
  for (std::size_t i = 0; i < of.rows; ++i)
    for (std::size_t j = 0; j < of.columns; ++j) {
      double exact = 0;
      double magnitude = 0;
      for (std::size_t p = 0; p < of.inner; ++p) {
        const double term = double{of.a[i * of.inner + p]} * double{of.b[p * of.columns + j]};
        exact += term;
        magnitude += std::abs(term);
      }
      ASSERT_LE(std::abs(double{out[i * of.columns + j]} - exact), unit / (1 - unit) * magnitude);
    }
}

TEST(Arithmetic, SaysTheSameEachTime) {
  const std::string said = arithmetic();
  EXPECT_EQ(said, arithmetic());
  EXPECT_NE(said.find("functions "), std::string::npos) << said;
  EXPECT_LT(said.size(), 96U);  // ranks send it in so many bytes
  std::cout << said << "\n";
}

}  // namespace
}  // namespace wsync::moe
