#include "trainer_side/coordinator/decision_obligations.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"

namespace wsync::coordinator {
namespace {

constexpr std::chrono::milliseconds kAskAgain{1'000};
constexpr std::chrono::milliseconds kAskAgainMax{30'000};

// Each time that a scrub has found damaged memory is told once.
void note_damage(CoordinatorContext& context, const Member& member,
                 const std::vector<control::ReplicaReport>& replicas) {
  for (const control::ReplicaReport& replica : replicas) {
    const auto before = std::ranges::find(member.report.replicas, replica.replica,
                                          &control::ReplicaReport::replica);
    const std::uint64_t told = before == member.report.replicas.end() ? 0 : before->mismatches;
    if (replica.mismatches > told)
      context.emit(
          Incident{.text = fmt::format("sidecar '{}', replica {}: damaged memory: {}", member.name,
                                       replica.replica, replica.last_mismatch)});
  }
}

// Records what the sidecar has on disk now.
void note_stored(const CoordinatorRecord& record, Member& member) {
  member.decided = record.number;
  member.refused.clear();
  // It keeps its own target, and knows which versions are withdrawn.
  if (record.target.none()) return;
  member.decision = {.fence = record.fence, .number = record.number};
  member.origin = record.origin;
  member.report.target = record.target;
  member.target_content = record.content;
}

// Whether the sidecar holds other content under the name of the fleet's target. (A sidecar that has
// stored the newest decision has compared the digests itself.)
bool holds_other_bytes(const CoordinatorRecord& record, const Member& member) {
  return !record.target.none() && member.report.target == record.target &&
         member.decided < record.number && member.target_content != Digest{} &&
         record.content != Digest{} && member.target_content != record.content;
}

}  // namespace

bool knows_newer(const CoordinatorRecord& record, const Member& member) {
  return member.origin > record.origin && !contains(record.withdrawn, member.report.target);
}

const CoordinatorRecord& followed(const CoordinatorRecord& record, const Member& member) {
  return member.finishes ? *member.finishes : record;
}

bool is_owed(const CoordinatorRecord& newest, const Member& member) {
  const CoordinatorRecord& record = followed(newest, member);
  if (!member.joined || record.number == 0 || member.decided >= record.number ||
      knows_newer(record, member) || planted("decided_once"))
    return false;
  // Whoever finishes an older version has its decision before its bytes.
  const bool on_its_way = !member.finishes && member.delivery.version() == record.target &&
                          member.delivery.is_under_way();
  return !on_its_way;
}

void send_decide(CoordinatorContext& context, const CoordinatorRecord& newest, Member& member) {
  const CoordinatorRecord& record = followed(newest, member);
  if (knows_newer(record, member)) return;
  const bool again = member.asked == record.number && record.number > 0;
  member.ask_pause = again ? std::min(2 * member.ask_pause, kAskAgainMax) : kAskAgain;
  member.ask_again = context.now + member.ask_pause;
  member.asked = record.number;
  if (!again) member.refused.clear();
  context.send(
      member,
      control::Decide{
          .number = record.number,
          .kind = record.kind,
          .target = record.target,
          .withdrawn = record.withdrawn,
          .mode = context.options.pause_mode,
          .caches = context.options.caches,
          .pause_deadline_ms = static_cast<std::uint32_t>(context.options.pause.count()),
          .load_deadline_ms = static_cast<std::uint32_t>(context.options.load.count()),
          .content_digest = record.content,
          .origin = record.origin,
          .canary = record.kind == control::DecisionKind::kSwitchCanary ? context.options.canary
                                                                        : std::string()},
      member.delivery.round());
}

void begin_decision(CoordinatorContext& context, const CoordinatorRecord& record, Member& member) {
  if (member.finishes) return judge(context, record, member);
  member.unreported.clear();
  member.ready_at_decision.clear();
  member.turns_sent = 0;  // a sidecar has none when it stores a decision
  judge(context, record, member);
  if (!member.joined) return;
  for (const control::ReplicaReport& replica : member.report.replicas)
    if (replica.ready && !replica.version.none())
      member.ready_at_decision.push_back(replica.replica);
}

void stop_finishing(CoordinatorContext& context, const CoordinatorRecord& record, Member& member) {
  if (std::exchange(member.finishes, nullptr)) begin_decision(context, record, member);
}

bool handle(CoordinatorContext& context, const CoordinatorRecord& newest, Member& member,
            const control::Decided& decided) {
  const CoordinatorRecord& record = followed(newest, member);
  if (decided.number != member.asked || decided.number != record.number) {
    ++context.dropped;
    return false;
  }
  if (decided.refused) {
    member.refused = decided.reason.empty() ? "refused without a reason" : decided.reason;
    judge(context, newest, member);
  } else {
    note_stored(record, member);
  }
  return true;
}

bool handle(CoordinatorContext& context, const CoordinatorRecord& newest, Member& member,
            const control::Switched& switched) {
  const CoordinatorRecord& record = followed(newest, member);
  if (switched.number != record.number || switched.target != record.target) {
    ++context.dropped;
    return false;
  }
  note_stored(record, member);
  member.switched = switched.number;
  member.outcomes = switched.outcomes;
  member.unreported.clear();
  for (control::ReplicaReport& replica : member.report.replicas)  // valid until its next heartbeat
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
  judge(context, newest, member);
  return true;
}

void handle(CoordinatorContext& context, const CoordinatorRecord& record, Member& member,
            const control::Heartbeat& heartbeat) {
  note_damage(context, member, heartbeat.replicas);
  member.report.staged = heartbeat.staged;
  // A copy of a heartbeat that was made before the decision was stored does not count.
  member.released_undecided |=
      member.decided > 0 && heartbeat.target == followed(record, member).target;
  member.report.target = heartbeat.target;
  member.report.replicas = heartbeat.replicas;
  member.report.last_copy = heartbeat.last_copy;
  member.staged_bytes = heartbeat.staged_bytes;
  member.patch_value_cost = heartbeat.patch_value_cost;
  member.lends_arenas = heartbeat.lends_arenas;
  member.turns = member.turns_sent = heartbeat.turns;
  judge(context, record, member);
}

// Reported outcomes stay valid. Missing outcomes are normally reported when the decision is sent
// again. The exception is a new process that finds the decision on its disk: the previous process
// had begun the switch, and its outcomes were lost with it.
void resume_switch(const CoordinatorRecord& record, Member& member, const control::Hello& hello,
                   bool is_new_process, const std::string& canary) {
  if (member.switched == record.number || !is_new_process) return;
  const bool decided_before = hello.decision == control::Decision{record.fence, record.number};
  if (!decided_before) member.unreported.clear();
  if (!decided_before || !member.unreported.empty()) return;
  if (record.kind == control::DecisionKind::kSwitchCanary) {
    if (!canary.empty()) member.unreported.push_back(canary);
    return;
  }
  for (const control::ReplicaReport& replica : member.report.replicas)
    member.unreported.push_back(replica.replica);
}

bool recover_outcomes(const CoordinatorRecord& record, Member& member) {
  if (member.unreported.empty() || member.decided != record.number) return false;
  const auto serves_target = [&](const std::string& name) {
    return std::ranges::any_of(member.report.replicas, [&](const control::ReplicaReport& replica) {
      return replica.replica == name && replica.version == record.target &&
             replica.state == control::ReplicaState::kServing;
    });
  };
  if (!std::ranges::all_of(member.unreported, serves_target)) return false;
  member.outcomes.clear();
  for (const std::string& name : std::exchange(member.unreported, {}))
    member.outcomes.push_back(
        {.replica = name, .outcome = control::SwitchOutcome::kCommitted, .version = record.target});
  member.switched = record.number;
  return true;
}

void judge(CoordinatorContext& context, const CoordinatorRecord& record, Member& member) {
  const bool other_bytes = holds_other_bytes(record, member);
  if (other_bytes && !std::exchange(member.told_conflict, true))
    context.emit(Incident{
        .text = fmt::format(
            "sidecar '{}' has different bytes under the name {}: content digest {}, expected {} as "
            "decided; its replicas are not routed to until a newer version is published",
            member.name, record.target.to_string(), member.target_content.to_string(),
            record.content.to_string())});
  if (!other_bytes) member.told_conflict = false;
  for (control::ReplicaReport& replica : member.report.replicas) {
    if (!replica.ready) continue;
    if (other_bytes && replica.version == record.target)
      replica.reason = fmt::format("the replica serves different bytes under the name {}",
                                   record.target.to_string());
    else if (contains(record.withdrawn, replica.version) && !planted("owed_rollback_is_ready"))
      replica.reason = fmt::format(
          "{} was withdrawn, but its sidecar has not acknowledged that yet{}",
          replica.version.to_string(), member.refused.empty() ? "" : ": " + member.refused);
    else
      continue;
    replica.ready = false;
  }
}

}  // namespace wsync::coordinator
