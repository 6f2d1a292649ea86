// The one loop behind all products of matrices of this folder.
//
// Each element of a product is one sum, its terms added in the order of the inner index, each term
// rounded before it is added, and nothing fused: float sum = 0; for (p...) sum += a[i][p] *
// b[p][j]. So an element has the same bits in a product of one row and of a thousand, at any place
// in it, in any thread and on any processor. A BLAS library promises none of that: OpenBLAS 0.3.21
// rounds an element of the same row differently as the number of rows changes, on nearly every kind
// of processor, and each kind in a way of its own.
//
// Thread: any, side by side. Each thread keeps room for the blocks that it orders anew: as many
// floats as 112 times the largest inner size that it has met.
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
  kRows,        // b[inner, columns] as it is
  kTurned,      // w[columns, inner], of which b is the transpose
  kTurnedBf16,  // the same in bfloat16, little-endian, at any address
};

// b[inner, columns]; `step`: elements from one row in memory to the next.
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

// out[rows, columns], `step` elements from row to row.
struct ProductOutput {
  float* values = nullptr;
  std::size_t step = 0;
  bool add = false;  // the finished sum is added to what is there, in one more addition
};

// Which of the compiled loops to run: the fastest that the processor has, or the smallest, for
// tests.
enum class Loops : char { kFastest, kSmallest };

// out (=|+=) a b. Sums of nothing are 0.
void multiply(const ProductShape& shape, const LeftFactor& a, const RightFactor& b,
              const ProductOutput& out, Loops loops = Loops::kFastest);

}  // namespace wsync::moe
