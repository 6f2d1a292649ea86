#include "shared/moe/product.h"

#include <algorithm>
#include <array>
#include <vector>

#include "shared/moe/lanes.h"

namespace wsync::moe {
namespace {

// Tile size: 6 rows by 2 vectors of columns. Its 12 sums stay in registers (of 16).
constexpr std::size_t kRowsAtOnce = 6;
constexpr std::size_t kVectors = 2;
// Elements of a panel piece for products of few rows. The piece stays in the first-level cache.
constexpr std::size_t kPieceElements = 4096;
// Elements of a row that are transposed at once: two cache lines of bfloat16.
constexpr std::size_t kRunElements = 64;
// Rows of a that are packed at once. They stay in the second-level cache.
constexpr std::size_t kBlockRows = 16 * kRowsAtOnce;

// Packing buffers of a thread. Data is reordered so that the loop reads it sequentially: rows of a
// in groups of six, columns of b in panels.
struct Rooms {
  std::vector<float> a;
  std::vector<float> panel;
};

Rooms& rooms() {
  thread_local Rooms of_thread;
  return of_thread;
}

float* at_least(std::vector<float>& room, std::size_t size) {
  if (room.size() < size) room.resize(size);
  return room.data();
}

[[gnu::always_inline]] inline float load_one(const float* from) { return *from; }
[[gnu::always_inline]] inline float load_one(const Bf16* from) { return widen_one(from->bytes); }

[[gnu::always_inline]] inline void pairs(const Lanes& a, const Lanes& b, Lanes& low, Lanes& high) {
  low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
  high = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
}
[[gnu::always_inline]] inline void fours(const Lanes& a, const Lanes& b, Lanes& low, Lanes& high) {
  low = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
  high = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
}
// Transposes an 8x8 block.
[[gnu::always_inline]] inline void turn_eight(std::array<Lanes, kLanes>& x) {
  std::array<Lanes, kLanes> p;
  std::array<Lanes, kLanes> f;
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) pairs(x[2 * i], x[2 * i + 1], p[2 * i], p[2 * i + 1]);
#pragma GCC unroll 2
  for (std::size_t i = 0; i < 8; i += 4) {
    fours(p[i], p[i + 2], f[i], f[i + 1]);
    fours(p[i + 1], p[i + 3], f[i + 2], f[i + 3]);
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    x[i] = __builtin_shufflevector(f[i], f[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    x[i + 4] = __builtin_shufflevector(f[i], f[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// Transposes `count` elements (a multiple of eight) of eight rows of w into rows of a panel.
template <std::size_t kWidth>
[[gnu::always_inline]] inline void turn_rows(const float* w, std::size_t step, std::size_t count,
                                             float* panel) {
  for (std::size_t p = 0; p < count; p += kLanes) {
    std::array<Lanes, kLanes> eight;
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kLanes; ++i) load_lanes(w + i * step + p, eight[i]);
    turn_eight(eight);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kLanes; ++i) store_lanes(eight[i], panel + (p + i) * kWidth);
  }
}
// Widens bfloat16 row by row into a local buffer before the transposition. Rows whose distance is a
// power of two map to the same cache sets and would evict each other before a cache line is used
// completely.
template <std::size_t kWidth>
[[gnu::always_inline]] inline void turn_rows(const Bf16* w, std::size_t step, std::size_t count,
                                             float* panel) {
  constexpr std::size_t kStep = kRunElements + kLanes;
  std::array<float, kLanes * kStep> wide;
  for (std::size_t begin = 0; begin < count; begin += kRunElements) {
    const std::size_t run = std::min(kRunElements, count - begin);
    for (std::size_t i = 0; i < kLanes; ++i)
      for (std::size_t p = 0; p < run; p += kLanes) {
        Lanes lanes;
        widen_lanes(w[i * step + begin + p].bytes, lanes);
        store_lanes(lanes, wide.data() + i * kStep + p);
      }
    turn_rows<kWidth>(wide.data(), kStep, run, panel + begin * kWidth);
  }
}

// Transposes rows [0, count) of w, which are columns of b, into panel[inner][kWidth]. The other
// columns of the panel are set to 0.
template <std::size_t kWidth, class Weight>
[[gnu::always_inline]] inline void pack_turned(const Weight* w, std::size_t step, std::size_t count,
                                               std::size_t inner, float* panel) {
  const std::size_t whole = inner / kLanes * kLanes;
  std::size_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    turn_rows<kWidth>(w + j * step, step, whole, panel + j);
    for (std::size_t p = whole; p < inner; ++p)
      for (std::size_t i = 0; i < kLanes; ++i)
        panel[p * kWidth + j + i] = load_one(w + (j + i) * step + p);
  }
  for (; j < kWidth; ++j)
    for (std::size_t p = 0; p < inner; ++p)
      panel[p * kWidth + j] = j < count ? load_one(w + j * step + p) : 0.0F;
}

// Copies columns [0, count) of b into panel[inner][kWidth]. The other columns are set to 0.
template <std::size_t kWidth>
[[gnu::always_inline]] inline void pack_rows(const float* b, std::size_t step, std::size_t count,
                                             std::size_t inner, float* panel) {
  for (std::size_t p = 0; p < inner; ++p) {
    const float* const from = b + p * step;
    float* const to = panel + p * kWidth;
    if (count == kWidth) {
      std::memcpy(to, from, kWidth * sizeof(float));
      continue;
    }
    for (std::size_t j = 0; j < kWidth; ++j) to[j] = j < count ? from[j] : 0.0F;
  }
}

// Packs columns [first, first + count) and inner elements [begin, begin + inner) of b.
template <std::size_t kWidth>
[[gnu::always_inline]] inline void pack_panel(const RightFactor& b, std::size_t first,
                                              std::size_t count, std::size_t begin,
                                              std::size_t inner, float* panel) {
  const auto* const floats = static_cast<const float*>(b.values);
  switch (b.order) {
    case RightOrder::kRows:
      return pack_rows<kWidth>(floats + begin * b.step + first, b.step, count, inner, panel);
    case RightOrder::kTurned:
      return pack_turned<kWidth>(floats + first * b.step + begin, b.step, count, inner, panel);
    case RightOrder::kTurnedBf16:
      return pack_turned<kWidth>(static_cast<const Bf16*>(b.values) + first * b.step + begin,
                                 b.step, count, inner, panel);
  }
}

// Packs rows [first, first + count) of a in groups of kRows; the last group may be smaller. Within
// a group the elements of its rows are interleaved, in the order of the inner index.
template <std::size_t kRows>
[[gnu::always_inline]] inline void pack_left(const LeftFactor& a, std::size_t first,
                                             std::size_t count, std::size_t inner, float* to) {
  for (std::size_t i = 0; i < count; i += kRows) {
    const std::size_t rows = std::min(kRows, count - i);
    const float* const from = a.values + (first + i) * a.row_step;
    for (std::size_t p = 0; p < inner; ++p)
      for (std::size_t r = 0; r < rows; ++r) *to++ = from[r * a.row_step + p * a.inner_step];
  }
}

// Writes the sums of some rows to the output. Only the first `columns` of them are valid.
template <std::size_t kRows, std::size_t kCount>
[[gnu::always_inline]] inline void finish(std::array<std::array<Lanes, kCount>, kRows>& sums,
                                          std::size_t columns, const ProductOutput& out,
                                          float* to) {
  constexpr std::size_t kWidth = kCount * kLanes;
  if (columns == kWidth) {
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r)
#pragma GCC unroll 8
      for (std::size_t c = 0; c < kCount; ++c) {
        float* const place = to + r * out.step + c * kLanes;
        if (out.add) {
          Lanes before;
          load_lanes(place, before);
          sums[r][c] = before + sums[r][c];
        }
        store_lanes(sums[r][c], place);
      }
    return;
  }
  std::array<float, kRows * kWidth> finished;
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (std::size_t c = 0; c < kCount; ++c)
      store_lanes(sums[r][c], finished.data() + r * kWidth + c * kLanes);
  for (std::size_t r = 0; r < kRows; ++r)
    for (std::size_t j = 0; j < columns; ++j) {
      float& place = to[r * out.step + j];
      place = out.add ? place + finished[r * kWidth + j] : finished[r * kWidth + j];
    }
}

template <std::size_t kRows, std::size_t kCount>
using Sums = std::array<std::array<Lanes, kCount>, kRows>;

// Adds terms to the sums: kRows packed rows of a times a panel of kCount vectors. `step` is the
// distance of the panel's rows in elements.
template <std::size_t kRows, std::size_t kCount>
[[gnu::always_inline]] inline void add_terms(const float* a, const float* panel, std::size_t step,
                                             std::size_t inner, Sums<kRows, kCount>& sums) {
  Sums<kRows, kCount> going_on = sums;  // local copy that stays in registers
  for (std::size_t p = 0; p < inner; ++p) {
    std::array<Lanes, kCount> b;
#pragma GCC unroll 8
    for (std::size_t c = 0; c < kCount; ++c) load_lanes(panel + p * step + c * kLanes, b[c]);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) {
      const float value = a[p * kRows + r];
#pragma GCC unroll 8
      for (std::size_t c = 0; c < kCount; ++c) going_on[r][c] += b[c] * value;
    }
  }
  sums = going_on;
}

// Products of few rows. Each element of b is used so few times that packing whole panels would not
// pay. A short piece of a panel stays in the first-level cache, and b is read in place if its
// layout permits it.
template <std::size_t kRows, std::size_t kCount>
[[gnu::always_inline]] inline void multiply_few(const ProductShape& shape, const LeftFactor& a,
                                                const RightFactor& b, const ProductOutput& out) {
  constexpr std::size_t kWidth = kCount * kLanes;
  constexpr std::size_t kPiece = kPieceElements / kWidth / kLanes * kLanes;
  float* const packed = at_least(rooms().a, kRows * shape.inner);
  float* const panel = at_least(rooms().panel, kWidth * kPiece);
  pack_left<kRows>(a, 0, kRows, shape.inner, packed);
  for (std::size_t j = 0; j < shape.columns; j += kWidth) {
    const std::size_t columns = std::min(kWidth, shape.columns - j);
    Sums<kRows, kCount> sums{};
    for (std::size_t p = 0; p < shape.inner; p += kPiece) {
      const std::size_t inner = std::min(kPiece, shape.inner - p);
      const float* const rows = packed + p * kRows;
      if (b.order == RightOrder::kRows && columns == kWidth) {
        add_terms(rows, static_cast<const float*>(b.values) + p * b.step + j, b.step, inner, sums);
      } else {
        pack_panel<kWidth>(b, j, columns, p, inner, panel);
        add_terms(rows, panel, kWidth, inner, sums);
      }
    }
    finish(sums, columns, out, out.values + j);
  }
}

template <std::size_t kRows>
[[gnu::always_inline]] inline void multiply_panel(const float* a, const float* panel,
                                                  std::size_t inner, std::size_t columns,
                                                  const ProductOutput& out, float* to) {
  Sums<kRows, kVectors> sums{};
  add_terms(a, panel, kVectors * kLanes, inner, sums);
  finish(sums, columns, out, to);
}

// Multiplies packed rows of a, in groups of six and a rest, with one panel.
[[gnu::always_inline]] inline void multiply_rows(const float* a, std::size_t rows,
                                                 const float* panel, std::size_t inner,
                                                 std::size_t columns, const ProductOutput& out,
                                                 float* to) {
  for (; rows >= kRowsAtOnce; rows -= kRowsAtOnce) {
    multiply_panel<kRowsAtOnce>(a, panel, inner, columns, out, to);
    a += kRowsAtOnce * inner;
    to += kRowsAtOnce * out.step;
  }
  switch (rows) {
    case 5:
      return multiply_panel<5>(a, panel, inner, columns, out, to);
    case 4:
      return multiply_panel<4>(a, panel, inner, columns, out, to);
    case 3:
      return multiply_panel<3>(a, panel, inner, columns, out, to);
    case 2:
      return multiply_panel<2>(a, panel, inner, columns, out, to);
    case 1:
      return multiply_panel<1>(a, panel, inner, columns, out, to);
    default:
      return;
  }
}

[[gnu::always_inline]] inline void multiply_many(const ProductShape& shape, const LeftFactor& a,
                                                 const RightFactor& b, const ProductOutput& out) {
  constexpr std::size_t kWidth = kVectors * kLanes;
  const std::size_t inner = shape.inner;
  float* const packed = at_least(rooms().a, std::min(shape.rows, kBlockRows) * inner);
  float* const panel = at_least(rooms().panel, kWidth * inner);
  for (std::size_t i = 0; i < shape.rows; i += kBlockRows) {
    const std::size_t rows = std::min(kBlockRows, shape.rows - i);
    pack_left<kRowsAtOnce>(a, i, rows, inner, packed);
    for (std::size_t j = 0; j < shape.columns; j += kWidth) {
      const std::size_t columns = std::min(kWidth, shape.columns - j);
      pack_panel<kWidth>(b, j, columns, 0, inner, panel);
      multiply_rows(packed, rows, panel, inner, columns, out, out.values + i * out.step + j);
    }
  }
}

[[gnu::always_inline]] inline void multiply_all(const ProductShape& shape, const LeftFactor& a,
                                                const RightFactor& b, const ProductOutput& out) {
  switch (shape.rows) {
    case 0:
      return;
    case 1:
      return multiply_few<1, 4>(shape, a, b, out);
    case 2:
      return multiply_few<2, 4>(shape, a, b, out);
    case 3:
      return multiply_few<3, 3>(shape, a, b, out);
    case 4:
      return multiply_few<4, 2>(shape, a, b, out);
    default:
      return multiply_many(shape, a, b, out);
  }
}

WSYNC_FOR_AVX2 void multiply_avx2(const ProductShape& shape, const LeftFactor& a,
                                  const RightFactor& b, const ProductOutput& out) {
  multiply_all(shape, a, b, out);
}

void multiply_smallest(const ProductShape& shape, const LeftFactor& a, const RightFactor& b,
                       const ProductOutput& out) {
  multiply_all(shape, a, b, out);
}

}  // namespace

void multiply(const ProductShape& shape, const LeftFactor& a, const RightFactor& b,
              const ProductOutput& out, Loops loops) {
  // Without inner elements the factors may be null pointers, so the loops must not run. Empty sums
  // are 0.
  if (shape.inner == 0) {
    for (std::size_t i = 0; i < shape.rows && !out.add; ++i)
      std::fill_n(out.values + i * out.step, shape.columns, 0.0F);
    return;
  }
  if (loops == Loops::kFastest && has_avx2())
    multiply_avx2(shape, a, b, out);
  else
    multiply_smallest(shape, a, b, out);
}

}  // namespace wsync::moe
