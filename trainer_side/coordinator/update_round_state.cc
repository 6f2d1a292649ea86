// What a Coordinator knows and reports of itself: its predicates, its reports, its invariants.
#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/weight_limits.h"
#include "trainer_side/coordinator/update_round.h"

namespace wsync::publish {

std::string_view phase_name(CoordinatorPhase phase) noexcept {
  switch (phase) {
    case CoordinatorPhase::kGathering:
      return "gathering";
    case CoordinatorPhase::kClaiming:
      return "claiming";
    case CoordinatorPhase::kReady:
      return "idle";
    case CoordinatorPhase::kAnnouncing:
      return "announcing";
    case CoordinatorPhase::kStaging:
      return "staging";
    case CoordinatorPhase::kSwitching:
      return "switching";
    case CoordinatorPhase::kStopped:
      return "stopped";
  }
  return "unknown";
}

bool Coordinator::in_round(const Member& member) const {
  return round_ && std::find(round_->members.begin(), round_->members.end(), member.name) !=
                       round_->members.end();
}

// The end of a phase that begins now: no round outlives its publish.
TimePoint Coordinator::in_time(std::chrono::milliseconds phase) const {
  const TimePoint end = now_ + phase;
  return round_->publish.deadline ? std::min(end, *round_->publish.deadline) : end;
}

const PublishRequested* Coordinator::snapshot_of(const Version& version) const {
  for (const PublishRequested& held : held_)
    if (held.version == version) return &held;
  return nullptr;
}

std::optional<TimePoint> Coordinator::next_wake() const {
  std::optional<TimePoint> wake;
  const auto by = [&wake](const std::optional<TimePoint>& at) {
    if (at && (!wake || *at < *wake)) wake = at;
  };
  if (waiting_) by(waiting_->deadline);
  if (pending_) {
    by(pending_->deadline);
    return wake;
  }
  by(deadline_);
  if (phase_ < CoordinatorPhase::kReady || phase_ == CoordinatorPhase::kStopped) return wake;
  by(follow_again_);
  if (members_changed_ && members_token_ == 0) by(members_again_);
  for (const auto& [name, member] : roster_.members()) {
    if (owes_decided(member)) by(member.ask_again);
    if (!member.joined || in_round(member) || member.delivery.phase == DeliveryPhase::kNone ||
        member.delivery.phase == DeliveryPhase::kStaged)
      continue;
    by(member.delivery.deadline);
  }
  return wake;
}

// Whether it has a newer decision than this coordinator, which becomes the target here as soon as
// no round runs. Until then it is told nothing.
bool Coordinator::knows_newer(const Member& member) const {
  return member.origin > record_.origin && !contains(record_.withdrawn, member.report.target);
}

// Whether the newest decision has to be sent to it, for the first time or again: it has not stored
// it, and no delivery is under way behind which it would be sent.
bool Coordinator::owes_decided(const Member& member) const {
  if (!member.joined || record_.number == 0 || member.decided >= record_.number ||
      knows_newer(member) || pending_ || planted("decided_once"))
    return false;
  const bool on_its_way = member.delivery.version == record_.target &&
                          (member.delivery.phase == DeliveryPhase::kAnnounced ||
                           member.delivery.phase == DeliveryPhase::kAccepted ||
                           member.delivery.phase == DeliveryPhase::kStaging);
  return !on_its_way;
}

Result<Version> Coordinator::next_version(std::uint64_t step) const {
  if (phase_ < CoordinatorPhase::kReady || phase_ == CoordinatorPhase::kStopped)
    return fail(ErrorCode::kBusy, fmt::format("the coordinator is {}; no sidecar has joined it yet",
                                              phase_name(phase_)));
  const auto epoch = static_cast<std::uint32_t>(record_.fence.epoch);
  const std::uint64_t last = std::max(seen_step_, used_step_);
  if (step > limits::kStepMax || (step == 0 && last == limits::kStepMax))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("step {}: a step is 1 to {}; name one below it with --step",
                            step == 0 ? last + 1 : step, limits::kStepMax));
  if (step == 0) return Version{epoch, last + 1};
  if (step <= used_step_)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("step {} was used or passed under epoch {} (last: {}); a version never "
                            "names two different byte strings",
                            step, epoch, used_step_));
  return Version{epoch, step};
}

Coordinator::Moved Coordinator::moved_bytes() const {
  Moved moved;
  if (!round_ || round_->is_rollback || phase_ == CoordinatorPhase::kAnnouncing) return moved;
  const std::uint64_t model = round_->publish.arena_bytes;
  for (const auto& [name, member] : roster_.members()) {
    if (!in_round(member)) continue;
    if (phase_ == CoordinatorPhase::kStaging) {
      moved.total += model;
      moved.done += member.delivery.phase == DeliveryPhase::kStaged
                        ? model
                        : std::min(member.staged_bytes, model);
      continue;
    }
    for (const control::ReplicaReport& replica : member.report.replicas) {
      if (replica.state == control::ReplicaState::kAbsent) continue;
      moved.total += model;
      moved.done +=
          replica.version == record_.target ? model : std::min(replica.loaded_bytes, model);
    }
  }
  return moved;
}

bool Coordinator::has_update(const Version& version) const noexcept {
  if (waiting_ && waiting_->version == version) return true;
  for (const CoordinatorEvent& event : queue_)
    if (const auto* publish = std::get_if<PublishRequested>(&event.what);
        publish != nullptr && publish->version == version)
      return true;
  if (!round_) return false;
  return version.none() ||
         version == (round_->is_rollback ? record_.target : round_->publish.version);
}

control::StatusReply Coordinator::status() const {
  control::StatusReply reply;
  reply.role = "coordinator";
  reply.fence = record_.fence;
  reply.decision = record_.number;
  reply.target = record_.target;
  reply.withdrawn = record_.withdrawn;
  if (const auto to = roster_.rollback_target(record_.target, record_.withdrawn)) {
    reply.can_roll_back = true;
    reply.rollback_target = *to;
  }
  reply.activity = phase_name(phase_);
  if (const std::vector<std::string> names = awaited(); !names.empty())
    reply.activity += fmt::format("; waits for sidecars of its record: {}", fmt::join(names, ", "));
  if (pending_) reply.activity += "; its record is being stored";
  if (round_)
    reply.activity +=
        fmt::format(" {}", round_->is_rollback ? "back to " + record_.target.to_string()
                                               : round_->publish.version.to_string());
  for (const auto& [name, member] : roster_.members()) {
    reply.sidecars.push_back(member.report);
    reply.sidecars.back().staged_bytes = member.staged_bytes;
  }
  return reply;
}

std::string Coordinator::invariants() const {
  const bool in_a_round = phase_ == CoordinatorPhase::kAnnouncing ||
                          phase_ == CoordinatorPhase::kStaging ||
                          phase_ == CoordinatorPhase::kSwitching;
  if (in_a_round != round_.has_value())
    return fmt::format("phase {} with{} a round", phase_name(phase_), round_ ? "" : "out");
  if (in_a_round && !deadline_) return "a round without a deadline";
  if (phase_ == CoordinatorPhase::kClaiming && !deadline_ && !pending_)
    return "a claim without a deadline";
  if (!pending_ && record_.origin > control::Decision{record_.fence, record_.number} &&
      phase_ >= CoordinatorPhase::kReady && record_.number > 0)
    return "a decision that is older than its origin";
  // Until the decision that leaves it is stored, the target may be one that was withdrawn.
  const bool leaves = pending_ || follow_again_;
  if (!record_.target.none() && contains(record_.withdrawn, record_.target) && !leaves &&
      phase_ == CoordinatorPhase::kReady)
    return fmt::format("the target {} is withdrawn", record_.target.to_string());
  for (const auto& [name, member] : roster_.members())
    if (member.decided > record_.number && member.joined)
      return fmt::format("sidecar '{}' acknowledged decision {} of {}", name, member.decided,
                         record_.number);
  return {};
}

}  // namespace wsync::publish
