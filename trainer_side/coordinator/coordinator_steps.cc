// Coordinator: how a round begins, is decided, and ends; and rollback.
#include <algorithm>
#include <chrono>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/coordinator/coordinator.h"

namespace wsync::publish {
namespace {

constexpr std::chrono::milliseconds kReportMargin{limits::kReportMarginMs};
std::uint64_t nanoseconds(std::chrono::nanoseconds d) {
  return d.count() < 0 ? 0 : static_cast<std::uint64_t>(d.count());
}

}  // namespace

void Coordinator::leave_round(const Member& member) { std::erase(round_->members, member.name); }

// ---- publish ----

void Coordinator::refuse_publish(const PublishRequested& publish, const std::string& why,
                                 Refusal kind) {
  control::PushReply reply;
  reply.reason = why;
  reply.version = publish.version;
  reply.content_digest = publish.content_digest;
  reply.bytes = publish.arena_bytes;
  reply.snapshot_ns = publish.snapshot_ns;
  context_.emit(RoundDone{.request = publish.request,
                          .superseded = kind == Refusal::kSuperseded,
                          .cancelled = kind == Refusal::kCancelled,
                          .reply = std::move(reply)});
  context_.emit(DropVersion{publish.version});
}

void Coordinator::on(const PublishRequested& event) {
  if (!claim_.is_claimed()) {
    refuse_publish(event, fmt::format("the coordinator is {}", phase_name(phase())));
    return;
  }
  const Result<Version> name = next_version(event.version.step);
  if (!name || *name != event.version) {
    refuse_publish(event, name ? fmt::format("version {} is not of this coordinator's epoch {}",
                                             event.version.to_string(), record().fence.epoch)
                               : name.error().message());
    return;
  }
  names_.note_used(event.version.step);
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
  if (context_.roster.joined_count() == 0) {
    refuse_publish(publish, "no sidecar is connected to this coordinator");
    return;
  }
  if (publish.deadline && context_.now >= *publish.deadline) {
    refuse_publish(publish, "its deadline (deadlines.publish) came before its round began");
    return;
  }
  round_.emplace(Round{.publish = publish, .started = context_.now});
  held_.push_back(publish);
  phase_ = CoordinatorPhase::kAnnouncing;
  deadline_ = in_time(context_.options.announce);
  context_.emit(
      PhaseEntered{.request = publish.request, .phase = control::ProgressPhase::kAnnounce});
  for (auto& [name, member] : context_.roster.members()) {
    if (!member.joined) continue;
    round_->members.push_back(name);
    announce(member, publish);
  }
}

// ---- decisions ----

std::uint32_t Coordinator::staged_replicas() const {
  std::uint32_t replicas = 0;
  for (const std::string& name : round_->members)
    if (const Member& member = context_.roster.members().at(name);
        member.delivery.phase == DeliveryPhase::kStaged)
      replicas += whole_replicas(member);
  return replicas;
}

std::uint32_t Coordinator::needed_replicas() const {
  const bool quorum = context_.options.commit.rule == CommitRule::kQuorum;
  return std::max(context_.options.min_replicas, quorum ? context_.options.commit.quorum : 0);
}

bool Coordinator::enough_staged() const {
  if (planted("decide_before_all_staged") && !round_->members.empty()) return true;
  const auto has_staged = [this](const std::string& name) {
    return context_.roster.members().at(name).delivery.phase == DeliveryPhase::kStaged;
  };
  const std::vector<std::string>& names = round_->members;
  const bool enough = context_.options.commit.rule == CommitRule::kAll
                          ? std::all_of(names.begin(), names.end(), has_staged)
                          : std::any_of(names.begin(), names.end(), has_staged);
  return enough && staged_replicas() >= needed_replicas();
}

void Coordinator::advance_round() {
  if (!round_ || log_.is_storing()) return;
  const auto all = [this](auto predicate) {
    return std::all_of(
        round_->members.begin(), round_->members.end(),
        [&](const std::string& name) { return predicate(context_.roster.members().at(name)); });
  };
  if (phase_ == CoordinatorPhase::kSwitching) {
    const bool over = all([this](const Member& member) {
      return member.peer.empty() || member.switched == record().number || !member.refused.empty() ||
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
    decide({.target = round_->publish.version});
  } else if (all([](const Member& m) { return m.delivery.phase == DeliveryPhase::kStaged; })) {
    // An engine that has just attached is told of by the next heartbeat.
    if (!std::exchange(round_->lacks_replicas, true)) deadline_ = in_time(context_.options.attach);
  }
}

void Coordinator::enter_staging() {
  phase_ = CoordinatorPhase::kStaging;
  deadline_ = in_time(context_.options.stage);
  context_.emit(
      PhaseEntered{.request = round_->publish.request, .phase = control::ProgressPhase::kStage});
  const std::vector<std::string> names = round_->members;
  for (const std::string& name : names) {
    if (phase_ != CoordinatorPhase::kStaging) return;  // one failed and took the round with it
    Member& member = context_.roster.add(name);
    if (in_round(member)) stage(member);
  }
}

void Coordinator::decide(const DecisionChoice& choice, std::optional<RollbackRequested> rollback) {
  log_.decide(context_, choice, snapshot_of(choice.target), std::move(rollback));
}

bool Coordinator::follow_newest() {
  if (phase() != CoordinatorPhase::kReady || log_.is_storing() || ending_) return false;
  const std::optional<DecisionChoice> choice = log_.newest(context_);
  if (choice) decide(*choice);
  return choice.has_value();
}

// The decision is on disc: now it is told.
void Coordinator::decision_stored(const std::optional<RollbackRequested>& rollback) {
  if (rollback) {
    Round round{.started = context_.now};
    round.is_rollback = true;
    round.rollback_request = rollback->request;
    round.from = log_.rollback_from();
    for (const auto& [name, member] : context_.roster.members())
      if (member.joined) round.members.push_back(name);
    round_.emplace(std::move(round));
    context_.emit(RollbackBegan{.request = rollback->request, .to = record().target});
  }
  if (round_) {
    round_->decided = context_.now;
    phase_ = CoordinatorPhase::kSwitching;
    deadline_ = in_time(context_.options.whole_switch + kReportMargin);
    if (!round_->is_rollback)
      context_.emit(PhaseEntered{.request = round_->publish.request,
                                 .phase = control::ProgressPhase::kSwitch});
  }
  for (auto& [name, member] : context_.roster.members()) {
    begin_decision(context_, record(), member);
    if (!member.joined) continue;
    const bool staged = !round_ || round_->is_rollback ||
                        (in_round(member) && (member.delivery.phase == DeliveryPhase::kStaged ||
                                              planted("decide_before_all_staged")));
    if (staged) send_decide(context_, record(), member);
  }
  if (round_) {
    advance_round();  // everybody may have been lost while it was being stored
    return;
  }
  drop_unneeded();
  for (auto& [name, member] : context_.roster.members()) catch_up(member);
  start_waiting();
}

void Coordinator::on_decided(Member& member, const control::Decided& decided) {
  if (!handle(context_, record(), member, decided)) return;
  if (decided.refused && in_round(member)) advance_round();
}

void Coordinator::on_switched(Member& member, const control::Switched& switched) {
  if (handle(context_, record(), member, switched) && in_round(member)) advance_round();
}

void Coordinator::on_heartbeat(Member& member, const control::Heartbeat& heartbeat) {
  handle(context_, record(), member, heartbeat);
  if (phase_ == CoordinatorPhase::kStaging && in_round(member)) advance_round();
  if (phase_ != CoordinatorPhase::kSwitching || !recover_outcomes(record(), member)) return;
  if (in_round(member)) advance_round();
}

// ---- how a round ends ----

void Coordinator::abort_round(const std::string& why) {
  const Round round = std::move(*round_);
  round_.reset();
  phase_ = CoordinatorPhase::kReady;
  deadline_.reset();
  for (auto& [name, member] : context_.roster.members()) {
    // What is being stored may hold: its copies must stay.
    if (log_.is_storing() || !member.joined || member.delivery.version != round.publish.version)
      continue;
    context_.send(member, control::Abort{.version = round.publish.version, .reason = why},
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
  context_.emit(RoundDone{
      .request = round.publish.request, .cancelled = round.cancelled, .reply = std::move(reply)});
  if (follow_newest()) return;  // the rest comes when that is stored
  drop_unneeded();
  // One that still lacked the target when the round began has dropped it for the round's version.
  for (auto& [name, member] : context_.roster.members()) catch_up(member);
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
  reply.switch_ns = nanoseconds(context_.now - round.decided);
  std::size_t committed = 0;
  for (const std::string& name : round.members) {
    Member& member = context_.roster.add(name);
    if (member.switched != record().number && reply.reason.empty()) {
      std::string why = "it did not report before the deadline";
      if (!member.refused.empty()) why = "it refused the decision: " + member.refused;
      if (!member.delivery.failure.empty()) why = member.delivery.failure;
      if (!member.joined) why = "it was lost during the switch";
      reply.reason = fmt::format("sidecar '{}': {}", name, why);
    }
    if (member.switched != record().number) continue;
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
  context_.emit(RoundDone{.request = round.publish.request, .reply = std::move(reply)});
  if (follow_newest()) return;  // the rest comes when that is stored
  drop_unneeded();
  for (auto& [name, member] : context_.roster.members()) catch_up(member);
  start_waiting();
}

void Coordinator::start_waiting() {
  if (waiting_ && !log_.is_storing() && phase() == CoordinatorPhase::kReady)
    start_round(*std::exchange(waiting_, std::nullopt));
}

void Coordinator::drop_unneeded() {
  std::erase_if(held_, [this](const PublishRequested& held) {
    const bool needed = held.version == record().target || held.version == log_.previous_target() ||
                        (round_ && round_->publish.version == held.version);
    if (!needed) context_.emit(DropVersion{held.version});
    return !needed;
  });
}

// ---- rollback ----

void Coordinator::refuse_rollback(const RollbackRequested& event, const std::string& why) {
  control::RollbackReply reply;
  reply.reason = why;
  reply.from = record().target;
  reply.to = event.to;
  context_.emit(RollbackDone{.request = event.request, .reply = std::move(reply)});
}

void Coordinator::on(const RollbackRequested& event) {
  if (phase() != CoordinatorPhase::kReady)
    return refuse_rollback(event, fmt::format("the coordinator is {}; try again when it is idle",
                                              phase_name(phase())));
  const Result<Version> to = log_.choose_rollback(context_.roster, event.to);
  if (!to) return refuse_rollback(event, to.error().message());
  decide({.kind = control::DecisionKind::kRollback, .target = *to}, event);
}

void Coordinator::finish_rollback() {
  const Round round = std::move(*round_);
  round_.reset();
  phase_ = CoordinatorPhase::kReady;
  deadline_.reset();
  control::RollbackReply reply;
  reply.from = round.from;
  reply.to = record().target;
  std::string missing;
  for (const auto& [name, member] : context_.roster.members()) {
    if (member.switched != record().number) {
      missing += fmt::format("{}sidecar '{}'{}", missing.empty() ? "" : ", ", name,
                             member.refused.empty() ? "" : " (" + member.refused + ")");
      continue;
    }
    for (const control::ReplicaOutcome& outcome : member.outcomes) {
      reply.outcomes.push_back(outcome);
      if (outcome.version != record().target)
        missing += fmt::format("{}replica '{}' ({})", missing.empty() ? "" : ", ", outcome.replica,
                               outcome.reason);
    }
  }
  for (const std::string& name : record().members)
    if (!context_.roster.members().contains(name))
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
  context_.emit(RollbackDone{.request = round.rollback_request, .reply = std::move(reply)});
  if (follow_newest()) return;  // the rest comes when that is stored
  drop_unneeded();
  for (auto& [name, member] : context_.roster.members()) catch_up(member);
  start_waiting();
}

}  // namespace wsync::publish
