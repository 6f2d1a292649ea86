#include "inference_side/sidecar/refused_engines.h"

#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/limits.h"

namespace wsync::agent {

void RefusedEngines::refused(const std::string& replica, std::uint32_t rank, const std::string& why,
                             TimePoint at) {
  std::erase_if(refusals_, [at](const auto& entry) { return at - entry.second.at > kept_for(); });
  if (replica.empty() || refusals_.size() >= limits::kReplicaCount) return;
  refusals_[{replica, rank}] = {.why = why, .at = at};
}

void RefusedEngines::attached(const std::string& replica, std::uint32_t rank) {
  refusals_.erase({replica, rank});
}

void RefusedEngines::add_to(std::vector<control::ReplicaReport>& reports, TimePoint now) const {
  for (const auto& [name, refusal] : refusals_) {
    if (now - refusal.at > kept_for()) continue;
    const std::string sentence = fmt::format("rank {} was refused: {}", name.second, refusal.why);
    const auto known = std::ranges::find(reports, name.first, &control::ReplicaReport::replica);
    if (known == reports.end()) {
      if (reports.size() < limits::kReplicaCount)
        reports.push_back({.replica = name.first, .reason = sentence});
    } else if (known->ranks_attached < known->world_size) {
      known->reason += (known->reason.empty() ? "" : "; ") + sentence;
    }
  }
}

std::vector<control::VerifyRank> RefusedEngines::unverified(TimePoint now) const {
  std::vector<control::VerifyRank> ranks;
  for (const auto& [name, refusal] : refusals_)
    if (now - refusal.at <= kept_for())
      ranks.push_back({.replica = name.first,
                       .rank = name.second,
                       .failure = "it is not attached, because it was refused: " + refusal.why});
  return ranks;
}

}  // namespace wsync::agent
