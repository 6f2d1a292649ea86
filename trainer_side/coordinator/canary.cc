#include "trainer_side/coordinator/canary.h"

#include <utility>

#include "shared/base/format.h"

namespace wsync::coordinator {

void Canary::report(const Member& member, bool is_held_back, const Version& target) {
  if (target != std::exchange(target_, target)) promote_at_.reset();
  Counts counts;
  if (is_held_back && member.joined)
    for (const control::ReplicaReport& replica : member.report.replicas) {
      const bool on_target = replica.version == target;
      if (replica.replica == name_)
        counts.serving += on_target && replica.state == control::ReplicaState::kServing ? 1U : 0U;
      else
        counts.behind += !on_target && !replica.version.none() ? 1U : 0U;
    }
  const auto known = sidecars_.find(member.name);
  const Counts before = known == sidecars_.end() ? Counts{} : known->second;
  serving_ += counts.serving - before.serving;
  behind_ += counts.behind - before.behind;
  if (counts.serving + counts.behind > 0)
    sidecars_[member.name] = counts;
  else if (known != sidecars_.end())
    sidecars_.erase(known);
}

void Canary::settle(TimePoint now) {
  if (!holds())
    promote_at_.reset();
  else if (!promote_at_ && time_.count() > 0)
    promote_at_ = now + time_;
}

Result<> Canary::invariants() const {
  Counts counts;
  for (const auto& [name, one] : sidecars_) {
    counts.serving += one.serving;
    counts.behind += one.behind;
  }
  if (counts.serving != serving_ || counts.behind != behind_)
    return fail(ErrorCode::kInternal,
                fmt::format("{} canaries are counted as serving, and {} are; {} replicas as "
                            "behind, and {} are",
                            serving_, counts.serving, behind_, counts.behind));
  return {};
}

}  // namespace wsync::coordinator
