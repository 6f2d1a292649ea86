#include "shared/weights/patch/sum_link.h"

#include <cstddef>
#include <cstdint>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/format.h"

namespace wsync::patch {

SumLink::SumLink(const Layout& layout, const ContentDigests& base)
    : layout_(&layout), base_(&base), leaves_(base.leaves.size()) {}

void SumLink::add(const BlockView& block) {
  constexpr std::uint64_t kLeafBlocks = limits::kLeafBytes / kBlockBytes;
  Leaf& leaf = leaves_[base_->first_leaf[block.place.tensor] + block.place.block / kLeafBlocks];
  leaf.before += block.before;
  leaf.after += block.after;
}

Result<> SumLink::check(const ContentDigests& target) const {
  if (planted("patch_link_not_compared")) return {};
  for (std::uint32_t tensor = 0; tensor < layout_->manifest().size(); ++tensor)
    for (std::size_t i = base_->first_leaf[tensor]; i < base_->first_leaf[tensor + 1]; ++i)
      if (base_->leaves[i] + leaves_[i].after != target.leaves[i] + leaves_[i].before)
        return fail(
            ErrorCode::kDigestMismatch,
            fmt::format("tensor '{}', MiB {} of {}: the patch does not lead from the sum "
                        "of its base to that of its target, so it does not have all that "
                        "differs",
                        layout_->manifest().tensor(tensor).name, i + 1 - base_->first_leaf[tensor],
                        base_->first_leaf[tensor + 1] - base_->first_leaf[tensor]));
  return {};
}

}  // namespace wsync::patch
