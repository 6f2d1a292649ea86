// Whether a patch is all that lies between two contents whose sums are known, without reading
// either. Of each leaf, the sum of the base with the "after" of its blocks must be that of the
// target with their "before". An element that a block leaves out is found so, and a block that is
// missing.
//
// This says nothing about the bytes that a patch is applied to: whoever writes compares the sums
// before and after by themselves (README.md, "Sums").
//
// Pure; any thread.
#pragma once

#include <span>

#include "shared/base/error.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/layout.h"

namespace wsync::patch {

// `blocks`: in ascending order of their places. Both contents have the layout. kDigestMismatch with
// the tensor and the leaf.
[[nodiscard]] Result<> check_sum_link(const Layout& layout, std::span<const BlockView> blocks,
                                      const ContentDigests& base, const ContentDigests& target);

}  // namespace wsync::patch
