// Merging: two patches A to B and B to C become one from A to C.
//
// A merged block has the newest values. Its touched words are those of either block, and its sums
// are those of A and of C. What a patch says is not enough for them: from the sums of two sets of
// words that overlap, that of their union cannot be computed, and a patch has only some bytes of
// most words. With W1 and W2 for the touched words of the two blocks:
//
//   before = A(W1) + B(W2) - B(W1 and W2)     a word that only the second touches is in A as in B
//   after  = C(W2) + B(W1) - B(W1 and W2)     a word that only the first touches is in C as in B
//
// So the bytes of B are needed where both touch a block: whoever adds a link holds them, because it
// was compared with them. They are proven first: B(W1) must be the first block's sum after, and
// B(W2) the second one's sum before. Blocks of one patch alone are taken over.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "shared/base/error.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/patch.h"

namespace wsync::patch {

// Fills `out` with the block's bytes in B.
using ReadMiddle = std::function<Result<>(const BlockPlace& place, std::span<std::byte> out)>;

// Merges two blocks of one place. `middle` are the bytes of that block in B. kDigestMismatch if
// they are not. The result is dense where that is not larger.
[[nodiscard]] Result<Block> merge_blocks(const Layout& layout, const BlockView& first,
                                         const BlockView& second,
                                         std::span<const std::byte> middle);

// Merges two patches of this layout. kInvalidInput unless the second begins where the first ends;
// errors of `read_middle`, which is called for each block that is in both, in ascending order. If A
// and C are equal, the merged patch has no blocks.
[[nodiscard]] Result<Patch> merge(const Layout& layout, const PatchReader& first,
                                  const PatchReader& second, const ReadMiddle& read_middle,
                                  std::uint64_t bucket_bytes);

}  // namespace wsync::patch
