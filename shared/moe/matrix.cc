#include "shared/moe/matrix.h"

#include <algorithm>
#include <cblas.h>
#include <mutex>

namespace wsync::moe {
namespace {

// Whichever variant of the library the system runs us with, one thread computes a product.
void use_one_thread() {
  static const bool once = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(once);
}

blasint to_blas(std::size_t size) { return static_cast<blasint>(size); }

// `count` columns of a matrix, from `first` on.
struct Columns {
  Matrix of;
  std::size_t first = 0;
  std::size_t count = 0;
};
Columns all_columns(Matrix of) { return {.of = of, .first = 0, .count = of.columns()}; }

// out (=|+=) a b, each transposed or not; `inner`: terms of each sum.
void multiply(CBLAS_TRANSPOSE turn_a, CBLAS_TRANSPOSE turn_b, ConstMatrix a, ConstMatrix b,
              std::size_t inner, const Columns& out, Into into) {
  if (out.of.rows() == 0 || out.count == 0) return;
  if (inner == 0) {  // BLAS would leave the output as it is
    if (into == Into::kAdd) return;
    for (std::size_t i = 0; i < out.of.rows(); ++i)
      std::ranges::fill(out.of.row(i).subspan(out.first, out.count), 0.0F);
    return;
  }
  use_one_thread();
  // The serial variant shares its work space between callers.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  cblas_sgemm(CblasRowMajor, turn_a, turn_b, to_blas(out.of.rows()), to_blas(out.count),
              to_blas(inner), 1.0F, a.values().data(), to_blas(a.columns()), b.values().data(),
              to_blas(b.columns()), into == Into::kAdd ? 1.0F : 0.0F,
              out.of.values().data() + out.first, to_blas(out.of.columns()));
}

}  // namespace

void linear(ConstMatrix x, ConstMatrix w, Matrix y, Into into) {
  WSYNC_CHECK(y.columns() == w.rows(), "the shapes of a linear layer fit");
  linear_columns(x, w, y, 0, into);
}

void linear_columns(ConstMatrix x, ConstMatrix w, Matrix y, std::size_t first, Into into) {
  WSYNC_CHECK(x.columns() == w.columns() && y.rows() == x.rows() && first <= y.columns() &&
                  w.rows() <= y.columns() - first,
              "the shapes of a linear layer fit");
  multiply(CblasNoTrans, CblasTrans, x, w, x.columns(),
           {.of = y, .first = first, .count = w.rows()}, into);
}

void linear_input_gradient(ConstMatrix dy, ConstMatrix w, Matrix dx, Into into) {
  WSYNC_CHECK(dy.columns() == w.rows() && dx.rows() == dy.rows() && dx.columns() == w.columns(),
              "the shapes of an input gradient fit");
  multiply(CblasNoTrans, CblasNoTrans, dy, w, dy.columns(), all_columns(dx), into);
}

void linear_weight_gradient(ConstMatrix dy, ConstMatrix x, Matrix dw, Into into) {
  WSYNC_CHECK(dy.rows() == x.rows() && dw.rows() == dy.columns() && dw.columns() == x.columns(),
              "the shapes of a weight gradient fit");
  multiply(CblasTrans, CblasNoTrans, dy, x, dy.rows(), all_columns(dw), into);
}

std::string blas_core() { return openblas_get_corename(); }

}  // namespace wsync::moe
