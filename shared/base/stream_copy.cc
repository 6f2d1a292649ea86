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

struct alignas(64) Lanes {
  std::array<std::uint64_t, kLanes> product{};
  std::array<std::uint64_t, kLanes> sum{};
};

// The numbers of the splitmix64 generator. Keys must have no arithmetic relation between them: with
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

void scramble(Lanes& lanes) noexcept {
  const auto one = [](std::uint64_t& x) {
    x = (x ^ (x >> 37U)) * 0xa0761d6478bd642f + 0xe7037ed1a0b428db;
  };
  for (std::uint64_t& lane : lanes.product) one(lane);
  for (std::uint64_t& lane : lanes.sum) one(lane);
}

// A bijection of 64 bits with full avalanche.
std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 32U;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32U;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32U);
}

std::uint64_t fold(const Lanes& lanes, std::uint64_t bytes) noexcept {
  std::uint64_t value = mix(bytes + 0x9e3779b97f4a7c15);
  for (const std::uint64_t lane : lanes.product) value = mix(value ^ lane) + kKeys.words[0];
  for (const std::uint64_t lane : lanes.sum) value = mix(value ^ lane) + kKeys.words[1];
  return value;
}

// What a loop over whole stripes does with them.
enum class Mode : std::uint8_t { kCopy, kCopyChecksum, kChecksum };

// The loops take `stripes` whole stripes, at most a block of them unless they only copy; keys are
// those of the first stripe. For the copying modes `to` is aligned to 64 bytes.
using Loop = void (*)(std::byte* to, const std::byte* from, std::size_t stripes,
                      const std::uint64_t* keys, Lanes& lanes);

template <Mode kMode>
void loop_portable(std::byte* to, const std::byte* from, std::size_t stripes,
                   const std::uint64_t* keys, Lanes& lanes) {
  for (std::size_t s = 0; s < stripes; ++s, from += kStripe) {
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

#if defined(__x86_64__)
// A single reader is bound by latency; asking for lines this far ahead hides the checksum's cost.
constexpr std::uintptr_t kPrefetchBytes = 1024;

// Harmless past the end of the source: a prefetch never faults.
inline void prefetch(const std::byte* from) noexcept {
  __builtin_prefetch(
      reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) + kPrefetchBytes));
}

template <Mode kMode>
WSYNC_TARGET_AVX2 void loop_avx2(std::byte* to, const std::byte* from, std::size_t stripes,
                                 const std::uint64_t* keys, Lanes& lanes) {
  auto* const product_at = reinterpret_cast<__m256i*>(lanes.product.data());
  auto* const sum_at = reinterpret_cast<__m256i*>(lanes.sum.data());
  __m256i product[2] = {_mm256_load_si256(product_at), _mm256_load_si256(product_at + 1)};
  __m256i sum[2] = {_mm256_load_si256(sum_at), _mm256_load_si256(sum_at + 1)};
  for (std::size_t s = 0; s < stripes; ++s) {
    prefetch(from);
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + half);
      if constexpr (kMode != Mode::kChecksum)
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + half, words);
      if constexpr (kMode != Mode::kCopy) {
        const __m256i keyed = _mm256_xor_si256(
            words, _mm256_load_si256(reinterpret_cast<const __m256i*>(keys) + half));
        const __m256i high = _mm256_srli_epi64(keyed, 32);
        product[half] = _mm256_add_epi64(product[half], _mm256_mul_epu32(keyed, high));
        sum[half] = _mm256_add_epi64(sum[half], words);
      }
    }
    from += kStripe;
    if constexpr (kMode != Mode::kChecksum) to += kStripe;
    if constexpr (kMode != Mode::kCopy) keys += kLanes;
  }
  for (std::size_t half = 0; half < 2; ++half) {
    _mm256_store_si256(product_at + half, product[half]);
    _mm256_store_si256(sum_at + half, sum[half]);
  }
}

template <Mode kMode>
WSYNC_TARGET_AVX512 void loop_avx512(std::byte* to, const std::byte* from, std::size_t stripes,
                                     const std::uint64_t* keys, Lanes& lanes) {
  // The masked forms with all lanes on: g++ 12 warns of its own unmasked ones.
  constexpr __mmask8 kAll = 0xff;
  __m512i product = _mm512_load_si512(lanes.product.data());
  __m512i sum = _mm512_load_si512(lanes.sum.data());
  for (std::size_t s = 0; s < stripes; ++s) {
    prefetch(from);
    const __m512i words = _mm512_loadu_si512(from);
    from += kStripe;
    if constexpr (kMode != Mode::kChecksum) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), words);
      to += kStripe;
    }
    if constexpr (kMode != Mode::kCopy) {
      const __m512i keyed = _mm512_xor_si512(words, _mm512_load_si512(keys));
      keys += kLanes;
      const __m512i high = _mm512_maskz_srli_epi64(kAll, keyed, 32);
      product = _mm512_add_epi64(product, _mm512_maskz_mul_epu32(kAll, keyed, high));
      sum = _mm512_add_epi64(sum, words);
    }
  }
  _mm512_store_si512(lanes.product.data(), product);
  _mm512_store_si512(lanes.sum.data(), sum);
}

void fence() noexcept { _mm_sfence(); }
#else
void fence() noexcept {}
#endif

template <Mode kMode>
Loop loop_of(CopyKind kind) noexcept {
  switch (kind) {
    case CopyKind::kPortable:
      return &loop_portable<kMode>;
#if defined(__x86_64__)
    case CopyKind::kAvx2:
      return &loop_avx2<kMode>;
    case CopyKind::kAvx512:
      return &loop_avx512<kMode>;
#else
    case CopyKind::kAvx2:
    case CopyKind::kAvx512:
      break;
#endif
  }
  check_failed("kind is available", "this copy kind does not exist on this processor");
}

// Bytes up to the next stripe boundary of the destination.
std::size_t bytes_to_alignment(const std::byte* to) noexcept {
  return (kStripe - reinterpret_cast<std::uintptr_t>(to) % kStripe) % kStripe;
}

// The stripes of `from` that are whole, block by block.
void run(Loop loop, std::byte* to, std::span<const std::byte> from, Lanes& lanes) noexcept {
  const std::size_t whole = from.size() / kStripe * kStripe;
  for (std::size_t at = 0; at < whole;) {
    const std::size_t part = std::min(kBlock, whole - at);
    loop(to == nullptr ? nullptr : to + at, from.data() + at, part / kStripe, kKeys.words.data(),
         lanes);
    if (part == kBlock) scramble(lanes);
    at += part;
  }
}

// Adds the last, incomplete stripe of `from`, and folds.
std::uint64_t finish(std::span<const std::byte> from, Lanes& lanes) noexcept {
  const std::size_t stripes = from.size() / kStripe;
  const auto tail = from.subspan(stripes * kStripe);
  if (!tail.empty()) {
    alignas(64) std::array<std::byte, kStripe> padded{};
    std::memcpy(padded.data(), tail.data(), tail.size());
    loop_portable<Mode::kChecksum>(nullptr, padded.data(), 1,
                                   &kKeys.words[stripes % kBlockStripes * kLanes], lanes);
  }
  return fold(lanes, from.size());
}

void copy_part(std::byte* to, const std::byte* from, std::size_t bytes, Loop loop) noexcept {
  const std::size_t head = std::min(bytes, bytes_to_alignment(to));
  if (head != 0) std::memcpy(to, from, head);
  const std::size_t stripes = (bytes - head) / kStripe;
  Lanes unused;
  loop(to + head, from + head, stripes, nullptr, unused);
  const std::size_t done = head + stripes * kStripe;
  if (done != bytes) std::memcpy(to + done, from + done, bytes - done);
}

// The stripes of the checksum start at the source's first byte, those of the stores at the
// destination's alignment. When the two differ, each block is summed first and copied while it is
// in the cache; the copy trails by less than a stripe so that it always ends on a whole line.
std::uint64_t copy_unaligned(std::span<std::byte> destination, std::span<const std::byte> source,
                             CopyKind kind) noexcept {
  const Loop sum = loop_of<Mode::kChecksum>(kind);
  const Loop copy = loop_of<Mode::kCopy>(kind);
  const std::size_t shift = kStripe - bytes_to_alignment(destination.data());
  Lanes lanes;
  std::size_t copied = 0;
  for (std::size_t summed = 0; source.size() - summed >= kBlock;) {
    run(sum, nullptr, source.subspan(summed, kBlock), lanes);
    summed += kBlock;
    const std::size_t end = summed - shift;
    copy_part(destination.data() + copied, source.data() + copied, end - copied, copy);
    copied = end;
  }
  run(sum, nullptr, source.subspan(source.size() / kBlock * kBlock), lanes);
  copy_part(destination.data() + copied, source.data() + copied, source.size() - copied, copy);
  return finish(source, lanes);
}

}  // namespace

std::span<const CopyKind> available_copy_kinds() noexcept {
  static constexpr std::array kAll{CopyKind::kPortable, CopyKind::kAvx2, CopyKind::kAvx512};
#if defined(__x86_64__)
  static const std::size_t kCount = !__builtin_cpu_supports("avx2")      ? 1
                                    : !__builtin_cpu_supports("avx512f") ? 2
                                                                         : 3;
#else
  static constexpr std::size_t kCount = 1;
#endif
  return std::span(kAll).first(kCount);
}

CopyKind best_copy_kind() noexcept { return available_copy_kinds().back(); }

void copy_streaming(std::span<std::byte> destination, std::span<const std::byte> source,
                    CopyKind kind) noexcept {
  WSYNC_CHECK(destination.size() == source.size(), "a copy between spans of different sizes");
  copy_part(destination.data(), source.data(), source.size(), loop_of<Mode::kCopy>(kind));
  fence();
}

std::uint64_t copy_streaming_checksum(std::span<std::byte> destination,
                                      std::span<const std::byte> source, CopyKind kind) noexcept {
  WSYNC_CHECK(destination.size() == source.size(), "a copy between spans of different sizes");
  std::uint64_t value = 0;
  if (bytes_to_alignment(destination.data()) != 0) {
    value = copy_unaligned(destination, source, kind);
  } else {
    Lanes lanes;
    run(loop_of<Mode::kCopyChecksum>(kind), destination.data(), source, lanes);
    const std::size_t tail = source.size() % kStripe;
    if (tail != 0) std::memcpy(destination.last(tail).data(), source.last(tail).data(), tail);
    value = finish(source, lanes);
  }
  fence();
  return value;
}

std::uint64_t checksum(std::span<const std::byte> bytes, CopyKind kind) noexcept {
  Lanes lanes;
  run(loop_of<Mode::kChecksum>(kind), nullptr, bytes, lanes);
  return finish(bytes, lanes);
}

}  // namespace wsync
