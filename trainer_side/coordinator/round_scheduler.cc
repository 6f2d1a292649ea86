#include "trainer_side/coordinator/round_scheduler.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/coordinator/copy_source.h"
#include "trainer_side/coordinator/decision_obligations.h"
#include "trainer_side/coordinator/forget_rules.h"
#include "trainer_side/coordinator/sidecar_delivery.h"
#include "trainer_side/coordinator/snapshot_stream.h"
#include "trainer_side/coordinator/transport_choice.h"

namespace wsync::coordinator {
namespace {

constexpr std::chrono::milliseconds kCatchUpRetry{1'000};
constexpr std::chrono::milliseconds kPromoteRetry{1'000};
// After so many lost sidecars a trainer sends the version itself.
constexpr std::size_t kCopySources = 2;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

control::ProgressPhase progress_of(RoundState state) {
  return state == RoundState::kStaging || state == RoundState::kDeciding
             ? control::ProgressPhase::kStage
             : control::ProgressPhase::kAnnounce;
}

// Whether replicas wait for their turn, for a promotion, or for both.
bool is_in_turns(control::DecisionKind kind) {
  return kind == control::DecisionKind::kSwitchInTurns ||
         kind == control::DecisionKind::kSwitchCanary;
}

std::string late_store_text(const Version& version) {
  return fmt::format(
      "its deadline (deadlines.publish) passed while {}, so it is unknown whether {} was decided: "
      "if the record is stored after all, {} becomes the target (see `wsync status`)",
      kStoreSilent, version.to_string(), version.to_string());
}

bool is_for_canary(const CoordinatorRecord& record) {
  return record.kind == control::DecisionKind::kSwitchCanary;
}

}  // namespace

void refuse_publish(CoordinatorContext& context, const PublishRequested& publish,
                    const std::string& why, PublishRefusal kind) {
  control::PushReply reply;
  reply.reason = why;
  reply.version = publish.version;
  reply.content_digest = publish.content_digest;
  reply.bytes = publish.arena_bytes;
  reply.snapshot_ns = publish.snapshot_ns;
  context.emit(RoundDone{.request = publish.request,
                         .superseded = kind == PublishRefusal::kSuperseded,
                         .cancelled = kind == PublishRefusal::kCancelled,
                         .reply = std::move(reply)});
  context.emit(DropVersion{publish.version});
}

void refuse_rollback(CoordinatorContext& context, const CoordinatorRecord& record,
                     const RollbackRequested& rollback, const std::string& why) {
  control::RollbackReply reply;
  reply.reason = why;
  reply.from = record.target;
  reply.to = rollback.to;
  context.emit(RollbackDone{.request = rollback.request, .reply = std::move(reply)});
}

void refuse_promotion(CoordinatorContext& context, const CoordinatorRecord& record,
                      const PromoteRequested& promotion, const std::string& why) {
  control::PromoteReply reply;
  reply.reason = why;
  if (is_for_canary(record)) reply.version = record.target;
  context.emit(PromotionDone{.request = promotion.request, .reply = std::move(reply)});
}

// ---- requests ----

void RoundScheduler::publish(CoordinatorContext& context, const DecisionLog& log,
                             const PublishRequested& event) {
  // note_changes() begins it if the canary does not hold its version.
  if (!round_ && !is_for_canary(log.record())) return start(context, log, event);
  if (waiting_) replace_waiting(context, {.version = waiting_->version, .by = event.version});
  waiting_ = event;
  held_since_.reset();
}

void RoundScheduler::end_snapshot(CoordinatorContext& context, DecisionLog& log,
                                  const SnapshotEnded& event) {
  const bool is_waiting = waiting_ && waiting_->version == event.version;
  const bool is_in_round = round_ && round_->version() == event.version && !round_->is_complete();
  if (!is_waiting && !is_in_round) return;
  if (!event.failure.empty()) {
    if (is_in_round) return abort(context, log, event.failure, event.cancelled);
    return refuse_publish(context, *std::exchange(waiting_, std::nullopt), event.failure,
                          event.cancelled ? PublishRefusal::kCancelled : PublishRefusal::kFailed);
  }
  if (is_waiting) return complete(*waiting_, event);
  held_.complete(event);
  round_->complete_snapshot(context, event);
  if (round_->state() == RoundState::kStaging) stage_complete(context, log);
}

void RoundScheduler::stage_complete(CoordinatorContext& context, DecisionLog& log) {
  const Version version = round_->version();
  const std::vector<std::string> names = round_->members();
  for (const std::string& name : names) {
    // A delivery that fails at once may end this round.
    if (!round_ || round_->version() != version) return;
    Member& member = context.roster.add(name);
    if (!round_->has(member)) continue;
    if (member.delivery.state() == DeliveryState::kStaging)
      send_content(context, member, *held_.find(version));
    else if (member.delivery.state() == DeliveryState::kAccepted)
      stage(context, log, member);
  }
  advance(context, log);
}

void RoundScheduler::replace_waiting(CoordinatorContext& context, const WaitingReplaced& event) {
  if (!waiting_ || waiting_->version != event.version) return;
  refuse_publish(context, *std::exchange(waiting_, std::nullopt),
                 fmt::format("{} replaces it before its round", event.by.to_string()),
                 PublishRefusal::kSuperseded);
}

void RoundScheduler::start(CoordinatorContext& context, const DecisionLog& log,
                           const PublishRequested& publish) {
  if (context.roster.joined_count() == 0) {
    const std::string why = "no sidecar is connected to this coordinator";
    if (!publish.is_kept) return refuse_publish(context, publish, why);
    context.emit(DropVersion{publish.version});
    return report_lost(context, publish, why);
  }
  if (publish.deadline && context.now >= *publish.deadline)
    return refuse_publish(context, publish,
                          "its deadline (deadlines.publish) passed before its round began");
  const std::set<std::string> slow = slow_.leave_out(context, log.record());
  round_.emplace(UpdateRound::begin_publish(context, publish, slow));
  held_.add(publish);
  announce_to_all(context, publish, slow);
}

std::optional<std::string> RoundScheduler::why_rollback_waits(const DecisionLog& log) const {
  if (!round_) return std::nullopt;
  if (round_->state() == RoundState::kSwitching && is_in_turns(log.record().kind))
    return std::nullopt;
  return fmt::format("the coordinator is {}; try again when it is idle", round_->activity());
}

void RoundScheduler::roll_back(CoordinatorContext& context, DecisionLog& log,
                               const RollbackRequested& event) {
  if (const auto why = why_rollback_waits(log))
    return refuse_rollback(context, log.record(), event, *why);
  const Result<Version> to = log.choose_rollback(context.roster, event.to);
  if (!to) return refuse_rollback(context, log.record(), event, to.error().message());
  decide(context, log, {.kind = control::DecisionKind::kRollback, .target = *to}, event);
}

void RoundScheduler::promote(CoordinatorContext& context, DecisionLog& log,
                             const PromoteRequested& event) {
  const CoordinatorRecord& record = log.record();
  const auto refuse = [&](const std::string& why) {
    refuse_promotion(context, record, event, why);
  };
  if (round_)
    return refuse(
        fmt::format("the coordinator is {}; try again when it is idle", round_->activity()));
  if (record.target.none()) return refuse("no version has been decided yet");
  if (!is_for_canary(record))
    return refuse(
        fmt::format("{} is the target of every replica already: only a version that was "
                    "published with `canary` waits for a promotion",
                    record.target.to_string()));
  if (!canary_.serves() && !event.force)
    return refuse(
        fmt::format("the canary '{}' does not serve {} (see `wsync status`): `wsync "
                    "rollback` takes the version back, and --force gives it to the "
                    "other replicas nevertheless",
                    canary_.name(), record.target.to_string()));
  promoting_ = event;
  decide(context, log,
         {.target = record.target, .content = record.content, .origin = record.origin});
}

control::CancelReply RoundScheduler::cancel(CoordinatorContext& context, DecisionLog& log,
                                            const Version& version, const std::string& reason) {
  if (waiting_ && waiting_->version == version) {
    refuse_publish(context, *std::exchange(waiting_, std::nullopt), reason,
                   PublishRefusal::kCancelled);
    return {.ok = true, .version = version, .phase = control::ProgressPhase::kSnapshot};
  }
  const std::string name = version.none() ? "no update" : "no update of " + version.to_string();
  if (!round_) return {.reason = fmt::format("nothing to cancel: {} is running", name)};
  if (!version.none() && version != round_->version())
    return {.reason = fmt::format("nothing to cancel: {} is running; the running one is that of {}",
                                  name, round_->version().to_string())};
  const Result<> may = round_->check_cancel(waiting_ ? &waiting_->version : nullptr);
  if (!may) return {.reason = may.error().message()};
  const control::CancelReply reply{
      .ok = true, .version = round_->version(), .phase = progress_of(round_->state())};
  abort(context, log, reason, true);
  return reply;
}

void RoundScheduler::lose_publisher(CoordinatorContext& context, DecisionLog& log,
                                    const std::string& why) {
  if (waiting_) {
    const PublishRequested publish = *std::exchange(waiting_, std::nullopt);
    if (publish.is_kept) {
      context.emit(DropVersion{publish.version});  // first, as in give_back()
      report_lost(context, publish, why);
    } else {
      refuse_publish(context, publish, why);
    }
  }
  const bool is_open =
      round_ && round_->kind() == RoundKind::kPublish &&
      (round_->state() == RoundState::kAnnouncing || round_->state() == RoundState::kStaging);
  if (is_open && !has_staged(context)) {
    if (round_->may_be_lost())
      give_back(context, log, why);
    else
      abort(context, log, why);
  }
  held_.lose_trainer();
  drop_unneeded(context, log);
}

bool RoundScheduler::has_staged(const CoordinatorContext& context) const {
  return round_->is_complete() && std::ranges::all_of(round_->members(), [&](const auto& name) {
           const Member* member = context.roster.find(name);
           return member != nullptr && member->delivery.state() == DeliveryState::kStaged &&
                  member->delivery.version() == round_->version();
         });
}

void RoundScheduler::end_all(CoordinatorContext& context, DecisionLog& log,
                             const std::string& why) {
  ending_ = true;
  if (log.pending_rollback() != nullptr)
    refuse_rollback(context, log.record(), *log.pending_rollback(), why);
  // Refuse the queued publish first; otherwise the end of the current round would start it.
  if (waiting_) refuse_publish(context, *std::exchange(waiting_, std::nullopt), why);
  if (promoting_)
    refuse_promotion(context, log.record(), *std::exchange(promoting_, std::nullopt), why);
  if (round_ && round_->kind() != RoundKind::kPublish) finish(context, log);
  if (round_) abort(context, log, why);
  ending_ = false;
}

// ---- sidecars ----

void RoundScheduler::handle(CoordinatorContext& context, DecisionLog& log, Member& member,
                            const control::Envelope& envelope, const control::Message& message) {
  const auto answers = [&](const Version& version, DeliveryState state) {
    const bool is_answer = member.delivery.is_answer(envelope.round, version, state);
    if (!is_answer) ++context.dropped;
    return is_answer;
  };
  const bool all_named = log.names_all_withdrawn();
  std::visit(
      Overloaded{
          [&](const control::Accept& accept) {
            if (answers(accept.version, DeliveryState::kAnnounced))
              handle_accept(context, log, member);
          },
          [&](const control::Refuse& refuse) {
            if (answers(refuse.version, DeliveryState::kAnnounced))
              handle_refuse(context, log, member, refuse);
          },
          [&](const control::Staged& staged) {
            if (answers(staged.version, DeliveryState::kStaging))
              handle_staged(context, log, member, staged);
          },
          [&](const control::Decided& decided) {
            const bool current = coordinator::handle(context, log.record(), member, decided);
            if (current && !decided.refused && !member.finishes)
              member.knows_withdrawn |= all_named;
            if (current && is_in_round(member)) advance(context, log);
          },
          [&](const control::Switched& switched) {
            const bool current = coordinator::handle(context, log.record(), member, switched);
            if (current && !member.finishes) member.knows_withdrawn |= all_named;
            // Without an engine it owes no outcome, and its bytes may still be on their way.
            if (current && !is_finishing(member)) stop_finishing(context, log.record(), member);
            if (current && is_in_round(member)) advance(context, log);
          },
          [&](const control::Heartbeat& heartbeat) {
            handle_heartbeat(context, log, member, heartbeat);
          },
          [&](const control::RelayReady& ready) { handle_relay(context, log, member, ready); },
          [&](const auto&) { ++context.dropped; },
      },
      message);
}

void RoundScheduler::handle_accept(CoordinatorContext& context, DecisionLog& log, Member& member) {
  member.delivery.accept();
  if (is_in_round(member) && round_->state() == RoundState::kAnnouncing)
    advance(context, log);
  else
    stage(context, log, member);
}

void RoundScheduler::handle_refuse(CoordinatorContext& context, DecisionLog& log, Member& member,
                                   const control::Refuse& refuse) {
  if (!refuse.layout_unknown && is_in_round(member)) round_->add_problems(refuse.problems);
  const Result<> repeated =
      coordinator::handle_refuse(context, member, refuse, held_.find(member.delivery.version()));
  if (!repeated) fail_delivery(context, log, member, repeated.error().message());
}

void RoundScheduler::handle_staged(CoordinatorContext& context, DecisionLog& log, Member& member,
                                   const control::Staged& staged) {
  if (!staged.failure.empty() && !staged.is_refused && !is_in_round(member))
    note_failed_copy(context, member, staged.source_lost);
  const Result<StagedAnswer> answer =
      coordinator::handle_staged(context, member, staged, held_.find(staged.version));
  if (!answer) return fail_delivery(context, log, member, answer.error().message());
  if (*answer == StagedAnswer::kStageAgain) return stage(context, log, member);
  if (*answer != StagedAnswer::kComplete) return;
  if (member.finishes &&
      (member.finishes->target != staged.version || member.switched == member.finishes->number))
    stop_finishing(context, log.record(), member);
  if (is_in_round(member) && round_->state() != RoundState::kSwitching)
    advance(context, log);
  else if (staged.version == log.record().target)
    send_decide(context, log.record(), member);
  else  // a newer target has been decided meanwhile
    catch_up(context, log, member);
}

void RoundScheduler::handle_relay(CoordinatorContext& context, DecisionLog& log, Member& member,
                                  const control::RelayReady& ready) {
  const CoordinatorRecord& record = log.record();
  const PublishRequested* known = held_.find(ready.version);
  const bool is_target = ready.version == record.target;
  const Digest content = known != nullptr ? known->content_digest
                         : is_target      ? record.content
                                          : Digest{};
  const Result<bool> noted = note_relay(context, member, ready, content);
  if (!noted) context.emit(Incident{.text = noted.error().message()});
  if (noted && !*noted) {
    ++context.dropped;
    return;
  }
  if (noted && known == nullptr && is_target && ready.failure.empty() && !ready.layout.empty()) {
    held_.add_without_trainer(described_by(ready));
    for (auto& [name, late] : context.roster.change_all())
      if (late.joined && !is_in_round(late) && !late.holds(ready.version))
        catch_up(context, log, late);
    return;
  }
  // Those that have waited for this answer.
  std::vector<std::string> names;
  for (const auto& [name, late] : context.roster.members())
    if (late.copy_from == member.name && late.delivery.version() == ready.version &&
        late.delivery.is_under_way() && !is_in_round(late))
      names.push_back(name);
  for (const std::string& name : names) stage(context, log, context.roster.add(name));
}

void RoundScheduler::handle_heartbeat(CoordinatorContext& context, DecisionLog& log, Member& member,
                                      const control::Heartbeat& heartbeat) {
  // A late one says what the sidecar held before.
  if (heartbeat.sequence < member.heartbeats) {
    ++context.dropped;
    return;
  }
  member.heartbeats = heartbeat.sequence;
  const bool in_round = is_in_round(member);
  if (const PublishRequested* snapshot = held_.find(member.delivery.version());
      in_round && snapshot != nullptr && may_lack_content(member, heartbeat, *snapshot))
    send_content(context, member, *snapshot);
  coordinator::handle(context, log.record(), member, heartbeat);
  if (in_round && round_->state() == RoundState::kStaging) advance(context, log);
  // It may have released the target's copy for the version of a round that has failed since.
  if (!in_round) catch_up(context, log, member);
  if (!round_ || round_->state() != RoundState::kSwitching) return;
  if (recover_outcomes(log.record(), member) && in_round) advance(context, log);
}

void RoundScheduler::handle_lost(CoordinatorContext& context, DecisionLog& log, Member& member,
                                 const std::string& why) {
  member.forget_delivery();
  for (control::ReplicaReport& replica : member.report.replicas) {
    replica.ready = false;
    replica.reason = "its sidecar is not connected";
  }
  member.copy_relay = {};
  if (!is_in_round(member)) return bridge(context, log, member);
  if (round_->state() != RoundState::kSwitching) round_->leave(member, "was lost: " + why, true);
  bridge(context, log, member);
  advance(context, log);
}

void RoundScheduler::forget(CoordinatorContext& context, DecisionLog& log, Member& member,
                            std::string reason) {
  log.remove_member(member.name);
  member.has_left = true;
  context.emit(Forgotten{.sidecar = member.name, .reason = std::move(reason)});
}

void RoundScheduler::resume_switch(CoordinatorContext& context, const DecisionLog& log,
                                   Member& member) {
  if (!announce_target(context, log, member)) send_decide(context, log.record(), member);
}

void RoundScheduler::catch_up(CoordinatorContext& context, const DecisionLog& log, Member& member) {
  const CoordinatorRecord& record = log.record();
  if (!member.joined || record.target.none() || is_in_round(member) || log.is_storing() || ending_)
    return;
  const DeliveryState state = member.delivery.state();
  if (state != DeliveryState::kNone && state != DeliveryState::kStaged) return;
  // The running round decides a newer version, which is offered when the round has ended.
  if (member.finishes && round_ && round_->kind() == RoundKind::kPublish &&
      round_->state() != RoundState::kSwitching)
    return;
  if (announce_target(context, log, member)) return;
  // Even without a snapshot here, the sidecar must learn the target and the withdrawn versions.
  if (member.decided < record.number && member.asked < record.number) {
    stop_finishing(context, record, member);
    send_decide(context, record, member);
  }
}

bool RoundScheduler::announce_target(CoordinatorContext& context, const DecisionLog& log,
                                     Member& member) {
  const Version& target = log.record().target;
  if (member.holds(target)) return false;
  const PublishRequested* version = held_.find(target);
  if (version == nullptr) {
    ask_about(context, target);
    return false;
  }
  // It would release an older version for one that nobody can send.
  const bool is_sent = context.has_publisher && held_.is_with_trainer(target);
  if (!is_sent && !find_copy(context, member, target, context.last_round + 1) &&
      !planted("lost_version_is_offered"))
    return false;
  announce(context, member, *version);
  return true;
}

Result<std::optional<control::TransportAddress>> RoundScheduler::source_of(
    CoordinatorContext& context, const Member& member) const {
  const Version& version = member.delivery.version();
  const bool is_with_trainer = held_.is_with_trainer(version);
  Result<control::TransportAddress> served =
      is_with_trainer
          ? choose_transport(context.options, member, !held_.find(version)->parts.empty())
          : fail(ErrorCode::kNotFound,
                 fmt::format("no trainer has {} any more, and no sidecar that holds it "
                             "can pass it on to this one",
                             version.to_string()));
  if (is_in_round(member)) {
    if (!served) return fail(served.error());
    return round_->chain_source(context, member, std::move(*served));
  }
  // On its own host a trainer costs the network nothing, if it has all of the version there. It is
  // also asked when sidecars have failed.
  const bool is_near = is_same_host(member.boot_id, context.options.boot_id);
  const bool is_best = served && ((is_near && held_.find(version)->owners.empty()) ||
                                  !held_.find(version)->is_complete ||
                                  member.delivery.lost_sources() >= kCopySources);
  const auto copy =
      is_best ? std::nullopt : find_copy(context, member, version, member.delivery.round());
  if (!copy && !served) return fail(served.error());
  if (!copy || (served && copy->has_failed)) return *served;
  if (copy->is_ready) return copy->address;
  context.roster.add(member.name).copy_from = copy->sidecar;
  ask_for_relay(context, copy->sidecar, version, false);
  return std::nullopt;
}

void RoundScheduler::stage(CoordinatorContext& context, DecisionLog& log, Member& member) {
  member.copy_from.clear();
  const PublishRequested* snapshot = held_.find(member.delivery.version());
  const Result<> staging = source_of(context, member).and_then([&](const auto& source) -> Result<> {
    if (!source) return {};                                    // until handle_relay()
    if (must_wait_for_snapshot(snapshot, *source)) return {};  // until stage_complete()
    return coordinator::stage(context, member, *source, snapshot);
  });
  if (!staging) fail_delivery(context, log, member, staging.error().message());
}

void RoundScheduler::fail_delivery(CoordinatorContext& context, DecisionLog& log, Member& member,
                                   const std::string& why) {
  // A kind that was tried again, and hangs.
  const PublishRequested* snapshot = held_.find(member.delivery.version());
  if (const std::string kind = member.delivery.transport();
      member.delivery.reads_from(context.options.transports) &&
      member.failed_transports.contains(kind) &&
      has_alternative(context.options, member, kind,
                      snapshot != nullptr && !snapshot->parts.empty()))
    (void)note_failed_transport(member, kind, why, context.now);
  member.delivery.fail(why, context.now + kCatchUpRetry);
  member.finishes.reset();
  if (!is_in_round(member) || round_->kind() != RoundKind::kPublish) return;
  if (round_->state() != RoundState::kSwitching) {
    if (context.options.commit.rule == CommitRule::kAll)
      return abort(context, log, fmt::format("sidecar '{}': {}", member.name, why));
    round_->leave(member, "could not take it: " + why, false);
  }
  bridge(context, log, member);
  advance(context, log);
}

void RoundScheduler::bridge(CoordinatorContext& context, DecisionLog& log, const Member& lost) {
  const auto needs_another = [&](const Member& member) {
    const bool waits = member.copy_from == lost.name && member.delivery.is_under_way();
    return waits || member.delivery.reads_from(lost.transports);
  };
  std::vector<std::string> names;
  for (const auto& [name, member] : context.roster.members())
    if (needs_another(member)) names.push_back(name);
  // A failure may end the round, and the deliveries in it.
  for (const std::string& name : names)
    if (const Member* member = context.roster.find(name);
        member != nullptr && needs_another(*member))
      stage(context, log, context.roster.add(name));
}

// ---- the round ----

void RoundScheduler::advance(CoordinatorContext& context, DecisionLog& log) {
  if (!round_) return;
  switch (round_->advance(context, log.record().number)) {
    case RoundStep::kWait:
      return;
    case RoundStep::kStage:
      return stage_all(context, log);
    case RoundStep::kDecide:
      round_->begin_deciding();
      return decide(context, log, {.target = round_->version()});
    case RoundStep::kFinish:
      return finish(context, log);
    case RoundStep::kAbort:
      return lose(context, log);
  }
}

void RoundScheduler::lose(CoordinatorContext& context, DecisionLog& log) {
  const std::string why = round_->why_empty();
  // Its publish goes on as the newest one only.
  if (!round_->may_be_lost() || waiting_)
    return abort(context, log, why + "; publish again when a sidecar has joined");
  give_back(context, log, why);
}

void RoundScheduler::give_back(CoordinatorContext& context, DecisionLog& log,
                               const std::string& why) {
  const PublishRequested publish = *held_.find(round_->version());  // as long as its round runs
  UpdateRound round = take_round(context);
  withdraw_offer(context, publish.version, why);
  round.end_lost();
  // First: who hears that the round is lost may publish the version again at once, and what is
  // dropped after that would be the new offer.
  if (!planted("lost_round_is_dropped_later"))
    held_.keep_only(context, [&](const Version& version) { return version != publish.version; });
  report_lost(context, publish, why);
  conclude(context, log);
}

void RoundScheduler::report_lost(CoordinatorContext& context, const PublishRequested& publish,
                                 std::string why) {
  lost_.reset();
  if (publish.is_complete)
    lost_ = LostSnapshot{.version = publish.version, .content = publish.content_digest};
  context.emit(
      RoundLost{.request = publish.request, .version = publish.version, .reason = std::move(why)});
}

void RoundScheduler::stage_all(CoordinatorContext& context, DecisionLog& log) {
  round_->begin_staging(context);
  const std::vector<std::string> names = round_->members();
  for (const std::string& name : names) {
    // A delivery that fails at once may end this round and begin another one.
    if (!round_ || round_->state() != RoundState::kStaging) return;
    Member& member = context.roster.add(name);
    if (round_->has(member)) stage(context, log, member);
  }
}

void RoundScheduler::decide(CoordinatorContext& context, DecisionLog& log,
                            const DecisionChoice& choice,
                            std::optional<RollbackRequested> rollback) {
  DecisionChoice chosen = choice;
  // What is decided again for the same target was promoted, or had no canary.
  const bool is_new = choice.target != log.record().target;
  if (choice.kind == control::DecisionKind::kSwitch && is_new && !canary_.name().empty())
    chosen.kind = control::DecisionKind::kSwitchCanary;
  else if (choice.kind == control::DecisionKind::kSwitch && context.options.max_paused > 0)
    chosen.kind = control::DecisionKind::kSwitchInTurns;
  log.decide(context, chosen, held_.find(choice.target), std::move(rollback));
}

bool RoundScheduler::follow_newest(CoordinatorContext& context, DecisionLog& log) {
  if (round_ || log.is_storing() || ending_) return false;
  const std::optional<DecisionChoice> choice = log.newest(context);
  if (choice) decide(context, log, *choice);
  return choice.has_value();
}

void RoundScheduler::abort(CoordinatorContext& context, DecisionLog& log, const std::string& why,
                           bool cancelled) {
  UpdateRound round = take_round(context);
  // The record being stored may take effect, so its copies must be kept.
  if (!log.is_storing()) withdraw_offer(context, round.version(), why);
  context.emit(round.abort(context.now, why, cancelled));
  conclude(context, log);
}

void RoundScheduler::withdraw_offer(CoordinatorContext& context, const Version& version,
                                    const std::string& why) {
  for (auto& [name, member] : context.roster.change_all()) {
    if (!member.joined || member.delivery.version() != version) continue;
    context.send(member, control::Abort{.version = version, .reason = why},
                 member.delivery.round());
    std::erase(member.report.staged, version);
    member.delivery.forget();
  }
}

void RoundScheduler::finish(CoordinatorContext& context, DecisionLog& log) {
  UpdateRound round = take_round(context);
  const CoordinatorRecord& record = log.record();
  switch (round.kind()) {
    case RoundKind::kPublish:
      context.emit(round.finish_publish(context, record.number, log.same_as()));
      break;
    case RoundKind::kRollback:
      context.emit(round.finish_rollback(context, record));
      break;
    case RoundKind::kPromotion:
      context.emit(round.finish_promotion(context, record.number, {}));
      break;
  }
  conclude(context, log);
}

void RoundScheduler::end_decided(CoordinatorContext& context, const DecisionLog& log,
                                 const std::string& why) {
  UpdateRound round = take_round(context);
  if (round.kind() == RoundKind::kPromotion)
    context.emit(round.finish_promotion(context, log.record().number, why));
  else
    context.emit(round.abort(context.now, why, false));
}

UpdateRound RoundScheduler::take_round(CoordinatorContext& context) {
  (void)context.roster.change_all();
  return *std::exchange(round_, std::nullopt);
}

void RoundScheduler::conclude(CoordinatorContext& context, DecisionLog& log) {
  if (!follow_newest(context, log)) settle(context, log);  // otherwise when that is stored
}

// A sidecar that still lacked the target when the round began has dropped it for the version of the
// round. It must catch up before the next round begins.
void RoundScheduler::settle(CoordinatorContext& context, const DecisionLog& log) {
  drop_unneeded(context, log);
  for (auto& [name, member] : context.roster.change_all()) catch_up(context, log, member);
  start_waiting(context, log);
}

void RoundScheduler::start_waiting(CoordinatorContext& context, const DecisionLog& log) {
  // The reports about the canary are read at the end of the event (note_changes).
  if (waiting_ && !log.is_storing() && !round_ && !is_for_canary(log.record()))
    start(context, log, *std::exchange(waiting_, std::nullopt));
}

void RoundScheduler::drop_unneeded(CoordinatorContext& context, const DecisionLog& log) {
  const Version finished = slow_.version(context.roster);
  const Version& previous = finished.none() ? log.previous_target() : finished;
  held_.keep_only(context, [&](const Version& version) {
    if (round_ && round_->version() == version) return true;
    return version == log.record().target || version == previous;
  });
}

// ---- the store and the clock ----

void RoundScheduler::handle_stored(CoordinatorContext& context, DecisionLog& log,
                                   const std::optional<RollbackRequested>& rollback) {
  const CoordinatorRecord& record = log.record();
  const bool unanswered = std::exchange(unanswered_, std::nullopt).has_value();
  if (rollback &&
      round_)  // it was switching in turns; the waiting publish begins after the rollback
    end_decided(context, log,
                fmt::format("a rollback to {} has ended it while its replicas were switching in "
                            "turns",
                            record.target.to_string()));
  if (rollback)
    round_.emplace(UpdateRound::begin_rollback(context, rollback->request, log.rollback_from(),
                                               record.target));
  else if (promoting_)
    round_.emplace(UpdateRound::begin_promotion(
        context, std::exchange(promoting_, std::nullopt)->request, record.target));
  else if (round_)
    round_->begin_switching(context);
  const bool late = !round_ && unanswered;  // its publish has ended at its deadline
  if (!late && (!round_ || round_->kind() != RoundKind::kPublish))
    slow_.interrupt(
        context, fmt::format("a newer decision, for {}, is in effect", record.target.to_string()));
  // The version before the previous one can no longer be a target, so the next snapshot may have
  // its memory while this round switches.
  drop_unneeded(context, log);
  for (auto& [name, member] : context.roster.change_all()) {
    if (rollback) member.knows_withdrawn = false;
    if (is_in_round(member)) member.finishes.reset();
    begin_decision(context, record, member);
    if (!member.joined) continue;
    if (member.finishes) continue;
    const bool has_staged =
        !round_ || round_->kind() != RoundKind::kPublish ||
        (is_in_round(member) && (member.delivery.state() == DeliveryState::kStaged ||
                                 planted("decide_before_all_staged")));
    if (has_staged) send_decide(context, record, member);
  }
  if (round_)
    advance(context, log);  // all sidecars may have been lost while the decision was being stored
  else
    settle(context, log);
}

void RoundScheduler::handle_not_stored(CoordinatorContext& context, DecisionLog& log,
                                       const std::string& why) {
  if (promoting_) {
    // Whoever has asked for it is told that it failed, so it must not be done later.
    if (promoting_->request == 0) canary_.retry(context.now + kPromoteRetry);
    refuse_promotion(context, log.record(), *std::exchange(promoting_, std::nullopt), why);
    return start_waiting(context, log);
  }
  if (round_) return abort(context, log, why);
  context.emit(Incident{.text = why});
  if (unanswered_) withdraw_offer(context, *std::exchange(unanswered_, std::nullopt), why);
  log.follow_later(context.now);
  drop_unneeded(context, log);
  start_waiting(context, log);
}

void RoundScheduler::expire_waiting(CoordinatorContext& context) {
  if (round_ && round_->store_deadline() && context.now >= *round_->store_deadline()) {
    UpdateRound round = take_round(context);
    unanswered_ = round.version();
    context.emit(round.abort(context.now, late_store_text(round.version()), false));
  }
  if (!waiting_ || held_since_ || !waiting_->deadline || context.now < *waiting_->deadline) return;
  const std::string meanwhile = round_
                                    ? fmt::format("the previous round was {}", round_->activity())
                                    : std::string(kStoreSilent);
  refuse_publish(context, *std::exchange(waiting_, std::nullopt),
                 fmt::format("its deadline (deadlines.publish) passed while {}", meanwhile));
}

void RoundScheduler::handle_tick(CoordinatorContext& context, DecisionLog& log) {
  if (round_ && context.now >= round_->deadline()) handle_deadline(context, log);
  if (log.take_follow_due(context.now) && follow_newest(context, log)) return;
  if (!round_ && canary_.promote_at() && context.now >= *canary_.promote_at())
    return promote(context, log, {});
  std::vector<std::string> due;
  for (auto wake = wakes_.begin(); wake != wakes_.end() && wake->first <= context.now; ++wake)
    due.push_back(wake->second);
  std::ranges::sort(due);
  for (const std::string& name : due) {
    Member& member = context.roster.add(name);
    const auto forget_at = forget_time(context.options, log.record(), member);
    if (forget_at && !is_in_round(member)) {
      // What is being stored names it.
      if (!log.is_storing() && context.now >= *forget_at)
        forget(context, log, member, "it has been gone for longer than forget_after");
      continue;
    }
    if (!log.is_storing() && is_owed(log.record(), member) && context.now >= member.ask_again)
      send_decide(context, log.record(), member);
    const std::optional<TimePoint> deadline = member.delivery.deadline();
    if (!member.joined || is_in_round(member) || !deadline || context.now < *deadline) continue;
    if (member.delivery.state() == DeliveryState::kFailed) {
      member.delivery.forget();
      catch_up(context, log, member);
    } else {
      fail_delivery(context, log, member, "no answer before the deadline");
    }
  }
}

void RoundScheduler::note_canary(CoordinatorContext& context, const DecisionLog& log) {
  const CoordinatorRecord& record = log.record();
  const auto report = [&](const Member& member) {
    canary_.report(member, is_for_canary(record), record.target);
  };
  if (context.roster.all_changed())
    for (const auto& [name, member] : context.roster.members()) report(member);
  else
    for (const Member* member : context.roster.changed()) report(*member);
  canary_.settle(context.now);
  note_held(context.now, record);
  if (waiting_ && !round_ && !log.is_storing() && is_for_canary(record) && !canary_.holds())
    start(context, log, *std::exchange(waiting_, std::nullopt));
}

void RoundScheduler::note_held(TimePoint now, const CoordinatorRecord& record) {
  const bool held = waiting_ && !round_ && is_for_canary(record) && canary_.holds();
  if (held == held_since_.has_value()) return;
  if (held)
    held_since_ = now;
  else if (const TimePoint since = *std::exchange(held_since_, std::nullopt);
           waiting_ && waiting_->deadline)
    waiting_->deadline = *waiting_->deadline + (now - since);
}

void RoundScheduler::note_changes(CoordinatorContext& context, const DecisionLog& log) {
  if (!canary_.name().empty() || is_for_canary(log.record())) note_canary(context, log);
  if (round_) round_->count(context, log.record().number);
  if (round_) round_->hurry(context, waiting_.has_value());
  std::vector<Member*> changed = context.roster.changed();
  if (context.roster.all_changed()) {
    changed.clear();
    for (auto& [name, member] : context.roster.change_all()) changed.push_back(&member);
  }
  for (Member* member : changed) {
    note_turns(context, log, *member);
    note_wake(context, log, *member);
  }
  for (const std::string& name : waves_.share())
    if (Member& member = context.roster.add(name); member.turns_sent != waves_.turns(name))
      send_turns(context, log, member);
  for (Member* member : changed) send_turns(context, log, *member);
}

void RoundScheduler::note_turns(CoordinatorContext& context, const DecisionLog& log,
                                const Member& member) {
  if (!member.joined) return waves_.forget(member.name);
  const CoordinatorRecord& record = followed(log.record(), member);
  TurnNeeds needs{.known = member.turns};
  for (const control::ReplicaReport& replica : member.report.replicas) {
    if (replica.turn == control::ReplicaTurn::kHeld) ++needs.held;
    const bool may_switch = !is_for_canary(record) || replica.replica == canary_.name();
    if (replica.turn == control::ReplicaTurn::kWaiting && may_switch) ++needs.waiting;
  }
  // What waits under an older decision is decided anew under this one. Turns of that decision
  // cannot be taken back, so only those that replicas can still use count: otherwise a sidecar that
  // cannot store this decision would keep its places for ever.
  if (member.decided != record.number) {
    needs.known = std::min(needs.known, needs.waiting + needs.held);
    needs.waiting = 0;
  }
  const bool begun = waves_.report(member.name, needs);
  if (begun && is_in_round(member) && member.switched != log.record().number)
    round_->extend_switch(context);
}

void RoundScheduler::send_turns(CoordinatorContext& context, const DecisionLog& log,
                                Member& member) {
  const std::uint32_t turns = waves_.turns(member.name);
  const CoordinatorRecord& record = followed(log.record(), member);
  const std::uint64_t number = record.number;
  if (!member.joined || number == 0 || member.decided != number || member.turns_sent == turns)
    return;
  member.turns_sent = turns;
  context.send(
      member,
      control::Turns{
          .number = number, .turns = turns, .replica = is_for_canary(record) ? canary_.name() : ""},
      member.delivery.round());
}

void RoundScheduler::note_wake(const CoordinatorContext& context, const DecisionLog& log,
                               Member& member) {
  const std::optional<TimePoint> wake = wake_of(context, log, member);
  if (wake == member.wake) return;
  if (member.wake) wakes_.erase({*member.wake, member.name});
  if (wake) wakes_.insert({*wake, member.name});
  member.wake = wake;
}

std::optional<TimePoint> RoundScheduler::wake_of(const CoordinatorContext& context,
                                                 const DecisionLog& log,
                                                 const Member& member) const {
  if (!member.joined && !is_in_round(member))
    return forget_time(context.options, log.record(), member);
  std::optional<TimePoint> wake;
  if (is_owed(log.record(), member)) wake = member.ask_again;
  if (!member.joined || is_in_round(member)) return wake;
  const std::optional<TimePoint> deadline = member.delivery.deadline();
  return wake && deadline ? std::min(*wake, *deadline) : wake ? wake : deadline;
}

void RoundScheduler::handle_deadline(CoordinatorContext& context, DecisionLog& log) {
  const RoundState state = round_->state();
  if (state == RoundState::kSwitching) return finish(context, log);
  if (const auto why = round_->why_over(context)) return abort(context, log, *why);
  const Version version = round_->version();
  const std::string why = fmt::format("no answer before the deadline while {}", round_->activity());
  const std::vector<std::string> names = round_->members();
  for (const std::string& name : names) {
    // The first failure may end the round and begin the waiting one, or move the round on to
    // staging. The other members were late only in the phase that has then ended.
    if (!round_ || round_->state() != state || round_->version() != version) return;
    Member& member = context.roster.add(name);
    if (round_->is_late(member)) fail_delivery(context, log, member, why);
  }
}

// ---- views ----

bool RoundScheduler::may_begin(const DecisionLog& log) const noexcept {
  return !round_ && !waiting_ && !is_for_canary(log.record());
}

bool RoundScheduler::may_repeat(const PublishRequested& publish) const noexcept {
  return lost_ && publish.is_kept && publish.is_complete && lost_->version == publish.version &&
         lost_->content == publish.content_digest;
}

bool RoundScheduler::has_update(const Version& version) const noexcept {
  if (waiting_ && waiting_->version == version) return true;
  return round_ && (version.none() || version == round_->version());
}

std::optional<TimePoint> RoundScheduler::waiting_deadline() const {
  const std::optional<TimePoint> waiting =
      waiting_ && !held_since_ ? waiting_->deadline : std::nullopt;
  const std::optional<TimePoint> deciding = round_ ? round_->store_deadline() : std::nullopt;
  return waiting && deciding ? std::min(*waiting, *deciding) : waiting ? waiting : deciding;
}

std::optional<TimePoint> RoundScheduler::next_wake() const {
  std::optional<TimePoint> wake;
  if (round_) wake = round_->deadline();
  if (!round_ && canary_.promote_at() && (!wake || *canary_.promote_at() < *wake))
    wake = canary_.promote_at();
  if (!wakes_.empty() && (!wake || wakes_.begin()->first < *wake)) wake = wakes_.begin()->first;
  return wake;
}

Result<> RoundScheduler::invariants(const DecisionLog& log) const {
  if (round_) WSYNC_TRY(round_->invariants());
  if (round_ && round_->state() == RoundState::kDeciding &&
      log.state() != DecisionLogState::kStoringDecision)
    return fail(ErrorCode::kInternal, "a round is being decided and nothing is being stored");
  return {};
}

Result<> RoundScheduler::member_invariants(const CoordinatorContext& context,
                                           const DecisionLog& log) const {
  std::size_t wakes = 0;
  for (const auto& [name, member] : context.roster.members()) {
    WSYNC_TRY(member.delivery.invariants());
    if (member.finishes && (!member.joined || member.finishes->number > log.record().number))
      return fail(ErrorCode::kInternal,
                  fmt::format("sidecar '{}' finishes a version that it cannot be finishing", name));
    if (member.decided > log.record().number && member.joined)
      return fail(ErrorCode::kInternal, fmt::format("sidecar '{}' acknowledged decision {} of {}",
                                                    name, member.decided, log.record().number));
    if (member.wake != wake_of(context, log, member) ||
        (member.wake && !wakes_.contains({*member.wake, name})))
      return fail(
          ErrorCode::kInternal,
          fmt::format("the time at which sidecar '{}' needs something is out of date", name));
    if (member.wake) ++wakes;
  }
  if (wakes != wakes_.size())
    return fail(ErrorCode::kInternal, fmt::format("{} sidecars need something later, but {} times "
                                                  "are noted",
                                                  wakes, wakes_.size()));
  WSYNC_TRY(waves_.invariants());
  WSYNC_TRY(canary_.invariants());
  return round_ ? round_->count_invariants(context) : Result<>{};
}

}  // namespace wsync::coordinator
