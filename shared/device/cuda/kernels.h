// What the host and the kernels of kernels.cu agree on: names, arguments and the shape of a launch.
// nvcc and g++ both compile it. Pure; any thread.
//
// One launch does a whole batch (Stream::copy_pieces). Its pieces are cut into units of equal
// bytes, numbered through all pieces; a warp carries out one unit. So a batch of a few huge tensors
// and thousands of tiny ones is spread evenly, and a warp finds its piece by a binary search for
// its unit in `first_unit`.
//
// Before the launch, in the same stream: the table is copied to device memory, and the sums are set
// to zeros (a memset of count * sizeof(KernelSum) bytes). After it: the sums are copied back, and
// sum_of() of each is the PieceDigest.
#pragma once

#include <cstdint>

#include "shared/device/granule.h"

namespace wsync::device::cuda {

// extern "C" void wsync_copy_pieces(const KernelPiece* pieces, std::uint32_t count,
//                                   std::uint64_t unit_bytes, std::uint64_t units,
//                                   KernelSum* sums)
//
// The arguments in the order of cuLaunchKernel's `kernelParams`. `pieces` and `sums` are device
// addresses; `sums` may be null when no piece counts into one. `unit_bytes` and `units` as in
// Launch. No dynamic shared memory.
inline constexpr const char* kCopyPiecesKernel = "wsync_copy_pieces";

// extern "C" void wsync_read_bytes(const void* from, std::uint64_t granules,
//                                  unsigned long long* folded)
//
// Reads `granules` granules of 16 bytes from an address that is a multiple of 16 and does nothing
// else but to xor all their words into *folded: what reading costs, for measurements. Threads and
// dynamic shared memory as above, in blocks_of(units_of(bytes, kUnitBytesMax)) blocks.
inline constexpr const char* kReadBytesKernel = "wsync_read_bytes";

// A Piece (device.h) with the addresses that the device sees. kernel_table.h makes the table; in it
// are only pieces that have bytes and are copied or counted, in ascending order of first_unit.
// Whoever runs the kernel's body on the host instead of a GPU translates `to` and `from` of a copy
// of the table, and nothing else (run_pieces_on_host() in kernels_body.h).
struct KernelPiece {
  static constexpr std::uint32_t kNoSum = ~std::uint32_t{0};
  std::uint64_t to = 0;           // 0: nothing is copied
  std::uint64_t from = 0;         // of the first row
  std::uint64_t row_bytes = 0;    // 1 at least
  std::uint64_t rows = 0;         // 1 at least
  std::uint64_t from_stride = 0;  // from row to row, in bytes; of no meaning with one row
  std::uint64_t position = 0;     // of its first byte in what is digested; a multiple of 16
  std::uint64_t first_unit = 0;   // units of the pieces before it
  std::uint32_t sum = kNoSum;     // index of a KernelSum
  std::uint32_t unused = 0;
};
static_assert(sizeof(KernelPiece) == 64);

// A sum mod 2^128 that any number of warps add to at once. An atomic addition of 128 bits needs a
// carry between two words, which no pair of 64-bit atomics gives. So each counter takes one 32-bit
// limb of what is added: it cannot overflow before 2^32 additions, of which a launch has fewer
// (kUnitsMax), and the order of the additions is of no account. The host carries (sum_of). Four
// lanes of a warp add to the four counters of one 32-byte sector in one instruction.
struct alignas(32) KernelSum {
  unsigned long long limbs[4] = {};  // counts 2^0, 2^32, 2^64, 2^96
};
static_assert(sizeof(KernelSum) == 32);

inline constexpr std::uint32_t kWarpLanes = 32;
inline constexpr std::uint32_t kWarpsPerBlock = 8;
inline constexpr std::uint32_t kThreadsPerBlock = kWarpLanes * kWarpsPerBlock;
// Accesses of a thread that are under way together: 4 of 16 bytes.
inline constexpr std::uint32_t kAccesses = 4;
inline constexpr std::uint64_t kGranuleBytes = 16;
// A warp's unit: one to sixteen turns of kAccesses. Larger ones pay the search and the reduction of
// the sums less often, smaller ones spread a small batch over more multiprocessors.
inline constexpr std::uint64_t kUnitBytesMin = kGranuleBytes * kWarpLanes * kAccesses;
inline constexpr std::uint64_t kUnitBytesMax = 16 * kUnitBytesMin;
// 32 additions for each unit, where every lane adds for itself, still cannot overflow a KernelSum.
// With kUnitBytesMax it is 4 TiB in one batch.
inline constexpr std::uint64_t kUnitsMax = std::uint64_t{1} << 27U;

struct Launch {
  std::uint64_t unit_bytes = kUnitBytesMax;
  std::uint64_t units = 0;
  std::uint32_t blocks = 0;  // of kThreadsPerBlock threads, in x; 0: there is nothing to launch
};

// Units of a piece of `bytes` bytes.
WSYNC_HOST_DEVICE constexpr std::uint64_t units_of(std::uint64_t bytes, std::uint64_t unit_bytes) {
  return bytes / unit_bytes + (bytes % unit_bytes == 0 ? 0 : 1);
}

// The largest unit with which `bytes` bytes still fill every multiprocessor of the GPU with two
// times the warps that it holds at once.
constexpr std::uint64_t choose_unit_bytes(std::uint64_t bytes, std::uint32_t multiprocessors) {
  constexpr std::uint64_t kWarpsHeld = 64;
  std::uint64_t unit = kUnitBytesMax;
  while (unit > kUnitBytesMin && bytes / unit < 2 * kWarpsHeld * multiprocessors) unit /= 2;
  return unit;
}

// Blocks that carry out `units` units, a warp each.
constexpr std::uint32_t blocks_of(std::uint64_t units) {
  return static_cast<std::uint32_t>(units_of(units, kWarpsPerBlock));
}

}  // namespace wsync::device::cuda
