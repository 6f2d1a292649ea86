#include "shared/weights/dtype.h"

#include <array>

#include "shared/base/format.h"

namespace wsync {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::uint32_t bits;
};

constexpr std::array<DTypeInfo, kDTypeCount> kInfo{{
    {DType::kBool, "BOOL", 8},
    {DType::kF4, "F4", 4},
    {DType::kF6E2M3, "F6_E2M3", 6},
    {DType::kF6E3M2, "F6_E3M2", 6},
    {DType::kU8, "U8", 8},
    {DType::kI8, "I8", 8},
    {DType::kF8E5M2, "F8_E5M2", 8},
    {DType::kF8E4M3, "F8_E4M3", 8},
    {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {DType::kI16, "I16", 16},
    {DType::kU16, "U16", 16},
    {DType::kF16, "F16", 16},
    {DType::kBF16, "BF16", 16},
    {DType::kI32, "I32", 32},
    {DType::kU32, "U32", 32},
    {DType::kF32, "F32", 32},
    {DType::kC64, "C64", 64},
    {DType::kF64, "F64", 64},
    {DType::kI64, "I64", 64},
    {DType::kU64, "U64", 64},
}};
static_assert(
    [] {
      for (std::size_t i = 0; i < kInfo.size(); ++i)
        if (static_cast<std::size_t>(kInfo[i].dtype) != i) return false;
      return true;
    }(),
    "row i describes the dtype with the value i");

}  // namespace

std::string_view dtype_name(DType dtype) noexcept {
  return kInfo[static_cast<std::size_t>(dtype)].name;
}

std::uint32_t dtype_bits(DType dtype) noexcept {
  return kInfo[static_cast<std::size_t>(dtype)].bits;
}

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  for (const DTypeInfo& info : kInfo)
    if (info.name == name) return info.dtype;
  return std::nullopt;
}

std::string shape_text(std::span<const std::uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<std::uint64_t> tensor_byte_size(DType dtype, std::span<const std::uint64_t> shape) {
  std::uint64_t bits = 1;
  bool overflow = false;
  for (const std::uint64_t dim : shape) overflow |= __builtin_mul_overflow(bits, dim, &bits);
  overflow |= __builtin_mul_overflow(bits, std::uint64_t{dtype_bits(dtype)}, &bits);
  if (overflow)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the bits of shape {} of {} do not fit in 64 bits", shape_text(shape),
                            dtype_name(dtype)));
  if (bits % 8 != 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("shape {} of {} takes {} bits, which is not a whole number of bytes",
                            shape_text(shape), dtype_name(dtype), bits));
  return bits / 8;
}

}  // namespace wsync
