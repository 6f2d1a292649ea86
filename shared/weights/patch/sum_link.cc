#include "shared/weights/patch/sum_link.h"

#include <cstddef>
#include <cstdint>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/format.h"

namespace wsync::patch {

Result<> check_sum_link(const Layout& layout, std::span<const BlockView> blocks,
                        const ContentDigests& base, const ContentDigests& target) {
  constexpr std::uint64_t kLeafBlocks = limits::kLeafBytes / kBlockBytes;
  if (planted("patch_link_not_compared")) return {};
  auto block = blocks.begin();
  for (std::uint32_t tensor = 0; tensor < layout.manifest().size(); ++tensor) {
    const auto from = base.leaves_of(tensor);
    const auto to = target.leaves_of(tensor);
    for (std::size_t leaf = 0; leaf < from.size(); ++leaf) {
      WordSum expected = from[leaf];
      WordSum found = to[leaf];
      for (; block != blocks.end() && block->place.tensor == tensor &&
             block->place.block / kLeafBlocks == leaf;
           ++block) {
        expected += block->after;
        found += block->before;
      }
      if (expected == found) continue;
      return fail(ErrorCode::kDigestMismatch,
                  fmt::format("tensor '{}', MiB {} of {}: the patch does not lead from the sum of "
                              "its base to that of its target, so it does not have all that "
                              "differs",
                              layout.manifest().tensor(tensor).name, leaf + 1, from.size()));
    }
  }
  return {};
}

}  // namespace wsync::patch
