// The loop that visits the elements of sparse blocks, and what reads their positions ahead of it.
// Used by BlockApplier alone.
//
// Thread: confined to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "shared/base/check.h"
#include "shared/base/planted.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/bucket.h"
#include "shared/weights/patch/layout.h"
#include "shared/weights/patch/touched_sum.h"

namespace wsync::patch {

// So many positions are read before the memory of the first one is: enough for all lines that can
// be on their way. They are fetched to the second level cache, because the first one has room for
// few lines that are on their way: this takes two thirds of the time of fetching them to the first.
inline constexpr std::size_t kPositionsAhead = 128;

// Reads the positions of the sparse blocks of a run ahead of the loop that visits them, and fetches
// their memory.
template <class Element>
class PositionsAhead {
 public:
  // Nothing is read: the positions are known, and so is the memory in the caches.
  PositionsAhead() = default;
  // `begins[i]` is where the bytes of block i lie; null: it is left out, as dense blocks are.
  // `positions`: where they are written, block by block.
  PositionsAhead(std::span<const BlockView> blocks, std::span<const std::byte* const> begins,
                 std::uint32_t* positions)
      : blocks_(blocks), begins_(begins), to_(positions) {
    for (std::size_t i = 0; i < kPositionsAhead; ++i) next();
  }
  // Reads the next position. It is kPositionsAhead values ahead of a loop that calls this once for
  // each value.
  void next() noexcept {
    if (left_ == 0) [[unlikely]] {
      if (block_ == blocks_.size()) return;
      *this = at_next_block(*this);
      if (left_ == 0) return;
    }
    --left_;
    const std::uint64_t position = reader_.next();
    *to_++ = static_cast<std::uint32_t>(position);
    __builtin_prefetch(begin_ + position * sizeof(Element), 0, 2);
  }

 private:
  // At the next sparse block, if there is one. By value: see PositionReader::after_any().
  [[nodiscard, gnu::noinline]] static PositionsAhead at_next_block(PositionsAhead ahead) noexcept {
    while (ahead.left_ == 0 && ahead.block_ < ahead.blocks_.size()) {
      const std::size_t i = ahead.block_++;
      if (ahead.begins_[i] == nullptr || ahead.blocks_[i].dense) continue;
      ahead.reader_ = PositionReader(ahead.blocks_[i]);
      ahead.begin_ = ahead.begins_[i];
      ahead.left_ = ahead.blocks_[i].elements;
    }
    return ahead;
  }
  std::span<const BlockView> blocks_;
  std::span<const std::byte* const> begins_;
  std::uint32_t* to_ = nullptr;
  std::size_t block_ = 0;
  std::uint32_t left_ = 0;  // positions of the block that is read
  const std::byte* begin_ = nullptr;
  PositionReader reader_;
};

// Sums of the words that a block touches.
struct TouchedSums {
  WordSum before;
  WordSum after;  // with the values of the block in place
};

enum class ElementUse : std::uint8_t {
  kProve,    // changes nothing
  kCollect,  // changes nothing, and keeps the elements that are there
  kWrite,    // writes the values
};

// The memory of a block.
template <ElementUse kUse>
using BlockByte = std::conditional_t<kUse == ElementUse::kWrite, std::byte, const std::byte>;

// Visits the elements of a sparse block in `bytes`, those of the block, which have whole words, and
// returns the sums of its touched words. `shared` reads `positions` ahead of this. `old_values`:
// where kCollect puts the elements that are there, one after the other. It is the loop that decides
// how long a patch takes: each word is read once, and written once.
template <class Element, ElementUse kUse>
TouchedSums visit_elements(const Layout& layout, const BlockView& block,
                           std::span<const std::uint32_t> positions,
                           std::span<BlockByte<kUse>> bytes, PositionsAhead<Element>& shared,
                           std::byte* old_values) {
  constexpr std::uint32_t kInWord = kSumWordBytes / sizeof(Element);
  constexpr std::uint32_t kInSumBlock = kSumBlockBytes / sizeof(Element);
  constexpr std::uint64_t kElementBits = std::numeric_limits<Element>::max();
  const std::uint64_t seed = layout.tensor(block.place.tensor).seed;
  const std::uint64_t first_sum_block = Layout::offset(block.place) / kSumBlockBytes;
  const std::uint64_t elements = bytes.size() / sizeof(Element);
  const std::byte* const values = block.values.data();
  const std::uint32_t* const at = positions.data();
  const std::size_t count = positions.size();
  PositionsAhead<Element> ahead = shared;  // a copy that no pointer leads to stays in registers
  TouchedSums total;
  const bool skips = kUse == ElementUse::kWrite && planted("patch_skips_an_element");
  for (std::size_t i = skips ? 1 : 0; i < count;) {
    const std::uint32_t sum_block = at[i] / kInSumBlock;
    TouchedSums part;
    do {
      const std::uint32_t number = at[i] / kInWord;
      WSYNC_CHECK(at[i] < elements, "blocks are checked before they are applied");
      BlockByte<kUse>* const place = bytes.data() + std::uint64_t{number} * kSumWordBytes;
      std::uint64_t before = 0;
      std::memcpy(&before, place, kSumWordBytes);
      std::uint64_t after = before;
      do {
        ahead.next();
        Element value = 0;
        std::memcpy(&value, values + i * sizeof(Element), sizeof(Element));
        const std::uint32_t shift = at[i] % kInWord * 8 * sizeof(Element);
        if constexpr (kUse == ElementUse::kCollect) {
          const auto element = static_cast<Element>(before >> shift);
          std::memcpy(old_values + i * sizeof(Element), &element, sizeof(Element));
        }
        after = (after & ~(kElementBits << shift)) | std::uint64_t{value} << shift;
        ++i;
      } while (i < count && at[i] / kInWord == number);
      if constexpr (kUse == ElementUse::kWrite) std::memcpy(place, &after, kSumWordBytes);
      const std::uint64_t key = kTouchedKeys.words[number % kSumKeyCount];
      part.before += {.product = keyed_product(before, key), .sum = before};
      part.after += {.product = keyed_product(after, key), .sum = after};
    } while (i < count && at[i] / kInSumBlock == sum_block);
    const std::uint64_t factor = sum_factor(seed, first_sum_block + sum_block);
    total.before += {.product = part.before.product * factor, .sum = part.before.sum};
    total.after += {.product = part.after.product * factor, .sum = part.after.sum};
  }
  shared = ahead;
  return total;
}

}  // namespace wsync::patch
