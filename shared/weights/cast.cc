#include "shared/weights/cast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "shared/base/check.h"
#include "shared/base/planted.h"

namespace wsync {
namespace {

// Elements that are converted in one turn. The count is a constant so that the compiler makes
// vector instructions of the loops.
constexpr std::size_t kTurn = 128;

template <class T>
using Turn = std::array<T, kTurn>;

using float_formats::bits_of;
using float_formats::kSign;
using float_formats::value_of;

// How an element of each kind is read as a float, and written.
struct F32 {
  using Bits = float;
  WSYNC_INLINED static float read(Bits x) noexcept { return x; }
  WSYNC_INLINED static Bits write(float x, float /*scale*/) noexcept { return x; }
};
struct F16 {
  using Bits = std::uint16_t;
  WSYNC_INLINED static float read(Bits x) noexcept { return value_of(from_f16(x)); }
  WSYNC_INLINED static Bits write(float x, float /*scale*/) noexcept { return to_f16(bits_of(x)); }
};
struct Bf16 {
  using Bits = std::uint16_t;
  WSYNC_INLINED static float read(Bits x) noexcept { return value_of(from_bf16(x)); }
  WSYNC_INLINED static Bits write(float x, float /*scale*/) noexcept { return to_bf16(bits_of(x)); }
};
struct F8 {
  using Bits = std::uint8_t;
  WSYNC_INLINED static Bits write(float x, float scale) noexcept {
    return to_f8e4m3(bits_of(x / scale));
  }
};

template <class From, class To>
[[gnu::always_inline]] inline void cast_all(const std::byte* in, std::byte* out, std::size_t count,
                                            float scale) noexcept {
  Turn<typename From::Bits> from{};
  Turn<typename To::Bits> to;
  for (std::size_t at = 0; at < count; at += kTurn) {
    const std::size_t n = std::min(kTurn, count - at);
    std::memcpy(from.data(), in + at * sizeof(typename From::Bits),
                n * sizeof(typename From::Bits));
    for (std::size_t i = 0; i < kTurn; ++i) to[i] = To::write(From::read(from[i]), scale);
    std::memcpy(out + at * sizeof(typename To::Bits), to.data(), n * sizeof(typename To::Bits));
  }
}

template <class From>
[[gnu::always_inline]] inline float largest_of(const std::byte* in, std::size_t count) noexcept {
  Turn<typename From::Bits> from{};
  // As bits: the order of magnitudes is that of unsigned numbers, and NaNs are above all others.
  Turn<std::uint32_t> largest{};
  for (std::size_t at = 0; at < count; at += kTurn) {
    const std::size_t n = std::min(kTurn, count - at);
    if (n < kTurn) from = {};
    std::memcpy(from.data(), in + at * sizeof(typename From::Bits),
                n * sizeof(typename From::Bits));
    for (std::size_t i = 0; i < kTurn; ++i)
      largest[i] = std::max(largest[i], std::bit_cast<std::uint32_t>(From::read(from[i])) & ~kSign);
  }
  return std::bit_cast<float>(*std::ranges::max_element(largest));
}

// The same loops for each processor. A wider vector changes no result: each element is converted by
// itself, and nothing is contracted (-ffp-contract=off).
#define WSYNC_CAST_WAYS(TARGET, SUFFIX)                                             \
  template <class From, class To>                                                   \
  TARGET void cast_##SUFFIX(const std::byte* in, std::byte* out, std::size_t count, \
                            float scale) noexcept {                                 \
    cast_all<From, To>(in, out, count, scale);                                      \
  }                                                                                 \
  template <class From>                                                             \
  TARGET float largest_##SUFFIX(const std::byte* in, std::size_t count) noexcept {  \
    return largest_of<From>(in, count);                                             \
  }
WSYNC_CAST_WAYS(, portable)
#if defined(__x86_64__)
WSYNC_CAST_WAYS([[gnu::target("avx2")]], avx2)
WSYNC_CAST_WAYS([[gnu::target("avx512f,avx512bw,avx512vl")]], avx512)
#endif
#undef WSYNC_CAST_WAYS

enum class Way : std::uint8_t { kPortable, kAvx2, kAvx512 };

Way best_way() noexcept {
#if defined(__x86_64__)
  static const Way best = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
                              ? Way::kAvx512
                          : __builtin_cpu_supports("avx2") ? Way::kAvx2
                                                           : Way::kPortable;
  return best;
#else
  return Way::kPortable;
#endif
}

template <class From, class To>
void cast_by(const std::byte* in, std::byte* out, std::size_t count, float scale) {
  switch (best_way()) {
#if defined(__x86_64__)
    case Way::kAvx512:
      return cast_avx512<From, To>(in, out, count, scale);
    case Way::kAvx2:
      return cast_avx2<From, To>(in, out, count, scale);
#else
    case Way::kAvx512:
    case Way::kAvx2:
#endif
    case Way::kPortable:
      return cast_portable<From, To>(in, out, count, scale);
  }
}

template <class From>
float largest_by(const std::byte* in, std::size_t count) {
  switch (best_way()) {
#if defined(__x86_64__)
    case Way::kAvx512:
      return largest_avx512<From>(in, count);
    case Way::kAvx2:
      return largest_avx2<From>(in, count);
#else
    case Way::kAvx512:
    case Way::kAvx2:
#endif
    case Way::kPortable:
      return largest_portable<From>(in, count);
  }
  return 0;
}

bool is_source(DType dtype) noexcept {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

template <class From>
void cast_from(std::span<const std::byte> in, DType to, std::span<std::byte> out, float scale) {
  const std::size_t count = in.size() / sizeof(typename From::Bits);
  switch (to) {
    case DType::kF32:
      return cast_by<From, F32>(in.data(), out.data(), count, scale);
    case DType::kF16:
      return cast_by<From, F16>(in.data(), out.data(), count, scale);
    case DType::kBF16:
      return cast_by<From, Bf16>(in.data(), out.data(), count, scale);
    default:
      return cast_by<From, F8>(in.data(), out.data(), count, scale);
  }
}

}  // namespace

std::optional<FloatFormat> float_format(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return FloatFormat::kF32;
    case DType::kF16:
      return FloatFormat::kF16;
    case DType::kBF16:
      return FloatFormat::kBF16;
    case DType::kF8E4M3:
      return FloatFormat::kF8E4M3;
    default:
      return std::nullopt;
  }
}

bool can_cast(DType from, DType to) noexcept {
  return from == to || (is_source(from) && (is_source(to) || to == DType::kF8E4M3));
}

bool is_exact_cast(DType from, DType to) noexcept {
  return from == to || (to == DType::kF32 && (from == DType::kF16 || from == DType::kBF16));
}

void cast(DType from, std::span<const std::byte> in, DType to, std::span<std::byte> out,
          float scale) {
  WSYNC_CHECK(can_cast(from, to), "only dtypes that can be converted are");
  WSYNC_CHECK(in.size() * 8 / dtype_bits(from) == out.size() * 8 / dtype_bits(to),
              "source and destination have equally many elements");
  if (in.empty()) return;
  if (from == to) {
    std::memcpy(out.data(), in.data(), in.size());
    return;
  }
  if (planted("cast_truncates") && from == DType::kF32 && to == DType::kBF16) {
    for (std::size_t at = 0; at < out.size(); at += 2)
      std::memcpy(out.data() + at, in.data() + 2 * at + 2, 2);
    return;
  }
  if (from == DType::kF32) return cast_from<F32>(in, to, out, scale);
  if (from == DType::kF16) return cast_from<F16>(in, to, out, scale);
  cast_from<Bf16>(in, to, out, scale);
}

bool cast_back(DType wide, std::span<const std::byte> wide_bytes, DType narrow,
               std::span<std::byte> out) {
  WSYNC_CHECK(is_exact_cast(narrow, wide), "only a cast that loses nothing can be undone");
  cast(wide, wide_bytes, narrow, out);
  if (wide == narrow) return true;
  // Elements whose conversion is compared in one turn.
  constexpr std::size_t kElements = 4096;
  std::array<std::uint32_t, kElements> again;
  const std::size_t count = out.size() / sizeof(std::uint16_t);
  for (std::size_t at = 0; at < count; at += kElements) {
    const std::size_t n = std::min(kElements, count - at);
    const auto halves = out.subspan(at * sizeof(std::uint16_t), n * sizeof(std::uint16_t));
    const auto floats = wide_bytes.subspan(at * sizeof(float), n * sizeof(float));
    const auto widened = std::as_writable_bytes(std::span(again).first(n));
    cast(narrow, halves, wide, widened);
    if (std::memcmp(widened.data(), floats.data(), floats.size()) == 0) continue;
    // cast() has made signalling NaNs quiet. Any other difference is none of a widened value.
    const std::uint16_t quiet = narrow == DType::kBF16 ? 0x40U : 0x200U;
    for (std::size_t i = 0; i < n; ++i) {
      if (std::memcmp(&again[i], floats.data() + i * sizeof(float), sizeof(float)) == 0) continue;
      std::uint16_t half = 0;
      std::memcpy(&half, halves.data() + i * sizeof half, sizeof half);
      half = static_cast<std::uint16_t>(half & ~quiet);
      std::memcpy(halves.data() + i * sizeof half, &half, sizeof half);
    }
    cast(narrow, halves, wide, widened);
    if (std::memcmp(widened.data(), floats.data(), floats.size()) != 0) return false;
  }
  return true;
}

float largest_magnitude(DType from, std::span<const std::byte> in) {
  WSYNC_CHECK(is_source(from), "magnitudes are those of F32, F16 and BF16");
  const std::size_t count = in.size() * 8 / dtype_bits(from);
  if (from == DType::kF32) return largest_by<F32>(in.data(), count);
  if (from == DType::kF16) return largest_by<F16>(in.data(), count);
  return largest_by<Bf16>(in.data(), count);
}

}  // namespace wsync
