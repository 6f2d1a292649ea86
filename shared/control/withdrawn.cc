#include "shared/control/withdrawn.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "shared/base/limits.h"

namespace wsync::control {

void bound_withdrawn(std::vector<Version>& withdrawn, std::span<const Version> in_use) {
  if (withdrawn.size() <= limits::kWithdrawnCount) return;
  std::ranges::sort(withdrawn, std::greater{}, [&](const Version& version) {
    return std::pair(std::ranges::find(in_use, version) != in_use.end(), version);
  });
  withdrawn.resize(limits::kWithdrawnCount);
}

}  // namespace wsync::control
