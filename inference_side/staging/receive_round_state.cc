// What a Sidecar knows and reports of itself: its predicates, its reports, its invariants.
#include <algorithm>

#include "inference_side/staging/receive_round.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::staging {

const HeldCopy* Sidecar::find(const Version& version) const {
  const auto at = std::ranges::find(held_, version, &HeldCopy::version);
  return at == held_.end() ? nullptr : &*at;
}

bool Sidecar::is_withdrawn(const Version& version) const {
  return std::ranges::find(record_.withdrawn, version) != record_.withdrawn.end();
}

// Whether a copy must stay: the target, what a switch reads, or what is decided but not yet stored.
bool Sidecar::needed(const Version& version) const {
  if (version == record_.target || (writing_ && version == writing_->target)) return true;
  return std::ranges::any_of(replicas_,
                             [&](const auto& entry) { return entry.second.needs(version); });
}

std::vector<Version> Sidecar::held_versions() const {
  std::vector<Version> versions;
  for (const HeldCopy& copy : held_) versions.push_back(copy.version);
  std::ranges::sort(versions);
  return versions;
}

// What could be activated here without being offered again.
std::vector<Version> Sidecar::versions_in_use() const {
  std::vector<Version> versions = held_versions();
  for (const auto& [name, replica] : replicas_) versions.push_back(replica.report(now_).version);
  return versions;
}

Version Sidecar::incoming() const { return incoming_ ? incoming_->announce.version : Version{}; }

control::Heartbeat Sidecar::heartbeat(TimePoint now) const {
  return {.target = record_.target, .staged = held_versions(), .replicas = reports(now)};
}

std::vector<control::ReplicaReport> Sidecar::reports(TimePoint now) const {
  std::vector<control::ReplicaReport> all;
  for (const auto& [name, replica] : replicas_) all.push_back(report(replica, now));
  return all;
}

control::ReplicaReport Sidecar::report(const reload::ReplicaSwitch& replica, TimePoint now) const {
  control::ReplicaReport report = replica.report(now);
  if (report.ready && !other_bytes_.none() && report.version == other_bytes_) {
    report.ready = false;
    report.reason = fmt::format("the fleet has decided other bytes under the name {}",
                                other_bytes_.to_string());
  }
  if (!owed_ || !report.ready || planted("owed_rollback_is_ready") ||
      std::ranges::find(owed_->withdrawn, report.version) == owed_->withdrawn.end())
    return report;
  report.ready = false;
  report.reason = fmt::format("{} was withdrawn, and that decision could not be stored here: {}",
                              report.version.to_string(), owed_->why);
  return report;
}

// Fences of two fleets say nothing about each other. A fleet's id binds a sidecar with the first
// decision that it takes.
bool Sidecar::is_foreign(const control::Fence& fence) const {
  return !record_.decision.none() && !record_.fence.fleet.none() &&
         fence.fleet != record_.fence.fleet && !planted("fleets_not_compared");
}

control::StatusReply Sidecar::status(TimePoint now) const {
  control::StatusReply reply{.role = "sidecar",
                             .fence = record_.fence,
                             .decision = record_.decision.number,
                             .target = record_.target,
                             .withdrawn = record_.withdrawn};
  for (const HeldCopy& copy : held_) {
    if (copy.version >= record_.target || is_withdrawn(copy.version)) continue;
    if (reply.can_roll_back && reply.rollback_target >= copy.version) continue;
    reply.can_roll_back = true;
    reply.rollback_target = copy.version;
  }
  reply.activity = "idle";
  for (const auto& [name, replica] : replicas_)
    if (replica.phase() != reload::SwitchPhase::kIdle)
      reply.activity = fmt::format("replica '{}': {}", name, reload::phase_name(replica.phase()));
  if (incoming_ && incoming_->stage == Stage::kStaging)
    reply.activity = fmt::format("staging {}", incoming_->announce.version.to_string());
  control::SidecarReport self{.name = options_.name,
                              .host = options_.host,
                              .pid = options_.pid,
                              .connected = welcomed_,
                              .target = record_.target,
                              .staged = held_versions()};
  self.replicas = reports(now);
  reply.sidecars.push_back(std::move(self));
  return reply;
}

std::string Sidecar::invariants() const {
  if (record_.decision.fence > record_.fence && !planted("fence_forgotten"))
    return "a decision above the highest fence seen";
  if (writing_ && writing_->fence.fleet == record_.fence.fleet && writing_->fence < record_.fence &&
      !planted("fence_forgotten"))
    return "a record with a lower fence is being written";
  if (!writing_ && !queue_.empty()) return "messages wait for a write that nobody is doing";
  if (held_.size() > options_.versions_held)
    return fmt::format("{} versions held, at most {} allowed", held_.size(),
                       options_.versions_held);
  for (const HeldCopy& copy : held_)
    if (std::ranges::count(held_, copy.version, &HeldCopy::version) != 1)
      return fmt::format("version {} is held twice", copy.version.to_string());
  for (const auto& [version, check] : checking_)
    if (find(version) == nullptr)
      return fmt::format("version {} is being checked and not held", version.to_string());
  const HeldCopy* target = find(record_.target);
  if (target != nullptr && record_.content != Digest{} && target->content != record_.content)
    return fmt::format("the copy of {} is not what was decided", record_.target.to_string());
  if (incoming_ && incoming_->stage == Stage::kStaged &&
      find(incoming_->announce.version) == nullptr)
    return "a staged version is not held";
  // The target may have been withdrawn since it was decided, with nothing in its place: a replica
  // that came later has none.
  for (const auto& [name, replica] : replicas_)
    if (replica.target() != record_.target && !is_withdrawn(record_.target))
      return fmt::format("replica '{}' works towards another version than the target", name);
  return {};
}

}  // namespace wsync::staging
