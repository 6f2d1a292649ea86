#include "shared/moe/bf16.h"

#include "shared/moe/lanes.h"
#include "shared/moe/product.h"

namespace wsync::moe {
namespace {

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
  multiply({.rows = x.rows(), .columns = w.rows(), .inner = x.columns()},
           {.values = x.values().data(), .row_step = x.columns(), .inner_step = 1},
           {.values = w.bytes().data(), .order = RightOrder::kTurnedBf16, .step = w.columns()},
           {.values = y.values().data(), .step = y.columns(), .add = into == Into::kAdd});
}

}  // namespace wsync::moe
