#include "trainer_side/publish/block_cast.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>

#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::publish {
namespace {

class BlockCaster {
 public:
  explicit BlockCaster(const BlockPart& part)
      : part_(part), last_(part.shape.size() - 1), put_(part.shape.begin(), part.shape.end()) {
    put_[part.dim] = part.end - part.begin;
    rows_ = put_[last_ - 1];
    columns_ = put_[last_];
    column_blocks_ = blocks_of(columns_);
    scales_.resize(element_count(std::span(put_).first(last_ - 1)) * blocks_of(rows_) *
                   column_blocks_);
    bad_ = scales_.size();
  }

  Result<std::vector<float>> run(ThreadPool* helpers) {
    // A stripe is a row of blocks.
    for_each_index(helpers, column_blocks_ == 0 ? 0 : scales_.size() / column_blocks_,
                   [this](std::size_t stripe) { cast_stripe(stripe); });
    if (const std::size_t index = bad_; index < scales_.size())
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("tensor {}: block {} of row {} of blocks {}", part_.name,
                              index % column_blocks_, index / column_blocks_,
                              part_.scales.empty()
                                  ? std::string("has a value that is not finite")
                                  : fmt::format("has the scale {}, expected a positive number",
                                                scales_[index])));
    return std::move(scales_);
  }

 private:
  void cast_stripe(std::size_t stripe) {
    const std::uint64_t matrix = stripe / blocks_of(rows_);
    const std::uint64_t first_row = stripe % blocks_of(rows_) * kScaleBlock;
    for (std::uint64_t block = 0; block < column_blocks_; ++block)
      if (!cast_block(matrix, first_row, block, stripe * column_blocks_ + block)) return;
  }

  // A block is small enough for the cache, so that its largest value is found and its elements are
  // converted in one pass over memory.
  bool cast_block(std::uint64_t matrix, std::uint64_t first_row, std::uint64_t block,
                  std::size_t index) {
    const std::uint64_t end_row = std::min(rows_, first_row + kScaleBlock);
    const std::uint64_t first = block * kScaleBlock;
    const std::uint64_t n = std::min(kScaleBlock, columns_ - first);
    const std::uint64_t element = dtype_bits(part_.from) / 8;
    const auto source = [&](std::uint64_t row) {
      const std::uint64_t at = (matrix * rows_ + row) * columns_ + first;
      return std::span(part_.data + at * element, n * element);
    };
    float scale = part_.scales.empty() ? 0 : part_.scales[index];
    if (planted("scale_of_another_block") && index > 0 && !part_.scales.empty())
      scale = part_.scales[index - 1];
    if (part_.scales.empty()) {
      float largest = 0;
      for (std::uint64_t row = first_row; row < end_row && !std::isnan(largest); ++row) {
        const float of_row = largest_magnitude(part_.from, source(row));
        largest = std::isnan(of_row) ? of_row : std::max(largest, of_row);
      }
      scale = largest == 0 ? 1.0F : largest / kF8E4M3Max;
      // The quotient of a very small value would be zero.
      if (scale == 0) scale = std::numeric_limits<float>::min();
    }
    scales_[index] = scale;
    if (!std::isfinite(scale) || scale <= 0) {
      std::size_t earliest = bad_;
      while (index < earliest && !bad_.compare_exchange_weak(earliest, index)) {
      }
      return false;
    }
    for (std::uint64_t row = first_row; row < end_row; ++row)
      cast(part_.from, source(row), DType::kF8E4M3,
           part_.tensor.subspan(target(matrix, row, first), n), scale);
    return true;
  }

  // Where element (row, column) of a matrix of the part lies in the tensor.
  [[nodiscard]] std::uint64_t target(std::uint64_t matrix, std::uint64_t row,
                                     std::uint64_t column) const {
    std::uint64_t at = 0;
    std::uint64_t step = part_.shape[last_] * part_.shape[last_ - 1];
    for (std::size_t d = last_ - 1; d-- > 0;) {
      at += (matrix % put_[d] + (d == part_.dim ? part_.begin : 0)) * step;
      matrix /= put_[d];
      step *= part_.shape[d];
    }
    if (part_.dim == last_ - 1) row += part_.begin;
    if (part_.dim == last_) column += part_.begin;
    return at + row * part_.shape[last_] + column;
  }

  const BlockPart& part_;
  const std::size_t last_;          // dimension of the columns
  std::vector<std::uint64_t> put_;  // shape of the part
  std::uint64_t rows_ = 0;
  std::uint64_t columns_ = 0;
  std::uint64_t column_blocks_ = 0;
  std::vector<float> scales_;
  std::atomic<std::size_t> bad_ = 0;  // the first block that has no scale; their number: none
};

}  // namespace

std::uint64_t element_count(std::span<const std::uint64_t> extents) noexcept {
  return std::accumulate(extents.begin(), extents.end(), std::uint64_t{1}, std::multiplies<>());
}

std::string scale_name(std::string_view tensor) { return std::string(tensor) + "_scale_inv"; }

Result<TensorInfo> scale_info(const TensorInfo& tensor) {
  if (tensor.shape.size() < 2)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("tensor {}: scales of blocks need rows and columns, but its shape is {}",
                    tensor.name, shape_text(tensor.shape)));
  TensorInfo scales{.name = scale_name(tensor.name), .dtype = DType::kF32, .shape = tensor.shape};
  for (std::size_t d = scales.shape.size() - 2; d < scales.shape.size(); ++d)
    scales.shape[d] = blocks_of(scales.shape[d]);
  return scales;
}

Result<std::vector<float>> cast_blocks(const BlockPart& part, ThreadPool* helpers) {
  return BlockCaster(part).run(helpers);
}

}  // namespace wsync::publish
