#include "shared/moe/matrix.h"

#include "shared/moe/product.h"

namespace wsync::moe {
namespace {

bool adds(Into into) { return into == Into::kAdd; }

}  // namespace

void linear(ConstMatrix x, ConstMatrix w, Matrix y, Into into) {
  WSYNC_CHECK(y.columns() == w.rows(), "the shapes of a linear layer fit");
  linear_columns(x, w, y, 0, into);
}

void linear_columns(ConstMatrix x, ConstMatrix w, Matrix y, std::size_t first, Into into) {
  WSYNC_CHECK(x.columns() == w.columns() && y.rows() == x.rows() && first <= y.columns() &&
                  w.rows() <= y.columns() - first,
              "the shapes of a linear layer fit");
  multiply({.rows = x.rows(), .columns = w.rows(), .inner = x.columns()},
           {.values = x.values().data(), .row_step = x.columns(), .inner_step = 1},
           {.values = w.values().data(), .order = RightOrder::kTurned, .step = w.columns()},
           {.values = y.values().data() + first, .step = y.columns(), .add = adds(into)});
}

void linear_input_gradient(ConstMatrix dy, ConstMatrix w, Matrix dx, Into into) {
  WSYNC_CHECK(dy.columns() == w.rows() && dx.rows() == dy.rows() && dx.columns() == w.columns(),
              "the shapes of an input gradient fit");
  multiply({.rows = dy.rows(), .columns = w.columns(), .inner = dy.columns()},
           {.values = dy.values().data(), .row_step = dy.columns(), .inner_step = 1},
           {.values = w.values().data(), .order = RightOrder::kRows, .step = w.columns()},
           {.values = dx.values().data(), .step = dx.columns(), .add = adds(into)});
}

void linear_weight_gradient(ConstMatrix dy, ConstMatrix x, Matrix dw, Into into) {
  WSYNC_CHECK(dy.rows() == x.rows() && dw.rows() == dy.columns() && dw.columns() == x.columns(),
              "the shapes of a weight gradient fit");
  multiply({.rows = dy.columns(), .columns = x.columns(), .inner = dy.rows()},
           {.values = dy.values().data(), .row_step = 1, .inner_step = dy.columns()},
           {.values = x.values().data(), .order = RightOrder::kRows, .step = x.columns()},
           {.values = dw.values().data(), .step = dw.columns(), .add = adds(into)});
}

}  // namespace wsync::moe
