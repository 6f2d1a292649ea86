// The work of one kernel thread, in a form that a C++ compiler also accepts. Kernel tests, and
// hosts without a GPU, run every thread in a loop. Only the reduction of a warp's sums is specific
// to the GPU (kernels.cu).
#pragma once

#include <cstdint>
#include <cstring>

#include "shared/device/cuda/kernels.h"
#include "shared/device/granule.h"

#ifdef __CUDACC__
#define WSYNC_UNROLL _Pragma("unroll")
#else
#define WSYNC_UNROLL
#endif

namespace wsync::device::cuda {

struct LaneSum {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

// 16 bytes as the words of a granule.
struct alignas(16) Words {
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

// Each byte is read once and written once, so these loads and stores bypass the caches.
template <class T>
WSYNC_HOST_DEVICE inline T load(std::uint64_t address) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 8)
    return __ldcs(reinterpret_cast<const unsigned long long*>(address));
  else
    return __ldcs(reinterpret_cast<const T*>(address));
#else
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
  std::memcpy(reinterpret_cast<void*>(address), &value, sizeof value);
#endif
}

template <>
WSYNC_HOST_DEVICE inline Words load<Words>(std::uint64_t address) {
#ifdef __CUDA_ARCH__
  const ulonglong2 value = __ldcs(reinterpret_cast<const ulonglong2*>(address));
  return {value.x, value.y};
#else
  Words words;
  std::memcpy(&words, reinterpret_cast<const void*>(address), sizeof words);
  return words;
#endif
}

template <>
WSYNC_HOST_DEVICE inline void store<Words>(std::uint64_t address, Words words) {
#ifdef __CUDA_ARCH__
  __stcs(reinterpret_cast<ulonglong2*>(address), make_ulonglong2(words.a, words.b));
#else
  std::memcpy(reinterpret_cast<void*>(address), &words, sizeof words);
#endif
}

// Position in `from` of the byte at `offset` of a piece. step() moves it forward by the constant
// distance `ahead` without another division.
class Cursor {
 public:
  WSYNC_HOST_DEVICE Cursor(const KernelPiece& piece, std::uint64_t offset, std::uint64_t ahead)
      : row_bytes_(piece.row_bytes), stride_(piece.from_stride) {
    const std::uint64_t row = offset / row_bytes_;
    column_ = offset - row * row_bytes_;
    row_at_ = piece.from + row * stride_;
    const std::uint64_t rows_ahead = ahead / row_bytes_;
    columns_ahead_ = ahead - rows_ahead * row_bytes_;
    jump_ = rows_ahead * stride_;
  }
  [[nodiscard]] WSYNC_HOST_DEVICE std::uint64_t address() const { return row_at_ + column_; }
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

// The whole granules of a unit: `granules` of them, starting at byte `offset` of the piece. Lane l
// processes granules l, l + 32, and so on.
struct UnitRange {
  std::uint64_t offset = 0;
  std::uint32_t granules = 0;
  std::uint32_t lane = 0;
};

WSYNC_HOST_DEVICE inline void count_granule(std::uint64_t i, const Words& words, LaneSum& sum) {
  granule::add(i, words.a, words.b, sum.low, sum.high);
}

// One row, aligned to 16 bytes. kAccesses loads are issued before the first result is used.
WSYNC_HOST_DEVICE inline void run_whole(const KernelPiece& piece, const UnitRange& range,
                                        LaneSum& sum) {
  const std::uint64_t from = piece.from + range.offset;
  const std::uint64_t to = piece.to + range.offset;
  const std::uint64_t first = (piece.position + range.offset) / kGranuleBytes;
  const bool copied = piece.to != 0;
  const bool counted = piece.sum != KernelPiece::kNoSum;
  std::uint32_t g = range.lane;
  for (; g + (kAccesses - 1) * kWarpLanes < range.granules; g += kAccesses * kWarpLanes) {
    Words words[kAccesses];
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kAccesses; ++k)
      words[k] = load<Words>(from + (g + k * kWarpLanes) * kGranuleBytes);
    if (copied) {
      WSYNC_UNROLL
      for (std::uint32_t k = 0; k < kAccesses; ++k)
        store(to + (g + k * kWarpLanes) * kGranuleBytes, words[k]);
    }
    if (counted) {
      WSYNC_UNROLL
      for (std::uint32_t k = 0; k < kAccesses; ++k)
        count_granule(first + g + k * kWarpLanes, words[k], sum);
    }
  }
  for (; g < range.granules; g += kWarpLanes) {
    const auto words = load<Words>(from + g * kGranuleBytes);
    if (copied) store(to + g * kGranuleBytes, words);
    if (counted) count_granule(first + g, words, sum);
  }
}

// Rows whose size, addresses and stride are multiples of 16.
WSYNC_HOST_DEVICE inline void run_rows(const KernelPiece& piece, const UnitRange& range,
                                       LaneSum& sum) {
  if (range.lane >= range.granules) return;
  const std::uint64_t to = piece.to + range.offset;
  const std::uint64_t first = (piece.position + range.offset) / kGranuleBytes;
  const bool copied = piece.to != 0;
  const bool counted = piece.sum != KernelPiece::kNoSum;
  Cursor cursor(piece, range.offset + range.lane * kGranuleBytes, kWarpLanes * kGranuleBytes);
  std::uint32_t g = range.lane;
  for (; g + (kAccesses - 1) * kWarpLanes < range.granules; g += kAccesses * kWarpLanes) {
    Words words[kAccesses];
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kAccesses; ++k) {
      words[k] = load<Words>(cursor.address());
      cursor.go_ahead();
    }
    if (copied) {
      WSYNC_UNROLL
      for (std::uint32_t k = 0; k < kAccesses; ++k)
        store(to + (g + k * kWarpLanes) * kGranuleBytes, words[k]);
    }
    if (counted) {
      WSYNC_UNROLL
      for (std::uint32_t k = 0; k < kAccesses; ++k)
        count_granule(first + g + k * kWarpLanes, words[k], sum);
    }
  }
  for (; g < range.granules; g += kWarpLanes) {
    const auto words = load<Words>(cursor.address());
    cursor.go_ahead();
    if (copied) store(to + g * kGranuleBytes, words);
    if (counted) count_granule(first + g, words, sum);
  }
}

// For alignments smaller than 16: all values are multiples of the word's size. A granule is
// gathered word by word, across the ends of rows.
template <class Word>
WSYNC_HOST_DEVICE inline void run_words(const KernelPiece& piece, const UnitRange& range,
                                        LaneSum& sum) {
  constexpr std::uint32_t kWords = kGranuleBytes / sizeof(Word);
  if (range.lane >= range.granules) return;
  const std::uint64_t to = piece.to + range.offset;
  const std::uint64_t first = (piece.position + range.offset) / kGranuleBytes;
  Cursor cursor(piece, range.offset + range.lane * kGranuleBytes, kWarpLanes * kGranuleBytes);
  for (std::uint32_t g = range.lane; g < range.granules; g += kWarpLanes) {
    Word words[kWords];
    Cursor at = cursor;
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kWords; ++k) {
      words[k] = load<Word>(at.address());
      at.step(sizeof(Word));
    }
    cursor.go_ahead();
    if (piece.to != 0) {
      WSYNC_UNROLL
      for (std::uint32_t k = 0; k < kWords; ++k)
        store(to + g * kGranuleBytes + k * sizeof(Word), words[k]);
    }
    Words granule;
    WSYNC_UNROLL
    for (std::uint32_t k = 0; k < kWords; ++k) {
      const std::uint64_t value = words[k];
      const std::uint32_t byte = k * static_cast<std::uint32_t>(sizeof(Word));
      (byte < 8 ? granule.a : granule.b) |= value << (8U * (byte % 8U));
    }
    if (piece.sum != KernelPiece::kNoSum) count_granule(first + g, granule, sum);
  }
}

// The last bytes of a piece that do not fill a granule, padded with zeros.
WSYNC_HOST_DEVICE inline void run_end(const KernelPiece& piece, std::uint64_t offset,
                                      std::uint32_t bytes, LaneSum& sum) {
  Words granule;
  Cursor cursor(piece, offset, 1);
  for (std::uint32_t k = 0; k < bytes; ++k) {
    const auto value = load<unsigned char>(cursor.address());
    cursor.step(1);
    if (piece.to != 0) store(piece.to + offset + k, value);
    const std::uint64_t wide = value;
    (k < 8 ? granule.a : granule.b) |= wide << (8U * (k % 8U));
  }
  if (piece.sum != KernelPiece::kNoSum)
    count_granule((piece.position + offset) / kGranuleBytes, granule, sum);
}

// Executes lane `lane` of unit `unit` of `piece`, counted from the piece's first unit. Returns the
// lane's contribution to the sum.
WSYNC_HOST_DEVICE inline LaneSum run_lane(const KernelPiece& piece, std::uint64_t unit,
                                          std::uint64_t unit_bytes, std::uint32_t lane) {
  LaneSum sum;
  const std::uint64_t all = piece.row_bytes * piece.rows;
  const std::uint64_t offset = unit * unit_bytes;
  const std::uint64_t bytes = all - offset < unit_bytes ? all - offset : unit_bytes;
  const UnitRange range{offset, static_cast<std::uint32_t>(bytes / kGranuleBytes), lane};
  const bool rows = piece.rows > 1;
  // The lowest bit set in any of the values is their largest common alignment.
  const std::uint64_t bits =
      piece.to | piece.from | (rows ? piece.row_bytes | piece.from_stride : 0U);
  if (bits % 16 == 0 && !rows)
    run_whole(piece, range, sum);
  else if (bits % 16 == 0)
    run_rows(piece, range, sum);
  else if (bits % 8 == 0)
    run_words<std::uint64_t>(piece, range, sum);
  else if (bits % 4 == 0)
    run_words<std::uint32_t>(piece, range, sum);
  else if (bits % 2 == 0)
    run_words<std::uint16_t>(piece, range, sum);
  else
    run_words<std::uint8_t>(piece, range, sum);
  // Executed by the lane with the least work.
  if (const auto end = static_cast<std::uint32_t>(bytes % kGranuleBytes);
      end != 0 && lane == kWarpLanes - 1)
    run_end(piece, offset + bytes - end, end, sum);
  return sum;
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

// Returns the summand for limb `limb` (0 to 3) of a KernelSum.
WSYNC_HOST_DEVICE inline std::uint64_t limb_of(const LaneSum& sum, std::uint32_t limb) {
  const std::uint64_t word = limb < 2 ? sum.low : sum.high;
  return (limb % 2 == 0 ? word : word >> 32U) & 0xffffffffU;
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
      const LaneSum sum = run_lane(piece, unit - piece.first_unit, unit_bytes, lane);
      if (piece.sum == KernelPiece::kNoSum) continue;
      for (std::uint32_t limb = 0; limb < 4; ++limb)
        sums[piece.sum].limbs[limb] += limb_of(sum, limb);
    }
  }
}
#endif

}  // namespace wsync::device::cuda
