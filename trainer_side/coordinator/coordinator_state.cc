// What a Coordinator knows and reports of itself: its predicates, its reports, its invariants.
#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/coordinator/coordinator.h"

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
  const TimePoint end = context_.now + phase;
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
  if (log_.is_storing()) {
    by(log_.next_wake());
    return wake;
  }
  by(claim_.deadline());
  by(deadline_);
  if (!claim_.is_claimed()) return wake;
  by(log_.next_wake());
  for (const auto& [name, member] : context_.roster.members()) {
    if (is_owed(record(), member)) by(member.ask_again);
    if (!member.joined || in_round(member) || member.delivery.phase == DeliveryPhase::kNone ||
        member.delivery.phase == DeliveryPhase::kStaged)
      continue;
    by(member.delivery.deadline);
  }
  return wake;
}

CoordinatorPhase Coordinator::phase() const noexcept {
  switch (claim_.state()) {
    case FenceClaimState::kGathering:
      return CoordinatorPhase::kGathering;
    case FenceClaimState::kStoring:
    case FenceClaimState::kWelcoming:
      return CoordinatorPhase::kClaiming;
    case FenceClaimState::kClaimed:
      return phase_;
    case FenceClaimState::kStopped:
      break;
  }
  return CoordinatorPhase::kStopped;
}

Result<Version> Coordinator::next_version(std::uint64_t step) const {
  if (!claim_.is_claimed())
    return fail(ErrorCode::kBusy, fmt::format("the coordinator is {}; no sidecar has joined it yet",
                                              phase_name(phase())));
  return names_.next(static_cast<std::uint32_t>(record().fence.epoch), step);
}

Coordinator::Moved Coordinator::moved_bytes() const {
  Moved moved;
  if (!round_ || round_->is_rollback || phase_ == CoordinatorPhase::kAnnouncing) return moved;
  const std::uint64_t model = round_->publish.arena_bytes;
  for (const auto& [name, member] : context_.roster.members()) {
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
          replica.version == record().target ? model : std::min(replica.loaded_bytes, model);
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
         version == (round_->is_rollback ? record().target : round_->publish.version);
}

control::StatusReply Coordinator::status() const {
  control::StatusReply reply;
  reply.role = "coordinator";
  reply.fence = record().fence;
  reply.decision = record().number;
  reply.target = record().target;
  reply.withdrawn = record().withdrawn;
  if (const auto to = context_.roster.rollback_target(record().target, record().withdrawn)) {
    reply.can_roll_back = true;
    reply.rollback_target = *to;
  }
  reply.activity = phase_name(phase());
  if (const std::vector<std::string> names = awaited(); !names.empty())
    reply.activity += fmt::format("; waits for sidecars of its record: {}", fmt::join(names, ", "));
  if (log_.is_storing()) reply.activity += "; its record is being stored";
  if (round_)
    reply.activity +=
        fmt::format(" {}", round_->is_rollback ? "back to " + record().target.to_string()
                                               : round_->publish.version.to_string());
  for (const auto& [name, member] : context_.roster.members()) {
    reply.sidecars.push_back(member.report);
    reply.sidecars.back().staged_bytes = member.staged_bytes;
  }
  return reply;
}

Result<> Coordinator::invariants() const {
  const auto broken = [](std::string rule) { return fail(ErrorCode::kInternal, std::move(rule)); };
  const bool in_a_round = phase_ == CoordinatorPhase::kAnnouncing ||
                          phase_ == CoordinatorPhase::kStaging ||
                          phase_ == CoordinatorPhase::kSwitching;
  if (in_a_round != round_.has_value())
    return broken(fmt::format("phase {} with{} a round", phase_name(phase_), round_ ? "" : "out"));
  if (in_a_round && !deadline_) return broken("a round without a deadline");
  WSYNC_TRY(claim_.invariants());
  if ((claim_.state() == FenceClaimState::kStoring) !=
      (log_.state() == DecisionLogState::kStoringClaim))
    return broken("a claim is stored that was not made, or the other way round");
  WSYNC_TRY(log_.invariants());
  if (phase() == CoordinatorPhase::kReady && !record().target.none() &&
      contains(record().withdrawn, record().target) && !log_.leaves_target())
    return broken(fmt::format("the target {} is withdrawn", record().target.to_string()));
  for (const auto& [name, member] : context_.roster.members())
    if (member.decided > record().number && member.joined)
      return broken(fmt::format("sidecar '{}' acknowledged decision {} of {}", name, member.decided,
                                record().number));
  return {};
}

}  // namespace wsync::publish
