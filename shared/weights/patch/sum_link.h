// SumLink: whether a patch has all that differs between two contents whose sums are known, without
// reading either. Of each leaf, the sum of the base with the "after" of its blocks must be that of
// the target with their "before". An element that a block leaves out is found so, and a block that
// is missing.
//
// This says nothing about the bytes that a patch is applied to: whoever writes compares the sums
// before and after by themselves (README.md, "Sums").
#pragma once

#include <vector>

#include "shared/base/error.h"
#include "shared/base/word_sum.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/layout.h"

namespace wsync::patch {

// Thread: several may add blocks of different leaves at the same time.
class SumLink {
 public:
  // Both are borrowed, and must outlive this object. `base`: of a content with this layout.
  SumLink(const Layout& layout, const ContentDigests& base);
  void add(const BlockView& block);
  // After all blocks were added: kDigestMismatch with the tensor and the leaf where they do not
  // lead to the target, a content with this layout.
  [[nodiscard]] Result<> check(const ContentDigests& target) const;

 private:
  struct Leaf {
    WordSum before;
    WordSum after;
  };
  const Layout* layout_;
  const ContentDigests* base_;
  std::vector<Leaf> leaves_;  // the blocks of each leaf, in the order of the digests
};

}  // namespace wsync::patch
