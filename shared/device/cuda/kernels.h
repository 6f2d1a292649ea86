// The interface between the host and the kernels of kernels.cu: names, arguments and launch
// dimensions. NVRTC and g++ both compile it. Pure; any thread.
//
// One launch executes a whole batch (Stream::copy_pieces). Its pieces are divided into units of
// equal size, numbered across all pieces, and one warp executes one unit. This spreads a batch of a
// few huge tensors and thousands of tiny ones evenly. A warp finds its piece by a binary search for
// its unit in `first_unit`.
//
// Before the launch, the table is copied to device memory, with sums of zero behind it (count *
// sizeof(KernelSum) bytes). After it, the sums are copied back, and sum_of() of each is the
// SplitSum.
#pragma once

#include <cstdint>

#include "shared/base/float_formats.h"
#include "shared/base/word_terms.h"

namespace wsync::device::cuda {

// extern "C" void wsync_copy_pieces(const KernelPiece* pieces, std::uint32_t count,
//                                   std::uint64_t unit_bytes, std::uint64_t units,
//                                   KernelSum* sums)
//
// The arguments in the order of cuLaunchKernel's `kernelParams`. `pieces` and `sums` are device
// addresses; `sums` may be null when no piece counts into one. `unit_bytes` and `units` as in
// Launch. No dynamic shared memory.
inline constexpr const char* kCopyPiecesKernel = "wsync_copy_pieces";

// extern "C" void wsync_convert_pieces(...)
//
// The same for a batch in which pieces are converted, among others. wsync_copy_pieces does not
// convert.
inline constexpr const char* kConvertPiecesKernel = "wsync_convert_pieces";

// extern "C" void wsync_read_bytes(const void* from, std::uint64_t granules,
//                                  unsigned long long* folded)
//
// Reads `granules` granules of 16 bytes from an address that is a multiple of 16 and does nothing
// else but to xor all their words into *folded: what reading costs, for measurements. Threads and
// dynamic shared memory as above, in blocks_of(units_of(bytes, kUnitBytesMax)) blocks.
inline constexpr const char* kReadBytesKernel = "wsync_read_bytes";

// A Piece (device.h) with device addresses. kernel_table.h makes the table, which contains only
// nonempty pieces that are copied or added to a sum, in ascending order of first_unit. To execute
// the kernel's body on the host (run_pieces_on_host() in kernels_body.h), translate `to` and `from`
// in a copy of the table and nothing else.
struct KernelPiece {
  static constexpr std::uint32_t kNoSum = ~std::uint32_t{0};
  std::uint64_t to = 0;            // 0: no copy
  std::uint64_t from = 0;          // of the first row
  std::uint64_t row_bytes = 0;     // at least 1
  std::uint64_t rows = 0;          // at least 1
  std::uint64_t from_stride = 0;   // bytes from row to row; ignored if there is one row
  std::uint64_t seed = 0;          // of the tensor
  std::uint64_t position = 0;      // of the first row's first byte, in the tensor
  std::uint64_t tensor_bytes = 0;  // its last word may be short
  std::uint64_t first_unit = 0;    // number of units in the preceding pieces
  std::uint32_t sum = kNoSum;      // index of a KernelSum
  FloatCast cast;                  // of the elements; `to` has rows of converted ones
  std::uint16_t unused = 0;
};
static_assert(sizeof(KernelPiece) == 80);

// A SplitSum to which any number of warps add concurrently, mod 2^64 each. It lies in one sector of
// 32 bytes.
struct alignas(32) KernelSum {
  unsigned long long counters[4] =
      {};  // product and sum of the words, product and sum of the edges
};
static_assert(sizeof(KernelSum) == 32);

// Where the sums begin in memory that begins with a table of `table_bytes` bytes.
constexpr std::uint64_t sums_offset(std::uint64_t table_bytes) {
  return (table_bytes + alignof(KernelSum) - 1) / alignof(KernelSum) * alignof(KernelSum);
}

inline constexpr std::uint32_t kWarpLanes = 32;
inline constexpr std::uint32_t kWarpsPerBlock = 8;
inline constexpr std::uint32_t kThreadsPerBlock = kWarpLanes * kWarpsPerBlock;
// Outstanding accesses per thread: 4 of 16 bytes.
inline constexpr std::uint32_t kAccesses = 4;
inline constexpr std::uint64_t kGranuleBytes = 16;
// Size of a warp's unit: 1 to 16 iterations of kAccesses. Larger units amortise the search and the
// reduction of the sums; smaller units spread a small batch over more multiprocessors.
inline constexpr std::uint64_t kUnitBytesMin = kGranuleBytes * kWarpLanes * kAccesses;
inline constexpr std::uint64_t kUnitBytesMax = 16 * kUnitBytesMin;
// A launch has fewer than 2^31 blocks in x. With kUnitBytesMax this allows 4 TiB in one batch.
inline constexpr std::uint64_t kUnitsMax = std::uint64_t{1} << 27U;

struct Launch {
  std::uint64_t unit_bytes = kUnitBytesMax;
  std::uint64_t units = 0;
  std::uint32_t blocks = 0;  // of kThreadsPerBlock threads, in x; 0 = nothing to launch
};

// Returns the number of units of a piece of `bytes` bytes.
WSYNC_HOST_DEVICE constexpr std::uint64_t units_of(std::uint64_t bytes, std::uint64_t unit_bytes) {
  return bytes / unit_bytes + (bytes % unit_bytes == 0 ? 0 : 1);
}

// Returns the largest unit with which `bytes` bytes still give every multiprocessor twice the
// number of warps that it can hold at once.
constexpr std::uint64_t choose_unit_bytes(std::uint64_t bytes, std::uint32_t multiprocessors) {
  constexpr std::uint64_t kWarpsHeld = 64;
  std::uint64_t unit = kUnitBytesMax;
  while (unit > kUnitBytesMin && bytes / unit < 2 * kWarpsHeld * multiprocessors) unit /= 2;
  return unit;
}

// Returns the number of blocks for `units` units, with one warp per unit.
constexpr std::uint32_t blocks_of(std::uint64_t units) {
  return static_cast<std::uint32_t>(units_of(units, kWarpsPerBlock));
}

}  // namespace wsync::device::cuda
