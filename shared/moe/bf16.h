// Weights in bfloat16, the upper half of a float32, read where they lie: products of float32 rows
// with them, in float32.
//
// Thread: any, side by side.
#pragma once

#include <cstddef>
#include <span>

#include "shared/base/check.h"
#include "shared/moe/matrix.h"

namespace wsync::moe {

inline constexpr std::size_t kBf16Bytes = 2;

// A row-major matrix of bfloat16 in memory that somebody else owns, at any address.
class Bf16Matrix {
 public:
  Bf16Matrix() = default;
  // `bytes` holds rows * columns elements, little-endian.
  Bf16Matrix(std::span<const std::byte> bytes, std::size_t rows, std::size_t columns)
      : bytes_(bytes), rows_(rows), columns_(columns) {
    WSYNC_CHECK(bytes.size() == rows * columns * kBf16Bytes,
                "a matrix has its elements and no more");
  }
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  // Rows [first, first + count).
  [[nodiscard]] Bf16Matrix part(std::size_t first, std::size_t count) const {
    const std::size_t of_row = columns_ * kBf16Bytes;
    return {bytes_.subspan(first * of_row, count * of_row), count, columns_};
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
};

// The elements of `bits` as float32, exactly: as many as `values` holds.
void widen(std::span<const std::byte> bits, std::span<float> values);

// y[m,n] (=|+=) x[m,k] w[n,k]^T: the bits of linear() on the widened weights.
void linear_bf16(ConstMatrix x, Bf16Matrix w, Matrix y, Into into = Into::kReplace);

}  // namespace wsync::moe
