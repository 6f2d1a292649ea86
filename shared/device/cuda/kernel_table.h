// From the pieces of a batch to the table that the kernels read. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/device/cuda/kernels.h"
#include "shared/device/device.h"
#include "shared/device/piece_digest.h"

namespace wsync::device::cuda {

struct KernelTable {
  std::vector<KernelPiece> pieces;  // empty: there is nothing to launch
  Launch launch;
  std::uint64_t bytes = 0;  // of all pieces
};

// The table of pieces that check_pieces() has seen, for a GPU with so many multiprocessors (1 at
// least). Left out: pieces without bytes, and those that are neither copied nor counted.
// kInvalidInput for more than kUnitsMax units.
[[nodiscard]] Result<KernelTable> kernel_table(std::span<const Piece> pieces,
                                               std::uint32_t multiprocessors);

// What a launch has left in one KernelSum, carried.
[[nodiscard]] PieceDigest sum_of(const KernelSum& sum) noexcept;

}  // namespace wsync::device::cuda
