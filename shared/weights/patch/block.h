// Blocks of a patch: what changes in at most kBlockBytes of one tensor.
//
// Thread: any, for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shared/base/bytes.h"
#include "shared/base/word_sum.h"
#include "shared/weights/patch/layout.h"

namespace wsync::patch {

// A block whose bytes lie elsewhere. It is sparse or dense: a dense one has a value for each
// element of the block and no gaps.
//
// The sums are of its touched words: the 64-bit words of the tensor (word_sum.h) of which it writes
// an element, each at its position in the tensor. All words of a dense block are touched. The last
// word of a tensor may be short: it is summed with zeros behind it, as everywhere.
struct BlockView {
  BlockPlace place;
  bool dense = false;
  std::uint32_t elements = 0;  // number of values, never 0
  WordSum before;              // of the touched words in the base
  WordSum after;               // of the same words in the target
  // Of a sparse block, for each value: how many elements are left out before it. Varints.
  std::span<const std::byte> gaps;
  std::span<const std::byte> values;  // absolute, one after the other
};

// A block with its bytes.
struct Block {
  BlockPlace place;
  bool dense = false;
  std::uint32_t elements = 0;
  std::uint32_t gap_bytes = 0;
  WordSum before;
  WordSum after;
  Bytes payload;  // gaps, then values
  [[nodiscard]] BlockView view() const {
    const std::span<const std::byte> bytes(payload);
    return {.place = place,
            .dense = dense,
            .elements = elements,
            .before = before,
            .after = after,
            .gaps = bytes.first(gap_bytes),
            .values = bytes.subspan(gap_bytes)};
  }
  friend bool operator==(const Block&, const Block&) = default;
};

// The block with bytes of its own.
[[nodiscard]] inline Block copy_of(const BlockView& view) {
  Block block{.place = view.place,
              .dense = view.dense,
              .elements = view.elements,
              .gap_bytes = static_cast<std::uint32_t>(view.gaps.size()),
              .before = view.before,
              .after = view.after,
              .payload = Bytes(view.gaps.begin(), view.gaps.end())};
  block.payload.insert(block.payload.end(), view.values.begin(), view.values.end());
  return block;
}

}  // namespace wsync::patch
