// The kernels of the CUDA backend. No CUDA runtime: they are loaded by name from the fat binary.
#include "shared/device/granule.h"

namespace granule = wsync::device::granule;

// Adds to sum[0] and sum[1] (low and high) what `granules` whole granules count that begin at
// number `first`. Any grid of blocks of whole warps.
extern "C" __global__ void wsync_digest(const ulonglong2* from, unsigned long long first,
                                        unsigned long long granules, unsigned long long* sum) {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i =
           static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < granules; i += step) {
    const ulonglong2 words = from[i];
    granule::add(first + i, words.x, words.y, low, high);
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const unsigned long long other_low = __shfl_down_sync(~0U, low, lanes);
    const unsigned long long other_high = __shfl_down_sync(~0U, high, lanes);
    low += other_low;
    high += other_high + (low < other_low ? 1U : 0U);
  }
  if (threadIdx.x % 32 != 0) return;
  const unsigned long long before = atomicAdd(sum, low);
  atomicAdd(sum + 1, high + (before + low < before ? 1U : 0U));
}
