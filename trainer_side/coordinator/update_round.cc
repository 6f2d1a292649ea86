#include "trainer_side/coordinator/update_round.h"

#include <algorithm>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/liveness.h"
#include "shared/base/planted.h"
#include "shared/base/weight_limits.h"
#include "shared/control/codec.h"
#include "shared/control/withdrawn.h"

namespace wsync::publish {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

constexpr std::chrono::milliseconds kWelcomeAgain{limits::kHeartbeatDeadlineMs / 2};
// Messages that wait while a decision is being stored: some seconds of a large fleet.
constexpr std::size_t kQueueCount = 16 * limits::kSidecarCount;

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options)
    : options_(std::move(options)),
      fleet_(options_.fleet_id),
      fleet_binds_(!options_.fleet_id.none()) {
  if (!options_.record) return;
  record_ = *options_.record;
  highest_epoch_ = record_.fence.epoch;
  if (fleet_.none()) fleet_ = record_.fence.fleet;
  fleet_binds_ = fleet_binds_ || !record_.origin.none();
  WSYNC_CHECK(highest_epoch_ <= limits::kEpochMax, "the stored epoch is checked where it is read");
  record_.fence = {};  // of the coordinator before
  record_.number = 0;
  for (const Version& version : record_.withdrawn) seen_step_ = std::max(seen_step_, version.step);
  seen_step_ = std::max(seen_step_, record_.target.step);
}

std::vector<CoordinatorCommand> Coordinator::step(const CoordinatorEvent& event) {
  now_ = event.now;
  if (!began_) began_ = now_;
  out_.clear();
  if (!waits_for_store(event)) {
    apply(event);
  } else if (std::holds_alternative<PeerMessage>(event.what) && queue_.size() >= kQueueCount) {
    ++dropped_;  // as if the network had lost it
  } else {
    queue_.push_back(event);
  }
  while (!pending_ && !queue_.empty()) {
    const CoordinatorEvent next = std::move(queue_.front());
    queue_.pop_front();
    apply(next);
  }
  store_members();
  return std::exchange(out_, {});
}

void Coordinator::apply(const CoordinatorEvent& event) {
  if (phase_ == CoordinatorPhase::kStopped) {
    const std::string why = "this coordinator has stopped: " + stopped_->reason;
    if (const auto* publish = std::get_if<PublishRequested>(&event.what))
      refuse_publish(*publish, why);
    else if (const auto* rollback = std::get_if<RollbackRequested>(&event.what))
      refuse_rollback(*rollback, why);
    else if (const auto* cancel = std::get_if<CancelRequested>(&event.what))
      out_.emplace_back(CancelDone{.request = cancel->request, .reply = {.reason = why}});
    else
      ++dropped_;
    return;
  }
  std::visit([this](const auto& what) { on(what); }, event.what);
  roster_.forget([this](const Member& member) { return member.has_left && !in_round(member); });
  const std::string broken = invariants();
  WSYNC_CHECK(broken.empty(), broken);
}

void Coordinator::on(const PeerMessage& event) {
  // Nothing above it can be claimed, and no version can be named under it.
  if (const std::uint64_t epoch = event.envelope.fence.epoch; epoch > limits::kEpochMax) {
    ++dropped_;
    if (std::holds_alternative<control::ErrorReply>(event.message)) return;  // no end of answers
    answer_error(
        event.peer,
        fmt::format("{} from '{}' carries fence epoch {}, at most {} is allowed: what that "
                    "process has stored is damaged; stop it and remove its record from "
                    "its state_dir",
                    control::message_name(control::type_of(event.message)), event.peer, epoch,
                    limits::kEpochMax));
    return;
  }
  const auto* hello = std::get_if<control::Hello>(&event.message);
  if (is_foreign(event.envelope.fence)) {
    if (hello != nullptr)
      foreign_hello(event, *hello);
    else
      ++dropped_;
    return;
  }
  if (hello != nullptr) {
    on_hello(event, *hello);
    return;
  }
  Member* member = roster_.by_peer(event.peer);
  if (event.envelope.fence > record_.fence && member != nullptr &&
      phase_ != CoordinatorPhase::kGathering) {
    higher_fence(event.envelope.fence, member->name);
    return;
  }
  if (member != nullptr && std::holds_alternative<control::Leave>(event.message)) {
    leave(*member);  // whatever it has heard of this coordinator
    return;
  }
  const bool current =
      event.envelope.fence == record_.fence || planted("coordinator_ignores_fence");
  if (member == nullptr || !member->joined || !current) {
    ++dropped_;
    welcome_back(event);
    return;
  }
  on_member(*member, event.envelope, event.message);
}

// What no sidecar says: a stranger's Hello, or that of one whose record is damaged.
std::string Coordinator::why_no_sidecar(const control::Fence& said_under,
                                        const control::Hello& hello) const {
  if (hello.decision.fence.epoch > limits::kEpochMax)
    return fmt::format("it tells of fence epoch {}, at most {} allowed", hello.decision.fence.epoch,
                       limits::kEpochMax);
  if (hello.decision.fence == record_.fence && hello.decision.number > record_.number)
    return fmt::format("it tells of decision {} of this coordinator, which has taken {}",
                       hello.decision.number, record_.number);
  if (hello.decision.fence > said_under)
    return fmt::format("it tells of a decision under fence epoch {}, above its own fence epoch {}",
                       hello.decision.fence.epoch, said_under.epoch);
  if (const control::FleetId& fleet = hello.decision.fence.fleet;
      !fleet.none() && fleet != said_under.fleet)
    return fmt::format("its decision is of fleet {}, and it belongs to fleet {}", fleet.to_string(),
                       said_under.fleet.to_string());
  if (!hello.origin.none() && (hello.decision.none() || hello.origin > hello.decision))
    return "its decision is older than the origin of that decision";
  for (const auto* versions : {&hello.staged, &hello.withdrawn})
    for (const Version& version : *versions)
      if (version.step > limits::kStepMax)
        return fmt::format("it tells of version {}", version.to_string());
  if (hello.target.step > limits::kStepMax)
    return fmt::format("it tells of target {}", hello.target.to_string());
  if (!roster_.members().contains(hello.name) && roster_.members().size() >= limits::kSidecarCount)
    return fmt::format(
        "{} sidecars are known here, the most that are allowed; give it the name of one that it "
        "replaces, or restart this trainer to forget those that are gone",
        roster_.members().size());
  return {};
}

void Coordinator::on_hello(const PeerMessage& event, const control::Hello& hello) {
  std::string why = why_no_sidecar(event.envelope.fence, hello);
  if (why.empty()) why = why_name_is_taken(event, hello);
  if (!why.empty()) {
    refuse_hello(event.peer, fmt::format("sidecar '{}' cannot join: {}", hello.name, why));
    return;
  }
  // (A claim that begins with this very Hello goes above its fence.)
  if (phase_ != CoordinatorPhase::kGathering && !pending_ && event.envelope.fence > record_.fence) {
    higher_fence(event.envelope.fence, hello.name);
    if (phase_ == CoordinatorPhase::kStopped) return;
  }
  Member& member = roster_.add(hello.name);
  const bool is_new_process = member.last_peer != event.peer;
  // In the switch it stays in the round: it is here, and is asked again.
  const bool in_switch = phase_ == CoordinatorPhase::kSwitching && in_round(member);
  if (in_switch)
    back_in_switch(member, hello, is_new_process);
  else if (member.joined)
    lose(member);
  if (is_new_process) member.handover_failure.clear();
  member.peer = member.last_peer = event.peer;
  member.has_left = false;
  member.report.connected = true;
  member.report.host = hello.host;
  member.report.pid = hello.pid;
  member.report.target = hello.target;
  member.report.staged = hello.staged;
  member.report.replicas = hello.replicas;
  member.boot_id = hello.boot_id;
  member.pid_namespace = hello.pid_namespace;
  member.data_address = hello.data_address;
  member.layout = hello.layout;
  member.fleet = event.envelope.fence.fleet;
  member.decision = hello.decision;
  member.origin = hello.origin;
  member.target_content = hello.target_content;
  for (const Version& version : hello.staged) seen_step_ = std::max(seen_step_, version.step);
  seen_step_ = std::max(seen_step_, hello.target.step);
  for (const Version& version : hello.withdrawn) seen_step_ = std::max(seen_step_, version.step);

  if (phase_ == CoordinatorPhase::kGathering) {
    highest_epoch_ =
        std::max({highest_epoch_, event.envelope.fence.epoch, hello.decision.fence.epoch});
    if (!first_hello_) first_hello_ = now_;
    gather_more();
    return;
  }
  if (pending_) {
    // A claim: all are welcomed when it is stored. A decision, which its loss has brought about:
    // the Hello comes after it.
    if (pending_->what == Storing::kDecision) queue_.push_front({.now = now_, .what = event});
    return;
  }
  welcome(member, event.envelope.request);
  // It has to store our fence first; what it says before that chooses nothing.
  if (event.envelope.fence != record_.fence) return;
  member.joined = true;
  member.decided = hello.decision.fence == record_.fence ? hello.decision.number : 0;
  member.asked = member.decided;
  if (!in_switch) member.switched = 0;
  const std::size_t withdrawn = record_.withdrawn.size();
  withdraw(record_.withdrawn, hello.withdrawn);
  withdrawn_changed_ |= withdrawn != record_.withdrawn.size();
  remember(hello.name);
  judge(member);
  if (phase_ == CoordinatorPhase::kClaiming) {
    if (roster_.joined_count() == roster_.members().size()) finish_claim();
  } else if (in_switch) {
    if (!announce_target(member)) send_decide(member);
  } else if (!follow_newest()) {  // else all are told when that is stored
    catch_up(member);
  }
}

// What it has reported stands. Otherwise it reports when it is asked again, or is asked for the
// first time; only a process that finds the decision on its disc has no outcomes to tell.
void Coordinator::back_in_switch(Member& member, const control::Hello& hello, bool is_new_process) {
  forget_delivery(member);
  if (member.switched == record_.number || !is_new_process) return;
  const bool decided_before = hello.decision == control::Decision{record_.fence, record_.number};
  if (!decided_before) member.unreported.clear();
  if (!decided_before || !member.unreported.empty()) return;
  for (const control::ReplicaReport& replica : member.report.replicas)
    member.unreported.push_back(replica.replica);
}

void Coordinator::withdraw(std::vector<Version>& withdrawn,
                           const std::vector<Version>& versions) const {
  for (const Version& version : versions)
    if (!contains(withdrawn, version)) withdrawn.push_back(version);
  if (withdrawn.size() <= limits::kWithdrawnCount) return;
  std::vector<Version> in_use{record_.target, previous_target_};
  for (const auto& [name, member] : roster_.members()) {
    in_use.push_back(member.report.target);
    in_use.insert(in_use.end(), member.report.staged.begin(), member.report.staged.end());
    for (const control::ReplicaReport& replica : member.report.replicas)
      in_use.push_back(replica.version);
  }
  control::bound_withdrawn(withdrawn, in_use);
}

void Coordinator::judge(Member& member) {
  const bool other_bytes = !record_.target.none() && member.report.target == record_.target &&
                           member.decided < record_.number && member.target_content != Digest{} &&
                           record_.content != Digest{} && member.target_content != record_.content;
  if (other_bytes && !std::exchange(member.told_conflict, true))
    out_.emplace_back(
        Incident{.text = fmt::format(
                     "sidecar '{}' has other bytes under the name {}: content digest {}, "
                     "decided was {}; it is not routed to until a newer version is published",
                     member.name, record_.target.to_string(), member.target_content.to_string(),
                     record_.content.to_string())});
  if (!other_bytes) member.told_conflict = false;
  for (control::ReplicaReport& replica : member.report.replicas) {
    if (!replica.ready) continue;
    if (other_bytes && replica.version == record_.target)
      replica.reason =
          fmt::format("it serves other bytes under the name {}", record_.target.to_string());
    else if (contains(record_.withdrawn, replica.version) && !planted("owed_rollback_is_ready"))
      replica.reason = fmt::format("{} was withdrawn and its sidecar has not taken that yet{}",
                                   replica.version.to_string(),
                                   member.refused.empty() ? "" : ": " + member.refused);
    else
      continue;
    replica.ready = false;
  }
}

// A sidecar speaks that was taken for lost and has not noticed: it is asked for a Hello.
void Coordinator::welcome_back(const PeerMessage& event) {
  const auto* beat = std::get_if<control::Heartbeat>(&event.message);
  if (beat == nullptr || phase_ == CoordinatorPhase::kGathering ||
      event.envelope.fence > record_.fence)
    return;
  Member* member = roster_.by_last_peer(event.peer);
  if (member == nullptr && event.envelope.fence.epoch > 0) {
    // A sidecar whose place a late Hello of its dead predecessor has taken: its own Hello mends it.
    // (Commands send heartbeats too, under no fence.)
    if (stranger_welcomed_ && now_ - *stranger_welcomed_ < kWelcomeAgain) return;
    stranger_welcomed_ = now_;
    Member stranger;
    stranger.peer = event.peer;
    welcome(stranger, 0);
    return;
  }
  if (member == nullptr || member->joined || now_ - member->welcomed < kWelcomeAgain) return;
  member->peer = event.peer;
  welcome(*member, 0);
}

void Coordinator::answer_error(const std::string& peer, std::string why) {
  control::Envelope envelope;
  envelope.fence = record_.fence;
  out_.emplace_back(
      SendTo{.peer = peer,
             .envelope = std::move(envelope),
             .message = control::ErrorReply{.code = static_cast<std::uint8_t>(ErrorCode::kRefused),
                                            .message = std::move(why)}});
}

void Coordinator::higher_fence(const control::Fence& seen, const std::string& who) {
  const std::string reason = fmt::format(
      "sidecar '{}' has seen fence epoch {}, above this coordinator's {}: another coordinator is "
      "newer; start with --take-over to claim the fleet",
      who, seen.epoch, record_.fence.epoch);
  if (!options_.take_over) return stop(reason);
  end_rounds(reason);
  highest_epoch_ = std::max(highest_epoch_, seen.epoch);
  used_step_ = 0;
  claim();
}

void Coordinator::on(const Replaced& event) {
  stop(fmt::format("this coordinator was replaced: {} has taken over its control address",
                   event.by));
}

void Coordinator::end_rounds(const std::string& why) {
  ending_ = true;
  if (pending_ && pending_->rollback) refuse_rollback(*pending_->rollback, why);
  // What waits goes first: it must not begin when the round that it waits for ends.
  if (waiting_) refuse_publish(*std::exchange(waiting_, std::nullopt), why);
  if (round_ && round_->is_rollback) finish_rollback();
  if (round_) abort_round(why);
  ending_ = false;
}

void Coordinator::stop(const std::string& why, ErrorCode code) {
  end_rounds(why);
  phase_ = CoordinatorPhase::kStopped;
  deadline_.reset();
  pending_.reset();
  stopped_ = Stopped{.code = code, .reason = why};
  out_.emplace_back(*stopped_);
}

void Coordinator::on_member(Member& member, const control::Envelope& envelope,
                            const control::Message& message) {
  std::visit(Overloaded{
                 [&](const control::Accept& accept) {
                   if (is_delivery(member, envelope, accept.version, DeliveryPhase::kAnnounced))
                     on_accept(member);
                 },
                 [&](const control::Refuse& refuse) {
                   if (is_delivery(member, envelope, refuse.version, DeliveryPhase::kAnnounced))
                     on_refuse(member, refuse);
                 },
                 [&](const control::Staged& staged) {
                   if (is_delivery(member, envelope, staged.version, DeliveryPhase::kStaging))
                     on_staged(member, staged);
                 },
                 [&](const control::Decided& decided) { on_decided(member, decided); },
                 [&](const control::Switched& switched) { on_switched(member, switched); },
                 [&](const control::Heartbeat& heartbeat) { on_heartbeat(member, heartbeat); },
                 [&](const auto&) { ++dropped_; },
             },
             message);
}

// Its name goes from the record first: what its loss decides is stored without it.
void Coordinator::leave(Member& member) {
  members_changed_ |= std::erase(record_.members, member.name) > 0;
  member.has_left = true;
  on(PeerLost{.peer = member.peer, .reason = "it left"});
}

bool Coordinator::is_delivery(const Member& member, const control::Envelope& envelope,
                              const Version& version, DeliveryPhase phase) {
  const bool same_round =
      envelope.round == member.delivery.round || planted("coordinator_ignores_round");
  if (same_round && version == member.delivery.version && member.delivery.phase == phase)
    return true;
  ++dropped_;
  return false;
}

void Coordinator::on(const PeerLost& event) {
  Member* member = roster_.by_peer(event.peer);
  if (member == nullptr) {
    ++dropped_;
    return;
  }
  member->peer.clear();
  lose(*member);
  member->report.connected = false;
  if (phase_ == CoordinatorPhase::kClaiming && roster_.joined_count() > 0 &&
      std::all_of(roster_.members().begin(), roster_.members().end(), [](const auto& entry) {
        return entry.second.joined || entry.second.peer.empty();
      }))
    finish_claim();
}

void Coordinator::forget_delivery(Member& member) {
  member.joined = false;
  member.delivery = {};
  member.staged_bytes = 0;
}

void Coordinator::lose(Member& member) {
  forget_delivery(member);
  for (control::ReplicaReport& replica : member.report.replicas) {
    replica.ready = false;
    replica.reason = "its sidecar is not connected";
  }
  if (!in_round(member)) return;
  if (phase_ == CoordinatorPhase::kSwitching) {
    advance_round();
    return;
  }
  leave_round(member);
  bridge(member);
  advance_round();
}

void Coordinator::on(const CoordinatorTick&) {
  if (waiting_ && waiting_->deadline && now_ >= *waiting_->deadline)
    refuse_publish(
        *std::exchange(waiting_, std::nullopt),
        fmt::format("its deadline (deadlines.publish) came while the round before it was "
                    "{}",
                    phase_name(phase_)));
  if (pending_) {
    store_deadline();
    return;
  }
  if (deadline_ && now_ >= *deadline_) phase_deadline();
  if (phase_ < CoordinatorPhase::kReady || phase_ == CoordinatorPhase::kStopped) return;
  if (follow_again_ && now_ >= *follow_again_) {
    follow_again_.reset();
    if (follow_newest()) return;
  }
  for (auto& [name, member] : roster_.members()) {
    if (owes_decided(member) && now_ >= member.ask_again) send_decide(member);
    Delivery& delivery = member.delivery;
    if (!member.joined || in_round(member) || delivery.phase == DeliveryPhase::kNone ||
        delivery.phase == DeliveryPhase::kStaged || now_ < delivery.deadline)
      continue;
    if (delivery.phase == DeliveryPhase::kFailed) {
      delivery = {};
      catch_up(member);
    } else {
      delivery_failed(member, "no answer before the deadline");
    }
  }
}

void Coordinator::phase_deadline() {
  switch (phase_) {
    case CoordinatorPhase::kGathering:
      gather_more();
      return;
    case CoordinatorPhase::kClaiming:
      finish_claim();
      return;
    case CoordinatorPhase::kAnnouncing:
    case CoordinatorPhase::kStaging:
      fail_late();
      return;
    case CoordinatorPhase::kSwitching:
      finish_round();
      return;
    case CoordinatorPhase::kReady:
    case CoordinatorPhase::kStopped:
      deadline_.reset();
      return;
  }
}

// The first failure may end the round and begin the one that waits, or take it on to staging:
// whoever else was late was so in a phase that is over.
void Coordinator::fail_late() {
  const CoordinatorPhase phase = phase_;
  const Version version = round_->publish.version;
  if (round_->publish.deadline && now_ >= *round_->publish.deadline)
    return abort_round(
        fmt::format("the deadline of the whole publish (deadlines.publish) came "
                    "while {} {}",
                    phase_name(phase), version.to_string()));
  if (round_->lacks_replicas && staged_replicas() == 0)
    return abort_round(
        fmt::format("no engine is attached to a sidecar that has staged {}: attach one, and "
                    "publish again",
                    version.to_string()));
  if (round_->lacks_replicas)
    return abort_round(fmt::format(
        "{} whole replicas have staged {}; the round needs {}: attach more "
        "ranks, or lower {}",
        staged_replicas(), version.to_string(), needed_replicas(),
        needed_replicas() > options_.min_replicas ? "the quorum of `commit`" : "`min_replicas`"));
  const std::string why = fmt::format("no answer before the deadline while {}", phase_name(phase));
  const std::vector<std::string> names = round_->members;
  for (const std::string& name : names) {
    if (phase_ != phase || round_->publish.version != version) return;
    Member& member = roster_.add(name);
    const bool late = phase == CoordinatorPhase::kAnnouncing
                          ? member.delivery.phase == DeliveryPhase::kAnnounced
                          : member.delivery.phase != DeliveryPhase::kStaged;
    if (in_round(member) && late) delivery_failed(member, why);
  }
}

}  // namespace wsync::publish
