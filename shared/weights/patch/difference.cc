#include "shared/weights/patch/difference.h"

#include <cstring>
#include <numeric>

#include "shared/weights/patch/touched_sum.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define WSYNC_DIFFERENCE_AVX2 __attribute__((target("avx2")))
#define WSYNC_DIFFERENCE_AVX512 __attribute__((target("avx512f,avx512bw")))
#endif

namespace wsync::patch {
namespace {

constexpr std::size_t kStripes = kDifferenceBytes / kStripeBytes;
constexpr std::size_t kStripeWords = kStripeBytes / kSumWordBytes;
static_assert(kStripes == 64, "a bit for each stripe");
static_assert(kDifferenceBytes == kSumBlockBytes, "the keys of a block are those of a chunk");

// Bit i of the result says whether stripe i differs.
std::uint64_t stripes_of(const ChunkDifference& chunk) noexcept {
  std::uint64_t stripes = 0;
  for (std::size_t s = 0; s < kStripes; ++s) stripes |= std::uint64_t{chunk.masks[s] != 0} << s;
  return stripes;
}

// Bit i of the result says whether byte i of the word is not zero.
std::uint64_t nonzero_bytes(std::uint64_t word) noexcept {
  constexpr std::uint64_t kLow7 = 0x7f7f7f7f7f7f7f7f;
  // The high bit of each byte that is not zero; no carry crosses a byte.
  const std::uint64_t high = (((word & kLow7) + kLow7) | word) & ~kLow7;
  return (high >> 7U) * 0x0102040810204080 >> 56U;
}

void differs_portable(const std::byte* a, const std::byte* b, ChunkDifference& found) noexcept {
  std::uint64_t any = 0;
  WordSum second;
  for (std::size_t s = 0; s < kStripes; ++s) {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < kStripeWords; ++i) {
      const std::size_t word = s * kStripeWords + i;
      std::uint64_t x = 0;
      std::uint64_t y = 0;
      std::memcpy(&x, a + word * kSumWordBytes, kSumWordBytes);
      std::memcpy(&y, b + word * kSumWordBytes, kSumWordBytes);
      if (x != y) mask |= nonzero_bytes(x ^ y) << i * kSumWordBytes;
      second += {.product = keyed_product(y, kTouchedKeys.words[word]), .sum = y};
    }
    found.masks[s] = mask;
    any |= mask;
  }
  found.second = second;
  found.stripes = any == 0 ? 0 : stripes_of(found);
}

#if defined(__x86_64__)
// To the second level cache: the first one has room for few lines that are on their way. May point
// past the end, because a prefetch never faults.
inline void prefetch_group(const std::byte* from) noexcept {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) +
                                                   kChunksAtOnce * kDifferenceBytes),
                     0, 2);
}

template <std::size_t kLanes>
std::uint64_t sum_of(const std::array<std::uint64_t, kLanes>& lanes) noexcept {
  return std::accumulate(lanes.begin(), lanes.end(), std::uint64_t{0});
}

WSYNC_DIFFERENCE_AVX2 inline std::uint64_t sum_of_avx2(__m256i low, __m256i high) noexcept {
  alignas(32) std::array<std::uint64_t, 4> lanes;
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes.data()), _mm256_add_epi64(low, high));
  return sum_of(lanes);
}

WSYNC_DIFFERENCE_AVX512 inline std::uint64_t sum_of_avx512(__m512i all) noexcept {
  alignas(64) std::array<std::uint64_t, 8> lanes;
  _mm512_store_si512(lanes.data(), all);
  return sum_of(lanes);
}

// With two chunks at a time: sums of more do not fit into sixteen registers.
template <std::size_t kChunks>
WSYNC_DIFFERENCE_AVX2 void differs_avx2(const std::byte* a, const std::byte* b,
                                        ChunkDifference* found) noexcept {
  std::uint64_t any[kChunks] = {};
  __m256i product[kChunks][2];
  __m256i sum[kChunks][2];
#pragma GCC unroll 2
  for (std::size_t j = 0; j < kChunks; ++j)
    for (std::size_t half = 0; half < 2; ++half)
      product[j][half] = sum[j][half] = _mm256_setzero_si256();
  for (std::size_t s = 0; s < kStripes; ++s) {
    const auto* const keys =
        reinterpret_cast<const __m256i*>(kTouchedKeys.words + s * kStripeWords);
#pragma GCC unroll 2
    for (std::size_t j = 0; j < kChunks; ++j) {
      const std::byte* const x = a + j * kDifferenceBytes + s * kStripeBytes;
      const std::byte* const y = b + j * kDifferenceBytes + s * kStripeBytes;
      prefetch_group(x);
      prefetch_group(y);
      std::uint64_t equal = 0;
      for (std::size_t half = 0; half < 2; ++half) {
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(y) + half);
        const __m256i same = _mm256_cmpeq_epi8(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x) + half), words);
        equal |= std::uint64_t{static_cast<std::uint32_t>(_mm256_movemask_epi8(same))}
                 << (32 * half);
        const __m256i keyed = _mm256_xor_si256(words, _mm256_load_si256(keys + half));
        product[j][half] = _mm256_add_epi64(product[j][half],
                                            _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32)));
        sum[j][half] = _mm256_add_epi64(sum[j][half], words);
      }
      found[j].masks[s] = ~equal;
      any[j] |= ~equal;
    }
  }
  for (std::size_t j = 0; j < kChunks; ++j) {
    found[j].stripes = any[j] == 0 ? 0 : stripes_of(found[j]);
    found[j].second = {.product = sum_of_avx2(product[j][0], product[j][1]),
                       .sum = sum_of_avx2(sum[j][0], sum[j][1])};
  }
}

template <std::size_t kChunks>
WSYNC_DIFFERENCE_AVX512 void differs_avx512(const std::byte* a, const std::byte* b,
                                            ChunkDifference* found) noexcept {
  // The masked forms with all lanes enabled, because g++ 12 warns about its own unmasked forms.
  constexpr std::uint8_t kAll = 0xff;
  std::uint64_t any[kChunks] = {};
  __m512i product[kChunks];
  __m512i sum[kChunks];
#pragma GCC unroll 4
  for (std::size_t j = 0; j < kChunks; ++j) product[j] = sum[j] = _mm512_setzero_si512();
  for (std::size_t s = 0; s < kStripes; ++s) {
    const __m512i keys = _mm512_load_si512(kTouchedKeys.words + s * kStripeWords);
    // All loads precede the stores of masks. A load waits for a pending store whose address is
    // equal modulo 4 KiB, and the chunks are 4 KiB apart.
    __m512i first[kChunks];
    __m512i second[kChunks];
#pragma GCC unroll 4
    for (std::size_t j = 0; j < kChunks; ++j) {
      const std::size_t at = j * kDifferenceBytes + s * kStripeBytes;
      first[j] = _mm512_loadu_si512(a + at);
      second[j] = _mm512_loadu_si512(b + at);
      prefetch_group(a + at);
      prefetch_group(b + at);
    }
#pragma GCC unroll 4
    for (std::size_t j = 0; j < kChunks; ++j) {
      const std::uint64_t mask = _mm512_cmpneq_epi8_mask(first[j], second[j]);
      found[j].masks[s] = mask;
      any[j] |= mask;
      const __m512i keyed = _mm512_xor_si512(second[j], keys);
      product[j] = _mm512_add_epi64(
          product[j],
          _mm512_maskz_mul_epu32(kAll, keyed, _mm512_maskz_srli_epi64(kAll, keyed, 32)));
      sum[j] = _mm512_add_epi64(sum[j], second[j]);
    }
  }
  for (std::size_t j = 0; j < kChunks; ++j) {
    found[j].stripes = any[j] == 0 ? 0 : stripes_of(found[j]);
    found[j].second = {.product = sum_of_avx512(product[j]), .sum = sum_of_avx512(sum[j])};
  }
}

// Comparisons of bytes are an extension that processors with AVX-512 may lack.
bool compares_bytes() noexcept {
  static const bool has = __builtin_cpu_supports("avx512bw") != 0;
  return has;
}
#endif

// Calls `together` for kCount chunks at a time and `one` for those that are left.
template <std::size_t kCount, class Together, class One>
void for_each_group(const std::byte* a, const std::byte* b, std::span<ChunkDifference> found,
                    Together&& together, One&& one) noexcept {
  std::size_t chunk = 0;
  for (; found.size() - chunk >= kCount; chunk += kCount)
    together(a + chunk * kDifferenceBytes, b + chunk * kDifferenceBytes, &found[chunk]);
  for (; chunk < found.size(); ++chunk)
    one(a + chunk * kDifferenceBytes, b + chunk * kDifferenceBytes, &found[chunk]);
}

}  // namespace

void find_differences(const std::byte* a, const std::byte* b, std::span<ChunkDifference> found,
                      CopyKind kind) noexcept {
#if defined(__x86_64__)
  if (kind == CopyKind::kAvx512 && compares_bytes())
    return for_each_group<kChunksAtOnce>(a, b, found, differs_avx512<kChunksAtOnce>,
                                         differs_avx512<1>);
  if (kind != CopyKind::kPortable)
    return for_each_group<2>(a, b, found, differs_avx2<2>, differs_avx2<1>);
#else
  static_cast<void>(kind);
#endif
  for (ChunkDifference& chunk : found) {
    differs_portable(a, b, chunk);
    a += kDifferenceBytes;
    b += kDifferenceBytes;
  }
}

}  // namespace wsync::patch
