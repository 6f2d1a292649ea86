#include "shared/device/word_table.h"

#include "shared/base/format.h"
#include "shared/device/worker_stream.h"

namespace wsync::device {
namespace {

// The address of `count` values of `size` bytes in `memory`.
Result<std::uint64_t> values_at(const Memory* memory, std::uint64_t offset, std::uint64_t count,
                                std::uint64_t size) {
  // A region names memory that may be written; this one is only read.
  WSYNC_TRY(check_region(
      {.memory = const_cast<Memory*>(memory), .offset = offset, .bytes = count * size}, false));
  const auto at = reinterpret_cast<std::uintptr_t>(memory->address()) + offset;
  if (at % size != 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the values of changed words begin at offset {}, expected a multiple "
                            "of {}",
                            offset, size));
  return at;
}

}  // namespace

Result<WordTable> word_table(std::span<const WordBlock> blocks, std::size_t sums) {
  WordTable table;
  table.blocks.reserve(blocks.size());
  for (const WordBlock& block : blocks) {
    if (block.words == 0) continue;
    WSYNC_TRY(check_region({.memory = block.to, .offset = block.to_offset, .bytes = block.to_bytes},
                           true));
    if (block.words > kWordNumbers || block.position % kSumWordBytes != 0 ||
        (block.heads_offset == WordBlock::kNone &&
         (block.places_offset != WordBlock::kNone ||
          block.to_bytes < std::uint64_t{block.words} * kSumWordBytes)))
      return fail(
          ErrorCode::kInvalidInput,
          fmt::format("a block of {} changed words at byte {} of its tensor, in {} bytes of "
                      "memory: expected at most {} words, from a multiple of {} on, inside "
                      "of these bytes",
                      block.words, block.position, block.to_bytes, kWordNumbers, kSumWordBytes));
    if (sums % 2 != 0 || block.sum >= sums / 2)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("a block of changed words counts into sum {}, but the batch has {}",
                              block.sum, sums / 2));
    cuda::KernelWords made{
        .to = reinterpret_cast<std::uintptr_t>(block.to->address()) + block.to_offset,
        .values = WSYNC_TRY(values_at(block.from, block.values_offset, block.words, kSumWordBytes)),
        .seed = block.seed,
        .first_word = block.position / kSumWordBytes,
        .first_unit = table.units,
        .words = block.words,
        .sum = block.sum};
    if (block.heads_offset != WordBlock::kNone)
      made.heads =
          WSYNC_TRY(values_at(block.from, block.heads_offset, block.words, sizeof(std::uint32_t)));
    if (block.places_offset != WordBlock::kNone)
      made.places =
          WSYNC_TRY(values_at(block.from, block.places_offset, block.words, sizeof(std::uint32_t)));
    table.units += cuda::units_of(block.words, cuda::kWordsPerUnit);
    table.blocks.push_back(made);
  }
  if (table.units > cuda::kUnitsMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a batch of {} blocks of changed words is {} units of work, expected "
                            "{} at most",
                            table.blocks.size(), table.units, cuda::kUnitsMax));
  return table;
}

}  // namespace wsync::device
