// BlockMaker: compares a block of the base with the same block of the target and makes the block of
// a patch. A trainer calls it for each block while it copies, from as many threads as it has.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "shared/base/bytes.h"
#include "shared/base/stream_copy.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/difference.h"

namespace wsync::patch {

// Not thread-safe: each thread has its own, which keeps its memory (half a MiB) from block to
// block.
class BlockMaker {
 public:
  explicit BlockMaker(CopyKind kind = best_copy_kind());

  // The block that turns `base` into `target`, or std::nullopt if they are equal. Both are the
  // bytes of block `place` of the tensor, so they have layout.block_bytes(place). Elements are
  // compared as bits: a zero of another sign and a NaN of another payload have changed. The block
  // is sparse if that is smaller, else dense.
  [[nodiscard]] std::optional<Block> make(const Layout& layout, const BlockPlace& place,
                                          std::span<const std::byte> base,
                                          std::span<const std::byte> target);
  // The sum of the words of the target of the last make(), which computes it while it compares.
  [[nodiscard]] const WordSum& target_sum() const noexcept { return target_sum_; }

 private:
  // The ends of what was collected, and where it goes on.
  struct Cursor {
    std::byte* gaps = nullptr;
    std::byte* values = nullptr;
    std::uint64_t next_element = 0;  // after the last one that changed
    WordSum before;
    WordSum after;
    WordSum target;  // of all words
  };
  // Adds the elements that differ. Returns false as soon as a dense block is not larger.
  template <std::uint32_t kElementBytes>
  [[nodiscard]] bool collect(std::span<const std::byte> base, std::span<const std::byte> target,
                             const SumPlace& place, Cursor& cursor);
  // Whether a dense block is not larger, by no more than a count of the elements that differ in the
  // whole chunks from `at` on. `collected`: bytes of what has been collected before. False:
  // unknown.
  template <std::uint32_t kElementBytes>
  [[nodiscard]] bool is_surely_dense(std::span<const std::byte> base,
                                     std::span<const std::byte> target, std::uint64_t at,
                                     std::uint64_t collected);
  template <std::uint32_t kElementBytes>
  void collect_chunk(const ChunkDifference& found, const std::byte* base, const std::byte* target,
                     std::uint64_t at, std::uint64_t factor, Cursor& cursor);

  CopyKind kind_;
  std::array<ChunkDifference, kChunksAtOnce> found_;
  WordSum target_sum_;
  Bytes gaps_;
  Bytes values_;
};

}  // namespace wsync::patch
