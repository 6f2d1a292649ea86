// Matrices in bfloat16 (the upper half of a float32), and products of float32 rows with them. The
// weights are read in place; the results are float32.
//
// Thread: any, concurrently.
#pragma once

#include <cstddef>
#include <span>

#include "shared/base/check.h"
#include "shared/moe/matrix.h"

namespace wsync::moe {

inline constexpr std::size_t kBf16Bytes = 2;

// A row-major matrix of bfloat16. Does not own its memory, which needs no alignment.
class Bf16Matrix {
 public:
  Bf16Matrix() = default;
  // `bytes` holds rows * columns little-endian elements.
  Bf16Matrix(std::span<const std::byte> bytes, std::size_t rows, std::size_t columns)
      : bytes_(bytes), rows_(rows), columns_(columns) {
    WSYNC_CHECK(bytes.size() == rows * columns * kBf16Bytes,
                "a matrix has its elements and no more");
  }
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  // Returns rows [first, first + count).
  [[nodiscard]] Bf16Matrix part(std::size_t first, std::size_t count) const {
    const std::size_t of_row = columns_ * kBf16Bytes;
    return {bytes_.subspan(first * of_row, count * of_row), count, columns_};
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
};

// Converts elements of `bits` to float32, which is exact, until `values` is full.
void widen(std::span<const std::byte> bits, std::span<float> values);

// y[m,n] (=|+=) x[m,k] w[n,k]^T. The result has the same bits as linear() with the widened weights.
void linear_bf16(ConstMatrix x, Bf16Matrix w, Matrix y, Into into = Into::kReplace);

}  // namespace wsync::moe
