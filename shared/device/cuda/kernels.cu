// The kernels. kernels.h defines their arguments, kernels_body.h the work of a thread.
//
// The grid has one warp per unit. A persistent grid that loops over the units is not used, for two
// reasons. Blocks are assigned as multiprocessors become free, which balances slow units. And
// blocks end after some microseconds, so that blocks of a stream of higher priority (a broadcast)
// can run in between.
#include "shared/device/cuda/kernels_body.h"
#include "shared/device/cuda/patch_body.h"

namespace wsync::device::cuda {
namespace {

// Returns the sum over all lanes, in every lane.
__device__ std::uint64_t warp_sum(std::uint64_t value) {
#pragma unroll
  for (std::uint32_t distance = kWarpLanes / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(~0U, value, distance);
  return value;
}

// Adds the sums of all lanes. Most pieces have no edges.
__device__ void add_to(KernelSum& sum, const LaneSum& own, std::uint32_t lane) {
  const bool has_edges = __any_sync(~0U, (own.edge_product | own.edge_sum) != 0);
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    if (i >= 2 && !has_edges) break;
    const std::uint64_t all = warp_sum(counter_of(own, i));
    if (lane == i) atomicAdd(&sum.counters[i], all);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreadsPerBlock, 4)
    wsync_copy_pieces(const KernelPiece* pieces, std::uint32_t count, std::uint64_t unit_bytes,
                      std::uint64_t units, KernelSum* sums) {
  const std::uint32_t lane = threadIdx.x % kWarpLanes;
  const std::uint64_t unit =
      static_cast<std::uint64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarpLanes;
  if (unit >= units) return;  // uniform in a warp: all lanes have the same `unit`
  const KernelPiece& piece = pieces[piece_of(pieces, count, unit)];
  const LaneSum own = run_lane(piece, unit - piece.first_unit, unit_bytes, lane);
  if (piece.sum == KernelPiece::kNoSum) return;
  add_to(sums[piece.sum], own, lane);
}

extern "C" __global__ void __launch_bounds__(kThreadsPerBlock, 4)
    wsync_convert_pieces(const KernelPiece* pieces, std::uint32_t count, std::uint64_t unit_bytes,
                         std::uint64_t units, KernelSum* sums) {
  const std::uint32_t lane = threadIdx.x % kWarpLanes;
  const std::uint64_t unit =
      static_cast<std::uint64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarpLanes;
  if (unit >= units) return;  // uniform in a warp: all lanes have the same `unit`
  const KernelPiece& piece = pieces[piece_of(pieces, count, unit)];
  const LaneSum own = run_any_lane(piece, unit - piece.first_unit, unit_bytes, lane);
  if (piece.sum == KernelPiece::kNoSum) return;
  add_to(sums[piece.sum], own, lane);
}

extern "C" __global__ void __launch_bounds__(kThreadsPerBlock, 4)
    wsync_change_words(const KernelWords* blocks, std::uint32_t count, std::uint64_t units,
                       KernelSum* sums) {
  const std::uint32_t lane = threadIdx.x % kWarpLanes;
  const std::uint64_t unit =
      static_cast<std::uint64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarpLanes;
  if (unit >= units) return;  // uniform in a warp, as above
  const KernelWords block = blocks[block_of(blocks, count, unit)];
  KernelSum* const pair = sums + 2 * static_cast<std::uint64_t>(block.sum);
  LaneChange own;
  change_lane(block, unit - block.first_unit, lane, pair, own);
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint64_t all = warp_sum(counter_of(own, i));
    if (lane == i) add_counter(counter_at(pair, i), all);
  }
}

extern "C" __global__ void __launch_bounds__(kThreadsPerBlock)
    wsync_read_bytes(const void* from, std::uint64_t granules, unsigned long long* folded) {
  const std::uint32_t lane = threadIdx.x % kWarpLanes;
  const std::uint64_t warp =
      static_cast<std::uint64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarpLanes;
  unsigned long long all = read_lane(reinterpret_cast<std::uint64_t>(from), granules, warp, lane);
#pragma unroll
  for (std::uint32_t distance = kWarpLanes / 2; distance > 0; distance /= 2)
    all ^= __shfl_xor_sync(~0U, all, distance);
  if (lane == 0) atomicXor(folded, all);
}

}  // namespace wsync::device::cuda
