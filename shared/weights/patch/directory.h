// The directory of blocks: how a bucket of a patch, and the changes of a window of an arena, name
// their blocks. README.md has its bytes.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/layout.h"

namespace wsync::patch {

// Appends the entry of a block to a directory whose last block is `last`.
void put_entry(Bytes& directory, const Block& block, const std::optional<BlockPlace>& last);

// Reads blocks one after the other: their entries, then their gaps and values, which lie in the
// same order in `payload`. Checks every length, every position, and that the blocks are in
// ascending order. The views point into `payload`.
class BlockSequence {
 public:
  // All are borrowed, and must outlive this object.
  BlockSequence(const Layout& layout, std::span<const std::byte> directory,
                std::span<const std::byte> payload)
      : layout_(layout), directory_(directory), payload_(payload) {}

  // kInvalidInput with the rule; it names the block if its place is known.
  [[nodiscard]] Result<BlockView> next();
  // Bytes that have not been read: none, once the last block was.
  [[nodiscard]] std::size_t directory_left() const noexcept { return directory_.size(); }
  [[nodiscard]] std::size_t payload_left() const noexcept { return payload_.size(); }

 private:
  [[nodiscard]] Result<BlockPlace> next_place();
  const Layout& layout_;
  std::span<const std::byte> directory_;
  std::span<const std::byte> payload_;
  BlockPlace last_;  // the one before, if there is one
  bool has_last_ = false;
};

}  // namespace wsync::patch
