// Conversions between the float dtypes in which trainers hold weights and those that engines serve.
//
// Rounding is to the nearest value, ties to even. Values that are not numbers stay so. F16 gives
// infinity above its range. F8_E4M3 is the format without infinities (OCP 8-bit Floating Point
// Specification 1.0, section 5.1): largest value 448, one NaN for each sign. Finite values above
// 448 give 448, infinities as well.
//
// Pure; any thread. The result is the same on every processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shared/weights/dtype.h"

namespace wsync::publish {

inline constexpr float kF8E4M3Max = 448.0F;
// Rows and columns of a block that shares a scale (DeepSeek-AI, DeepSeek-V3 Technical Report,
// section 3.3.2: weights are quantized in blocks of 128 x 128).
inline constexpr std::uint64_t kScaleBlock = 128;

// Whether cast() converts between these dtypes: F32, F16 and BF16 into each other and into F8_E4M3,
// and every dtype into itself.
[[nodiscard]] bool can_cast(DType from, DType to) noexcept;
// Converts in.size() / size of `from` elements. `out` has room for exactly these. Both may have any
// alignment, and do not overlap. Requires can_cast(from, to). F8_E4M3: each value is divided by
// `scale` before it is rounded; otherwise `scale` is ignored.
void cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out,
          float scale = 1.0F);

// The largest magnitude of the elements, of dtype F32, F16 or BF16; NaN if one of them is. 0 for
// none.
[[nodiscard]] float largest_magnitude(DType from, std::span<const std::byte> in);

}  // namespace wsync::publish
