// Coordinator: how a round begins, is decided, and ends; and rollback.
#include <algorithm>
#include <chrono>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/round_deadlines.h"
#include "trainer_side/coordinator/update_round.h"

namespace wsync::publish {
namespace {

constexpr std::chrono::milliseconds kReportMargin{limits::kReportMarginMs};
// A decision that a sidecar has not stored is sent again, at first after so long, then after twice
// that.
constexpr std::chrono::milliseconds kAskAgain{1'000};
constexpr std::chrono::milliseconds kAskAgainMax{30'000};

std::uint64_t nanoseconds(std::chrono::nanoseconds d) {
  return d.count() < 0 ? 0 : static_cast<std::uint64_t>(d.count());
}

}  // namespace

void Coordinator::leave_round(const Member& member) { std::erase(round_->members, member.name); }

void Coordinator::send(const Member& member, control::Message message, std::uint64_t round,
                       std::uint64_t request) {
  if (member.peer.empty()) return;
  control::Envelope envelope;
  envelope.fence = record_.fence;
  envelope.round = round;
  envelope.request = request;
  out_.emplace_back(
      SendTo{.peer = member.peer, .envelope = std::move(envelope), .message = std::move(message)});
}

// ---- publish ----

void Coordinator::refuse_publish(const PublishRequested& publish, const std::string& why,
                                 Refusal kind) {
  control::PushReply reply;
  reply.reason = why;
  reply.version = publish.version;
  reply.content_digest = publish.content_digest;
  reply.bytes = publish.arena_bytes;
  reply.snapshot_ns = publish.snapshot_ns;
  out_.emplace_back(RoundDone{.request = publish.request,
                              .superseded = kind == Refusal::kSuperseded,
                              .cancelled = kind == Refusal::kCancelled,
                              .reply = std::move(reply)});
  out_.emplace_back(DropVersion{publish.version});
}

void Coordinator::on(const PublishRequested& event) {
  if (phase_ < CoordinatorPhase::kReady) {
    refuse_publish(event, fmt::format("the coordinator is {}", phase_name(phase_)));
    return;
  }
  const Result<Version> name = next_version(event.version.step);
  if (!name || *name != event.version) {
    refuse_publish(event, name ? fmt::format("version {} is not of this coordinator's epoch {}",
                                             event.version.to_string(), record_.fence.epoch)
                               : name.error().message());
    return;
  }
  used_step_ = event.version.step;
  seen_step_ = std::max(seen_step_, used_step_);
  if (round_) {
    if (waiting_)
      refuse_publish(*waiting_, fmt::format("superseded by {}", event.version.to_string()),
                     Refusal::kSuperseded);
    waiting_ = event;
    return;
  }
  start_round(event);
}

void Coordinator::start_round(const PublishRequested& publish) {
  if (roster_.joined_count() == 0) {
    refuse_publish(publish, "no sidecar is connected to this coordinator");
    return;
  }
  if (publish.deadline && now_ >= *publish.deadline) {
    refuse_publish(publish, "its deadline (deadlines.publish) came before its round began");
    return;
  }
  round_.emplace(Round{.publish = publish, .started = now_});
  held_.push_back(publish);
  phase_ = CoordinatorPhase::kAnnouncing;
  deadline_ = in_time(options_.announce);
  out_.emplace_back(
      PhaseEntered{.request = publish.request, .phase = control::ProgressPhase::kAnnounce});
  for (auto& [name, member] : roster_.members()) {
    if (!member.joined) continue;
    round_->members.push_back(name);
    announce(member, publish);
  }
}

// ---- decisions ----

std::uint32_t Coordinator::staged_replicas() const {
  std::uint32_t replicas = 0;
  for (const std::string& name : round_->members)
    if (const Member& member = roster_.members().at(name);
        member.delivery.phase == DeliveryPhase::kStaged)
      replicas += whole_replicas(member);
  return replicas;
}

std::uint32_t Coordinator::needed_replicas() const {
  const bool quorum = options_.commit.rule == CommitRule::kQuorum;
  return std::max(options_.min_replicas, quorum ? options_.commit.quorum : 0);
}

bool Coordinator::enough_staged() const {
  if (planted("decide_before_all_staged") && !round_->members.empty()) return true;
  const auto has_staged = [this](const std::string& name) {
    return roster_.members().at(name).delivery.phase == DeliveryPhase::kStaged;
  };
  const std::vector<std::string>& names = round_->members;
  const bool enough = options_.commit.rule == CommitRule::kAll
                          ? std::all_of(names.begin(), names.end(), has_staged)
                          : std::any_of(names.begin(), names.end(), has_staged);
  return enough && staged_replicas() >= needed_replicas();
}

void Coordinator::advance_round() {
  if (!round_ || pending_) return;
  const auto all = [this](auto predicate) {
    return std::all_of(
        round_->members.begin(), round_->members.end(),
        [&](const std::string& name) { return predicate(roster_.members().at(name)); });
  };
  if (phase_ == CoordinatorPhase::kSwitching) {
    const bool over = all([this](const Member& member) {
      return member.peer.empty() || member.switched == record_.number || !member.refused.empty() ||
             member.delivery.phase == DeliveryPhase::kFailed;
    });
    if (over) finish_round();
    return;
  }
  if (round_->members.empty()) {
    abort_round("every sidecar of the round was lost");
    return;
  }
  if (phase_ == CoordinatorPhase::kAnnouncing) {
    if (all([](const Member& member) { return member.delivery.phase == DeliveryPhase::kAccepted; }))
      enter_staging();
    return;
  }
  if (enough_staged()) {
    decide(control::DecisionKind::kSwitch, round_->publish.version);
  } else if (all([](const Member& m) { return m.delivery.phase == DeliveryPhase::kStaged; })) {
    // An engine that has just attached is told of by the next heartbeat.
    if (!std::exchange(round_->lacks_replicas, true)) deadline_ = in_time(options_.attach);
  }
}

void Coordinator::enter_staging() {
  phase_ = CoordinatorPhase::kStaging;
  deadline_ = in_time(options_.stage);
  out_.emplace_back(
      PhaseEntered{.request = round_->publish.request, .phase = control::ProgressPhase::kStage});
  const std::vector<std::string> names = round_->members;
  for (const std::string& name : names) {
    if (phase_ != CoordinatorPhase::kStaging) return;  // one failed and took the round with it
    Member& member = roster_.add(name);
    if (in_round(member)) stage(member);
  }
}

void Coordinator::decide(control::DecisionKind kind, const Version& target, const Digest& content,
                         const control::Decision& origin,
                         std::optional<RollbackRequested> rollback) {
  CoordinatorRecord next = record_;
  ++next.number;
  next.kind = kind;
  next.origin =
      origin.none() ? control::Decision{.fence = next.fence, .number = next.number} : origin;
  next.content = content;
  if (next.content == Digest{} && target == record_.target) next.content = record_.content;
  if (next.content == Digest{} && target == previous_target_) next.content = previous_content_;
  if (const PublishRequested* publish = snapshot_of(target)) next.content = publish->content_digest;
  if (rollback && target != record_.target && !planted("rollback_forgets_withdrawn"))
    withdraw(next.withdrawn, {record_.target});
  next.target = target;
  store(Storing::kDecision, std::move(next), std::move(rollback));
  pending_->withdrawn_changed = std::exchange(withdrawn_changed_, false);
}

// The decision is on disc: now it is told.
void Coordinator::decision_stored(const std::optional<RollbackRequested>& rollback) {
  if (rollback) {
    Round round{.started = now_};
    round.is_rollback = true;
    round.rollback_request = rollback->request;
    round.from = rollback_from_;
    for (const auto& [name, member] : roster_.members())
      if (member.joined) round.members.push_back(name);
    round_.emplace(std::move(round));
    out_.emplace_back(RollbackBegan{.request = rollback->request, .to = record_.target});
  }
  if (round_) {
    round_->decided = now_;
    phase_ = CoordinatorPhase::kSwitching;
    deadline_ = in_time(options_.whole_switch + kReportMargin);
    if (!round_->is_rollback)
      out_.emplace_back(PhaseEntered{.request = round_->publish.request,
                                     .phase = control::ProgressPhase::kSwitch});
  }
  for (auto& [name, member] : roster_.members()) {
    member.unreported.clear();
    member.ready_at_decision.clear();
    judge(member);
    if (!member.joined) continue;
    for (const control::ReplicaReport& replica : member.report.replicas)
      if (replica.ready && !replica.version.none())
        member.ready_at_decision.push_back(replica.replica);
    const bool staged = !round_ || round_->is_rollback ||
                        (in_round(member) && (member.delivery.phase == DeliveryPhase::kStaged ||
                                              planted("decide_before_all_staged")));
    if (staged) send_decide(member);
  }
  if (round_) {
    advance_round();  // everybody may have been lost while it was being stored
    return;
  }
  drop_unneeded();
  for (auto& [name, member] : roster_.members()) catch_up(member);
  start_waiting();
}

void Coordinator::send_decide(Member& member) {
  if (knows_newer(member)) return;
  const bool again = member.asked == record_.number && record_.number > 0;
  member.ask_pause = again ? std::min(2 * member.ask_pause, kAskAgainMax) : kAskAgain;
  member.ask_again = now_ + member.ask_pause;
  member.asked = record_.number;
  if (!again) member.refused.clear();
  send(member,
       control::Decide{.number = record_.number,
                       .kind = record_.kind,
                       .target = record_.target,
                       .withdrawn = record_.withdrawn,
                       .mode = options_.pause_mode,
                       .pause_deadline_ms = static_cast<std::uint32_t>(options_.pause.count()),
                       .load_deadline_ms = static_cast<std::uint32_t>(options_.load.count()),
                       .content_digest = record_.content,
                       .origin = record_.origin},
       member.delivery.round);
}

void Coordinator::on_decided(Member& member, const control::Decided& decided) {
  if (decided.number != member.asked || decided.number != record_.number) {
    ++dropped_;
    return;
  }
  if (decided.refused) {
    member.refused = decided.reason.empty() ? "refused without a reason" : decided.reason;
    judge(member);
    if (in_round(member)) advance_round();
    return;
  }
  take_decided(member);
}

// What it has on disc now.
void Coordinator::take_decided(Member& member) {
  member.decided = record_.number;
  member.refused.clear();
  if (record_.target.none()) return;  // it keeps its own target, and knows what is withdrawn
  member.decision = {.fence = record_.fence, .number = record_.number};
  member.origin = record_.origin;
  member.report.target = record_.target;
  member.target_content = record_.content;
}

void Coordinator::on_switched(Member& member, const control::Switched& switched) {
  if (switched.number != record_.number || switched.target != record_.target) {
    ++dropped_;
    return;
  }
  take_decided(member);
  member.switched = switched.number;
  member.outcomes = switched.outcomes;
  member.unreported.clear();
  for (control::ReplicaReport& replica : member.report.replicas)  // until its next heartbeat
    for (const control::ReplicaOutcome& outcome : switched.outcomes)
      if (outcome.replica == replica.replica) {
        replica.version = outcome.version;
        replica.loaded_bytes = 0;
        if (outcome.paused_ns > 0) replica.paused_ns = outcome.paused_ns;
        if (outcome.outcome != control::SwitchOutcome::kCommitted) continue;
        replica.state = control::ReplicaState::kServing;
        replica.ready = true;
        replica.reason.clear();
      }
  judge(member);
  if (in_round(member)) advance_round();
}

void Coordinator::on_heartbeat(Member& member, const control::Heartbeat& heartbeat) {
  member.report.staged = heartbeat.staged;
  member.report.target = heartbeat.target;
  member.report.replicas = heartbeat.replicas;
  member.staged_bytes = heartbeat.staged_bytes;
  judge(member);
  if (phase_ == CoordinatorPhase::kStaging && in_round(member)) advance_round();
  if (phase_ != CoordinatorPhase::kSwitching || member.unreported.empty() ||
      member.decided != record_.number)
    return;
  const auto serves_target = [&](const std::string& name) {
    return std::any_of(heartbeat.replicas.begin(), heartbeat.replicas.end(),
                       [&](const control::ReplicaReport& replica) {
                         return replica.replica == name && replica.version == record_.target &&
                                replica.state == control::ReplicaState::kServing;
                       });
  };
  if (!std::all_of(member.unreported.begin(), member.unreported.end(), serves_target)) return;
  member.outcomes.clear();
  for (const std::string& name : std::exchange(member.unreported, {}))
    member.outcomes.push_back({.replica = name,
                               .outcome = control::SwitchOutcome::kCommitted,
                               .version = record_.target});
  member.switched = record_.number;
  if (in_round(member)) advance_round();
}

// ---- how a round ends ----

void Coordinator::abort_round(const std::string& why) {
  const Round round = std::move(*round_);
  round_.reset();
  phase_ = CoordinatorPhase::kReady;
  deadline_.reset();
  for (auto& [name, member] : roster_.members()) {
    // What is being stored may hold: its copies must stay.
    if (pending_ || !member.joined || member.delivery.version != round.publish.version) continue;
    send(member, control::Abort{.version = round.publish.version, .reason = why},
         member.delivery.round);
    std::erase(member.report.staged, round.publish.version);
    member.delivery = {};
  }
  control::PushReply reply;
  reply.reason = why;
  reply.version = round.publish.version;
  reply.content_digest = round.publish.content_digest;
  reply.bytes = round.publish.arena_bytes;
  reply.snapshot_ns = round.publish.snapshot_ns;
  reply.problems = round.problems;
  out_.emplace_back(RoundDone{
      .request = round.publish.request, .cancelled = round.cancelled, .reply = std::move(reply)});
  if (follow_newest()) return;  // the rest comes when that is stored
  drop_unneeded();
  // One that still lacked the target when the round began has dropped it for the round's version.
  for (auto& [name, member] : roster_.members()) catch_up(member);
  start_waiting();
}

void Coordinator::finish_round() {
  if (round_->is_rollback)
    finish_rollback();
  else
    finish_publish();
}

void Coordinator::finish_publish() {
  const Round round = std::move(*round_);
  round_.reset();
  phase_ = CoordinatorPhase::kReady;
  deadline_.reset();
  control::PushReply reply;
  reply.version = round.publish.version;
  reply.content_digest = round.publish.content_digest;
  reply.bytes = round.publish.arena_bytes;
  reply.snapshot_ns = round.publish.snapshot_ns;
  reply.staged_ns = nanoseconds(round.decided - round.started);
  reply.switch_ns = nanoseconds(now_ - round.decided);
  std::size_t committed = 0;
  for (const std::string& name : round.members) {
    Member& member = roster_.add(name);
    if (member.switched != record_.number && reply.reason.empty()) {
      std::string why = "it did not report before the deadline";
      if (!member.refused.empty()) why = "it refused the decision: " + member.refused;
      if (!member.delivery.failure.empty()) why = member.delivery.failure;
      if (!member.joined) why = "it was lost during the switch";
      reply.reason = fmt::format("sidecar '{}': {}", name, why);
    }
    if (member.switched != record_.number) continue;
    for (const control::ReplicaOutcome& outcome : member.outcomes) {
      if (outcome.outcome == control::SwitchOutcome::kCommitted)
        ++committed;
      else if (reply.reason.empty())
        reply.reason = fmt::format("replica '{}': {}", outcome.replica, outcome.reason);
      reply.outcomes.push_back(outcome);
    }
  }
  if (committed == 0 && reply.reason.empty()) reply.reason = "no replica has switched";
  reply.ok = reply.reason.empty();
  out_.emplace_back(RoundDone{.request = round.publish.request, .reply = std::move(reply)});
  if (follow_newest()) return;  // the rest comes when that is stored
  drop_unneeded();
  for (auto& [name, member] : roster_.members()) catch_up(member);
  start_waiting();
}

void Coordinator::start_waiting() {
  if (waiting_ && !pending_ && phase_ == CoordinatorPhase::kReady)
    start_round(*std::exchange(waiting_, std::nullopt));
}

void Coordinator::drop_unneeded() {
  std::erase_if(held_, [this](const PublishRequested& held) {
    const bool needed = held.version == record_.target || held.version == previous_target_ ||
                        (round_ && round_->publish.version == held.version);
    if (!needed) out_.emplace_back(DropVersion{held.version});
    return !needed;
  });
}

// ---- rollback ----

void Coordinator::refuse_rollback(const RollbackRequested& event, const std::string& why) {
  control::RollbackReply reply;
  reply.reason = why;
  reply.from = record_.target;
  reply.to = event.to;
  out_.emplace_back(RollbackDone{.request = event.request, .reply = std::move(reply)});
}

void Coordinator::on(const RollbackRequested& event) {
  if (phase_ != CoordinatorPhase::kReady)
    return refuse_rollback(
        event, fmt::format("the coordinator is {}; try again when it is idle", phase_name(phase_)));
  if (record_.target.none()) return refuse_rollback(event, "no version has been decided yet");
  if (roster_.joined_count() == 0)
    return refuse_rollback(event, "no sidecar is connected to this coordinator");
  const std::optional<Version> previous =
      roster_.rollback_target(record_.target, record_.withdrawn);
  const Version to = event.to.none() ? previous.value_or(Version{}) : event.to;
  if (to.none())
    return refuse_rollback(event,
                           fmt::format("no version before {} is still held by every live sidecar",
                                       record_.target.to_string()));
  // A rollback to where the last one went is sent once more to everybody: some may not have taken
  // it.
  const bool goes_back =
      record_.kind == control::DecisionKind::kRollback ||
      std::ranges::any_of(record_.withdrawn, [&](const Version& other) { return to < other; });
  if (to == record_.target && !goes_back)
    return refuse_rollback(event, fmt::format("{} is the target already", to.to_string()));
  if (contains(record_.withdrawn, to))
    return refuse_rollback(event, fmt::format("{} was withdrawn by an earlier rollback; push its "
                                              "directory again, under a new number",
                                              to.to_string()));
  if (record_.target < to)
    return refuse_rollback(event,
                           fmt::format("{} is newer than the target {}: it was never decided; "
                                       "push it to have it served",
                                       to.to_string(), record_.target.to_string()));
  std::string lacking;
  for (const auto& [name, member] : roster_.members())
    if (member.joined && !member.holds(to)) lacking += (lacking.empty() ? "'" : ", '") + name + "'";
  if (!lacking.empty())
    return refuse_rollback(
        event, fmt::format("{} is no longer held by sidecar {}", to.to_string(), lacking));
  decide(control::DecisionKind::kRollback, to, {}, {}, event);
}

void Coordinator::finish_rollback() {
  const Round round = std::move(*round_);
  round_.reset();
  phase_ = CoordinatorPhase::kReady;
  deadline_.reset();
  control::RollbackReply reply;
  reply.from = round.from;
  reply.to = record_.target;
  std::string missing;
  for (const auto& [name, member] : roster_.members()) {
    if (member.switched != record_.number) {
      missing += fmt::format("{}sidecar '{}'{}", missing.empty() ? "" : ", ", name,
                             member.refused.empty() ? "" : " (" + member.refused + ")");
      continue;
    }
    for (const control::ReplicaOutcome& outcome : member.outcomes) {
      reply.outcomes.push_back(outcome);
      if (outcome.version != record_.target)
        missing += fmt::format("{}replica '{}' ({})", missing.empty() ? "" : ", ", outcome.replica,
                               outcome.reason);
    }
  }
  for (const std::string& name : record_.members)
    if (!roster_.members().contains(name))
      missing += fmt::format("{}sidecar '{}' (it has not come to this coordinator)",
                             missing.empty() ? "" : ", ", name);
  reply.partial = !missing.empty();
  reply.ok = missing.empty();
  if (reply.partial)
    reply.reason =
        round.from.none()
            ? fmt::format("these have not gone back to {} yet: {}", reply.to.to_string(), missing)
            : fmt::format("{} is withdrawn, but these have not gone back yet: {}",
                          round.from.to_string(), missing);
  out_.emplace_back(RollbackDone{.request = round.rollback_request, .reply = std::move(reply)});
  if (follow_newest()) return;  // the rest comes when that is stored
  drop_unneeded();
  for (auto& [name, member] : roster_.members()) catch_up(member);
  start_waiting();
}

}  // namespace wsync::publish
