// BlockMaker: compares a block of the base with the same block of the target and makes the block of
// a patch. A trainer calls it for each block while it copies, from as many threads as it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "shared/base/bytes.h"
#include "shared/base/stream_copy.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/difference.h"
#include "shared/weights/patch/touched_sum.h"

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

 private:
  struct Pair;
  template <std::uint32_t kElementBytes>
  [[nodiscard]] bool collect(const Pair& pair);
  template <std::uint32_t kElementBytes>
  [[nodiscard]] bool collect_stripe(const Pair& pair, std::uint64_t mask, std::uint64_t at);
  template <std::uint32_t kElementBytes>
  [[nodiscard]] bool collect_rest(const Pair& pair, std::uint64_t at);

  CopyKind kind_;
  DifferenceMasks masks_{};
  // Of the block that is made.
  Bytes gaps_;
  Bytes values_;
  std::byte* gap_end_ = nullptr;
  std::byte* value_end_ = nullptr;
  std::uint64_t next_element_ = 0;  // after the last one that changed
  std::uint64_t next_word_ = 0;     // after the last one that is summed
  std::uint64_t room_ = 0;          // bytes of a sparse block that would still be smaller
  TouchedSum before_{0};
  TouchedSum after_{0};
};

}  // namespace wsync::patch
