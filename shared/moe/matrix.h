// Row-major float32 matrices that do not own their memory, and their products.
//
// The bits of a row of a product do not depend on the other rows, the thread or the processor
// (product.h describes how). linear() and linear_input_gradient() of some rows therefore equal
// these rows of the whole product. A weight gradient is a sum over rows, and so it depends on which
// rows it includes and on their order.
//
// Thread: any, concurrently. Each thread keeps its own buffers for reordered data (product.h).
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
  // Converts a writable matrix to a read-only one.
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
  // Returns rows [first, first + count).
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

// Whether a product replaces its output or is added to it.
enum class Into : bool { kReplace, kAdd };

// y[m,n] (=|+=) x[m,k] w[n,k]^T: a linear layer with weights in the layout of Hugging Face.
void linear(ConstMatrix x, ConstMatrix w, Matrix y, Into into = Into::kReplace);
// Computes columns [first, first + w.rows()) of such a y and leaves the others unchanged.
void linear_columns(ConstMatrix x, ConstMatrix w, Matrix y, std::size_t first,
                    Into into = Into::kReplace);
// dx[m,k] (=|+=) dy[m,n] w[n,k]: the input gradient of a linear layer.
void linear_input_gradient(ConstMatrix dy, ConstMatrix w, Matrix dx, Into into = Into::kReplace);
// dw[n,k] (=|+=) dy[m,n]^T x[m,k]: the weight gradient of a linear layer.
void linear_weight_gradient(ConstMatrix dy, ConstMatrix x, Matrix dw, Into into = Into::kAdd);

}  // namespace wsync::moe
