// BlockApplier: writes the blocks of a patch into memory and proves them: the sum of the words that
// a block touches is compared before it is written and after.
//
// Values are absolute, so a block can be applied again. A process that ended within a patch begins
// it again with BeforeRule::kRepeat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/split_sum.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/tensor_part.h"

namespace wsync::patch {

struct WrittenSums;  // element_writer.h
template <class Element>
class PositionsAhead;

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
  // As apply() with kBase, and returns the block that undoes it, with the old values.
  [[nodiscard]] Result<Block> apply_reversibly(const BlockView& block, std::span<std::byte> bytes);

  // Proves the block without writing: kDigestMismatch, with tensor and block, if the touched words
  // of `bytes` have another sum than those of the base, or if they would have another one than the
  // target with the values of the block.
  [[nodiscard]] Result<> check(const BlockView& block, std::span<const std::byte> bytes);

  // The block that leads back from the target, with the old values. `bytes` are those of the block
  // in the base; they are not written. kDigestMismatch as apply(), if they are not those of the
  // base.
  [[nodiscard]] Result<Block> make_reverse(const BlockView& block,
                                           std::span<const std::byte> bytes);

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
  [[nodiscard]] WordSum sum(const BlockView& block, std::span<const std::byte> bytes) const;
  // As sum(), of what would be there with the values of the block.
  [[nodiscard]] WordSum sum_with_values(const BlockView& block,
                                        std::span<const std::byte> bytes) const;
  // Write the block and return the sums of its touched words before and after it.
  template <class Element>
  [[nodiscard]] WrittenSums write(const BlockView& block, std::span<const std::uint32_t> positions,
                                  std::span<std::byte> bytes, PositionsAhead<Element>& ahead) const;
  [[nodiscard]] WrittenSums write(const BlockView& block, std::span<std::byte> bytes) const;
  // Writes a dense block whose bytes had this sum.
  [[nodiscard]] WrittenSums replace(const BlockView& block, std::span<std::byte> bytes,
                                    const WordSum& before) const;
  // Returns how many bytes were written.
  std::uint64_t write_part(const BlockView& block, const TensorPart& part,
                           std::span<std::byte> bytes) const;
  template <class Element>
  void apply_run(std::span<const BlockView> blocks, const TensorPart& part,
                 std::span<std::byte> bytes, std::span<PartSums> sums,
                 std::span<const WordSum> replaced);
  [[nodiscard]] std::optional<std::uint64_t> place_in_one_piece(const BlockView& block,
                                                                const TensorPart& part) const;
  [[nodiscard]] Result<> check_before(const BlockView& block,
                                      std::span<const std::byte> bytes) const;
  [[nodiscard]] Result<> check_after(const BlockView& block, const WordSum& found) const;
  [[nodiscard]] Block reverse(const BlockView& block, std::span<const std::byte> bytes) const;

  const Layout* layout_;
  std::vector<std::uint32_t> positions_;  // of the block that was read(); empty for a dense one
  // Of several blocks that are written one after the other.
  std::vector<std::uint32_t> run_positions_;
  std::vector<std::byte*> run_begins_;  // null: not written by write()
};

}  // namespace wsync::patch
