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
constexpr std::size_t kBlockStripes = 64;
constexpr std::size_t kBlock = kStripe * kBlockStripes;
// Blocks that are read side by side. A single stream of reads is bound by the latency of memory:
// the hardware prefetchers stop at the end of a page, but can follow several pages at a time.
constexpr std::size_t kStreams = 4;
constexpr std::size_t kGroup = kStreams * kBlock;

struct alignas(64) Lanes {
  std::array<std::uint64_t, kLanes> product{};
  std::array<std::uint64_t, kLanes> sum{};
};
using Streams = std::array<Lanes, kStreams>;

// Numbers of the splitmix64 generator. Keys must have no arithmetic relation to each other: with
// keys in arithmetic progression, some pairs of flipped bits cancel.
struct alignas(64) Keys {
  std::array<std::uint64_t, kLanes * kBlockStripes> words{};
  constexpr Keys() {
    std::uint64_t state = 0x7773796e63;  // "wsync"
    for (std::uint64_t& word : words) {
      state += 0x9e3779b97f4a7c15;
      std::uint64_t x = state;
      x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9;
      x = (x ^ (x >> 27U)) * 0x94d049bb133111eb;
      word = x ^ (x >> 31U);
    }
  }
};
constexpr Keys kKeys;

// Applied after each block, so that the order of blocks affects the value. The sums are not
// scrambled: they detect every change of a single word with certainty. The function is a bijection
// because the factor is odd. The factor has 32 bits, so that vector instructions without a 64-bit
// product can compute it.
constexpr unsigned kScrambleShift = 37;
constexpr std::uint64_t kScrambleKey = 0xe7037ed1a0b428db;
constexpr std::uint64_t kScrambleFactor = 0x9e3779b1;

void scramble(Lanes& lanes) noexcept {
  for (std::uint64_t& x : lanes.product)
    x = (x ^ (x >> kScrambleShift) ^ kScrambleKey) * kScrambleFactor;
}

// A bijection of 64 bits with full avalanche.
std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 32U;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32U;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32U);
}

std::uint64_t fold(const Streams& streams, std::uint64_t bytes) noexcept {
  // One chain per stream, computed side by side, then one chain through their results.
  std::array<std::uint64_t, kStreams> ends{};
  for (std::size_t i = 0; i < kLanes; ++i)
    for (std::size_t j = 0; j < kStreams; ++j)
      ends[j] = mix(ends[j] ^ streams[j].product[i]) + kKeys.words[0];
  for (std::size_t i = 0; i < kLanes; ++i)
    for (std::size_t j = 0; j < kStreams; ++j)
      ends[j] = mix(ends[j] ^ streams[j].sum[i]) + kKeys.words[1];
  std::uint64_t value = mix(bytes + 0x9e3779b97f4a7c15);
  for (const std::uint64_t end : ends) value = mix(value ^ end) + kKeys.words[2];
  return value;
}

// What a loop does with the bytes that it reads.
enum class Mode : std::uint8_t { kCopy, kCopyChecksum, kChecksum };

// The loops of one kind of copy. In the copying modes `to` is aligned to 64 bytes.
struct Loops {
  // Processes `count` groups of kStreams whole blocks, and scrambles after each block.
  void (*groups)(std::byte* to, const std::byte* from, std::size_t count, Streams& streams);
  // Processes `count` whole stripes of one stream: at most one block, unless they are only copied.
  // `keys` are the keys of the first stripe.
  void (*stripes)(std::byte* to, const std::byte* from, std::size_t count,
                  const std::uint64_t* keys, Lanes& lanes);
};

template <Mode kMode>
void stripes_portable(std::byte* to, const std::byte* from, std::size_t count,
                      const std::uint64_t* keys, Lanes& lanes) {
  for (std::size_t s = 0; s < count; ++s, from += kStripe) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), from, kStripe);
    if constexpr (kMode != Mode::kChecksum) {
      std::memcpy(to, words.data(), kStripe);
      to += kStripe;
    }
    if constexpr (kMode != Mode::kCopy) {
      for (std::size_t i = 0; i < kLanes; ++i) {
        const std::uint64_t keyed = words[i] ^ keys[i];
        lanes.product[i] += (keyed & 0xffffffffU) * (keyed >> 32U);
        lanes.sum[i] += words[i];
      }
      keys += kLanes;
    }
  }
}

template <Mode kMode>
void groups_portable(std::byte* to, const std::byte* from, std::size_t count, Streams& streams) {
  for (std::size_t block = 0; block < count * kStreams; ++block, from += kBlock) {
    Lanes& lanes = streams[block % kStreams];
    stripes_portable<kMode>(to, from, kBlockStripes, kKeys.words.data(), lanes);
    if constexpr (kMode != Mode::kCopy) scramble(lanes);
    if constexpr (kMode != Mode::kChecksum) to += kBlock;
  }
}

#if defined(__x86_64__)
// May point past the end of the source: a prefetch never faults.
inline void prefetch(const std::byte* from, std::size_t ahead) noexcept {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) + ahead));
}

// Processes half of a stripe.
template <Mode kMode>
WSYNC_TARGET_AVX2 inline void half_avx2(std::byte* to, const std::byte* from,
                                        const std::uint64_t* keys, std::size_t half,
                                        __m256i& product, __m256i& sum) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + half);
  if constexpr (kMode != Mode::kChecksum)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + half, words);
  if constexpr (kMode != Mode::kCopy) {
    const __m256i keyed =
        _mm256_xor_si256(words, _mm256_load_si256(reinterpret_cast<const __m256i*>(keys) + half));
    product = _mm256_add_epi64(product, _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32)));
    sum = _mm256_add_epi64(sum, words);
  }
}

WSYNC_TARGET_AVX2 inline __m256i scrambled_avx2(__m256i x) {
  x = _mm256_xor_si256(x, _mm256_srli_epi64(x, kScrambleShift));
  x = _mm256_xor_si256(x, _mm256_set1_epi64x(static_cast<long long>(kScrambleKey)));
  const __m256i factor = _mm256_set1_epi64x(static_cast<long long>(kScrambleFactor));
  const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), factor);
  return _mm256_add_epi64(_mm256_mul_epu32(x, factor), _mm256_slli_epi64(high, 32));
}

template <Mode kMode>
WSYNC_TARGET_AVX2 void stripes_avx2(std::byte* to, const std::byte* from, std::size_t count,
                                    const std::uint64_t* keys, Lanes& lanes) {
  auto* const product_at = reinterpret_cast<__m256i*>(lanes.product.data());
  auto* const sum_at = reinterpret_cast<__m256i*>(lanes.sum.data());
  __m256i product[2] = {_mm256_load_si256(product_at), _mm256_load_si256(product_at + 1)};
  __m256i sum[2] = {_mm256_load_si256(sum_at), _mm256_load_si256(sum_at + 1)};
  for (std::size_t s = 0; s < count; ++s) {
    prefetch(from, kBlock);
    for (std::size_t half = 0; half < 2; ++half)
      half_avx2<kMode>(to, from, keys, half, product[half], sum[half]);
    from += kStripe;
    if constexpr (kMode != Mode::kChecksum) to += kStripe;
    if constexpr (kMode != Mode::kCopy) keys += kLanes;
  }
  for (std::size_t half = 0; half < 2; ++half) {
    _mm256_store_si256(product_at + half, product[half]);
    _mm256_store_si256(sum_at + half, sum[half]);
  }
}

// With a checksum, processes two streams at a time: the lanes of more do not fit into sixteen
// registers.
template <Mode kMode>
WSYNC_TARGET_AVX2 void groups_avx2(std::byte* to, const std::byte* from, std::size_t count,
                                   Streams& streams) {
  constexpr std::size_t kSide = kMode == Mode::kCopy ? kStreams : 2;
  for (std::size_t step = 0; step < count * kStreams / kSide; ++step) {
    Lanes* const lanes = &streams[step * kSide % kStreams];
    __m256i product[kSide][2];
    __m256i sum[kSide][2];
    for (std::size_t j = 0; j < kSide; ++j)
      for (std::size_t half = 0; half < 2; ++half) {
        product[j][half] =
            _mm256_load_si256(reinterpret_cast<__m256i*>(lanes[j].product.data()) + half);
        sum[j][half] = _mm256_load_si256(reinterpret_cast<__m256i*>(lanes[j].sum.data()) + half);
      }
    const std::uint64_t* keys = kKeys.words.data();
    for (std::size_t at = 0; at < kBlock; at += kStripe, keys += kLanes)
      for (std::size_t j = 0; j < kSide; ++j) {
        const std::size_t offset = j * kBlock + at;
        prefetch(from + offset, kSide * kBlock);
        for (std::size_t half = 0; half < 2; ++half)
          half_avx2<kMode>(kMode == Mode::kChecksum ? nullptr : to + offset, from + offset, keys,
                           half, product[j][half], sum[j][half]);
      }
    for (std::size_t j = 0; j < kSide; ++j)
      for (std::size_t half = 0; half < 2; ++half) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(lanes[j].product.data()) + half,
                           scrambled_avx2(product[j][half]));
        _mm256_store_si256(reinterpret_cast<__m256i*>(lanes[j].sum.data()) + half, sum[j][half]);
      }
    from += kSide * kBlock;
    if constexpr (kMode != Mode::kChecksum) to += kSide * kBlock;
  }
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

WSYNC_TARGET_AVX512 inline __m512i scrambled_avx512(__m512i x) {
  x = _mm512_xor_si512(x, _mm512_maskz_srli_epi64(kAll, x, kScrambleShift));
  x = _mm512_xor_si512(x, _mm512_set1_epi64(static_cast<long long>(kScrambleKey)));
  const __m512i factor = _mm512_set1_epi64(static_cast<long long>(kScrambleFactor));
  const __m512i high = _mm512_maskz_mul_epu32(kAll, _mm512_maskz_srli_epi64(kAll, x, 32), factor);
  return _mm512_add_epi64(_mm512_maskz_mul_epu32(kAll, x, factor),
                          _mm512_maskz_slli_epi64(kAll, high, 32));
}

template <Mode kMode>
WSYNC_TARGET_AVX512 void stripes_avx512(std::byte* to, const std::byte* from, std::size_t count,
                                        const std::uint64_t* keys, Lanes& lanes) {
  __m512i product = _mm512_load_si512(lanes.product.data());
  __m512i sum = _mm512_load_si512(lanes.sum.data());
  for (std::size_t s = 0; s < count; ++s, from += kStripe) {
    prefetch(from, kBlock);
    const __m512i words = _mm512_loadu_si512(from);
    if constexpr (kMode != Mode::kChecksum) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), words);
      to += kStripe;
    }
    if constexpr (kMode != Mode::kCopy)
      sum_avx512(words, _mm512_load_si512(keys + s * kLanes), product, sum);
  }
  _mm512_store_si512(lanes.product.data(), product);
  _mm512_store_si512(lanes.sum.data(), sum);
}

template <Mode kMode>
WSYNC_TARGET_AVX512 void groups_avx512(std::byte* to, const std::byte* from, std::size_t count,
                                       Streams& streams) {
  __m512i product[kStreams];
  __m512i sum[kStreams];
#pragma GCC unroll 4
  for (std::size_t j = 0; j < kStreams; ++j) {
    product[j] = _mm512_load_si512(streams[j].product.data());
    sum[j] = _mm512_load_si512(streams[j].sum.data());
  }
  for (std::size_t group = 0; group < count; ++group) {
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
      if constexpr (kMode != Mode::kChecksum) {
#pragma GCC unroll 4
        for (std::size_t j = 0; j < kStreams; ++j)
          _mm512_stream_si512(reinterpret_cast<__m512i*>(to + j * kBlock + at), words[j]);
      }
      if constexpr (kMode != Mode::kCopy) {
        const __m512i keys = _mm512_load_si512(kKeys.words.data() + at / sizeof(std::uint64_t));
#pragma GCC unroll 4
        for (std::size_t j = 0; j < kStreams; ++j) sum_avx512(words[j], keys, product[j], sum[j]);
      }
    }
    from += kGroup;
    if constexpr (kMode != Mode::kChecksum) to += kGroup;
    if constexpr (kMode != Mode::kCopy) {
#pragma GCC unroll 4
      for (std::size_t j = 0; j < kStreams; ++j) product[j] = scrambled_avx512(product[j]);
    }
  }
#pragma GCC unroll 4
  for (std::size_t j = 0; j < kStreams; ++j) {
    _mm512_store_si512(streams[j].product.data(), product[j]);
    _mm512_store_si512(streams[j].sum.data(), sum[j]);
  }
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

// Processes the whole stripes of `from`. Its first block belongs to stream 0.
void run(const Loops& loops, std::byte* to, std::span<const std::byte> from,
         Streams& streams) noexcept {
  const auto place = [to](std::size_t at) { return to == nullptr ? nullptr : to + at; };
  loops.groups(to, from.data(), from.size() / kGroup, streams);
  const std::size_t whole = from.size() / kStripe * kStripe;
  for (std::size_t at = from.size() / kGroup * kGroup; at < whole;) {
    const std::size_t part = std::min(kBlock, whole - at);
    Lanes& lanes = streams[at / kBlock % kStreams];
    loops.stripes(place(at), from.data() + at, part / kStripe, kKeys.words.data(), lanes);
    if (part == kBlock) scramble(lanes);
    at += part;
  }
}

// Adds the last, incomplete stripe of `from` and folds the lanes.
std::uint64_t finish(std::span<const std::byte> from, Streams& streams) noexcept {
  const std::size_t stripes = from.size() / kStripe;
  const auto tail = from.subspan(stripes * kStripe);
  if (!tail.empty()) {
    alignas(64) std::array<std::byte, kStripe> padded{};
    std::memcpy(padded.data(), tail.data(), tail.size());
    stripes_portable<Mode::kChecksum>(nullptr, padded.data(), 1,
                                      &kKeys.words[stripes % kBlockStripes * kLanes],
                                      streams[stripes / kBlockStripes % kStreams]);
  }
  return fold(streams, from.size());
}

void copy_part(std::byte* to, const std::byte* from, std::size_t bytes,
               const Loops& loops) noexcept {
  const std::size_t head = std::min(bytes, bytes_to_alignment(to));
  if (head != 0) std::memcpy(to, from, head);
  Streams unused;
  const std::size_t groups = (bytes - head) / kGroup;
  loops.groups(to + head, from + head, groups, unused);
  std::size_t done = head + groups * kGroup;
  const std::size_t stripes = (bytes - done) / kStripe;
  loops.stripes(to + done, from + done, stripes, nullptr, unused[0]);
  done += stripes * kStripe;
  if (done != bytes) std::memcpy(to + done, from + done, bytes - done);
}

// The stripes of the checksum start at the first byte of the source, those of the stores at the
// alignment of the destination. If the two differ, each group is summed first and copied while it
// is in the cache. The copy lags by less than a stripe, so that it always ends on a whole line.
std::uint64_t copy_unaligned(std::span<std::byte> destination, std::span<const std::byte> source,
                             CopyKind kind) noexcept {
  const Loops sum = loops_of<Mode::kChecksum>(kind);
  const Loops copy = loops_of<Mode::kCopy>(kind);
  const std::size_t shift = kStripe - bytes_to_alignment(destination.data());
  Streams streams;
  std::size_t copied = 0;
  for (std::size_t summed = 0; source.size() - summed >= kGroup;) {
    run(sum, nullptr, source.subspan(summed, kGroup), streams);
    summed += kGroup;
    const std::size_t end = summed - shift;
    copy_part(destination.data() + copied, source.data() + copied, end - copied, copy);
    copied = end;
  }
  run(sum, nullptr, source.subspan(source.size() / kGroup * kGroup), streams);
  copy_part(destination.data() + copied, source.data() + copied, source.size() - copied, copy);
  return finish(source, streams);
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

std::uint64_t copy_streaming_checksum(std::span<std::byte> destination,
                                      std::span<const std::byte> source, CopyKind kind) noexcept {
  WSYNC_CHECK(destination.size() == source.size(), "a copy between spans of different sizes");
  std::uint64_t value = 0;
  if (bytes_to_alignment(destination.data()) != 0) {
    value = copy_unaligned(destination, source, kind);
  } else {
    Streams streams;
    run(loops_of<Mode::kCopyChecksum>(kind), destination.data(), source, streams);
    const std::size_t tail = source.size() % kStripe;
    if (tail != 0) std::memcpy(destination.last(tail).data(), source.last(tail).data(), tail);
    value = finish(source, streams);
  }
  fence();
  return value;
}

std::uint64_t checksum(std::span<const std::byte> bytes, CopyKind kind) noexcept {
  Streams streams;
  run(loops_of<Mode::kChecksum>(kind), nullptr, bytes, streams);
  return finish(bytes, streams);
}

}  // namespace wsync
