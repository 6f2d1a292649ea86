// Converts the pieces of a batch to the table that the kernels read. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/split_sum.h"
#include "shared/device/cuda/kernels.h"
#include "shared/device/device.h"

namespace wsync::device::cuda {

struct KernelTable {
  std::vector<KernelPiece> pieces;  // empty = nothing to launch
  Launch launch;
  std::uint64_t bytes = 0;  // of all pieces
  bool converts = false;    // at least one of them: for kConvertPiecesKernel
};

// Returns the table of pieces that have passed check_pieces(), for a GPU with this number of
// multiprocessors (at least 1). Leaves out empty pieces and pieces that are neither copied nor
// added to a sum. kInvalidInput for more than kUnitsMax units.
[[nodiscard]] Result<KernelTable> kernel_table(std::span<const Piece> pieces,
                                               std::uint32_t multiprocessors);

// Returns the sum in one KernelSum after a launch.
[[nodiscard]] SplitSum sum_of(const KernelSum& sum) noexcept;

}  // namespace wsync::device::cuda
