#include "inference_side/staging/replica_set.h"

#include <algorithm>
#include <array>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::staging {
namespace {

constexpr std::array<Transition<OutcomeState>, 5> kOutcomeTransitions = {{
    {OutcomeState::kIdle, "a decision is stored", OutcomeState::kCollecting,
     "Decided; every replica switches"},
    {OutcomeState::kCollecting, "a newer decision is stored", OutcomeState::kCollecting,
     "Decided; collected outcomes are discarded"},
    {OutcomeState::kCollecting, "no replica owes an outcome", OutcomeState::kReported, "Switched"},
    {OutcomeState::kReported, "the decision is received again", OutcomeState::kReported,
     "Decided and Switched again"},
    {OutcomeState::kReported, "a newer decision is stored", OutcomeState::kCollecting,
     "Decided; every replica switches"},
}};

}  // namespace

std::string_view outcome_state_name(OutcomeState state) noexcept {
  switch (state) {
    case OutcomeState::kIdle:
      return "idle";
    case OutcomeState::kCollecting:
      return "collecting";
    case OutcomeState::kReported:
      return "reported";
  }
  return "unknown";
}

TransitionTable outcome_transitions() {
  return describe<OutcomeState>("ReplicaSet",
                                "The outcomes that a sidecar owes the coordinator for a decision.",
                                kOutcomeTransitions, outcome_state_name);
}

ReplicaSet::ReplicaSet(const SidecarOptions& options)
    : options_(options.replica),
      pause_(options.pause),
      load_(options.load),
      forget_after_(options.forget_after) {}

void ReplicaSet::move(OutcomeState to) {
  WSYNC_CHECK(allows<OutcomeState>(kOutcomeTransitions, state_, to),
              fmt::format("the outcomes of a decision cannot go from {} to {}",
                          outcome_state_name(state_), outcome_state_name(to)));
  state_ = to;
}

std::vector<std::string> ReplicaSet::names() const {
  std::vector<std::string> names;
  for (const auto& [name, replica] : replicas_) names.push_back(name);
  return names;
}

std::optional<TimePoint> ReplicaSet::next_wake() const {
  std::optional<TimePoint> wake;
  for (const auto& [name, replica] : replicas_) {
    const std::optional<TimePoint> other = replica.next_wake();
    if (other && (!wake || *other < *wake)) wake = other;
  }
  if (forget_after_.count() == 0) return wake;
  for (const auto& [name, since] : gone_)
    if (const TimePoint at = since + forget_after_; check_forget(name) && (!wake || at < *wake))
      wake = at;
  return wake;
}

bool ReplicaSet::needs(const Version& version) const {
  return std::ranges::any_of(replicas_,
                             [&](const auto& entry) { return entry.second.needs(version); });
}

std::optional<std::string> ReplicaSet::activity() const {
  std::optional<std::string> activity;
  for (const auto& [name, replica] : replicas_)
    if (replica.phase() != reload::SwitchPhase::kIdle)
      activity = fmt::format("replica '{}': {}", name, reload::phase_name(replica.phase()));
  return activity;
}

std::optional<ReplicaSet::Commands> ReplicaSet::handle(const ReplicaEvent& event,
                                                       const SidecarRecord& record,
                                                       const reload::StagedSet& staged,
                                                       TimePoint now) {
  const auto* attached = std::get_if<reload::RankAttached>(&event.what);
  auto found = replicas_.find(event.replica);
  const bool other_size = found != replicas_.end() && attached != nullptr &&
                          found->second.world_size() != event.world_size;
  if (other_size && found->second.attached() == 0 && !found->second.owes()) {
    replicas_.erase(found);  // it was restarted with another world size
    found = replicas_.end();
  } else if (other_size || (found == replicas_.end() && attached == nullptr)) {
    return std::nullopt;
  }
  Commands out;
  if (found == replicas_.end()) {
    reload::SwitchOptions options = options_;
    options.replica = event.replica;
    options.world_size = event.world_size;
    replicas_.emplace(event.replica, reload::ReplicaSwitch(std::move(options)));
    step(event.replica, {.now = now, .what = staged}, record, out);
    step(event.replica, {.now = now, .what = reload::WithdrawnSet{record.withdrawn}}, record, out);
    // No outcome is owed: the coordinator counts only the replicas that existed at its decision.
    if (!record.target.none())
      step(event.replica, {.now = now, .what = target_event(record, false)}, record, out);
  }
  std::visit(
      [&](const auto& what) { step(event.replica, {.now = now, .what = what}, record, out); },
      event.what);
  note_attached(event.replica, now);
  return out;
}

void ReplicaSet::note_attached(const std::string& name, TimePoint now) {
  if (replicas_.at(name).attached() > 0)
    gone_.erase(name);
  else
    gone_.try_emplace(name, now);
}

std::vector<std::string> ReplicaSet::due_to_forget(TimePoint now) const {
  std::vector<std::string> due;
  if (forget_after_.count() == 0) return due;
  for (const auto& [name, since] : gone_)
    if (now >= since + forget_after_ && check_forget(name)) due.push_back(name);
  return due;
}

Result<> ReplicaSet::check_forget(const std::string& name) const {
  const auto found = replicas_.find(name);
  if (found == replicas_.end())
    return fail(ErrorCode::kNotFound, fmt::format("this sidecar knows no replica '{}'", name));
  const reload::ReplicaSwitch& replica = found->second;
  if (replica.attached() > 0)
    return fail(ErrorCode::kRefused,
                fmt::format("replica '{}' has {} of {} ranks attached: stop its engines first",
                            name, replica.attached(), replica.world_size()));
  return {};
}

void ReplicaSet::forget(const std::string& name) {
  replicas_.erase(name);
  gone_.erase(name);
  had_turn_.erase(name);
}

ReplicaSet::Commands ReplicaSet::tick(const SidecarRecord& record, TimePoint now) {
  Commands out;
  for (const std::string& name : names()) {
    const std::optional<TimePoint> wake = replicas_.at(name).next_wake();
    if (wake && *wake <= now) step(name, {.now = now, .what = reload::Tick{}}, record, out);
  }
  return out;
}

ReplicaSet::Commands ReplicaSet::notify_staged(const reload::StagedSet& staged,
                                               const SidecarRecord& record, TimePoint now) {
  Commands out;
  for (const std::string& name : names()) step(name, {.now = now, .what = staged}, record, out);
  return out;
}

ReplicaSet::Commands ReplicaSet::notify_withdrawn(const SidecarRecord& record, TimePoint now) {
  Commands out;
  for (const std::string& name : names())
    step(name, {.now = now, .what = reload::WithdrawnSet{record.withdrawn}}, record, out);
  return out;
}

ReplicaSet::Commands ReplicaSet::decide(const control::Envelope& envelope,
                                        const control::Decide& decide, const SidecarRecord& record,
                                        TimePoint now) {
  move(OutcomeState::kCollecting);
  envelope_ = envelope;
  decide_ = decide;
  set_turns(0);
  switched_ = {.number = decide.number, .target = decide.target, .outcomes = {}};
  Commands out;
  for (const std::string& name : names()) {
    // A replica whose engines are all gone owes no outcome of a switch, because no request is
    // routed to it. A rollback requires an outcome of every replica, because a returning replica
    // must not serve a withdrawn version. Under kSwitchCanary the other replicas do not switch.
    const bool owed =
        (replicas_.at(name).attached() > 0 &&
         (decide.kind != control::DecisionKind::kSwitchCanary || name == decide.canary)) ||
        decide.kind == control::DecisionKind::kRollback;
    step(name, {.now = now, .what = target_event(record, owed)}, record, out);
  }
  return out;
}

reload::TargetSet ReplicaSet::target_event(const SidecarRecord& record, bool owed) const {
  reload::TargetSet event{.decision = record.decision,
                          .target = record.target,
                          .withdrawn = record.withdrawn,
                          .mode = decide_.mode,
                          .caches = decide_.caches,
                          .pause_deadline = pause_,
                          .load_deadline = load_,
                          .owed = owed,
                          .in_turns = record.kind == control::DecisionKind::kSwitchInTurns ||
                                      record.kind == control::DecisionKind::kSwitchCanary};
  if (decide_.pause_deadline_ms != 0)
    event.pause_deadline = std::chrono::milliseconds(decide_.pause_deadline_ms);
  if (decide_.load_deadline_ms != 0)
    event.load_deadline = std::chrono::milliseconds(decide_.load_deadline_ms);
  return event;
}

void ReplicaSet::set_turns(std::uint32_t turns, const std::string& only) {
  turns_ = turns;
  turns_only_ = only;
  if (turns == 0) had_turn_.clear();
}

control::ReplicaTurn ReplicaSet::turn_of(const std::string& name) const {
  const control::ReplicaTurn turn = replicas_.at(name).turn();
  const bool again = turn == control::ReplicaTurn::kWaiting && had_turn_.contains(name);
  return again ? control::ReplicaTurn::kNone : turn;
}

TurnCounts ReplicaSet::turn_counts() const {
  TurnCounts counts;
  for (const auto& [name, replica] : replicas_) {
    const control::ReplicaTurn turn = turn_of(name);
    if (turn == control::ReplicaTurn::kWaiting) ++counts.waiting;
    if (turn == control::ReplicaTurn::kHeld) ++counts.held;
  }
  return counts;
}

ReplicaSet::Commands ReplicaSet::give_turns(const SidecarRecord& record, TimePoint now) {
  Commands out;
  const TurnCounts counts = turn_counts();
  if (counts.waiting == 0 || counts.held >= turns_) return out;
  std::vector<std::pair<std::uint32_t, std::string>> waiting;
  for (const auto& [name, replica] : replicas_)
    if (turn_of(name) == control::ReplicaTurn::kWaiting &&
        (turns_only_.empty() || name == turns_only_))
      waiting.emplace_back(replica.turns_taken(), name);
  std::ranges::sort(waiting);
  waiting.resize(std::min<std::size_t>(waiting.size(), turns_ - counts.held));
  for (const auto& [taken, name] : waiting) {
    had_turn_.insert(name);
    step(name, {.now = now, .what = reload::TurnGiven{}}, record, out);
  }
  return out;
}

void ReplicaSet::step(const std::string& name, const reload::SwitchEvent& event,
                      const SidecarRecord& record, Commands& out) {
  for (reload::SwitchCommand& command : replicas_.at(name).step(event)) {
    if (const auto* done = std::get_if<reload::Done>(&command)) {
      // Drop an outcome of an older decision, because the newer decision needs another one.
      if (state_ == OutcomeState::kCollecting && done->decision == record.decision)
        switched_.outcomes.push_back(done->outcome);
    } else if (const auto* suspect = std::get_if<reload::CopySuspect>(&command)) {
      out.emplace_back(*suspect);
    } else {
      out.emplace_back(ForReplica{.replica = name, .command = std::move(command)});
    }
  }
}

std::optional<OutcomeReport> ReplicaSet::take_report() {
  if (state_ != OutcomeState::kCollecting) return std::nullopt;
  for (const auto& [name, replica] : replicas_)
    if (replica.owes()) return std::nullopt;
  move(OutcomeState::kReported);
  return OutcomeReport{.fence = envelope_.fence,
                       .round = envelope_.round,
                       .request = envelope_.request,
                       .switched = switched_};
}

const control::Switched* ReplicaSet::reported(const control::Decision& decision) const {
  const control::Decision own{.fence = envelope_.fence, .number = switched_.number};
  const bool last = state_ == OutcomeState::kReported && own == decision;
  return last ? &switched_ : nullptr;
}

Result<> ReplicaSet::invariants(const SidecarRecord& record) const {
  // The target may have been withdrawn since its decision, without a new target. A replica that
  // attaches later then has no target.
  const bool withdrawn =
      std::ranges::find(record.withdrawn, record.target) != record.withdrawn.end();
  for (const auto& [name, replica] : replicas_)
    if (replica.target() != record.target && !withdrawn)
      return fail(ErrorCode::kInternal,
                  fmt::format("replica '{}' switches to a version that is not the target", name));
  return {};
}

}  // namespace wsync::staging
