#include "shared/moe/bf16.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "shared/moe/lanes.h"

namespace wsync::moe {
namespace {

// Widened at a time: what is multiplied next is still in the cache of its core.
constexpr std::size_t kTileElements = std::size_t{64} * 1024;
// Up to so many rows of x are multiplied straight with the weights: to widen them for BLAS, which
// orders them anew before it multiplies, costs four times as much for one row and about the same
// for four (64 to 1024 columns). With two sums of each row they fit into the registers.
constexpr std::size_t kFewRows = 4;

float widen_one(const std::byte* from) {
  std::uint16_t half = 0;
  std::memcpy(&half, from, sizeof half);
  return std::bit_cast<float>(std::uint32_t{half} << 16U);
}

[[gnu::always_inline]] inline void widen_all(const std::byte* from, float* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes lanes;
    widen_lanes(from + i * kBf16Bytes, lanes);
    store_lanes(lanes, to + i);
  }
  for (; i < count; ++i) to[i] = widen_one(from + i * kBf16Bytes);
}

WSYNC_FOR_AVX2 void widen_avx2(const std::byte* from, float* to, std::size_t count) {
  widen_all(from, to, count);
}

// linear_bf16() of kRows rows of x.
template <std::size_t kRows>
[[gnu::always_inline]] inline void multiply_rows(const ConstMatrix& x, const Bf16Matrix& w,
                                                 const Matrix& y, Into into) {
  constexpr std::size_t kSums = 2;
  const std::size_t columns = w.columns();
  const float* const in = x.values().data();
  float* const out = y.values().data();
  for (std::size_t j = 0; j < w.rows(); ++j) {
    const std::byte* const weights = w.bytes().data() + j * columns * kBf16Bytes;
    std::array<std::array<Lanes, kSums>, kRows> sums{};
    std::size_t i = 0;
    for (; i + kSums * kLanes <= columns; i += kSums * kLanes)
#pragma GCC unroll 2
      for (std::size_t s = 0; s < kSums; ++s) {
        Lanes weight;
        widen_lanes(weights + (i + s * kLanes) * kBf16Bytes, weight);
#pragma GCC unroll 4
        for (std::size_t row = 0; row < kRows; ++row) {
          Lanes value;
          load_lanes(in + row * columns + i + s * kLanes, value);
          sums[row][s] += value * weight;
        }
      }
    std::array<float, kRows> totals{};
#pragma GCC unroll 4
    for (std::size_t row = 0; row < kRows; ++row) totals[row] = sum_of(sums[row][0] + sums[row][1]);
    for (; i < columns; ++i) {
      const float weight = widen_one(weights + i * kBf16Bytes);
      for (std::size_t row = 0; row < kRows; ++row) totals[row] += in[row * columns + i] * weight;
    }
    for (std::size_t row = 0; row < kRows; ++row) {
      float& to = out[row * w.rows() + j];
      to = into == Into::kAdd ? to + totals[row] : totals[row];
    }
  }
}

[[gnu::always_inline]] inline void multiply_few(const ConstMatrix& x, const Bf16Matrix& w,
                                                const Matrix& y, Into into) {
  switch (x.rows()) {
    case 1:
      return multiply_rows<1>(x, w, y, into);
    case 2:
      return multiply_rows<2>(x, w, y, into);
    case 3:
      return multiply_rows<3>(x, w, y, into);
    default:
      return multiply_rows<kFewRows>(x, w, y, into);
  }
}

WSYNC_FOR_AVX2 void multiply_few_avx2(const ConstMatrix& x, const Bf16Matrix& w, const Matrix& y,
                                      Into into) {
  multiply_few(x, w, y, into);
}

}  // namespace

void widen(std::span<const std::byte> bits, std::span<float> values) {
  WSYNC_CHECK(bits.size() == values.size() * kBf16Bytes, "two bytes for each element");
  if (has_avx2())
    widen_avx2(bits.data(), values.data(), values.size());
  else
    widen_all(bits.data(), values.data(), values.size());
}

void linear_bf16(ConstMatrix x, Bf16Matrix w, Matrix y, Into into) {
  WSYNC_CHECK(x.columns() == w.columns() && y.rows() == x.rows() && y.columns() == w.rows(),
              "the shapes of a linear layer fit");
  if (x.rows() == 0) return;
  if (x.rows() <= kFewRows)
    return has_avx2() ? multiply_few_avx2(x, w, y, into) : multiply_few(x, w, y, into);
  const std::size_t rows = std::clamp<std::size_t>(
      kTileElements / std::max<std::size_t>(w.columns(), 1), 1, std::max<std::size_t>(w.rows(), 1));
  thread_local std::vector<float> tile;
  if (tile.size() < rows * w.columns()) tile.resize(rows * w.columns());
  for (std::size_t first = 0; first < w.rows(); first += rows) {
    const Bf16Matrix part = w.part(first, std::min(rows, w.rows() - first));
    const Matrix widened{std::span(tile).first(part.rows() * part.columns()), part.rows(),
                         part.columns()};
    widen(part.bytes(), widened.values());
    linear_columns(x, widened, y, first, into);
  }
}

}  // namespace wsync::moe
