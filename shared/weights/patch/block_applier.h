// BlockApplier: writes the blocks of a patch into memory and proves them: the sum of the words that
// a block touches is compared before it is written and after.
//
// Values are absolute, so a block can be applied again. A process that ended within a patch begins
// it again with BeforeRule::kRepeat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/split_sum.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/element_loop.h"
#include "shared/weights/patch/tensor_part.h"

namespace wsync::patch {

enum class BeforeRule : std::uint8_t {
  kBase,    // the touched words must be those of the base
  kRepeat,  // they may be anything: an earlier application may have ended halfway
};

// Sums of the touched words of a part of a tensor. A word of which the part holds some bytes is
// summed once, with zeros in place of the others, in `edges`; see split_sum.h.
struct PartSums {
  SplitSum before;
  SplitSum after;
  std::uint64_t written_bytes = 0;  // of values that lie in the part
};

// Not thread-safe: each thread has its own, which keeps its memory from block to block. The blocks
// come from parse_bucket() or BlockMaker, so that their positions are valid.
class BlockApplier {
 public:
  // The layout is borrowed and must outlive this object.
  explicit BlockApplier(const Layout& layout) : layout_(&layout) {}

  // Writes the block. `bytes` are those of the block in the whole tensor, that is,
  // layout.block_bytes() of them. kDigestMismatch, with tensor and block, if the touched words have
  // another sum than those of the base (nothing is written then), or another one than the target
  // afterwards.
  [[nodiscard]] Result<> apply(const BlockView& block, std::span<std::byte> bytes,
                               BeforeRule rule = BeforeRule::kBase);

  // check(), make_reverse() and apply_reversibly() take blocks in ascending order, of any tensors.
  // `begins[i]` is where the bytes of block i lie. It is much faster than block by block, because
  // the memory of a block is fetched while the block before it is visited. They end with the first
  // block that is wrong.

  // Proves the blocks without writing: kDigestMismatch, with tensor and block, if the touched words
  // have another sum than those of the base, or if they would have another one than the target with
  // the values of the block.
  [[nodiscard]] Result<> check(std::span<const BlockView> blocks,
                               std::span<const std::byte* const> begins);
  // Gives the blocks that lead back from the target, with the old values, one after the other. The
  // bytes are those of the base, and are not written. kDigestMismatch as apply(), if they are not.
  [[nodiscard]] Result<> make_reverse(std::span<const BlockView> blocks,
                                      std::span<const std::byte* const> begins,
                                      const std::function<void(Block)>& on_reverse);
  // As apply() with kBase, block by block, and as make_reverse().
  [[nodiscard]] Result<> apply_reversibly(std::span<const BlockView> blocks,
                                          std::span<std::byte* const> begins,
                                          const std::function<void(Block)>& on_reverse);

  // Writes what lies in the part; `bytes` is the memory of the part, part.bytes() of it. Compares
  // nothing, because a rank sees only its own bytes: the caller adds the sums of all ranks. If
  // their parts divide the tensor, the sum of all `words` and of sum_of_cut_words() is the block's,
  // before and after; and the `edges` of each rank are those of share_of_part().
  [[nodiscard]] PartSums apply_to_part(const BlockView& block, const TensorPart& part,
                                       std::span<std::byte> bytes);
  // The same for several blocks of one tensor, in ascending order: `sums` gets those of each block,
  // in this order. It is faster, because the memory of a block is fetched while the block before it
  // is written.
  // `replaced`: what sum_of_replaced() has returned of each block since nothing was written; those
  // bytes are not read again. Empty: nothing was summed.
  void apply_to_part(std::span<const BlockView> blocks, const TensorPart& part,
                     std::span<std::byte> bytes, std::span<PartSums> sums,
                     std::span<const WordSum> replaced = {});
  // The sum of a block's words in the memory of a part, if it is dense and lies there in one piece.
  [[nodiscard]] std::optional<WordSum> sum_of_replaced(const BlockView& block,
                                                       const TensorPart& part,
                                                       std::span<const std::byte> bytes) const;
  // The sum of the touched words in the memory of a part; changes nothing.
  [[nodiscard]] SplitSum sum_of_part(const BlockView& block, const TensorPart& part,
                                     std::span<const std::byte> bytes);
  // The same sum, computed of the whole tensor: `block_bytes` are those of the block.
  [[nodiscard]] SplitSum share_of_part(const BlockView& block, const TensorPart& part,
                                       std::span<const std::byte> block_bytes);
  // The sum of the touched words that none of these parts holds as a whole. `block_bytes` are those
  // of the block in the whole tensor.
  [[nodiscard]] WordSum sum_of_cut_words(const BlockView& block, std::span<const TensorPart> parts,
                                         std::span<const std::byte> block_bytes);

 private:
  void read(const BlockView& block);
  template <class Address>
  [[nodiscard]] SplitSum split_sum_of(const BlockView& block, const TensorPart& part,
                                      Address&& address);
  // The sum of the words of a dense block.
  [[nodiscard]] WordSum sum(const BlockView& block, std::span<const std::byte> bytes) const;
  // Calls `visit(block, its bytes, positions, ahead)` for each block, until one fails. The
  // positions are those that `ahead` has read and will have read when the block is visited.
  template <class Byte, class Visit>
  [[nodiscard]] Result<> for_each(std::span<const BlockView> blocks, std::span<Byte* const> begins,
                                  Visit&& visit);
  // Visits a sparse block as visit_elements() does, also if its last word is short.
  template <ElementUse kUse, class Element>
  [[nodiscard]] TouchedSums visit(const BlockView& block, std::span<const std::uint32_t> positions,
                                  std::span<BlockByte<kUse>> bytes, PositionsAhead<Element>& ahead,
                                  std::byte* old_values = nullptr);
  // Compares the sum of the touched words that are there with that of the base. Returns the sums;
  // that of a dense block after it is not computed. kCollect: `old_values` gets the elements that
  // are there.
  template <ElementUse kUse, class Element>
  [[nodiscard]] Result<TouchedSums> prove(const BlockView& block,
                                          std::span<const std::uint32_t> positions,
                                          std::span<const std::byte> bytes,
                                          PositionsAhead<Element>& ahead,
                                          std::byte* old_values = nullptr);
  // As prove(), and returns the block that leads back.
  template <class Element>
  [[nodiscard]] Result<Block> prove_and_reverse(const BlockView& block,
                                                std::span<const std::uint32_t> positions,
                                                std::span<const std::byte> bytes,
                                                PositionsAhead<Element>& ahead);
  // Writes a block, and compares the sum of its touched words with that of the target.
  template <class Element>
  [[nodiscard]] Result<> write_proven(const BlockView& block,
                                      std::span<const std::uint32_t> positions,
                                      std::span<std::byte> bytes, PositionsAhead<Element>& ahead);
  // Writes a dense block, and returns the sum of its bytes.
  [[nodiscard]] WordSum replace(const BlockView& block, std::span<std::byte> bytes) const;
  // Returns how many bytes were written.
  std::uint64_t write_part(const BlockView& block, const TensorPart& part,
                           std::span<std::byte> bytes) const;
  template <class Element>
  void apply_run(std::span<const BlockView> blocks, const TensorPart& part,
                 std::span<std::byte> bytes, std::span<PartSums> sums,
                 std::span<const WordSum> replaced);
  [[nodiscard]] std::optional<std::uint64_t> place_in_one_piece(const BlockView& block,
                                                                const TensorPart& part) const;

  const Layout* layout_;
  std::vector<std::uint32_t> positions_;  // of the block that was read(); empty for a dense one
  // Of several blocks that are visited one after the other.
  std::vector<std::uint32_t> run_positions_;
  std::vector<std::byte*> run_begins_;  // null: not written in one piece
  Bytes padded_;                        // a block with a whole last word
};

}  // namespace wsync::patch
