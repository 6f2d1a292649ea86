#include "shared/base/stream_copy.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "shared/base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define WSYNC_TARGET_AVX2 __attribute__((target("avx2")))
#define WSYNC_TARGET_AVX512 __attribute__((target("avx512f")))
#endif

namespace wsync {
namespace {

constexpr std::size_t kStripe = 64;
constexpr std::size_t kLanes = kStripe / 8;
constexpr std::size_t kBlock = kSumBlockBytes;
constexpr std::size_t kBlockStripes = kBlock / kStripe;
// Blocks that are read side by side. A single stream of reads is bound by the latency of memory:
// the hardware prefetchers stop at the end of a page, but can follow several pages at a time.
constexpr std::size_t kStreams = 4;
constexpr std::size_t kGroup = kStreams * kBlock;

// The parts of a sum, which are added when all bytes have been read.
struct alignas(64) Lanes {
  std::array<std::uint64_t, kLanes> product{};
  std::array<std::uint64_t, kLanes> sum{};
};

static_assert(kSumKeyCount == kLanes * kBlockStripes);
constexpr SumKeys kKeys = make_sum_keys();

// What a loop does with the bytes that it reads.
enum class Mode : std::uint8_t { kCopy, kCopySum, kSum };

// The loops of one kind of copy. In the copying modes `to` is aligned to 64 bytes.
struct Loops {
  // Processes `count` groups of kStreams whole blocks, the first of which is block `block`.
  void (*groups)(std::byte* to, const std::byte* from, std::size_t count, std::uint64_t seed,
                 std::uint64_t block, Lanes& total);
  // Processes `count` whole stripes of one block, or any number if they are only copied. `keys` are
  // the keys of the first stripe, `factor` is that of the block.
  void (*stripes)(std::byte* to, const std::byte* from, std::size_t count,
                  const std::uint64_t* keys, std::uint64_t factor, Lanes& total);
};

template <Mode kMode>
void stripes_portable(std::byte* to, const std::byte* from, std::size_t count,
                      const std::uint64_t* keys, std::uint64_t factor, Lanes& total) {
  std::array<std::uint64_t, kLanes> product{};
  for (std::size_t s = 0; s < count; ++s, from += kStripe) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), from, kStripe);
    if constexpr (kMode != Mode::kSum) {
      std::memcpy(to, words.data(), kStripe);
      to += kStripe;
    }
    if constexpr (kMode != Mode::kCopy) {
      for (std::size_t i = 0; i < kLanes; ++i) {
        product[i] += keyed_product(words[i], keys[i]);
        total.sum[i] += words[i];
      }
      keys += kLanes;
    }
  }
  for (std::size_t i = 0; i < kLanes; ++i) total.product[i] += product[i] * factor;
}

template <Mode kMode>
void groups_portable(std::byte* to, const std::byte* from, std::size_t count, std::uint64_t seed,
                     std::uint64_t block, Lanes& total) {
  for (const std::uint64_t end = block + count * kStreams; block < end; ++block, from += kBlock) {
    stripes_portable<kMode>(to, from, kBlockStripes, kKeys.words, sum_factor(seed, block), total);
    if constexpr (kMode != Mode::kSum) to += kBlock;
  }
}

#if defined(__x86_64__)
// To the second level cache: the first one has room for few lines that are on their way, and a copy
// of much memory waits for nothing else. May point past the end of the source, because a prefetch
// never faults.
inline void prefetch(const std::byte* from, std::size_t ahead) noexcept {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) + ahead),
                     0, 2);
}

WSYNC_TARGET_AVX2 inline __m256i times_avx2(__m256i x, std::uint64_t factor) {
  const __m256i low = _mm256_set1_epi64x(static_cast<long long>(factor));
  const __m256i high = _mm256_set1_epi64x(static_cast<long long>(factor >> 32U));
  const __m256i cross =
      _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), low), _mm256_mul_epu32(x, high));
  return _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64(cross, 32));
}

// Adds half of a stripe.
WSYNC_TARGET_AVX2 inline void sum_avx2(__m256i words, const std::uint64_t* keys, std::size_t half,
                                       __m256i& product, __m256i& sum) {
  const __m256i keyed =
      _mm256_xor_si256(words, _mm256_load_si256(reinterpret_cast<const __m256i*>(keys) + half));
  product = _mm256_add_epi64(product, _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32)));
  sum = _mm256_add_epi64(sum, words);
}

template <Mode kMode>
WSYNC_TARGET_AVX2 void stripes_avx2(std::byte* to, const std::byte* from, std::size_t count,
                                    const std::uint64_t* keys, std::uint64_t factor, Lanes& total) {
  auto* const product_at = reinterpret_cast<__m256i*>(total.product.data());
  auto* const sum_at = reinterpret_cast<__m256i*>(total.sum.data());
  __m256i product[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  __m256i sum[2] = {_mm256_load_si256(sum_at), _mm256_load_si256(sum_at + 1)};
  for (std::size_t s = 0; s < count; ++s) {
    prefetch(from, kBlock);
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + half);
      if constexpr (kMode != Mode::kSum)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + half, words);
      if constexpr (kMode != Mode::kCopy) sum_avx2(words, keys, half, product[half], sum[half]);
    }
    from += kStripe;
    if constexpr (kMode != Mode::kSum) to += kStripe;
    if constexpr (kMode != Mode::kCopy) keys += kLanes;
  }
  if constexpr (kMode != Mode::kCopy)
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256i before = _mm256_load_si256(product_at + half);
      _mm256_store_si256(product_at + half,
                         _mm256_add_epi64(before, times_avx2(product[half], factor)));
      _mm256_store_si256(sum_at + half, sum[half]);
    }
}

// With a sum, processes two streams at a time: more do not fit into sixteen registers.
template <Mode kMode>
WSYNC_TARGET_AVX2 void groups_avx2(std::byte* to, const std::byte* from, std::size_t count,
                                   std::uint64_t seed, std::uint64_t block, Lanes& total) {
  constexpr std::size_t kSide = kMode == Mode::kCopy ? kStreams : 2;
  auto* const product_at = reinterpret_cast<__m256i*>(total.product.data());
  auto* const sum_at = reinterpret_cast<__m256i*>(total.sum.data());
  __m256i sum[2] = {_mm256_load_si256(sum_at), _mm256_load_si256(sum_at + 1)};
  for (std::size_t step = 0; step < count * kStreams / kSide; ++step) {
    __m256i product[kSide][2];
    for (std::size_t j = 0; j < kSide; ++j)
      for (std::size_t half = 0; half < 2; ++half) product[j][half] = _mm256_setzero_si256();
    const std::uint64_t* keys = kKeys.words;
    for (std::size_t at = 0; at < kBlock; at += kStripe, keys += kLanes) {
      // All loads precede the stores. A load waits for a pending store whose address is equal
      // modulo 4 KiB, and the blocks are 4 KiB apart.
      __m256i words[kSide][2];
      for (std::size_t j = 0; j < kSide; ++j)
        for (std::size_t half = 0; half < 2; ++half)
          words[j][half] =
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + j * kBlock + at) + half);
      for (std::size_t j = 0; j < kSide; ++j) {
        const std::size_t offset = j * kBlock + at;
        prefetch(from + offset, kSide * kBlock);
        for (std::size_t half = 0; half < 2; ++half) {
          if constexpr (kMode != Mode::kSum)
            _mm256_stream_si256(reinterpret_cast<__m256i*>(to + offset) + half, words[j][half]);
          if constexpr (kMode != Mode::kCopy)
            sum_avx2(words[j][half], keys, half, product[j][half], sum[half]);
        }
      }
    }
    if constexpr (kMode != Mode::kCopy)
      for (std::size_t j = 0; j < kSide; ++j)
        for (std::size_t half = 0; half < 2; ++half) {
          const __m256i before = _mm256_load_si256(product_at + half);
          const std::uint64_t factor = sum_factor(seed, block + step * kSide + j);
          _mm256_store_si256(product_at + half,
                             _mm256_add_epi64(before, times_avx2(product[j][half], factor)));
        }
    from += kSide * kBlock;
    if constexpr (kMode != Mode::kSum) to += kSide * kBlock;
  }
  for (std::size_t half = 0; half < 2; ++half) _mm256_store_si256(sum_at + half, sum[half]);
}

// The masked forms with all lanes enabled, because g++ 12 warns about its own unmasked forms.
constexpr std::uint8_t kAll = 0xff;

WSYNC_TARGET_AVX512 inline void sum_avx512(__m512i words, __m512i keys, __m512i& product,
                                           __m512i& sum) {
  const __m512i keyed = _mm512_xor_si512(words, keys);
  const __m512i high = _mm512_maskz_srli_epi64(kAll, keyed, 32);
  product = _mm512_add_epi64(product, _mm512_maskz_mul_epu32(kAll, keyed, high));
  sum = _mm512_add_epi64(sum, words);
}

WSYNC_TARGET_AVX512 inline __m512i times_avx512(__m512i x, std::uint64_t factor) {
  const __m512i low = _mm512_set1_epi64(static_cast<long long>(factor));
  const __m512i high = _mm512_set1_epi64(static_cast<long long>(factor >> 32U));
  const __m512i cross =
      _mm512_add_epi64(_mm512_maskz_mul_epu32(kAll, _mm512_maskz_srli_epi64(kAll, x, 32), low),
                       _mm512_maskz_mul_epu32(kAll, x, high));
  return _mm512_add_epi64(_mm512_maskz_mul_epu32(kAll, x, low),
                          _mm512_maskz_slli_epi64(kAll, cross, 32));
}

template <Mode kMode>
WSYNC_TARGET_AVX512 void stripes_avx512(std::byte* to, const std::byte* from, std::size_t count,
                                        const std::uint64_t* keys, std::uint64_t factor,
                                        Lanes& total) {
  __m512i product = _mm512_setzero_si512();
  __m512i sum = _mm512_load_si512(total.sum.data());
  for (std::size_t s = 0; s < count; ++s, from += kStripe) {
    prefetch(from, kBlock);
    const __m512i words = _mm512_loadu_si512(from);
    if constexpr (kMode != Mode::kSum) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), words);
      to += kStripe;
    }
    if constexpr (kMode != Mode::kCopy)
      sum_avx512(words, _mm512_load_si512(keys + s * kLanes), product, sum);
  }
  if constexpr (kMode != Mode::kCopy) {
    const __m512i before = _mm512_load_si512(total.product.data());
    _mm512_store_si512(total.product.data(),
                       _mm512_add_epi64(before, times_avx512(product, factor)));
    _mm512_store_si512(total.sum.data(), sum);
  }
}

template <Mode kMode>
WSYNC_TARGET_AVX512 void groups_avx512(std::byte* to, const std::byte* from, std::size_t count,
                                       std::uint64_t seed, std::uint64_t block, Lanes& total) {
  __m512i all = _mm512_load_si512(total.product.data());
  __m512i sum = _mm512_load_si512(total.sum.data());
  for (std::size_t group = 0; group < count; ++group) {
    __m512i product[kStreams];
#pragma GCC unroll 4
    for (std::size_t j = 0; j < kStreams; ++j) product[j] = _mm512_setzero_si512();
    for (std::size_t at = 0; at < kBlock; at += kStripe) {
      // All loads precede the stores. A load waits for a pending store whose address is equal
      // modulo 4 KiB, and the blocks are 4 KiB apart.
      __m512i words[kStreams];
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kStreams; ++j)
        words[j] = _mm512_loadu_si512(from + j * kBlock + at);
      // The arithmetic fills the window in which the processor looks for loads to start early, so a
      // prefetch helps. A plain copy has no arithmetic and is faster without prefetches.
      if constexpr (kMode != Mode::kCopy) {
#pragma GCC unroll 4
        for (std::size_t j = 0; j < kStreams; ++j) prefetch(from + j * kBlock + at, kGroup);
      }
      if constexpr (kMode != Mode::kSum) {
#pragma GCC unroll 4
        for (std::size_t j = 0; j < kStreams; ++j)
          _mm512_stream_si512(reinterpret_cast<__m512i*>(to + j * kBlock + at), words[j]);
      }
      if constexpr (kMode != Mode::kCopy) {
        const __m512i keys = _mm512_load_si512(kKeys.words + at / sizeof(std::uint64_t));
#pragma GCC unroll 4
        for (std::size_t j = 0; j < kStreams; ++j) sum_avx512(words[j], keys, product[j], sum);
      }
    }
    from += kGroup;
    if constexpr (kMode != Mode::kSum) to += kGroup;
    if constexpr (kMode != Mode::kCopy) {
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kStreams; ++j)
        all = _mm512_add_epi64(
            all, times_avx512(product[j], sum_factor(seed, block + group * kStreams + j)));
    }
  }
  _mm512_store_si512(total.product.data(), all);
  _mm512_store_si512(total.sum.data(), sum);
}

void fence() noexcept { _mm_sfence(); }
#else
void fence() noexcept {}
#endif

template <Mode kMode>
Loops loops_of(CopyKind kind) noexcept {
  switch (kind) {
    case CopyKind::kPortable:
      return {.groups = &groups_portable<kMode>, .stripes = &stripes_portable<kMode>};
#if defined(__x86_64__)
    case CopyKind::kAvx2:
      return {.groups = &groups_avx2<kMode>, .stripes = &stripes_avx2<kMode>};
    case CopyKind::kAvx512:
      return {.groups = &groups_avx512<kMode>, .stripes = &stripes_avx512<kMode>};
#else
    case CopyKind::kAvx2:
    case CopyKind::kAvx512:
      break;
#endif
  }
  check_failed("kind is available", "this copy kind does not exist on this processor");
}

// Returns the number of bytes up to the next stripe boundary of the destination.
std::size_t bytes_to_alignment(const std::byte* to) noexcept {
  return (kStripe - reinterpret_cast<std::uintptr_t>(to) % kStripe) % kStripe;
}

// Adds fewer bytes than a stripe, word by word; zeros pad the last word.
void add_words(std::span<const std::byte> from, const SumPlace& place, Lanes& total) noexcept {
  for (std::size_t at = 0; at < from.size(); at += kSumWordBytes) {
    std::uint64_t word = 0;
    std::memcpy(&word, from.data() + at, std::min<std::size_t>(kSumWordBytes, from.size() - at));
    const std::uint64_t position = place.position + at;
    total.product[0] += keyed_product(word, kKeys.words[position % kBlock / kSumWordBytes]) *
                        sum_factor(place.seed, position / kBlock);
    total.sum[0] += word;
  }
}

// Sums, or copies and sums. `to` is null, or equal to the position mod 64.
template <Mode kMode>
void run(const Loops& loops, std::byte* to, std::span<const std::byte> from, const SumPlace& place,
         Lanes& total) noexcept {
  const auto here = [to](std::size_t at) { return to == nullptr ? nullptr : to + at; };
  const auto words = [&](std::size_t at, std::size_t bytes) {
    if (bytes == 0) return;
    if (kMode == Mode::kCopySum) std::memcpy(to + at, from.data() + at, bytes);
    add_words(from.subspan(at, bytes), {place.seed, place.position + at}, total);
  };
  std::size_t at =
      std::min<std::size_t>(from.size(), (kStripe - place.position % kStripe) % kStripe);
  words(0, at);
  while (from.size() - at >= kStripe) {
    const std::uint64_t position = place.position + at;
    const std::uint64_t block = position / kBlock;
    const std::size_t in_block = position % kBlock;
    std::size_t bytes = (from.size() - at) / kGroup * kGroup;
    if (in_block == 0 && bytes != 0) {
      loops.groups(here(at), from.data() + at, bytes / kGroup, place.seed, block, total);
    } else {
      bytes = std::min(kBlock - in_block, (from.size() - at) / kStripe * kStripe);
      loops.stripes(here(at), from.data() + at, bytes / kStripe,
                    kKeys.words + in_block / kSumWordBytes, sum_factor(place.seed, block), total);
    }
    at += bytes;
  }
  words(at, from.size() - at);
}

WordSum total_of(const Lanes& lanes) noexcept {
  WordSum total;
  for (std::size_t i = 0; i < kLanes; ++i)
    total += {.product = lanes.product[i], .sum = lanes.sum[i]};
  return total;
}

void copy_part(std::byte* to, const std::byte* from, std::size_t bytes,
               const Loops& loops) noexcept {
  const std::size_t head = std::min(bytes, bytes_to_alignment(to));
  if (head != 0) std::memcpy(to, from, head);
  Lanes unused;
  const std::size_t groups = (bytes - head) / kGroup;
  loops.groups(to + head, from + head, groups, 0, 0, unused);
  std::size_t done = head + groups * kGroup;
  const std::size_t stripes = (bytes - done) / kStripe;
  loops.stripes(to + done, from + done, stripes, nullptr, 0, unused);
  done += stripes * kStripe;
  if (done != bytes) std::memcpy(to + done, from + done, bytes - done);
}

// The stripes of the sum start at the position, those of the stores at the alignment of the
// destination. If the two differ, each group is summed first and copied while it is in the cache.
// The copy lags by less than a stripe, so that it always ends on a whole line.
void copy_unaligned(std::span<std::byte> destination, std::span<const std::byte> source,
                    const SumPlace& place, CopyKind kind, Lanes& total) noexcept {
  const Loops sum = loops_of<Mode::kSum>(kind);
  const Loops copy = loops_of<Mode::kCopy>(kind);
  const std::size_t to_block = (kBlock - place.position % kBlock) % kBlock;
  std::size_t copied = 0;
  for (std::size_t summed = 0; summed < source.size();) {
    // Parts end at blocks, so that whole groups are read side by side.
    const std::size_t part =
        std::min(source.size() - summed, summed == 0 && to_block != 0 ? to_block : kGroup);
    run<Mode::kSum>(sum, nullptr, source.subspan(summed, part),
                    {place.seed, place.position + summed}, total);
    summed += part;
    std::size_t end = summed;
    if (summed != source.size()) {
      const std::size_t over =
          reinterpret_cast<std::uintptr_t>(destination.data() + summed) % kStripe;
      end -= std::min(over, summed - copied);
    }
    copy_part(destination.data() + copied, source.data() + copied, end - copied, copy);
    copied = end;
  }
}

}  // namespace

std::span<const CopyKind> available_copy_kinds() noexcept {
  static constexpr std::array kKinds{CopyKind::kPortable, CopyKind::kAvx2, CopyKind::kAvx512};
#if defined(__x86_64__)
  static const std::size_t kCount = !__builtin_cpu_supports("avx2")      ? 1
                                    : !__builtin_cpu_supports("avx512f") ? 2
                                                                         : 3;
#else
  static constexpr std::size_t kCount = 1;
#endif
  return std::span(kKinds).first(kCount);
}

std::string_view copy_kind_name(CopyKind kind) noexcept {
  switch (kind) {
    case CopyKind::kPortable:
      return "portable";
    case CopyKind::kAvx2:
      return "avx2";
    case CopyKind::kAvx512:
      return "avx512";
  }
  return "unknown";
}

CopyKind best_copy_kind() noexcept { return available_copy_kinds().back(); }

void copy_streaming(std::span<std::byte> destination, std::span<const std::byte> source,
                    CopyKind kind) noexcept {
  WSYNC_CHECK(destination.size() == source.size(), "a copy between spans of different sizes");
  copy_part(destination.data(), source.data(), source.size(), loops_of<Mode::kCopy>(kind));
  fence();
}

WordSum copy_streaming_sum(std::span<std::byte> destination, std::span<const std::byte> source,
                           const SumPlace& place, CopyKind kind) noexcept {
  WSYNC_CHECK(destination.size() == source.size(), "a copy between spans of different sizes");
  WSYNC_CHECK(place.position % kSumWordBytes == 0, "a sum begins at a word");
  Lanes total;
  const auto address = reinterpret_cast<std::uintptr_t>(destination.data());
  if ((address - place.position) % kStripe == 0)
    run<Mode::kCopySum>(loops_of<Mode::kCopySum>(kind), destination.data(), source, place, total);
  else
    copy_unaligned(destination, source, place, kind, total);
  fence();
  return total_of(total);
}

WordSum word_sum(std::span<const std::byte> bytes, const SumPlace& place, CopyKind kind) noexcept {
  WSYNC_CHECK(place.position % kSumWordBytes == 0, "a sum begins at a word");
  Lanes total;
  run<Mode::kSum>(loops_of<Mode::kSum>(kind), nullptr, bytes, place, total);
  return total_of(total);
}

WordSum word_sum_rows(std::span<const std::byte> rows, std::uint64_t row_bytes,
                      std::uint64_t stride, const SumPlace& first, CopyKind kind) noexcept {
  WSYNC_CHECK((first.position | stride) % kSumWordBytes == 0, "a sum begins at a word");
  const Loops loops = loops_of<Mode::kSum>(kind);
  Lanes total;
  SumPlace place = first;
  for (std::size_t at = 0; at < rows.size(); at += row_bytes, place.position += stride)
    run<Mode::kSum>(loops, nullptr, rows.subspan(at, std::min(row_bytes, rows.size() - at)), place,
                    total);
  return total_of(total);
}

}  // namespace wsync
