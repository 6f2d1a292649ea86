// PatchWords: turns a block of a patch into the words that a GPU changes in place
// (device::WordBlock), for the part of a tensor that a rank holds: every word that the block
// touches and of which the part holds a byte, once, with its new bytes. So the GPU needs to know
// neither the format of patches nor how a part lies in its tensor, and its sums of these words are
// those of patch::BlockApplier::apply_to_part().
//
// Pure. Not thread-safe: each thread has its own, which keeps its memory from block to block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/weights/patch/block.h"
#include "shared/weights/patch/tensor_part.h"

namespace wsync::engine {

// Words of one block of a patch. The spans are valid until the next expand(), and no longer than
// the patch.
struct BlockWords {
  std::uint64_t to_offset = 0;            // where they lie in the memory of the part
  std::uint64_t to_bytes = 0;             // from there on
  std::uint64_t position = 0;             // of word number 0 in the tensor
  std::uint32_t words = 0;                // never 0
  std::span<const std::byte> values;      // 8 bytes for each word
  std::span<const std::uint32_t> heads;   // device::ChangedWord; empty: dense
  std::span<const std::uint32_t> places;  // counted from to_offset; empty: word n is at 8 * n
};

class PatchWords {
 public:
  // The layout is borrowed and must outlive this object.
  explicit PatchWords(const patch::Layout& layout) : layout_(&layout) {}

  // The block comes from a PatchReader, so that its positions are valid.
  void expand(const patch::BlockView& block, const patch::TensorPart& part);
  // Of the last block; none if the part holds no touched word.
  [[nodiscard]] std::span<const BlockWords> blocks() const noexcept { return blocks_; }
  // Bytes of the last block's values that lie in the part.
  [[nodiscard]] std::uint64_t written_bytes() const noexcept { return written_bytes_; }

  // How many words the block has at most, and how many elements blocks() then has at most.
  [[nodiscard]] static std::uint64_t words_max(const patch::Layout& layout,
                                               const patch::BlockView& block);
  static constexpr std::uint32_t kBlocksMax = 129;
  // What a word needs at most: a value, a head and a place.
  static constexpr std::uint64_t kWordBytesMax = 16;
  // So many whole words of a dense block, or more, that lie one behind the other in the part are
  // passed as plain bytes; fewer are passed one by one.
  static constexpr std::uint64_t kPlainWordsMin = 512;

 private:
  // A touched word of a tensor.
  struct Word {
    std::uint64_t begin = 0;    // in the tensor
    std::uint64_t end = 0;      // the last one of a tensor may be short
    std::uint64_t value = 0;    // its new bytes
    std::uint32_t changed = 0;  // which they are
  };
  void expand_whole(const patch::BlockView& block, std::uint64_t at);
  // Adds the words of a sparse block, with all bytes held.
  template <class Element>
  void add_elements(std::span<const std::byte> values);
  void expand_part(const patch::BlockView& block, const patch::TensorPart& part);
  // The word of the element `next`, which then is the first one of another word.
  [[nodiscard]] Word sparse_word(const patch::BlockView& block, std::size_t& next) const;
  [[nodiscard]] Word dense_word(const patch::BlockView& block, std::uint64_t in_block) const;
  void add(std::uint32_t head, std::uint64_t value);
  void add_held(const Word& word, patch::RunCursor& runs);
  void add_plain(const patch::BlockView& block, std::uint64_t in_block, std::uint64_t words,
                 std::uint64_t to_offset);
  // What was added since the last call becomes one element of blocks().
  void close_single(std::uint64_t to_offset, std::uint64_t to_bytes, bool has_places);

  const patch::Layout* layout_;
  std::vector<std::uint32_t> positions_;  // of the last sparse block
  std::vector<BlockWords> blocks_;
  std::vector<std::uint64_t> values_;  // of words that are passed one by one
  std::vector<std::uint32_t> heads_;
  std::vector<std::uint32_t> places_;
  std::size_t added_ = 0;
  std::size_t closed_ = 0;       // of those
  std::uint64_t begin_ = 0;      // of the block in the tensor
  std::uint64_t to_offset_ = 0;  // from which places count
  std::uint64_t to_end_ = 0;
  std::uint64_t written_bytes_ = 0;
};

}  // namespace wsync::engine
