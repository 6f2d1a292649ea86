// DType: every element type of safetensors, including the sub-byte types.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync {

// In the alignment order of the reference writer, which writes later ones first. The values are
// part of messages and of layout digests: only append.
enum class DType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
inline constexpr DType kLastDType = DType::kU64;
inline constexpr std::size_t kDTypeCount = static_cast<std::size_t>(kLastDType) + 1;

// Returns the name in safetensors headers: "BF16", "F8_E4M3", "F6_E2M3".
[[nodiscard]] std::string_view dtype_name(DType dtype) noexcept;
// Returns the bits of one element: 4, 6, 8, 16, 32 or 64.
[[nodiscard]] std::uint32_t dtype_bits(DType dtype) noexcept;
// Returns std::nullopt if no dtype has exactly that name (upper case).
[[nodiscard]] std::optional<DType> parse_dtype(std::string_view name) noexcept;
// Returns "[2, 3]", or "[]" for a scalar.
[[nodiscard]] std::string shape_text(std::span<const std::uint64_t> shape);
// Returns the size of a dense tensor in bytes. The shape {} is a scalar. kInvalidInput if the
// product overflows 64 bits or the size is not a whole number of bytes.
[[nodiscard]] Result<std::uint64_t> tensor_byte_size(DType dtype,
                                                     std::span<const std::uint64_t> shape);

}  // namespace wsync
