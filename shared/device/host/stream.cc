#include "shared/device/host/stream.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/device/cuda/patch_body.h"
#include "shared/device/word_table.h"

namespace wsync::device::host {
namespace {

constexpr std::uint64_t kCopyWindowBytes = 4 * limits::kMiB;

SplitSum sum_rows(const Piece& piece, const std::byte* from) {
  if (piece.from_stride == piece.row_bytes) return split_sum({from, piece.bytes()}, piece.place);
  SplitSum sum;
  for (std::uint64_t row = 0; row < piece.rows; ++row) {
    RangePlace place = piece.place;
    place.position += row * piece.from_stride;
    sum += split_sum({from + row * piece.from_stride, piece.row_bytes}, place);
  }
  return sum;
}

void convert(const FloatCast& cast, const std::byte* from, std::uint64_t bytes, std::byte* to) {
  const std::uint32_t step = float_bytes(cast.from);
  const std::uint32_t written = float_bytes(cast.to);
  for (std::uint64_t at = 0; at < bytes; at += step, to += written) {
    std::uint32_t element = 0;
    std::memcpy(&element, from + at, step);
    element = write_float(cast.to, read_float(cast.from, element));
    std::memcpy(to, &element, written);
  }
}

}  // namespace

Result<> HostStream::copy(std::byte* to, const std::byte* from, std::uint64_t bytes,
                          const std::stop_token& stop) {
  for (std::uint64_t at = 0; at < bytes; at += kCopyWindowBytes) {
    if (stop.stop_requested())
      return fail(ErrorCode::kCancelled, fmt::format("copy stopped at byte {} of {}", at, bytes));
    std::memcpy(to + at, from + at, std::min(kCopyWindowBytes, bytes - at));
  }
  return {};
}

Result<> HostStream::copy_to_device(const Region& to, std::span<const std::byte> source) {
  WSYNC_TRY(check_region(to, true));
  if (to.bytes != source.size())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: a copy of {} bytes into a region of {} bytes", name(),
                            source.size(), to.bytes));
  enqueue([this, at = to.memory->address() + to.offset, source](const std::stop_token& stop) {
    return copy(at, source.data(), source.size(), stop);
  });
  return {};
}

Result<> HostStream::copy_rows_to_device(const Region& to, std::span<const std::byte> source,
                                         const RowShape& rows) {
  WSYNC_TRY(check_region(to, true));
  if (to.bytes != source.size())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: a copy of rows in {} bytes into a region of {} bytes", name(),
                            source.size(), to.bytes));
  if (auto checked = check_rows(source.size(), rows); !checked)
    return fail(checked.error().with_context(name()));
  enqueue([this, at = to.memory->address() + to.offset, source,
           rows](const std::stop_token& stop) -> Result<> {
    for (std::uint64_t row = 0; row < source.size(); row += rows.stride)
      WSYNC_TRY(copy(at + row, source.data() + row, rows.row_bytes, stop));
    return {};
  });
  return {};
}

Result<> HostStream::copy_to_host(std::span<std::byte> to, const Region& from) {
  WSYNC_TRY(check_region(from, false));
  if (to.size() != from.bytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: a copy of a region of {} bytes into {} bytes", name(), from.bytes,
                            to.size()));
  enqueue([this, to, at = from.memory->address() + from.offset](const std::stop_token& stop) {
    return copy(to.data(), at, to.size(), stop);
  });
  return {};
}

Result<> HostStream::copy_pieces(std::span<const Piece> pieces, std::span<SplitSum> sums) {
  WSYNC_TRY(check_pieces(pieces, sums.size()));
  enqueue([this, batch = std::vector<Piece>(pieces.begin(), pieces.end()),
           sums](const std::stop_token& stop) -> Result<> {
    std::ranges::fill(sums, SplitSum{});
    for (const Piece& piece : batch) {
      if (piece.bytes() == 0) continue;
      const std::byte* from = piece.from->address() + piece.from_offset;
      for (std::uint64_t row = 0; piece.to != nullptr && row < piece.rows; ++row) {
        std::byte* to =
            piece.to->address() + piece.to_offset + piece.cast.converted(row * piece.row_bytes);
        const std::byte* at = from + row * piece.from_stride;
        if (piece.cast.is_none())
          WSYNC_TRY(copy(to, at, piece.row_bytes, stop));
        else
          convert(piece.cast, at, piece.row_bytes, to);
      }
      if (piece.sum != Piece::kNoSum) sums[piece.sum] += sum_rows(piece, from);
    }
    return {};
  });
  return {};
}

// With the code of the GPU's threads, one after the other.
Result<> HostStream::change_words(std::span<const WordBlock> blocks, std::span<SplitSum> sums) {
  auto table = word_table(blocks, sums.size());
  if (!table) return fail(table.error().with_context(name()));
  enqueue([batch = std::move(*table), sums](const std::stop_token&) -> Result<> {
    std::vector<cuda::KernelSum> counted(sums.size());
    cuda::change_words_on_host(batch.blocks.data(), static_cast<std::uint32_t>(batch.blocks.size()),
                               batch.units, counted.data());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const auto& counters = counted[i].counters;
      sums[i] = {.words = {.product = counters[0], .sum = counters[1]},
                 .edges = {.product = counters[2], .sum = counters[3]}};
    }
    return {};
  });
  return {};
}

}  // namespace wsync::device::host
