#include "shared/device/cuda/kernel_table.h"

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::device::cuda {
namespace {

static_assert(KernelPiece::kNoSum == Piece::kNoSum && kGranuleBytes == kDigestGranule);

std::uint64_t address_of(const Memory* memory, std::uint64_t offset) {
  return memory == nullptr ? 0 : reinterpret_cast<std::uintptr_t>(memory->address()) + offset;
}

}  // namespace

Result<KernelTable> kernel_table(std::span<const Piece> pieces, std::uint32_t multiprocessors) {
  WSYNC_CHECK(multiprocessors > 0, "a GPU has multiprocessors");
  KernelTable table;
  table.pieces.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    if (piece.bytes() == 0 || (piece.to == nullptr && piece.sum == Piece::kNoSum)) continue;
    // Contiguous rows count as one row, which the kernel reads without a division.
    const bool dense = piece.rows == 1 || piece.from_stride == piece.row_bytes;
    table.pieces.push_back({.to = address_of(piece.to, piece.to_offset),
                            .from = address_of(piece.from, piece.from_offset),
                            .row_bytes = dense ? piece.bytes() : piece.row_bytes,
                            .rows = dense ? 1 : piece.rows,
                            .from_stride = dense ? 0 : piece.from_stride,
                            .position = piece.position,
                            .sum = piece.sum});
    table.bytes += piece.bytes();
  }
  Launch& launch = table.launch;
  launch.unit_bytes = choose_unit_bytes(table.bytes, multiprocessors);
  for (KernelPiece& piece : table.pieces) {
    piece.first_unit = launch.units;
    launch.units += units_of(piece.row_bytes * piece.rows, launch.unit_bytes);
  }
  if (launch.units > kUnitsMax || table.pieces.size() > kUnitsMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a batch of {} pieces and {} bytes is {} units of work for a GPU, "
                            "expected {} at most",
                            table.pieces.size(), table.bytes, launch.units, kUnitsMax));
  launch.blocks = blocks_of(launch.units);
  return table;
}

PieceDigest sum_of(const KernelSum& sum) noexcept {
  PieceDigest total;
  for (unsigned limb = 0; limb < 4; ++limb) {
    const std::uint64_t count = sum.limbs[limb];
    const unsigned shift = 32 * (limb % 2);
    const PieceDigest part =
        limb < 2 ? PieceDigest{.low = count << shift, .high = shift == 0 ? 0 : count >> 32U}
                 : PieceDigest{.low = 0, .high = count << shift};
    total = add(total, part);
  }
  return total;
}

}  // namespace wsync::device::cuda
