#include "trainer_side/coordinator/coordinator.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"
#include "shared/control/codec.h"
#include "trainer_side/coordinator/decision_obligations.h"
#include "trainer_side/coordinator/forget_rules.h"
#include "trainer_side/coordinator/snapshot_stream.h"
#include "trainer_side/coordinator/transport_choice.h"

namespace wsync::coordinator {
namespace {

// Maximum number of messages that wait while a decision is being stored: some seconds of messages
// from a large fleet.
constexpr std::size_t kQueueCount = 16 * limits::kSidecarCount;

CoordinatorPhase phase_of(RoundState state) noexcept {
  switch (state) {
    case RoundState::kAnnouncing:
      return CoordinatorPhase::kAnnouncing;
    case RoundState::kStaging:
    case RoundState::kDeciding:
      return CoordinatorPhase::kStaging;
    case RoundState::kSwitching:
      return CoordinatorPhase::kSwitching;
    case RoundState::kFinished:
      break;
  }
  return CoordinatorPhase::kReady;
}

// A publish of this version that waits in the queue.
auto find_publish(auto& queue, const Version& version) {
  return std::ranges::find_if(queue, [&](const CoordinatorEvent& event) {
    const auto* publish = std::get_if<PublishRequested>(&event.what);
    return publish != nullptr && publish->version == version;
  });
}

}  // namespace

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

Coordinator::Coordinator(CoordinatorOptions options)
    : context_{.options = std::move(options)},
      log_(context_.options.record),
      claim_(context_.options),
      rounds_(context_.options) {
  context_.has_publisher = !context_.options.publisher_attaches;
  if (!context_.options.record) return;
  for (const Version& version : context_.options.record->withdrawn) names_.note_seen(version);
  names_.note_seen(context_.options.record->target);
}

// ---- events ----

std::vector<CoordinatorCommand> Coordinator::step(const CoordinatorEvent& event) {
  context_.now = event.now;
  claim_.note_event(event.now);
  context_.commands.clear();
  if (!must_wait(event)) {
    apply(event);
  } else if (std::holds_alternative<PeerMessage>(event.what) && queue_.size() >= kQueueCount) {
    ++context_.dropped;  // same effect as a loss in the network
  } else if (!replace_waiting_hello(event)) {
    queue_.push_back(event);
    note_queued(event);
  }
  while (!log_.is_storing() && !queue_.empty()) {
    const CoordinatorEvent next = std::move(queue_.front());
    queue_.pop_front();
    apply(next);
  }
  if (queue_.empty()) queued_deadline_.reset();
  if (claim_.is_claimed()) log_.store_members(context_);
  return std::exchange(context_.commands, {});
}

void Coordinator::note_queued(const CoordinatorEvent& event) {
  const auto* publish = std::get_if<PublishRequested>(&event.what);
  if (publish != nullptr && publish->deadline &&
      (!queued_deadline_ || *publish->deadline < *queued_deadline_))
    queued_deadline_ = publish->deadline;
}

// Publishes that wait for the store end at their deadline.
void Coordinator::expire_queued() {
  if (!queued_deadline_ || context_.now < *queued_deadline_) return;
  queued_deadline_.reset();
  std::erase_if(queue_, [this](const CoordinatorEvent& event) {
    const auto* publish = std::get_if<PublishRequested>(&event.what);
    const bool is_over =
        publish != nullptr && publish->deadline && context_.now >= *publish->deadline;
    if (is_over)
      refuse_publish(context_, *publish,
                     fmt::format("its deadline (deadlines.publish) passed while {}", kStoreSilent));
    else
      note_queued(event);
    return is_over;
  });
}

bool Coordinator::must_wait(const CoordinatorEvent& event) const {
  if (!log_.is_storing()) return false;
  // Handle a cancel request at once, because what is being stored cannot be cancelled any more.
  return !std::holds_alternative<Stored>(event.what) &&
         !std::holds_alternative<CoordinatorTick>(event.what) &&
         !std::holds_alternative<CancelRequested>(event.what);
}

// A sidecar repeats its Hello until it is answered. Handled one after the other, the later ones
// would take it out of a round that has begun in between. So the newest takes the place of the
// first.
bool Coordinator::replace_waiting_hello(const CoordinatorEvent& event) {
  const auto* message = std::get_if<PeerMessage>(&event.what);
  if (message == nullptr || !std::holds_alternative<control::Hello>(message->message)) return false;
  for (auto waiting = queue_.rbegin(); waiting != queue_.rend(); ++waiting) {
    if (const auto* lost = std::get_if<PeerLost>(&waiting->what);
        lost != nullptr && lost->peer == message->peer)
      return false;
    const auto* before = std::get_if<PeerMessage>(&waiting->what);
    if (before == nullptr || before->peer != message->peer) continue;
    if (std::holds_alternative<control::Leave>(before->message)) return false;
    if (!std::holds_alternative<control::Hello>(before->message)) continue;
    if (before->envelope.request > message->envelope.request) return false;
    *waiting = event;
    ++context_.dropped;
    return true;
  }
  return false;
}

void Coordinator::apply(const CoordinatorEvent& event) {
  if (claim_.stopped()) return refuse_stopped(event);
  std::visit([this](const auto& what) { handle(what); }, event.what);
  rounds_.note_changes(context_, log_);
  context_.roster.forget_left([this](const Member& member) { return rounds_.is_in_round(member); });
  context_.roster.clear_changes();
  const Result<> holds = own_invariants();
  WSYNC_CHECK(holds.has_value(), holds.error().message());
}

void Coordinator::refuse_stopped(const CoordinatorEvent& event) {
  const std::string why = "this coordinator has stopped: " + claim_.stopped()->reason;
  if (const auto* publish = std::get_if<PublishRequested>(&event.what))
    refuse_publish(context_, *publish, why);
  else if (const auto* rollback = std::get_if<RollbackRequested>(&event.what))
    refuse_rollback(context_, record(), *rollback, why);
  else if (const auto* promotion = std::get_if<PromoteRequested>(&event.what))
    refuse_promotion(context_, record(), *promotion, why);
  else if (const auto* cancel = std::get_if<CancelRequested>(&event.what))
    context_.emit(CancelDone{.request = cancel->request, .reply = {.reason = why}});
  else if (const auto* forget = std::get_if<ForgetRequested>(&event.what))
    context_.emit(ForgetDone{.request = forget->request, .reply = {.reason = why}});
  else
    ++context_.dropped;
}

void Coordinator::handle(const PeerMessage& event) {
  const control::Fence& fence = event.envelope.fence;
  // No epoch above this one could be claimed, and no version could be named under it.
  if (fence.epoch > limits::kEpochMax) {
    ++context_.dropped;
    // Never answer an error with an error: two sides would do so without end.
    if (std::holds_alternative<control::ErrorReply>(event.message)) return;
    context_.send_refusal(
        event.peer,
        fmt::format(
            "{} from '{}' carries fence epoch {}, but at most {} is allowed: the stored record of "
            "that process is damaged; stop it and remove its record from its state_dir",
            control::message_name(control::type_of(event.message)), event.peer, fence.epoch,
            limits::kEpochMax));
    return;
  }
  const auto* hello = std::get_if<control::Hello>(&event.message);
  if (claim_.is_foreign(fence)) {
    if (hello != nullptr)
      handle_foreign_hello(event, *hello);
    else
      ++context_.dropped;
    return;
  }
  if (hello != nullptr) return handle_hello(event, *hello);
  Member* member = context_.roster.by_peer(event.peer);
  if (fence > record().fence && member != nullptr && claim_.state() != FenceClaimState::kGathering)
    return handle_higher_fence(fence, member->name);
  // A Leave counts even if its sender does not follow this coordinator.
  if (member != nullptr && std::holds_alternative<control::Leave>(event.message))
    return leave(*member);
  const bool current = fence == record().fence || planted("coordinator_ignores_fence");
  if (member == nullptr || !member->joined || !current) {
    ++context_.dropped;
    claim_.welcome_back(context_, event);
    return;
  }
  rounds_.handle(context_, log_, *member, event.envelope, event.message);
}

void Coordinator::handle(const PeerLost& event) {
  Member* member = context_.roster.by_peer(event.peer);
  if (member == nullptr) {
    ++context_.dropped;
    return;
  }
  member->peer.clear();
  member->lost = context_.now;
  rounds_.handle_lost(context_, log_, *member, event.reason);
  member->report.connected = false;
  if (claim_.state() != FenceClaimState::kWelcoming) return;
  // The claim may have waited for this sidecar only.
  const bool all_here = std::ranges::all_of(context_.roster.members(), [](const auto& entry) {
    return entry.second.joined || entry.second.peer.empty();
  });
  if (context_.roster.joined_count() > 0 && all_here) finish_claim();
}

void Coordinator::handle(const PublishRequested& event) {
  if (!claim_.is_claimed())
    return refuse_publish(context_, event,
                          fmt::format("the coordinator is {}", phase_name(phase())));
  const bool is_again = event.version.epoch == record().fence.epoch && rounds_.may_repeat(event) &&
                        names_.is_last(event.version.step);
  const Result<Version> name =
      is_again ? Result<Version>(event.version) : next_version(event.version.step);
  if (!name) return refuse_publish(context_, event, name.error().message());
  if (*name != event.version)
    return refuse_publish(context_, event,
                          fmt::format("version {} is not of this coordinator's epoch {}",
                                      event.version.to_string(), record().fence.epoch));
  // The bytes that a name stands for are not known before the snapshot is complete.
  if (event.is_complete) note_offered(event.version);
  rounds_.publish(context_, log_, event);
}

void Coordinator::note_offered(const Version& version) {
  names_.note_used(version.step);
  log_.note_offered(version);
}

void Coordinator::handle(const SnapshotEnded& event) {
  if (event.failure.empty() && rounds_.has_update(event.version)) note_offered(event.version);
  rounds_.end_snapshot(context_, log_, event);
}

std::optional<std::string> Coordinator::why_rollback_waits() const {
  if (!claim_.is_claimed())
    return fmt::format("the coordinator is {}; try again when it is idle", phase_name(phase()));
  if (log_.is_storing()) return "the coordinator stores its record; try again when it is idle";
  return rounds_.why_rollback_waits(log_);
}

void Coordinator::handle(const RollbackRequested& event) {
  if (claim_.is_claimed()) return rounds_.roll_back(context_, log_, event);
  refuse_rollback(
      context_, record(), event,
      fmt::format("the coordinator is {}; try again when it is idle", phase_name(phase())));
}

void Coordinator::handle(const PromoteRequested& event) {
  if (claim_.is_claimed()) return rounds_.promote(context_, log_, event);
  refuse_promotion(
      context_, record(), event,
      fmt::format("the coordinator is {}; try again when it is idle", phase_name(phase())));
}

void Coordinator::handle(const CancelRequested& event) {
  control::CancelReply reply;
  const std::string reason = event.why.empty() ? std::string(kCancelledReason) : event.why;
  if (const auto queued = find_publish(queue_, event.version); queued != queue_.end()) {
    const PublishRequested publish = std::get<PublishRequested>(queued->what);
    queue_.erase(queued);
    refuse_publish(context_, publish, reason, PublishRefusal::kCancelled);
    reply = {.ok = true, .version = event.version, .phase = control::ProgressPhase::kSnapshot};
  } else {
    reply = rounds_.cancel(context_, log_, event.version, reason);
  }
  context_.emit(CancelDone{.request = event.request, .reply = std::move(reply)});
}

void Coordinator::handle(const ForgetRequested& event) {
  control::ForgetReply reply;
  if (const Result<> may = check_forget(event); !may) {
    reply.reason = may.error().message();
  } else {
    reply.ok = true;
    if (context_.roster.find(event.sidecar) == nullptr) {
      log_.remove_member(event.sidecar);
      context_.emit(Forgotten{.sidecar = event.sidecar, .reason = "on request"});
    } else {
      RoundScheduler::forget(context_, log_, context_.roster.add(event.sidecar), "on request");
    }
  }
  context_.emit(ForgetDone{.request = event.request, .reply = std::move(reply)});
}

Result<> Coordinator::check_forget(const ForgetRequested& event) const {
  const auto refuse = [](std::string why) { return fail(ErrorCode::kRefused, std::move(why)); };
  if (!claim_.is_claimed())
    return refuse(
        fmt::format("the coordinator is {}; try again when it is idle", phase_name(phase())));
  const Member* member = context_.roster.find(event.sidecar);
  const std::vector<std::string>& members = record().members;
  if (member == nullptr && std::ranges::find(members, event.sidecar) == members.end())
    return refuse(fmt::format("this coordinator knows no sidecar '{}'", event.sidecar));
  if (member != nullptr && !member->peer.empty())
    return refuse(fmt::format("sidecar '{}' is connected (process {} on {}): stop it first",
                              event.sidecar, member->report.pid, member->report.host));
  if (member != nullptr &&
      rounds_.is_in_round(*member))  // decided, otherwise it has left the round
    return refuse(fmt::format(
        "sidecar '{}' takes part in the {} to {}, which is {}: try again when it has ended",
        event.sidecar, rounds_.round()->kind() == RoundKind::kRollback ? "rollback" : "update",
        rounds_.round()->version().to_string(), rounds_.round()->activity()));
  const bool owes =
      member == nullptr ? !record().withdrawn.empty() : owes_withdrawal(record(), *member);
  if (owes && !event.force) return fail(withdrawal_owed(record(), event.sidecar));
  return {};
}

// The sidecars in the record have had their time since the claim.
void Coordinator::forget_absent() {
  if (!forget_absent_at_ || context_.now < *forget_absent_at_) return;
  forget_absent_at_.reset();
  for (std::string& name : log_.remove_absent(context_.roster))
    context_.emit(
        Forgotten{.sidecar = std::move(name),
                  .reason = "it has not connected to this process for longer than forget_after"});
}

void Coordinator::handle(const WaitingReplaced& event) { rounds_.replace_waiting(context_, event); }

void Coordinator::handle(const Replaced& event) {
  stop(Error(ErrorCode::kFenced, fmt::format("this coordinator was replaced: {} has taken over {}",
                                             event.by, event.what)));
}

void Coordinator::handle(const PublisherAttached& event) {
  context_.has_publisher = true;
  context_.options.transports = event.transports;
  context_.options.secret = event.secret;
  context_.options.boot_id = event.boot_id;
  context_.options.trainer = event.process;
  for (auto& [name, member] : context_.roster.change_all()) {
    choose_source(member);
    if (!member.joined || member.peer.empty()) continue;
    // It watches what this trainer shares with its host, and answers with a Hello.
    member.was_only_welcomed = !rounds_.is_in_round(member);
    claim_.welcome(context_, member, 0);
  }
}

void Coordinator::handle(const PublisherLost& event) {
  context_.has_publisher = false;
  context_.options.transports.clear();
  context_.options.secret.reset();
  rounds_.lose_publisher(context_, log_, event.reason);
}

void Coordinator::handle(const CoordinatorTick&) {
  expire_queued();
  rounds_.expire_waiting(context_);
  if (log_.is_storing()) {
    if (const Result<> in_time = log_.check_deadline(context_.now); !in_time) stop(in_time.error());
    return;
  }
  if (claim_.deadline() && context_.now >= *claim_.deadline()) {
    if (claim_.state() == FenceClaimState::kGathering)
      gather();
    else
      finish_claim();
  }
  if (!claim_.is_claimed()) return;
  forget_absent();
  rounds_.handle_tick(context_, log_);
}

void Coordinator::handle(const Stored& event) {
  const std::size_t withdrawn = record().withdrawn.size();
  const StoreOutcome outcome = log_.handle(context_, event);
  if (outcome.failure) return handle_not_stored(outcome);
  switch (outcome.ended) {
    case StoreOutcome::Ended::kNothing:
      return;
    case StoreOutcome::Ended::kClaim:
      names_.note_seen(record().target);
      claim_.handle_stored(context_, record());
      if (record().withdrawn.size() != withdrawn)  // those of the store were added
        for (auto& [name, member] : context_.roster.change_all()) member.knows_withdrawn = false;
      return;
    case StoreOutcome::Ended::kDecision:
      rounds_.handle_stored(context_, log_, outcome.rollback);
      return;
  }
}

void Coordinator::handle_not_stored(const StoreOutcome& outcome) {
  const std::string& why = outcome.failure->message();
  if (outcome.rollback) refuse_rollback(context_, record(), *outcome.rollback, why);
  if (outcome.failure->code() == ErrorCode::kFenced || outcome.ended == StoreOutcome::Ended::kClaim)
    return stop(*outcome.failure);
  if (!outcome.rollback) rounds_.handle_not_stored(context_, log_, why);
}

// ---- the claim ----

// A sidecar without a decision may follow this coordinator into its fleet.
void Coordinator::handle_foreign_hello(const PeerMessage& event, const control::Hello& hello) {
  if (hello.decision.none()) {
    PeerMessage unbound = event;
    unbound.envelope.fence = {};
    return handle_hello(unbound, hello);
  }
  const control::Fence& fence = event.envelope.fence;
  if (!claim_.may_change_fleet(log_))
    return claim_.refuse(
        context_, event.peer,
        fmt::format("sidecar '{}' cannot join: it belongs to fleet {}, but this coordinator leads "
                    "fleet {}; connect it to its own coordinator, or, to move it to this fleet "
                    "permanently, stop it and remove its record from its state_dir",
                    hello.name, fence.fleet.to_string(), claim_.fleet().to_string()));
  const std::string why =
      fmt::format("sidecar '{}' has named the fleet that this coordinator leads: {}", hello.name,
                  fence.fleet.to_string());
  context_.emit(Incident{.text = why});
  claim_.change_fleet(record().fence, fence);
  if (claim_.state() != FenceClaimState::kGathering) {
    rounds_.end_all(context_, log_, why);
    begin_claim();
  }
  handle_hello(event, hello);
}

void Coordinator::handle_hello(const PeerMessage& event, const control::Hello& hello) {
  const control::Fence& fence = event.envelope.fence;
  if (const Result<> may = claim_.check_hello(context_, record(), event, hello); !may)
    return claim_.refuse(
        context_, event.peer,
        fmt::format("sidecar '{}' cannot join: {}", hello.name, may.error().message()));
  // (A claim that begins with this Hello will be above its fence.)
  if (claim_.state() != FenceClaimState::kGathering && !log_.is_storing() &&
      fence > record().fence) {
    handle_higher_fence(fence, hello.name);
    if (claim_.stopped()) return;
  }
  const UpdateRound* round = rounds_.round();
  const Member* known = context_.roster.find(hello.name);
  // A member of a switching round stays in it: it has returned, and the decision is sent to it
  // again.
  const bool in_switch = round != nullptr && round->state() == RoundState::kSwitching &&
                         known != nullptr && round->has(*known);
  Member& member = register_sidecar(event, hello, in_switch);
  if (claim_.state() == FenceClaimState::kGathering) {
    claim_.note_hello(context_.now, fence, hello);
    return gather();
  }
  if (log_.is_storing()) {
    // A claim: all sidecars are welcomed when it is stored. A decision, which the loss of the
    // sidecar's last process has caused: the Hello is handled after it.
    if (log_.state() == DecisionLogState::kStoringDecision)
      queue_.push_front({.now = context_.now, .what = event});
    return;
  }
  claim_.welcome(context_, member, event.envelope.request);
  // The sidecar must store this fence first. Nothing that it reports before that affects a choice.
  if (fence == record().fence) join(member, hello, in_switch);
}

void Coordinator::choose_source(Member& member) {
  // An address of ours in its list would make its loss look like ours (RoundScheduler::bridge).
  for (control::TransportAddress& each : member.transports)
    if (const auto* own = control::find_transport(context_.options.transports, each.kind);
        own != nullptr && own->address == each.address)
      each.address.clear();
  const auto chosen = choose_transport(context_.options, member);
  member.report.transport = chosen ? chosen->kind : std::string();
}

Member& Coordinator::register_sidecar(const PeerMessage& event, const control::Hello& hello,
                                      bool in_switch) {
  Member& member = context_.roster.add(hello.name);
  const bool is_new_process = member.last_peer != event.peer;
  const bool is_same = !is_new_process && member.joined && event.envelope.fence == record().fence;
  const bool keeps = std::exchange(member.was_only_welcomed, false) && is_same && !in_switch;
  if (!is_same) member.copy_relay = {};
  if (keeps) {
    // Nothing was lost: what it receives from another sidecar goes on, and so does what it sends.
  } else if (in_switch) {
    member.forget_delivery();
    resume_switch(record(), member, hello, is_new_process, rounds_.round()->canary_of(member));
  } else if (member.joined) {
    rounds_.handle_lost(context_, log_, member,
                        is_new_process ? "another process has joined under its name"
                                       : "it has joined once more, and begins anew");
  }
  if (is_new_process) {
    member.failed_copy = {};
    member.failed_transports.clear();
    member.heartbeats = 0;
    member.patch_value_cost = 0;
    member.lends_arenas = false;
  }
  member.peer = member.last_peer = event.peer;
  member.has_left = false;
  member.report.connected = true;
  member.report.host = hello.host;
  member.report.pid = hello.pid;
  member.report.target = hello.target;
  member.report.staged = hello.staged;
  member.report.replicas = hello.replicas;
  member.turns = member.turns_sent = 0;  // as in a sidecar that registers
  member.boot_id = hello.boot_id;
  member.pid_namespace = hello.pid_namespace;
  member.capabilities = hello.capabilities & control::kCapabilities;
  member.transports = hello.transports;
  member.relay_secret = transport::pair_secret_of(hello.relay_secret);
  choose_source(member);
  if (member.report.transport.empty() && is_new_process && context_.has_publisher)
    context_.emit(Incident{
        .text = fmt::format("sidecar '{}': {}", member.name,
                            choose_transport(context_.options, member).error().message())});
  member.layout = hello.layout;
  member.fleet = event.envelope.fence.fleet;
  member.decision = hello.decision;
  member.origin = hello.origin;
  member.target_content = hello.target_content;
  member.knows_withdrawn = knows_withdrawn(record(), hello);
  for (const Version& version : hello.staged) names_.note_seen(version);
  names_.note_seen(hello.target);
  for (const Version& version : hello.withdrawn) names_.note_seen(version);
  return member;
}

void Coordinator::join(Member& member, const control::Hello& hello, bool in_switch) {
  member.joined = true;
  member.decided = hello.decision.fence == record().fence ? hello.decision.number : 0;
  member.asked = member.decided;
  member.released_undecided = member.decided > 0;
  member.target_at_hello = hello.target;
  if (!in_switch) member.switched = 0;
  const std::size_t withdrawn = record().withdrawn.size();
  log_.learn_withdrawn(context_.roster, hello.withdrawn);
  if (record().withdrawn.size() != withdrawn)  // it changes what the other sidecars are owed
    for (auto& [name, other] : context_.roster.change_all()) other.knows_withdrawn = false;
  member.knows_withdrawn = knows_withdrawn(record(), hello);
  log_.add_member(context_.roster, hello.name);
  judge(context_, record(), member);
  if (!claim_.is_claimed()) {
    if (context_.roster.joined_count() == context_.roster.size()) finish_claim();
  } else if (in_switch) {
    rounds_.resume_switch(context_, log_, member);
    // Otherwise all are notified when that is stored.
  } else if (!rounds_.follow_newest(context_, log_)) {
    rounds_.catch_up(context_, log_, member);
  }
}

// A sidecar whose engines serve without it returns, so it stays a member. Otherwise the name is
// removed from the record first, so that a decision caused by the loss is stored without it.
void Coordinator::leave(Member& member) {
  if (attached_replicas(member) == 0) {
    log_.remove_member(member.name);
    member.has_left = true;
  }
  handle(PeerLost{.peer = member.peer, .reason = "the sidecar left the fleet"});
}

void Coordinator::handle_higher_fence(const control::Fence& seen, const std::string& who) {
  const std::string reason = fmt::format(
      "sidecar '{}' has seen fence epoch {}, above this coordinator's {}: another coordinator is "
      "newer; start with --take-over to claim the fleet",
      who, seen.epoch, record().fence.epoch);
  if (!context_.options.take_over) return stop(Error(ErrorCode::kFenced, reason));
  rounds_.end_all(context_, log_, reason);
  claim_.note_epoch(seen.epoch);
  names_.begin_epoch();
  begin_claim();
}

void Coordinator::gather() {
  if (claim_.gather(context_)) begin_claim();
}

void Coordinator::begin_claim() {
  if (const Result<> begun = claim_.begin(context_, log_); !begun) stop(begun.error());
}

void Coordinator::finish_claim() {
  if (!claim_.finish(context_)) return;
  if (context_.options.forget_after.count() > 0)
    forget_absent_at_ = context_.now + context_.options.forget_after;
  if (rounds_.follow_newest(context_, log_)) {
    context_.emit(Ready{.fence = record().fence, .target = log_.pending()->target});
    return;
  }
  context_.emit(Ready{.fence = record().fence, .target = record().target});
  for (auto& [name, member] : context_.roster.change_all())
    rounds_.catch_up(context_, log_, member);
}

void Coordinator::stop(const Error& why) {
  rounds_.end_all(context_, log_, why.message());
  log_.abandon();
  claim_.stop(context_, why);
}

// ---- views ----

CoordinatorPhase Coordinator::phase() const noexcept {
  switch (claim_.state()) {
    case FenceClaimState::kGathering:
      return CoordinatorPhase::kGathering;
    case FenceClaimState::kStoring:
    case FenceClaimState::kWelcoming:
      return CoordinatorPhase::kClaiming;
    case FenceClaimState::kClaimed:
      return rounds_.round() == nullptr ? CoordinatorPhase::kReady
                                        : phase_of(rounds_.round()->state());
    case FenceClaimState::kStopped:
      break;
  }
  return CoordinatorPhase::kStopped;
}

std::optional<TimePoint> Coordinator::next_wake() const {
  std::optional<TimePoint> wake = rounds_.waiting_deadline();
  const auto by = [&wake](const std::optional<TimePoint>& at) {
    if (at && (!wake || *at < *wake)) wake = at;
  };
  by(queued_deadline_);
  if (!log_.is_storing()) by(claim_.deadline());
  if (log_.is_storing() || claim_.is_claimed()) by(log_.next_wake());
  if (!log_.is_storing() && claim_.is_claimed()) {
    by(rounds_.next_wake());
    by(forget_absent_at_);
  }
  return wake;
}

Result<Version> Coordinator::next_version(std::uint64_t step) const {
  if (!claim_.is_claimed())
    return fail(ErrorCode::kBusy, fmt::format("the coordinator is {}; no sidecar has joined it yet",
                                              phase_name(phase())));
  return names_.next(static_cast<std::uint32_t>(record().fence.epoch), step);
}

Coordinator::Moved Coordinator::moved_bytes() const {
  return rounds_.round() == nullptr ? Moved{} : rounds_.round()->moved(context_);
}

std::string Coordinator::transport_problems() const {
  return coordinator::transport_problems(context_.options, context_.roster);
}

bool Coordinator::may_stream() const {
  return claim_.is_claimed() && !log_.is_storing() && rounds_.may_begin(log_) &&
         has_copying_member(context_);
}

bool Coordinator::may_hold_changes() const { return all_take_changes(context_); }

bool Coordinator::has_update(const Version& version) const noexcept {
  return rounds_.has_update(version) || find_publish(queue_, version) != queue_.end();
}

std::set<std::string> Coordinator::known_sidecars() const {
  std::set<std::string> names(record().members.begin(), record().members.end());
  for (const auto& [name, member] : context_.roster.members()) names.insert(name);
  return names;
}

control::StatusReply Coordinator::status() const {
  control::StatusReply reply;
  reply.role = "coordinator";
  reply.fence = record().fence;
  reply.decision = record().number;
  reply.target = record().target;
  reply.withdrawn = record().withdrawn;
  if (const auto to = log_.rollback_target(context_.roster)) {
    reply.can_roll_back = true;
    reply.rollback_target = *to;
  }
  reply.activity = phase_name(phase());
  if (context_.options.serves_other_hosts)
    reply.data_security =
        context_.options.security == DataSecurity::kTls ? "tls" : "trusted_network";
  if (const std::vector<std::string> names = awaited(); !names.empty())
    reply.activity += fmt::format("; waits for sidecars of its record: {}", fmt::join(names, ", "));
  if (log_.is_storing()) reply.activity += "; its record is being stored";
  if (!context_.has_publisher) reply.activity += fmt::format("; {}", control::kNoTrainer);
  if (const UpdateRound* round = rounds_.round(); round != nullptr)
    reply.activity += fmt::format(" {}{}", round->kind() == RoundKind::kRollback ? "back to " : "",
                                  round->version().to_string()) +
                      (round->is_complete() ? "" : ", whose snapshot is under way");
  if (const Canary& canary = rounds_.canary(); canary.holds()) {
    reply.activity += fmt::format(
        "; {} is only on the canary '{}', and {} other replica{}: `wsync promote` or `wsync "
        "rollback` ends that",
        record().target.to_string(), canary.name(), canary.behind(),
        canary.behind() == 1 ? " waits" : "s wait");
    if (const Version next = rounds_.waiting_version(); !next.none())
      reply.activity += fmt::format(", and then {} is published", next.to_string());
  }
  if (const std::uint32_t waiting = rounds_.waves().waiting(); waiting > 0) {
    reply.activity += fmt::format("; {} replica{} waiting for {} turn", waiting,
                                  waiting == 1 ? " is" : "s are", waiting == 1 ? "its" : "their");
    if (const std::uint32_t limit = context_.options.max_paused; limit > 0)
      reply.activity += fmt::format(" (max_paused: {})", limit);
  }
  for (const auto& [name, member] : context_.roster.members()) {
    reply.sidecars.push_back(member.report);
    reply.sidecars.back().staged_bytes = member.staged_bytes;
  }
  return reply;
}

Result<> Coordinator::invariants() const {
  WSYNC_TRY(own_invariants());
  WSYNC_TRY(context_.roster.invariants());
  return rounds_.member_invariants(context_, log_);
}

Result<> Coordinator::own_invariants() const {
  const auto broken = [](std::string rule) { return fail(ErrorCode::kInternal, std::move(rule)); };
  WSYNC_TRY(claim_.invariants());
  WSYNC_TRY(log_.invariants());
  WSYNC_TRY(rounds_.invariants(log_));
  if (context_.fence != record().fence) return broken("messages are sent under another fence");
  if (rounds_.round() != nullptr && !claim_.is_claimed())
    return broken("a round runs under a fence that is not claimed");
  if ((claim_.state() == FenceClaimState::kStoring) !=
      (log_.state() == DecisionLogState::kStoringClaim))
    return broken("the claim and the log disagree on whether a claim is being stored");
  const Version& target = record().target;
  if (phase() == CoordinatorPhase::kReady && !target.none() &&
      contains(record().withdrawn, target) && !log_.leaves_target())
    return broken(fmt::format("the target {} is withdrawn", target.to_string()));
  return {};
}

}  // namespace wsync::coordinator
