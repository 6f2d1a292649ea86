// The single loop behind all matrix products of this folder.
//
// Each element of a product is one sum. Its terms are added in the order of the inner index, each
// term is rounded before it is added, and no operations are fused:
//
//     float sum = 0;
//     for (p...) sum += a[i][p] * b[p][j];
//
// An element therefore has the same bits in a product of one row or of a thousand rows, at any
// position, in any thread and on any processor. BLAS libraries do not guarantee this. OpenBLAS
// 0.3.21 changes the rounding of an element with the number of rows on nearly every kind of
// processor, and differently on each.
//
// Thread: any, concurrently. Each thread keeps buffers for reordered blocks: up to 112 floats times
// the largest inner size that it has used.
#pragma once

#include <cstddef>

namespace wsync::moe {

// a[rows, inner]: element (i, p) is values[i * row_step + p * inner_step].
struct LeftFactor {
  const float* values = nullptr;
  std::size_t row_step = 0;
  std::size_t inner_step = 0;
};

enum class RightOrder : char {
  kRows,        // b[inner, columns]
  kTurned,      // w[columns, inner]; b is its transpose
  kTurnedBf16,  // as kTurned, in little-endian bfloat16 without alignment
};

// b[inner, columns]. `step`: distance of two rows in memory, in elements.
struct RightFactor {
  const void* values = nullptr;
  RightOrder order = RightOrder::kRows;
  std::size_t step = 0;
};

struct ProductShape {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t inner = 0;
};

// out[rows, columns]. `step`: distance of two rows in elements.
struct ProductOutput {
  float* values = nullptr;
  std::size_t step = 0;
  bool add = false;  // add the finished sum to the output, with one more rounding
};

// Which compiled loops to use: the fastest for this processor, or the baseline, for tests.
enum class Loops : char { kFastest, kSmallest };

// out (=|+=) a b. Empty sums are 0.
void multiply(const ProductShape& shape, const LeftFactor& a, const RightFactor& b,
              const ProductOutput& out, Loops loops = Loops::kFastest);

}  // namespace wsync::moe
