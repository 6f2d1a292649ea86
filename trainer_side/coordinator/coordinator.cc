#include "trainer_side/coordinator/coordinator.h"

#include <algorithm>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
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

// Messages that wait while a decision is being stored: some seconds of a large fleet.
constexpr std::size_t kQueueCount = 16 * limits::kSidecarCount;

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options)
    : context_{.options = std::move(options)},
      log_(context_.options.record),
      claim_(context_.options) {
  if (!context_.options.record) return;
  for (const Version& version : context_.options.record->withdrawn) names_.note_seen(version);
  names_.note_seen(context_.options.record->target);
}

std::vector<CoordinatorCommand> Coordinator::step(const CoordinatorEvent& event) {
  context_.now = event.now;
  claim_.note_event(context_.now);
  context_.commands.clear();
  if (!waits_for_store(event)) {
    apply(event);
  } else if (std::holds_alternative<PeerMessage>(event.what) && queue_.size() >= kQueueCount) {
    ++context_.dropped;  // as if the network had lost it
  } else {
    queue_.push_back(event);
  }
  while (!log_.is_storing() && !queue_.empty()) {
    const CoordinatorEvent next = std::move(queue_.front());
    queue_.pop_front();
    apply(next);
  }
  if (claim_.is_claimed()) log_.store_members(context_);
  return std::exchange(context_.commands, {});
}

void Coordinator::apply(const CoordinatorEvent& event) {
  if (claim_.state() == FenceClaimState::kStopped) {
    const std::string why = "this coordinator has stopped: " + claim_.stopped()->reason;
    if (const auto* publish = std::get_if<PublishRequested>(&event.what))
      refuse_publish(*publish, why);
    else if (const auto* rollback = std::get_if<RollbackRequested>(&event.what))
      refuse_rollback(*rollback, why);
    else if (const auto* cancel = std::get_if<CancelRequested>(&event.what))
      context_.emit(CancelDone{.request = cancel->request, .reply = {.reason = why}});
    else
      ++context_.dropped;
    return;
  }
  std::visit([this](const auto& what) { on(what); }, event.what);
  context_.roster.forget(
      [this](const Member& member) { return member.has_left && !in_round(member); });
  const Result<> holds = invariants();
  WSYNC_CHECK(holds.has_value(), holds.error().message());
}

void Coordinator::on(const PeerMessage& event) {
  // Nothing above it can be claimed, and no version can be named under it.
  if (const std::uint64_t epoch = event.envelope.fence.epoch; epoch > limits::kEpochMax) {
    ++context_.dropped;
    if (std::holds_alternative<control::ErrorReply>(event.message)) return;  // no end of answers
    context_.send_refusal(
        event.peer,
        fmt::format("{} from '{}' carries fence epoch {}, at most {} is allowed: what that "
                    "process has stored is damaged; stop it and remove its record from "
                    "its state_dir",
                    control::message_name(control::type_of(event.message)), event.peer, epoch,
                    limits::kEpochMax));
    return;
  }
  const auto* hello = std::get_if<control::Hello>(&event.message);
  if (claim_.is_foreign(event.envelope.fence)) {
    if (hello != nullptr)
      foreign_hello(event, *hello);
    else
      ++context_.dropped;
    return;
  }
  if (hello != nullptr) {
    on_hello(event, *hello);
    return;
  }
  Member* member = context_.roster.by_peer(event.peer);
  if (event.envelope.fence > record().fence && member != nullptr &&
      claim_.state() != FenceClaimState::kGathering) {
    higher_fence(event.envelope.fence, member->name);
    return;
  }
  if (member != nullptr && std::holds_alternative<control::Leave>(event.message)) {
    leave(*member);  // whatever it has heard of this coordinator
    return;
  }
  const bool current =
      event.envelope.fence == record().fence || planted("coordinator_ignores_fence");
  if (member == nullptr || !member->joined || !current) {
    ++context_.dropped;
    claim_.welcome_back(context_, event);
    return;
  }
  on_member(*member, event.envelope, event.message);
}

void Coordinator::on_hello(const PeerMessage& event, const control::Hello& hello) {
  if (const Result<> may = claim_.check_hello(context_, record(), event, hello); !may) {
    claim_.refuse(context_, event.peer,
                  fmt::format("sidecar '{}' cannot join: {}", hello.name, may.error().message()));
    return;
  }
  // (A claim that begins with this very Hello goes above its fence.)
  if (claim_.state() != FenceClaimState::kGathering && !log_.is_storing() &&
      event.envelope.fence > record().fence) {
    higher_fence(event.envelope.fence, hello.name);
    if (claim_.state() == FenceClaimState::kStopped) return;
  }
  Member& member = context_.roster.add(hello.name);
  const bool is_new_process = member.last_peer != event.peer;
  // In the switch it stays in the round: it is here, and is asked again.
  const bool in_switch = phase_ == CoordinatorPhase::kSwitching && in_round(member);
  if (in_switch) {
    forget_delivery(member);
    resume_switch(record(), member, hello, is_new_process);
  } else if (member.joined) {
    lose(member);
  }
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
  for (const Version& version : hello.staged) names_.note_seen(version);
  names_.note_seen(hello.target);
  for (const Version& version : hello.withdrawn) names_.note_seen(version);

  if (claim_.state() == FenceClaimState::kGathering) {
    claim_.note_hello(context_.now, event.envelope.fence, hello);
    gather_more();
    return;
  }
  if (log_.is_storing()) {
    // A claim: all are welcomed when it is stored. A decision, which its loss has brought about:
    // the Hello comes after it.
    if (log_.state() == DecisionLogState::kStoringDecision)
      queue_.push_front({.now = context_.now, .what = event});
    return;
  }
  claim_.welcome(context_, member, event.envelope.request);
  // It has to store our fence first; what it says before that chooses nothing.
  if (event.envelope.fence != record().fence) return;
  member.joined = true;
  member.decided = hello.decision.fence == record().fence ? hello.decision.number : 0;
  member.asked = member.decided;
  if (!in_switch) member.switched = 0;
  log_.learn_withdrawn(context_.roster, hello.withdrawn);
  log_.add_member(context_.roster, hello.name);
  judge(context_, record(), member);
  if (claim_.state() == FenceClaimState::kWelcoming) {
    if (context_.roster.joined_count() == context_.roster.members().size()) finish_claim();
  } else if (in_switch) {
    if (!announce_target(member)) send_decide(context_, record(), member);
  } else if (!follow_newest()) {  // else all are told when that is stored
    catch_up(member);
  }
}

void Coordinator::higher_fence(const control::Fence& seen, const std::string& who) {
  const std::string reason = fmt::format(
      "sidecar '{}' has seen fence epoch {}, above this coordinator's {}: another coordinator is "
      "newer; start with --take-over to claim the fleet",
      who, seen.epoch, record().fence.epoch);
  if (!context_.options.take_over) return stop(Error(ErrorCode::kFenced, reason));
  end_rounds(reason);
  claim_.note_epoch(seen.epoch);
  names_.begin_epoch();
  claim();
}

void Coordinator::on(const Replaced& event) {
  stop(Error(ErrorCode::kFenced,
             fmt::format("this coordinator was replaced: {} has taken over its control address",
                         event.by)));
}

void Coordinator::end_rounds(const std::string& why) {
  ending_ = true;
  if (log_.pending_rollback() != nullptr) refuse_rollback(*log_.pending_rollback(), why);
  // What waits goes first: it must not begin when the round that it waits for ends.
  if (waiting_) refuse_publish(*std::exchange(waiting_, std::nullopt), why);
  if (round_ && round_->is_rollback) finish_rollback();
  if (round_) abort_round(why);
  ending_ = false;
}

void Coordinator::stop(const Error& why) {
  end_rounds(why.message());
  log_.abandon();
  claim_.stop(context_, why);
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
                 [&](const auto&) { ++context_.dropped; },
             },
             message);
}

// Its name goes from the record first: what its loss decides is stored without it.
void Coordinator::leave(Member& member) {
  log_.remove_member(member.name);
  member.has_left = true;
  on(PeerLost{.peer = member.peer, .reason = "it left"});
}

bool Coordinator::is_delivery(const Member& member, const control::Envelope& envelope,
                              const Version& version, DeliveryPhase phase) {
  const bool same_round =
      envelope.round == member.delivery.round || planted("coordinator_ignores_round");
  if (same_round && version == member.delivery.version && member.delivery.phase == phase)
    return true;
  ++context_.dropped;
  return false;
}

void Coordinator::on(const PeerLost& event) {
  Member* member = context_.roster.by_peer(event.peer);
  if (member == nullptr) {
    ++context_.dropped;
    return;
  }
  member->peer.clear();
  lose(*member);
  member->report.connected = false;
  if (claim_.state() == FenceClaimState::kWelcoming && context_.roster.joined_count() > 0 &&
      std::all_of(
          context_.roster.members().begin(), context_.roster.members().end(),
          [](const auto& entry) { return entry.second.joined || entry.second.peer.empty(); }))
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
  if (waiting_ && waiting_->deadline && context_.now >= *waiting_->deadline)
    refuse_publish(
        *std::exchange(waiting_, std::nullopt),
        fmt::format("its deadline (deadlines.publish) came while the round before it was "
                    "{}",
                    phase_name(phase_)));
  if (log_.is_storing()) {
    if (const Result<> in_time = log_.check_deadline(context_.now); !in_time) stop(in_time.error());
    return;
  }
  if (claim_.deadline() && context_.now >= *claim_.deadline()) claim_deadline();
  if (deadline_ && context_.now >= *deadline_) phase_deadline();
  if (!claim_.is_claimed()) return;
  if (log_.take_follow_due(context_.now) && follow_newest()) return;
  for (auto& [name, member] : context_.roster.members()) {
    if (!log_.is_storing() && is_owed(record(), member) && context_.now >= member.ask_again)
      send_decide(context_, record(), member);
    Delivery& delivery = member.delivery;
    if (!member.joined || in_round(member) || delivery.phase == DeliveryPhase::kNone ||
        delivery.phase == DeliveryPhase::kStaged || context_.now < delivery.deadline)
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
  if (phase_ == CoordinatorPhase::kSwitching)
    finish_round();
  else
    fail_late();
}

// The first failure may end the round and begin the one that waits, or take it on to staging:
// whoever else was late was so in a phase that is over.
void Coordinator::fail_late() {
  const CoordinatorPhase phase = phase_;
  const Version version = round_->publish.version;
  if (round_->publish.deadline && context_.now >= *round_->publish.deadline)
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
    return abort_round(
        fmt::format("{} whole replicas have staged {}; the round needs {}: attach more "
                    "ranks, or lower {}",
                    staged_replicas(), version.to_string(), needed_replicas(),
                    needed_replicas() > context_.options.min_replicas ? "the quorum of `commit`"
                                                                      : "`min_replicas`"));
  const std::string why = fmt::format("no answer before the deadline while {}", phase_name(phase));
  const std::vector<std::string> names = round_->members;
  for (const std::string& name : names) {
    if (phase_ != phase || round_->publish.version != version) return;
    Member& member = context_.roster.add(name);
    const bool late = phase == CoordinatorPhase::kAnnouncing
                          ? member.delivery.phase == DeliveryPhase::kAnnounced
                          : member.delivery.phase != DeliveryPhase::kStaged;
    if (in_round(member) && late) delivery_failed(member, why);
  }
}

}  // namespace wsync::publish
