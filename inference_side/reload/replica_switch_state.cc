// What a ReplicaSwitch knows and reports of itself: its predicates, its report, its invariants.
#include <algorithm>

#include "inference_side/reload/replica_switch.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::reload {

using control::ReplicaReport;
using control::ReplicaState;

namespace {

bool contains(const std::vector<Version>& set, const Version& version) {
  return std::ranges::find(set, version) != set.end();
}

}  // namespace

std::string_view phase_name(SwitchPhase phase) noexcept {
  switch (phase) {
    case SwitchPhase::kIdle:
      return "idle";
    case SwitchPhase::kPausing:
      return "pausing";
    case SwitchPhase::kGathering:
      return "waiting for a lost rank";
    case SwitchPhase::kLoading:
      return "loading";
    case SwitchPhase::kCommitting:
      return "committing";
    case SwitchPhase::kResuming:
      return "resuming";
  }
  return "?";
}

std::uint32_t ReplicaSwitch::attached() const noexcept {
  return static_cast<std::uint32_t>(std::ranges::count(ranks_, true, &Rank::attached));
}

bool ReplicaSwitch::complete() const { return attached() == ranks_.size(); }

bool ReplicaSwitch::quiesced() const {
  return std::ranges::none_of(ranks_, [](const Rank& r) { return r.attached && r.serving; });
}

bool ReplicaSwitch::all_answered() const {
  return std::ranges::all_of(ranks_, [](const Rank& r) { return r.attached && r.answered; });
}

bool ReplicaSwitch::answers(std::uint32_t rank, std::uint64_t request, SwitchPhase phase) {
  const bool expected = rank < ranks_.size() && ranks_[rank].attached && !ranks_[rank].answered &&
                        request == request_ && phase_ == phase;
  if (!expected) ++dropped_;
  return expected;
}

// The version that every rank holds whole; none while a rank is missing or holds another.
std::optional<Version> ReplicaSwitch::uniform() const {
  for (const Rank& rank : ranks_)
    if (!rank.attached || !rank.whole || rank.version != ranks_[0].version) return std::nullopt;
  return ranks_[0].version;
}

bool ReplicaSwitch::serving() const {
  return phase_ == SwitchPhase::kIdle && uniform().has_value() && ranks_[leader()].serving &&
         confirmed_;
}

bool ReplicaSwitch::withdrawn(const Version& version) const {
  if (planted("withdrawn_ignored")) return false;
  return contains(target_.withdrawn, version);
}

bool ReplicaSwitch::loadable(const Version& version) const {
  return !version.none() && contains(staged_, version) && !withdrawn(version) &&
         std::ranges::find(failed_, version, &Failed::version) == failed_.end();
}

bool ReplicaSwitch::needs_load() const { return uniform() != target_.target; }

bool ReplicaSwitch::needs(const Version& version) const {
  if (phase_ == SwitchPhase::kIdle || version.none()) return false;
  return version == goal_ || version == target_.target || version == previous_ ||
         uniform() == version;
}

std::uint32_t ReplicaSwitch::leader() const {
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (ranks_[rank].attached && ranks_[rank].leader) return rank;
  return 0;
}

std::string ReplicaSwitch::missing() const {
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
    if (!ranks_[rank].attached) return fmt::format("rank {} is not attached", rank);
  return "every rank is attached";
}

ReplicaReport ReplicaSwitch::report(TimePoint now) const {
  ReplicaReport out;
  out.replica = options_.replica;
  out.world_size = options_.world_size;
  out.ranks_attached = attached();
  out.version = uniform().value_or(Version{});
  out.loaded_bytes =
      phase_ == SwitchPhase::kLoading || phase_ == SwitchPhase::kCommitting ? bytes_ : 0;
  out.paused_ns = last_paused_ns_;
  report_state(now, out);
  return out;
}

void ReplicaSwitch::report_state(TimePoint now, ReplicaReport& out) const {
  const std::optional<Version> version = uniform();
  if (!complete()) {
    out.state = ReplicaState::kAbsent;
    out.reason = missing();
  } else if (phase_ == SwitchPhase::kGathering || phase_ == SwitchPhase::kLoading ||
             phase_ == SwitchPhase::kCommitting) {
    out.state = ReplicaState::kLoading;
    out.reason = fmt::format("it is {}", phase_name(phase_));
  } else if (!version) {
    const bool written = std::ranges::any_of(ranks_, &Rank::written);
    out.state = written ? ReplicaState::kTainted : ReplicaState::kLoading;
    out.reason = !last_failure_.empty() ? last_failure_ : "a rank waits for a staged version";
  } else if (!serving()) {
    const bool stopped = quiesced();
    const ReplicaState running =
        version == target_.target ? ReplicaState::kServing : ReplicaState::kBehind;
    out.state = stopped ? ReplicaState::kPaused : running;
    out.reason = withdrawn(*version) && stopped
                     ? fmt::format("version {} was withdrawn and {} is not staged here",
                                   version->to_string(), target_.target.to_string())
                     : fmt::format("it is {}", phase_name(phase_));
  } else if (version == target_.target || target_.target.none()) {
    out.state = ReplicaState::kServing;
    out.ready = !withdrawn(*version);
    if (!out.ready)
      out.reason = fmt::format("version {} was withdrawn and no other one has been decided",
                               version->to_string());
  } else {
    out.state = ReplicaState::kBehind;
    const bool stale = behind_since_ && options_.max_staleness.count() > 0 &&
                       now - *behind_since_ > options_.max_staleness;
    out.ready = !stale && !withdrawn(*version);
    out.reason = !last_failure_.empty()
                     ? last_failure_
                     : fmt::format("it serves {}; the target is {}", version->to_string(),
                                   target_.target.to_string());
  }
}

std::string ReplicaSwitch::invariants() const {
  const bool writing = phase_ == SwitchPhase::kLoading || phase_ == SwitchPhase::kCommitting;
  if (writing && !complete()) return "a load goes on without one of its ranks";
  if (writing && !quiesced()) return "a load goes on while a rank may be inside a step";
  if (writing && goal_.none()) return "a load goes on without a version";
  if (!writing && !goal_.none()) return "a version is in flight outside a load";
  if (phase_ == SwitchPhase::kLoading && withdrawn(goal_)) return "a withdrawn version is loaded";
  if ((phase_ == SwitchPhase::kIdle) == deadline_.has_value())
    return "every phase but idle has a deadline, and idle has none";
  if (owed_ != owed_deadline_.has_value()) return "an outcome is owed without a deadline";
  if (phase_ == SwitchPhase::kResuming && !uniform() && !planted("deadline_resume"))
    return "a replica is resumed whose ranks hold different bytes";
  for (const Rank& rank : ranks_) {
    if (rank.serving && !rank.attached) return "a rank that is not attached serves";
    if (rank.whole && rank.written) return "a rank is whole while it is being written";
    if (!rank.whole && !rank.version.none()) return "a rank names a version that it does not hold";
  }
  return {};
}

}  // namespace wsync::reload
