#include "shared/device/cuda/kernel_table.h"

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::device::cuda {
namespace {

static_assert(KernelPiece::kNoSum == Piece::kNoSum);

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
                            .seed = piece.place.seed,
                            .position = piece.place.position,
                            .tensor_bytes = piece.place.tensor_bytes,
                            .sum = piece.sum,
                            .cast = piece.to == nullptr ? FloatCast{} : piece.cast});
    table.bytes += piece.bytes();
    table.converts = table.converts || !table.pieces.back().cast.is_none();
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

SplitSum sum_of(const KernelSum& sum) noexcept {
  return {.words = {.product = sum.counters[0], .sum = sum.counters[1]},
          .edges = {.product = sum.counters[2], .sum = sum.counters[3]}};
}

}  // namespace wsync::device::cuda
