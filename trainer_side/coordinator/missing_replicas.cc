#include "trainer_side/coordinator/missing_replicas.h"

#include <algorithm>
#include <vector>

#include "shared/base/format.h"

namespace wsync::coordinator {

std::string missing_replicas(std::span<const Member* const> members) {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> causes;
  for (const Member* member : members) {
    if (member->report.replicas.empty())
      causes.push_back(fmt::format(
          "no engine has attached to sidecar '{}' yet (an engine attaches when its memory is "
          "allocated)",
          member->name));
    for (const control::ReplicaReport& replica : member->report.replicas)
      if (replica.ranks_attached != replica.world_size)
        causes.push_back(fmt::format("replica '{}' has {} of {} ranks ({})", replica.replica,
                                     replica.ranks_attached, replica.world_size, replica.reason));
  }
  const std::size_t more = causes.size() - std::min(causes.size(), kNamed);
  causes.resize(causes.size() - more);
  std::string text = fmt::format("{}", fmt::join(causes, "; "));
  if (more > 0) text += fmt::format("; and {} more", more);
  return text;
}

}  // namespace wsync::coordinator
