// Conversions between the float dtypes in which trainers hold weights and those that engines serve.
//
// Rounding is to the nearest value, ties to even. A NaN stays a NaN of the same sign. To a wider
// dtype it keeps all bits of its payload, and a signalling NaN stays signalling. To a narrower one
// it keeps the upper bits of its payload and is made quiet. F16 gives
// infinity above its range. F8_E4M3 is the format without infinities (OCP 8-bit Floating Point
// Specification 1.0, section 5.1): largest value 448, one NaN for each sign. Finite values above
// 448 give 448, infinities as well.
//
// Pure; any thread. The result is the same on every processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "shared/base/float_formats.h"
#include "shared/weights/dtype.h"

namespace wsync {

inline constexpr float kF8E4M3Max = 448.0F;

// The format of the elements, std::nullopt unless it is one of those that cast() knows.
[[nodiscard]] std::optional<FloatFormat> float_format(DType dtype) noexcept;
// Whether cast() converts between these dtypes: F32, F16 and BF16 into each other and into F8_E4M3,
// and every dtype into itself.
[[nodiscard]] bool can_cast(DType from, DType to) noexcept;
// Converts in.size() / size of `from` elements. `out` has room for exactly these. Both may have any
// alignment, and do not overlap. Requires can_cast(from, to). F8_E4M3: each value is divided by
// `scale` before it is rounded; otherwise `scale` is ignored.
void cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out,
          float scale = 1.0F);

// Whether each value of `from` is also one of `to`: from F16 and BF16 to F32, and of every dtype
// into itself.
[[nodiscard]] bool is_exact_cast(DType from, DType to) noexcept;
// Undoes cast(narrow, ..., wide, ...) bit for bit, NaNs included: `wide_bytes` has elements of
// `wide`, and `out` has room for as many of `narrow`. Returns false if an element is not what a
// value of `narrow` gives; `out` is then not specified. Requires is_exact_cast(narrow, wide).
[[nodiscard]] bool cast_back(DType wide, std::span<const std::byte> wide_bytes, DType narrow,
                             std::span<std::byte> out);

// The largest magnitude of the elements, of dtype F32, F16 or BF16; NaN if one of them is. 0 for
// none.
[[nodiscard]] float largest_magnitude(DType from, std::span<const std::byte> in);

}  // namespace wsync
