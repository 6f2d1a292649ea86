// A row-major matrix of float32 in memory that somebody else owns, and products of such.
//
// A row of a product has the same bits whatever other rows there are, in any thread and on any
// processor (product.h says how): linear() and linear_input_gradient() of some rows are those rows
// of the whole. A weight gradient is a sum over rows, and so depends on which rows are in it and on
// their order.
//
// Thread: any, side by side; each keeps room of its own for what it orders anew (product.h).
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "shared/base/check.h"

namespace wsync::moe {

template <class Float>
class BasicMatrix {
 public:
  BasicMatrix() = default;
  // `values` holds rows * columns elements.
  BasicMatrix(std::span<Float> values, std::size_t rows, std::size_t columns)
      : values_(values), rows_(rows), columns_(columns) {
    WSYNC_CHECK(values.size() == rows * columns, "a matrix has its elements and no more");
  }
  // A matrix that may be read where one that may be written is.
  template <class Other>
    requires std::is_same_v<const Other, Float>
  BasicMatrix(const BasicMatrix<Other>& other)  // NOLINT(google-explicit-constructor)
      : values_(other.values()), rows_(other.rows()), columns_(other.columns()) {}

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
  [[nodiscard]] std::span<Float> values() const noexcept { return values_; }
  [[nodiscard]] std::span<Float> row(std::size_t i) const noexcept {
    return values_.subspan(i * columns_, columns_);
  }
  // Rows [first, first + count).
  [[nodiscard]] BasicMatrix part(std::size_t first, std::size_t count) const {
    return BasicMatrix(values_.subspan(first * columns_, count * columns_), count, columns_);
  }

 private:
  std::span<Float> values_;
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
};
using Matrix = BasicMatrix<float>;
using ConstMatrix = BasicMatrix<const float>;

// Whether a product replaces what its output holds, or is added to it.
enum class Into : bool { kReplace, kAdd };

// y[m,n] (=|+=) x[m,k] w[n,k]^T: a linear layer, weights as Hugging Face keeps them.
void linear(ConstMatrix x, ConstMatrix w, Matrix y, Into into = Into::kReplace);
// Columns [first, first + w.rows()) of such a y, whose other ones are left as they are.
void linear_columns(ConstMatrix x, ConstMatrix w, Matrix y, std::size_t first,
                    Into into = Into::kReplace);
// dx[m,k] (=|+=) dy[m,n] w[n,k]: its input gradient.
void linear_input_gradient(ConstMatrix dy, ConstMatrix w, Matrix dx, Into into = Into::kReplace);
// dw[n,k] (=|+=) dy[m,n]^T x[m,k]: its weight gradient.
void linear_weight_gradient(ConstMatrix dy, ConstMatrix x, Matrix dw, Into into = Into::kAdd);

}  // namespace wsync::moe
