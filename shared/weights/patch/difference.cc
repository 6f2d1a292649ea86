#include "shared/weights/patch/difference.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define WSYNC_DIFFERENCE_AVX2 __attribute__((target("avx2")))
#define WSYNC_DIFFERENCE_AVX512 __attribute__((target("avx512f,avx512bw")))
#endif

namespace wsync::patch {
namespace {

constexpr std::size_t kStripes = kDifferenceBytes / kStripeBytes;
static_assert(kStripes == 64, "a bit for each stripe");

// Bit i of the result says whether stripe i differs.
std::uint64_t stripes_of(const DifferenceMasks& masks) noexcept {
  std::uint64_t stripes = 0;
  for (std::size_t s = 0; s < kStripes; ++s) stripes |= std::uint64_t{masks[s] != 0} << s;
  return stripes;
}

// Bit i of the result says whether byte i of the word is not zero.
std::uint64_t nonzero_bytes(std::uint64_t word) noexcept {
  constexpr std::uint64_t kLow7 = 0x7f7f7f7f7f7f7f7f;
  // The high bit of each byte that is not zero; no carry crosses a byte.
  const std::uint64_t high = (((word & kLow7) + kLow7) | word) & ~kLow7;
  return (high >> 7U) * 0x0102040810204080 >> 56U;
}

std::uint64_t differs_portable(const std::byte* a, const std::byte* b,
                               DifferenceMasks& masks) noexcept {
  if (std::memcmp(a, b, kDifferenceBytes) == 0) return 0;
  for (std::size_t s = 0; s < kStripes; ++s) {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < kStripeBytes; i += 8) {
      std::uint64_t x = 0;
      std::uint64_t y = 0;
      std::memcpy(&x, a + s * kStripeBytes + i, 8);
      std::memcpy(&y, b + s * kStripeBytes + i, 8);
      if (x != y) mask |= nonzero_bytes(x ^ y) << i;
    }
    masks[s] = mask;
  }
  return stripes_of(masks);
}

#if defined(__x86_64__)
// May point past the end: a prefetch never faults.
inline void prefetch_next(const std::byte* from) noexcept {
  __builtin_prefetch(
      reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) + kDifferenceBytes));
}

WSYNC_DIFFERENCE_AVX2 std::uint64_t differs_avx2(const std::byte* a, const std::byte* b,
                                                 DifferenceMasks& masks) noexcept {
  std::uint64_t any = 0;
  for (std::size_t s = 0; s < kStripes; ++s) {
    const std::byte* const x = a + s * kStripeBytes;
    const std::byte* const y = b + s * kStripeBytes;
    prefetch_next(x);
    prefetch_next(y);
    std::uint64_t equal = 0;
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256i same =
          _mm256_cmpeq_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x) + half),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(y) + half));
      equal |= std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(same))} << (32 * half);
    }
    masks[s] = ~equal;
    any |= ~equal;
  }
  return any == 0 ? 0 : stripes_of(masks);
}

WSYNC_DIFFERENCE_AVX512 std::uint64_t differs_avx512(const std::byte* a, const std::byte* b,
                                                     DifferenceMasks& masks) noexcept {
  std::uint64_t any = 0;
  for (std::size_t s = 0; s < kStripes; ++s) {
    const std::byte* const x = a + s * kStripeBytes;
    const std::byte* const y = b + s * kStripeBytes;
    prefetch_next(x);
    prefetch_next(y);
    const std::uint64_t mask =
        _mm512_cmpneq_epi8_mask(_mm512_loadu_si512(x), _mm512_loadu_si512(y));
    masks[s] = mask;
    any |= mask;
  }
  return any == 0 ? 0 : stripes_of(masks);
}

// Comparisons of bytes are an extension that processors with AVX-512 may lack.
bool compares_bytes() noexcept {
  static const bool has = __builtin_cpu_supports("avx512bw") != 0;
  return has;
}
#endif

}  // namespace

std::uint64_t find_differences(const std::byte* a, const std::byte* b, DifferenceMasks& masks,
                               CopyKind kind) noexcept {
#if defined(__x86_64__)
  if (kind == CopyKind::kAvx512 && compares_bytes()) return differs_avx512(a, b, masks);
  if (kind != CopyKind::kPortable) return differs_avx2(a, b, masks);
#else
  static_cast<void>(kind);
#endif
  return differs_portable(a, b, masks);
}

}  // namespace wsync::patch
