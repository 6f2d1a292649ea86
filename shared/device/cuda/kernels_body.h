// The work of one kernel thread, in a form that a C++ compiler also accepts. Kernel tests, and
// hosts without a GPU, run every thread in a loop. Only the reduction of a warp's sums is specific
// to the GPU (kernels.cu).
#pragma once

#include <cstdint>
#include <cstring>

#include "shared/base/word_terms.h"
#include "shared/device/cuda/kernels.h"

#ifdef __CUDACC__
#define WSYNC_UNROLL _Pragma("unroll")
// What is rarely executed is called, so that the kernel does not hold registers for it.
#define WSYNC_NOINLINE __noinline__
#else
#define WSYNC_UNROLL
#define WSYNC_NOINLINE
#endif

// On the host, what a GPU checks of each access: its address is a multiple of its size. For those
// who run the kernels there.
#ifndef WSYNC_ACCESS
#define WSYNC_ACCESS(address, bytes)
#endif

namespace wsync::device::cuda {

#ifdef __CUDACC__
__device__ constexpr SumKeys kKernelKeys = make_sum_keys();
#endif

// What a lane adds to a KernelSum: its counters, by name.
struct LaneSum {
  std::uint64_t product = 0;
  std::uint64_t sum = 0;
  std::uint64_t edge_product = 0;
  std::uint64_t edge_sum = 0;
};

// 16 bytes as the words of a granule.
struct alignas(16) Words {
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

// Each byte is read once and written once, so what these loads and stores bring into the caches is
// the first to leave them. Those of 16 bytes do not use the cache of the multiprocessor: on an H200
// they copied at 1,975 instead of 1,948 GB/s. Narrower ones do, because several share a line.
template <class T>
WSYNC_HOST_DEVICE inline T load(std::uint64_t address) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 8)
    return __ldcs(reinterpret_cast<const unsigned long long*>(address));
  else
    return __ldcs(reinterpret_cast<const T*>(address));
#else
  WSYNC_ACCESS(address, sizeof(T));
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
  return value;
#endif
}

template <class T>
WSYNC_HOST_DEVICE inline void store(std::uint64_t address, T value) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 8)
    __stcs(reinterpret_cast<unsigned long long*>(address), value);
  else
    __stcs(reinterpret_cast<T*>(address), value);
#else
  WSYNC_ACCESS(address, sizeof(T));
  std::memcpy(reinterpret_cast<void*>(address), &value, sizeof value);
#endif
}

template <>
WSYNC_HOST_DEVICE inline Words load<Words>(std::uint64_t address) {
#ifdef __CUDA_ARCH__
  const ulonglong2 value = __ldcg(reinterpret_cast<const ulonglong2*>(address));
  return {value.x, value.y};
#else
  WSYNC_ACCESS(address, sizeof(Words));
  Words words;
  std::memcpy(&words, reinterpret_cast<const void*>(address), sizeof words);
  return words;
#endif
}

template <>
WSYNC_HOST_DEVICE inline void store<Words>(std::uint64_t address, Words words) {
#ifdef __CUDA_ARCH__
  __stcg(reinterpret_cast<ulonglong2*>(address), make_ulonglong2(words.a, words.b));
#else
  std::memcpy(reinterpret_cast<void*>(address), &words, sizeof words);
#endif
}

// Position in `from` of the byte at `offset` of a piece. step() moves it forward by the constant
// distance `ahead` without another division.
class Cursor {
 public:
  // One that does not go ahead.
  WSYNC_HOST_DEVICE Cursor(const KernelPiece& piece, std::uint64_t offset)
      : row_bytes_(piece.row_bytes), stride_(piece.from_stride) {
    const std::uint64_t row = offset / row_bytes_;
    column_ = offset - row * row_bytes_;
    row_at_ = piece.from + row * stride_;
  }
  WSYNC_HOST_DEVICE Cursor(const KernelPiece& piece, std::uint64_t offset, std::uint64_t ahead)
      : Cursor(piece, offset) {
    const std::uint64_t rows_ahead = ahead / row_bytes_;
    columns_ahead_ = ahead - rows_ahead * row_bytes_;
    jump_ = rows_ahead * stride_;
  }
  [[nodiscard]] WSYNC_HOST_DEVICE std::uint64_t address() const { return row_at_ + column_; }
  [[nodiscard]] WSYNC_HOST_DEVICE std::uint64_t column() const { return column_; }
  WSYNC_HOST_DEVICE void go_ahead() {
    row_at_ += jump_;
    step(columns_ahead_);
  }
  // `bytes` must be at most one row.
  WSYNC_HOST_DEVICE void step(std::uint64_t bytes) {
    column_ += bytes;
    if (column_ >= row_bytes_) {
      column_ -= row_bytes_;
      row_at_ += stride_;
    }
  }

 private:
  std::uint64_t row_bytes_;
  std::uint64_t stride_;
  std::uint64_t row_at_ = 0;
  std::uint64_t column_ = 0;
  std::uint64_t columns_ahead_ = 0;
  std::uint64_t jump_ = 0;
};

// The bytes of a unit, starting at byte `offset` of the piece. Lane l processes their granules l,
// l + 32, and so on.
struct UnitRange {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint32_t lane = 0;
};

// The two keys of granule `i` of a block.
WSYNC_HOST_DEVICE inline Words keys_of(std::uint32_t i) {
#ifdef __CUDA_ARCH__
  // Read through the cache of the multiprocessor, in which the whole table stays.
  const ulonglong2 keys = __ldg(reinterpret_cast<const ulonglong2*>(kKernelKeys.words) + i);
  return {keys.x, keys.y};
#else
  static constexpr SumKeys kKeys = make_sum_keys();
  return {kKeys.words[2 * i], kKeys.words[2 * i + 1]};
#endif
}

// The key of word `i` of a block.
WSYNC_HOST_DEVICE inline std::uint64_t key_of(std::uint32_t i) {
#ifdef __CUDA_ARCH__
  return __ldg(reinterpret_cast<const unsigned long long*>(kKernelKeys.words) + i);
#else
  static constexpr SumKeys kKeys = make_sum_keys();
  return kKeys.words[i];
#endif
}

// Adds whole words to a lane's sum. It keeps the factor of the block and the product that has to be
// multiplied by it, because the next words are mostly in the same block.
class WordAdder {
 public:
  // `first` is the granule of the tensor from which add() counts.
  WSYNC_HOST_DEVICE WordAdder(std::uint64_t seed, std::uint64_t first)
      : seed_(seed),
        first_block_(first / kGranulesPerBlock),
        first_(static_cast<std::uint32_t>(first % kGranulesPerBlock)) {}
  // The two words of the granule that is `ahead` granules behind the first one.
  WSYNC_HOST_DEVICE void add(std::uint32_t ahead, const Words& words, LaneSum& sum) {
    const std::uint32_t granule = first_ + ahead;
    if (granule / kGranulesPerBlock != block_) begin(granule / kGranulesPerBlock, sum);
    const Words keys = keys_of(granule % kGranulesPerBlock);
    product_ += keyed_product(words.a, keys.a);
    product_ += keyed_product(words.b, keys.b);
    sum.sum += words.a + words.b;
  }
  WSYNC_HOST_DEVICE void end(LaneSum& sum) const { sum.product += product_ * factor_; }

 private:
  static constexpr std::uint32_t kGranulesPerBlock = kSumBlockBytes / kGranuleBytes;
  WSYNC_HOST_DEVICE void begin(std::uint32_t block, LaneSum& sum) {
    end(sum);
    block_ = block;
    factor_ = sum_factor(seed_, first_block_ + block);
    product_ = 0;
  }
  std::uint64_t seed_;
  std::uint64_t first_block_;
  std::uint32_t first_;  // in its block
  std::uint32_t block_ = ~std::uint32_t{0};
  std::uint64_t factor_ = 0;
  std::uint64_t product_ = 0;
};

// The product of one word of a tensor, with its key and the factor of its block.
WSYNC_HOST_DEVICE inline std::uint64_t word_product(std::uint64_t seed, std::uint64_t index,
                                                    std::uint64_t word) {
  return keyed_product(word, key_of(static_cast<std::uint32_t>(index % kSumKeyCount))) *
         sum_factor(seed, index / kSumKeyCount);
}

// Adds the words whose first byte in their row is one of the `bytes` bytes at `at`. A word that
// begins there is read to its end, also behind these bytes.
WSYNC_HOST_DEVICE inline void add_words(const KernelPiece& piece, Cursor at, std::uint32_t bytes,
                                        LaneSum& sum) {
  while (bytes > 0) {
    const std::uint64_t position = piece.position + (at.address() - piece.from);
    const auto cut = static_cast<std::uint32_t>(position % kSumWordBytes);
    const std::uint64_t room = piece.row_bytes - at.column();
    auto length = static_cast<std::uint32_t>(kSumWordBytes) - cut;
    if (room < length) length = static_cast<std::uint32_t>(room);
    if (cut == 0 || at.column() == 0) {
      std::uint64_t word = 0;
      if (length == kSumWordBytes && at.address() % kSumWordBytes == 0) {
        word = load<std::uint64_t>(at.address());
      } else {
        for (std::uint32_t k = 0; k < length; ++k) {
          const std::uint64_t byte = load<unsigned char>(at.address() + k);
          word |= byte << (8U * (cut + k));
        }
      }
      const bool is_whole =
          cut == 0 && (length == kSumWordBytes || position + length == piece.tensor_bytes);
      const std::uint64_t product = word_product(piece.seed, position / kSumWordBytes, word);
      if (is_whole) {
        sum.product += product;
        sum.sum += word;
      } else {
        sum.edge_product += product;
        sum.edge_sum += word;
      }
    }
    const std::uint32_t step = length < bytes ? length : bytes;
    at.step(step);
    bytes -= step;
  }
}

// Adds the words of a unit, whatever its alignment.
WSYNC_HOST_DEVICE inline void add_all_words(const KernelPiece& piece, UnitRange range,
                                            LaneSum& sum) {
  for (std::uint32_t at = range.lane * kGranuleBytes; at < range.bytes;
       at += kWarpLanes * kGranuleBytes) {
    const std::uint32_t left = range.bytes - at;
    add_words(piece, Cursor(piece, range.offset + at), left < kGranuleBytes ? left : kGranuleBytes,
              sum);
  }
}

// A part of a row, aligned to 16 bytes.
struct Segment {
  std::uint64_t to = 0;  // 0: no copy
  std::uint64_t from = 0;
  std::uint64_t granule = 0;  // the first one's number in the tensor
  std::uint32_t granules = 0;
};

// kAccesses loads are issued before the first result is used.
WSYNC_HOST_DEVICE inline void run_segment(const Segment& segment, std::uint64_t seed, bool counted,
                                          std::uint32_t lane, LaneSum& sum) {
  const std::uint64_t from = segment.from;
  const std::uint64_t to = segment.to;
  const std::uint32_t granules = segment.granules;
  WordAdder adder(seed, segment.granule);
  std::uint32_t g = lane;
  for (; g + (kAccesses - 1) * kWarpLanes < granules; g += kAccesses * kWarpLanes) {
    Words words[kAccesses];
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kAccesses; ++k)
      words[k] = load<Words>(from + (g + k * kWarpLanes) * kGranuleBytes);
    if (to != 0) {
      WSYNC_UNROLL
      for (std::uint32_t k = 0; k < kAccesses; ++k)
        store(to + (g + k * kWarpLanes) * kGranuleBytes, words[k]);
    }
    if (counted) {
      WSYNC_UNROLL
      for (std::uint32_t k = 0; k < kAccesses; ++k) adder.add(g + k * kWarpLanes, words[k], sum);
    }
  }
  for (; g < granules; g += kWarpLanes) {
    const auto words = load<Words>(from + g * kGranuleBytes);
    if (to != 0) store(to + g * kGranuleBytes, words);
    if (counted) adder.add(g, words, sum);
  }
  adder.end(sum);
}

// Rows whose size, addresses, stride and positions are multiples of 16, and which are so long that
// a warp works on one at a time.
WSYNC_HOST_DEVICE WSYNC_NOINLINE inline LaneSum run_long_rows(const KernelPiece& piece,
                                                              UnitRange range) {
  LaneSum sum;
  const std::uint64_t row = range.offset / piece.row_bytes;
  std::uint64_t column = range.offset - row * piece.row_bytes;
  std::uint64_t skipped = row * piece.from_stride;  // from the first row to the present one
  std::uint64_t to = piece.to == 0 ? 0 : piece.to + range.offset;
  for (auto left = static_cast<std::uint32_t>(range.bytes / kGranuleBytes); left > 0;) {
    const std::uint64_t room = (piece.row_bytes - column) / kGranuleBytes;
    const std::uint32_t granules = room < left ? static_cast<std::uint32_t>(room) : left;
    run_segment({.to = to,
                 .from = piece.from + skipped + column,
                 .granule = (piece.position + skipped + column) / kGranuleBytes,
                 .granules = granules},
                piece.seed, piece.sum != KernelPiece::kNoSum, range.lane, sum);
    if (to != 0) to += granules * kGranuleBytes;
    left -= granules;
    column = 0;
    skipped += piece.from_stride;
  }
  return sum;
}

// The same for short rows, several of which a warp reads at once. Each granule may be in another
// block.
WSYNC_HOST_DEVICE WSYNC_NOINLINE inline LaneSum run_short_rows(const KernelPiece& piece,
                                                               UnitRange range) {
  constexpr std::uint32_t kTogether = 2;  // fewer than kAccesses, because addresses are kept, too
  LaneSum sum;
  const auto granules = static_cast<std::uint32_t>(range.bytes / kGranuleBytes);
  const std::uint64_t to = piece.to;
  const std::uint64_t seed = piece.seed;
  const std::uint64_t ahead = piece.position - piece.from;  // of addresses, mod 2^64
  const bool counted = piece.sum != KernelPiece::kNoSum;
  const auto add = [&](std::uint64_t address, const Words& words) {
    const std::uint64_t index = (ahead + address) / kSumWordBytes;
    const Words keys = keys_of(static_cast<std::uint32_t>(index % kSumKeyCount / 2));
    sum.product += (keyed_product(words.a, keys.a) + keyed_product(words.b, keys.b)) *
                   sum_factor(seed, index / kSumKeyCount);
    sum.sum += words.a + words.b;
  };
  Cursor cursor(piece, range.offset + range.lane * kGranuleBytes, kWarpLanes * kGranuleBytes);
  std::uint64_t at = to + range.offset + range.lane * kGranuleBytes;
  std::uint32_t g = range.lane;
  for (; g + (kTogether - 1) * kWarpLanes < granules; g += kTogether * kWarpLanes) {
    Words words[kTogether];
    std::uint64_t addresses[kTogether];
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kTogether; ++k) {
      addresses[k] = cursor.address();
      words[k] = load<Words>(addresses[k]);
      cursor.go_ahead();
    }
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kTogether; ++k) {
      if (to != 0) store(at + k * kWarpLanes * kGranuleBytes, words[k]);
      if (counted) add(addresses[k], words[k]);
    }
    at += kTogether * kWarpLanes * kGranuleBytes;
  }
  for (; g < granules; g += kWarpLanes) {
    const auto words = load<Words>(cursor.address());
    if (to != 0) store(at, words);
    if (counted) add(cursor.address(), words);
    cursor.go_ahead();
    at += kWarpLanes * kGranuleBytes;
  }
  return sum;
}

// Rows whose size, addresses, stride and positions are multiples of a word of the sum.
WSYNC_HOST_DEVICE WSYNC_NOINLINE inline LaneSum run_word_rows(const KernelPiece& piece,
                                                              UnitRange range) {
  LaneSum sum;
  constexpr std::uint32_t kWords = kGranuleBytes / kSumWordBytes;
  const std::uint64_t to = piece.to;
  const std::uint64_t seed = piece.seed;
  const std::uint64_t ahead = piece.position - piece.from;  // of addresses, mod 2^64
  const bool counted = piece.sum != KernelPiece::kNoSum;
  Cursor cursor(piece, range.offset + range.lane * kGranuleBytes, kWarpLanes * kGranuleBytes);
  for (std::uint32_t at = range.lane * kGranuleBytes; at < range.bytes;
       at += kWarpLanes * kGranuleBytes) {
    Cursor word = cursor;
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kWords; ++k) {
      if (at + k * kSumWordBytes >= range.bytes) break;
      const auto value = load<std::uint64_t>(word.address());
      if (to != 0) store(to + range.offset + at + k * kSumWordBytes, value);
      if (counted) {
        sum.product += word_product(seed, (ahead + word.address()) / kSumWordBytes, value);
        sum.sum += value;
      }
      word.step(kSumWordBytes);
    }
    cursor.go_ahead();
  }
  return sum;
}

// Copies a unit where all addresses and sizes are multiples of the word's size.
template <class Word>
WSYNC_HOST_DEVICE inline void copy_words(const KernelPiece& piece, UnitRange range) {
  // Loads that are issued before the first result is used.
  constexpr std::uint32_t kWords = 4;
  constexpr auto kStep = static_cast<std::uint32_t>(kWords * sizeof(Word));
  const std::uint64_t to = piece.to + range.offset;
  Cursor cursor(piece, range.offset + range.lane * kStep, kWarpLanes * kStep);
  for (std::uint32_t at = range.lane * kStep; at < range.bytes; at += kWarpLanes * kStep) {
    Word words[kWords] = {};
    Cursor word = cursor;
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kWords; ++k) {
      if (at + k * sizeof(Word) < range.bytes) words[k] = load<Word>(word.address());
      word.step(sizeof(Word));
    }
    cursor.go_ahead();
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kWords; ++k)
      if (at + k * sizeof(Word) < range.bytes) store(to + at + k * sizeof(Word), words[k]);
  }
}

// Everything else. Bytes are copied as they are aligned, and summed by words of the tensor, which
// begin elsewhere; what is read twice is in the cache. The lowest bit set in `bits` is the largest
// common alignment of what is copied.
WSYNC_HOST_DEVICE WSYNC_NOINLINE inline LaneSum run_unaligned(const KernelPiece& piece,
                                                              UnitRange range, std::uint64_t bits) {
  if (piece.to != 0) {
    if (bits % 4 == 0)
      copy_words<std::uint32_t>(piece, range);
    else if (bits % 2 == 0)
      copy_words<std::uint16_t>(piece, range);
    else
      copy_words<std::uint8_t>(piece, range);
  }
  LaneSum sum;
  if (piece.sum != KernelPiece::kNoSum) add_all_words(piece, range, sum);
  return sum;
}

// Converts the elements of 16 bytes of the source, and writes them.
template <FloatFormat kFrom, FloatFormat kTo>
WSYNC_HOST_DEVICE inline void store_converted(std::uint64_t to, const Words& words) {
  constexpr std::uint32_t kFromBits = 8 * float_bytes(kFrom);
  constexpr std::uint32_t kToBits = 8 * float_bytes(kTo);
  constexpr std::uint32_t kElements = 64 / kFromBits;  // in a word
  constexpr std::uint64_t kMask = (std::uint64_t{1} << kFromBits) - 1;
  std::uint64_t out[kToBits > kFromBits ? 4 : 2] = {};
  WSYNC_UNROLL
  for (std::uint32_t i = 0; i < 2 * kElements; ++i) {
    const std::uint64_t word = i < kElements ? words.a : words.b;
    const auto element = static_cast<std::uint32_t>((word >> (i % kElements * kFromBits)) & kMask);
    const std::uint64_t converted = write_float(kTo, read_float(kFrom, element));
    out[i * kToBits / 64] |= converted << (i * kToBits % 64);
  }
  constexpr std::uint32_t kBytes = 2 * kElements * kToBits / 8;
  if constexpr (kBytes == 32) {
    store(to, Words{out[0], out[1]});
    store(to + 16, Words{out[2], out[3]});
  } else if constexpr (kBytes == 16) {
    store(to, Words{out[0], out[1]});
  } else if constexpr (kBytes == 8) {
    store(to, out[0]);
  } else {
    store(to, static_cast<std::uint32_t>(out[0]));
  }
}

// A unit whose source is aligned to 16 bytes, and its target to what 16 bytes become.
template <FloatFormat kFrom, FloatFormat kTo>
WSYNC_HOST_DEVICE inline LaneSum convert_granules(const KernelPiece& piece, UnitRange range) {
  constexpr std::uint32_t kTogether = 2;
  constexpr std::uint64_t kWritten = kGranuleBytes / float_bytes(kFrom) * float_bytes(kTo);
  LaneSum sum;
  const auto granules = static_cast<std::uint32_t>(range.bytes / kGranuleBytes);
  const std::uint64_t seed = piece.seed;
  const std::uint64_t ahead = piece.position - piece.from;  // of addresses, mod 2^64
  const bool counted = piece.sum != KernelPiece::kNoSum;
  const auto add = [&](std::uint64_t address, const Words& words) {
    const std::uint64_t index = (ahead + address) / kSumWordBytes;
    const Words keys = keys_of(static_cast<std::uint32_t>(index % kSumKeyCount / 2));
    sum.product += (keyed_product(words.a, keys.a) + keyed_product(words.b, keys.b)) *
                   sum_factor(seed, index / kSumKeyCount);
    sum.sum += words.a + words.b;
  };
  Cursor cursor(piece, range.offset + range.lane * kGranuleBytes, kWarpLanes * kGranuleBytes);
  std::uint64_t to = piece.to + (range.offset / kGranuleBytes + range.lane) * kWritten;
  std::uint32_t g = range.lane;
  for (; g + (kTogether - 1) * kWarpLanes < granules; g += kTogether * kWarpLanes) {
    Words words[kTogether];
    std::uint64_t addresses[kTogether];
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kTogether; ++k) {
      addresses[k] = cursor.address();
      words[k] = load<Words>(addresses[k]);
      cursor.go_ahead();
    }
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kTogether; ++k) {
      store_converted<kFrom, kTo>(to + k * kWarpLanes * kWritten, words[k]);
      if (counted) add(addresses[k], words[k]);
    }
    to += kTogether * kWarpLanes * kWritten;
  }
  for (; g < granules; g += kWarpLanes) {
    const auto words = load<Words>(cursor.address());
    store_converted<kFrom, kTo>(to, words);
    if (counted) add(cursor.address(), words);
    cursor.go_ahead();
    to += kWarpLanes * kWritten;
  }
  return sum;
}

template <FloatFormat kFrom>
WSYNC_HOST_DEVICE inline LaneSum convert_granules_from(const KernelPiece& piece, UnitRange range) {
  switch (piece.cast.to) {
    case FloatFormat::kF32:
      return convert_granules<kFrom, FloatFormat::kF32>(piece, range);
    case FloatFormat::kF16:
      return convert_granules<kFrom, FloatFormat::kF16>(piece, range);
    case FloatFormat::kBF16:
      return convert_granules<kFrom, FloatFormat::kBF16>(piece, range);
    case FloatFormat::kF8E4M3:
      break;
  }
  return convert_granules<kFrom, FloatFormat::kF8E4M3>(piece, range);
}

// Any other unit: one element at a time.
WSYNC_HOST_DEVICE inline void convert_elements(const KernelPiece& piece, UnitRange range) {
  const std::uint32_t step = float_bytes(piece.cast.from);
  const std::uint32_t written = float_bytes(piece.cast.to);
  Cursor cursor(piece, range.offset + range.lane * step, std::uint64_t{kWarpLanes} * step);
  for (std::uint32_t at = range.lane * step; at < range.bytes; at += kWarpLanes * step) {
    const std::uint32_t element =
        step == 4 ? load<std::uint32_t>(cursor.address()) : load<std::uint16_t>(cursor.address());
    cursor.go_ahead();
    const std::uint32_t converted =
        write_float(piece.cast.to, read_float(piece.cast.from, element));
    const std::uint64_t to = piece.to + (range.offset + at) / step * written;
    if (written == 4)
      store(to, converted);
    else if (written == 2)
      store(to, static_cast<std::uint16_t>(converted));
    else
      store(to, static_cast<std::uint8_t>(converted));
  }
}

// Copies and converts.
WSYNC_HOST_DEVICE inline LaneSum run_converting(const KernelPiece& piece, UnitRange range) {
  std::uint64_t bits = piece.from | range.bytes;
  if (piece.rows > 1) bits |= piece.row_bytes | piece.from_stride;
  if (piece.sum != KernelPiece::kNoSum) bits |= piece.position;
  const std::uint64_t written = piece.cast.converted(kGranuleBytes);
  if (bits % kGranuleBytes == 0 &&
      piece.to % (written < kGranuleBytes ? written : kGranuleBytes) == 0) {
    if (piece.cast.from == FloatFormat::kF32)
      return convert_granules_from<FloatFormat::kF32>(piece, range);
    if (piece.cast.from == FloatFormat::kF16)
      return convert_granules_from<FloatFormat::kF16>(piece, range);
    return convert_granules_from<FloatFormat::kBF16>(piece, range);
  }
  convert_elements(piece, range);
  LaneSum sum;
  if (piece.sum != KernelPiece::kNoSum) add_all_words(piece, range, sum);
  return sum;
}

// Executes lane `lane` of unit `unit` of `stored`, counted from the piece's first unit. Returns the
// lane's contribution to the sum.
WSYNC_HOST_DEVICE inline LaneSum run_lane(const KernelPiece& stored, std::uint64_t unit,
                                          std::uint64_t unit_bytes, std::uint32_t lane) {
  const KernelPiece piece = stored;  // read at once; what is rarely executed reads it again
  const std::uint64_t all = piece.row_bytes * piece.rows;
  const std::uint64_t offset = unit * unit_bytes;
  const std::uint64_t bytes = all - offset < unit_bytes ? all - offset : unit_bytes;
  const UnitRange range{offset, static_cast<std::uint32_t>(bytes), lane};
  std::uint64_t bits = piece.to | piece.from | bytes;
  if (piece.rows > 1) bits |= piece.row_bytes | piece.from_stride;
  const std::uint64_t counted = piece.sum == KernelPiece::kNoSum ? bits : bits | piece.position;
  // The sum of the usual case stays in registers, because its address is given to nobody.
  if (counted % kGranuleBytes == 0 && piece.rows == 1) {
    LaneSum sum;
    run_segment({.to = piece.to == 0 ? 0 : piece.to + offset,
                 .from = piece.from + offset,
                 .granule = (piece.position + offset) / kGranuleBytes,
                 .granules = range.bytes / static_cast<std::uint32_t>(kGranuleBytes)},
                piece.seed, piece.sum != KernelPiece::kNoSum, lane, sum);
    return sum;
  }
  if (counted % kGranuleBytes == 0 && piece.row_bytes >= kUnitBytesMin)
    return run_long_rows(stored, range);
  if (counted % kGranuleBytes == 0) return run_short_rows(stored, range);
  if (counted % kSumWordBytes == 0) return run_word_rows(stored, range);
  return run_unaligned(stored, range, bits);
}

// The same in a batch that has pieces which are converted. They are not a case of run_lane(), which
// would need more registers then.
WSYNC_HOST_DEVICE WSYNC_NOINLINE inline LaneSum run_plain_lane(const KernelPiece& piece,
                                                               std::uint64_t unit,
                                                               std::uint64_t unit_bytes,
                                                               std::uint32_t lane) {
  return run_lane(piece, unit, unit_bytes, lane);
}
WSYNC_HOST_DEVICE inline LaneSum run_any_lane(const KernelPiece& piece, std::uint64_t unit,
                                              std::uint64_t unit_bytes, std::uint32_t lane) {
  if (piece.cast.is_none()) return run_plain_lane(piece, unit, unit_bytes, lane);
  const std::uint64_t all = piece.row_bytes * piece.rows;
  const std::uint64_t offset = unit * unit_bytes;
  const std::uint64_t bytes = all - offset < unit_bytes ? all - offset : unit_bytes;
  return run_converting(piece, {offset, static_cast<std::uint32_t>(bytes), lane});
}

// Returns the index of the piece that contains unit `unit`. `count` must be at least 1.
WSYNC_HOST_DEVICE inline std::uint32_t piece_of(const KernelPiece* pieces, std::uint32_t count,
                                                std::uint64_t unit) {
  std::uint32_t low = 0;
  std::uint32_t high = count;
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (pieces[middle].first_unit <= unit)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// Returns what the lane adds to counter `i` of a KernelSum.
WSYNC_HOST_DEVICE inline std::uint64_t counter_of(const LaneSum& sum, std::uint32_t i) {
  const std::uint64_t words = i == 0 ? sum.product : sum.sum;
  const std::uint64_t edges = i == 2 ? sum.edge_product : sum.edge_sum;
  return i < 2 ? words : edges;
}

// Executes the reads of lane `lane` of warp `warp` over `granules` granules.
WSYNC_HOST_DEVICE inline std::uint64_t read_lane(std::uint64_t from, std::uint64_t granules,
                                                 std::uint64_t warp, std::uint32_t lane) {
  constexpr std::uint64_t kUnit = kUnitBytesMax / kGranuleBytes;
  const std::uint64_t first = warp * kUnit;
  if (first >= granules) return 0;
  const auto count =
      static_cast<std::uint32_t>(granules - first < kUnit ? granules - first : kUnit);
  const std::uint64_t at = from + first * kGranuleBytes;
  std::uint64_t folded = 0;
  std::uint32_t g = lane;
  for (; g + (kAccesses - 1) * kWarpLanes < count; g += kAccesses * kWarpLanes) {
    Words words[kAccesses];
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kAccesses; ++k)
      words[k] = load<Words>(at + (g + k * kWarpLanes) * kGranuleBytes);
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kAccesses; ++k) folded ^= words[k].a ^ words[k].b;
  }
  for (; g < count; g += kWarpLanes) {
    const auto words = load<Words>(at + g * kGranuleBytes);
    folded ^= words.a ^ words.b;
  }
  return folded;
}

#ifndef __CUDACC__
// Executes wsync_read_bytes on the host. The arguments are host addresses.
inline void read_bytes_on_host(const void* from, std::uint64_t granules,
                               unsigned long long* folded) {
  const std::uint64_t warps = units_of(granules * kGranuleBytes, kUnitBytesMax);
  for (std::uint64_t warp = 0; warp < warps; ++warp)
    for (std::uint32_t lane = 0; lane < kWarpLanes; ++lane)
      *folded ^= read_lane(reinterpret_cast<std::uintptr_t>(from), granules, warp, lane);
}

// Executes a whole launch on the host, thread by thread, with the kernel's arguments in the same
// order. All addresses are host addresses: `pieces`, `sums`, and `to` and `from` of every piece.
inline void run_pieces_on_host(const KernelPiece* pieces, std::uint32_t count,
                               std::uint64_t unit_bytes, std::uint64_t units, KernelSum* sums) {
  for (std::uint64_t unit = 0; unit < units; ++unit) {
    const KernelPiece& piece = pieces[piece_of(pieces, count, unit)];
    for (std::uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      const LaneSum sum = run_any_lane(piece, unit - piece.first_unit, unit_bytes, lane);
      if (piece.sum == KernelPiece::kNoSum) continue;
      for (std::uint32_t i = 0; i < 4; ++i) sums[piece.sum].counters[i] += counter_of(sum, i);
    }
  }
}
#endif

}  // namespace wsync::device::cuda
