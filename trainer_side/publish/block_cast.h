// Conversion to F8_E4M3 with a scale for each block of kScaleBlock x kScaleBlock elements of the
// last two dimensions.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/thread_pool.h"
#include "shared/weights/cast.h"
#include "shared/weights/manifest.h"

namespace wsync::publish {

// Rows and columns of a block that shares a scale (DeepSeek-AI, DeepSeek-V3 Technical Report,
// section 3.3.2: weights are quantized in blocks of 128 x 128).
inline constexpr std::uint64_t kScaleBlock = 128;

// Number of elements of a tensor of these extents.
[[nodiscard]] std::uint64_t element_count(std::span<const std::uint64_t> extents) noexcept;
// Number of blocks along a dimension of that many elements.
[[nodiscard]] constexpr std::uint64_t blocks_of(std::uint64_t extent) noexcept {
  return (extent + kScaleBlock - 1) / kScaleBlock;
}
// Returns NAME_scale_inv: "x.weight" has its scales in "x.weight_scale_inv".
[[nodiscard]] std::string scale_name(std::string_view tensor);
// Returns the description of these scales; kInvalidInput, with the tensor, if it has less than two
// dimensions. The last two are rows and columns.
[[nodiscard]] Result<TensorInfo> scale_info(const TensorInfo& tensor);

// Elements [begin, end) of dimension `dim` of a tensor, all of its other dimensions.
struct BlockPart {
  std::string_view name;                 // of the tensor, for errors
  DType from = DType::kF32;              // F32, F16 or BF16
  const std::byte* data = nullptr;       // the part, dense and row-major
  std::span<std::byte> tensor;           // the whole tensor in F8_E4M3
  std::span<const std::uint64_t> shape;  // of the tensor: at least two dimensions
  std::uint32_t dim = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  // One for each block of the part, row-major. Empty: computed, the largest magnitude / 448, or 1
  // for a block of zeros.
  std::span<const float> scales;
};

// Converts the part and returns the scale of each block, row-major. The blocks begin at the first
// element of the part. `helpers` may be null. kInvalidInput, with tensor and block, if a scale is
// no positive number or an element is not finite; parts of the tensor are then written.
[[nodiscard]] Result<std::vector<float>> cast_blocks(const BlockPart& part, ThreadPool* helpers);

}  // namespace wsync::publish
