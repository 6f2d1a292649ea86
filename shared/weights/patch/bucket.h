// The strict reader of the buckets of a patch. README.md has their bytes.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/index.h"

namespace wsync::patch {

// Reads and checks one bucket, whole: its length and digest, the order and places of its blocks,
// and every position in them. Nobody needs another bucket for it. The index has passed
// check(layout). The views point into `bytes`. kDigestMismatch if the bytes are not those of the
// index; kInvalidInput with bucket, block and rule. The values themselves are not compared with the
// blocks' sums, which are of words that a patch does not hold: BlockApplier does that.
[[nodiscard]] Result<std::vector<BlockView>> parse_bucket(const Index& index, const Layout& layout,
                                                          std::size_t bucket,
                                                          std::span<const std::byte> bytes);

// Reads the positions of a sparse block, as numbers of elements in the block, into `positions`.
// kInvalidInput unless there is one for each value, each is below `block_elements`, and nothing is
// left over.
[[nodiscard]] Result<> read_positions(const BlockView& block, std::uint64_t block_elements,
                                      std::vector<std::uint32_t>& positions);

}  // namespace wsync::patch
