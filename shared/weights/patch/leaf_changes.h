// What changes in some leaves of an arena from one version to another one of the same layout. A
// transport sends it in place of a bucket to a receiver that holds the base. README.md has its
// bytes.
//
// The receiver trusts neither its base nor the sender: each block proves the words that it touches,
// before and after, and the sums of the leaves are compared with those of the sender. They are
// those of every byte of the result, or, if the result is not made yet, they follow from the sums
// of the base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/weights/leaf_table.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/block_applier.h"
#include "shared/weights/patch/block_maker.h"
#include "shared/weights/patch/layout.h"

namespace wsync::patch {

// Thread: one at a time; it keeps its memory (half a MiB) from call to call.
class LeafChangesMaker {
 public:
  // The changes of these leaves, which are in ascending order. `base` and `target` are the data of
  // two arenas of this layout. std::nullopt as soon as it is clear that they would be larger than
  // `max_bytes`: two blocks of different places are compared first. Blocks.
  [[nodiscard]] std::optional<Bytes> make(const Layout& layout, std::span<const LeafPlace> leaves,
                                          std::span<const std::byte> base,
                                          std::span<const std::byte> target,
                                          std::uint64_t max_bytes);

 private:
  BlockMaker maker_;
};

// The changes of leaves whose blocks were made one by one, in ascending order of their places.
// Pure; any thread.
[[nodiscard]] Bytes write_leaf_changes(std::span<const Block> blocks);

// Reads and checks changes of these leaves. The views point into `bytes`. kInvalidInput with the
// broken rule: bytes that are missing or left over, blocks out of order or outside of the leaves,
// and what BlockSequence refuses. Pure; any thread.
[[nodiscard]] Result<std::vector<BlockView>> read_leaf_changes(const Layout& layout,
                                                               std::span<const LeafPlace> leaves,
                                                               std::span<const std::byte> bytes);

// Writes the leaves of the target into `into`: those of the base, with the changes. Both are the
// data of arenas of this layout. Returns the sums of the leaves, of what was written.
// kDigestMismatch with the block if the base is not the one of the changes, or the result not that
// of the sender; `into` then holds anything within the leaves. With BeforeRule::kRepeat the words
// that a block touches may be anything in `base`. Blocks; any thread.
[[nodiscard]] Result<std::vector<WordSum>> apply_leaf_changes(const Layout& layout,
                                                              std::span<const LeafPlace> leaves,
                                                              std::span<const BlockView> changes,
                                                              std::span<const std::byte> base,
                                                              std::span<std::byte> into,
                                                              BeforeRule rule = BeforeRule::kBase);

// The sums that these leaves have in the target. Writes nothing: they are those of the base less
// what each block had before, plus what it has after. `base` is the data of an arena, and
// `base_sums` are the sums of these leaves in the base, in order. Each block is proven with its
// words in `base` and its values; kDigestMismatch with the block if the base is not the one of the
// changes, or if the values are damaged. Bytes that no block touches are not read, so for them
// `base_sums` are believed. The caller compares the result with what the target must have: blocks
// that are left out are only found there. Blocks; any thread.
[[nodiscard]] Result<std::vector<WordSum>> sum_leaf_changes(const Layout& layout,
                                                            std::span<const LeafPlace> leaves,
                                                            std::span<const BlockView> changes,
                                                            std::span<const std::byte> base,
                                                            std::span<const WordSum> base_sums);

// Makes the leaves of the base those of the target, in place: `data` is the data of an arena.
// Returns the changes that lead back, with the same blocks. kDigestMismatch with the block, as
// apply_leaf_changes(); the leaves then have the blocks before it as they are in the target, and
// must be written again. Blocks; one thread at a time for the same leaves.
[[nodiscard]] Result<Bytes> exchange_leaf_changes(const Layout& layout,
                                                  std::span<const LeafPlace> leaves,
                                                  std::span<const BlockView> changes,
                                                  std::span<std::byte> data);

// The changes that lead back to the base, with the same blocks. `base` is the data of an arena, and
// is only read. kDigestMismatch with the block if the base is not the one of the changes. Blocks;
// any thread.
[[nodiscard]] Result<Bytes> reverse_leaf_changes(const Layout& layout,
                                                 std::span<const LeafPlace> leaves,
                                                 std::span<const BlockView> changes,
                                                 std::span<const std::byte> base);

// Changes of these leaves from A to B, and from B to C, become changes from A to C with the newest
// values. `middle` is the data of an arena of B; of it, only the blocks are read that both change.
// A block that has the same sums before and after is left out. kDigestMismatch with the block if
// `middle` is not B: `first` does not lead to it, or `second` does not begin with it. A block that
// only one of them has is taken over and not proven here: the receiver does that. Blocks; any
// thread.
[[nodiscard]] Result<Bytes> merge_leaf_changes(const Layout& layout,
                                               std::span<const LeafPlace> leaves,
                                               std::span<const BlockView> first,
                                               std::span<const BlockView> second,
                                               std::span<const std::byte> middle);

}  // namespace wsync::patch
