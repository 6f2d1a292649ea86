// Coordinator: which fleet this is, how its fence is claimed, what is stored before anything is
// told, and which decision it goes on from.
#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/coordinator/coordinator.h"

namespace wsync::publish {
namespace {

constexpr std::size_t kToldMax = 64;  // refusals that are remembered as told

}  // namespace

// ---- the fleet ----

bool Coordinator::is_foreign(const control::Fence& fence) const {
  return !fleet_.none() && !fence.fleet.none() && fence.fleet != fleet_ &&
         !planted("fleets_not_compared");
}

// A fleet's id binds with the first decision that is taken under it. Before that a sidecar may
// follow this coordinator, and this coordinator takes the id of the first fleet that comes to it:
// a sidecar without a record may have come sooner than those that the fleet really consists of.
void Coordinator::foreign_hello(const PeerMessage& event, const control::Hello& hello) {
  if (hello.decision.none()) {
    PeerMessage unbound = event;
    unbound.envelope.fence = {};
    on_hello(unbound, hello);
    return;
  }
  const bool decided = !record().origin.none() || log_.is_storing();
  if (!fleet_binds_ && !decided) {
    const std::string why =
        fmt::format("sidecar '{}' has named the fleet that this coordinator leads: {}", hello.name,
                    event.envelope.fence.fleet.to_string());
    context_.emit(Incident{.text = why});
    fleet_ = event.envelope.fence.fleet;
    fleet_binds_ = true;
    highest_epoch_ = std::max({highest_epoch_, record().fence.epoch, event.envelope.fence.epoch});
    const bool claimed = phase_ != CoordinatorPhase::kGathering;
    if (claimed) end_rounds(why);
    if (claimed) claim();
    on_hello(event, hello);
    return;
  }
  refuse_hello(
      event.peer,
      fmt::format("sidecar '{}' cannot join: it belongs to fleet {}, this coordinator leads fleet "
                  "{}; point it at its own coordinator, or, to move it here for good, stop it and "
                  "remove its record from its state_dir",
                  hello.name, event.envelope.fence.fleet.to_string(), fleet_.to_string()));
}

// It says Hello again and again; the people of this fleet are told once.
void Coordinator::refuse_hello(const std::string& peer, const std::string& why) {
  ++context_.dropped;
  context_.send_refusal(peer, why);
  if (told_.size() >= kToldMax) told_.clear();
  if (told_.insert(why).second) context_.emit(Incident{.text = why, .refusal = true});
}

// The fleet's id: of the record or the configuration, else the one that sidecars have named, else a
// new one. Two different names cannot both be right, and a wrong choice would lock a fleet out.
Result<control::FleetId> Coordinator::choose_fleet() const {
  if (!fleet_.none()) return fleet_;
  control::FleetId any = context_.options.new_fleet_id;
  std::set<control::FleetId> binding;
  std::string who;
  for (const auto& [name, member] : context_.roster.members()) {
    if (member.fleet.none()) continue;
    any = member.fleet;
    if (member.decision.none() || !binding.insert(member.fleet).second) continue;
    who += fmt::format("{}'{}' says {}", who.empty() ? "" : ", ", name, member.fleet.to_string());
  }
  if (binding.size() > 1)
    return fail(ErrorCode::kRefused,
                fmt::format("sidecars of different fleets have come to this coordinator, which has "
                            "no record of its own: {}; set fleet_id to the one that it shall lead",
                            who));
  return binding.empty() ? any : *binding.begin();
}

// A name stands for one process. Were two taken in turns for one sidecar, what one has stored would
// be believed of the other.
std::string Coordinator::why_name_is_taken(const PeerMessage& event,
                                           const control::Hello& hello) const {
  for (const auto& [name, other] : context_.roster.members())
    if (other.peer == event.peer && name != hello.name)
      return fmt::format("it is connected as sidecar '{}' already", name);
  const auto known = context_.roster.members().find(hello.name);
  if (known == context_.roster.members().end()) return {};
  const Member& member = known->second;
  if (member.peer.empty() || member.peer == event.peer || event.predecessor_gone ||
      planted("names_taken_in_turns"))
    return {};
  return fmt::format(
      "process {} on {} is connected under this name; process {} on {} is refused while that one "
      "lives: give one of them another name",
      member.report.pid, member.report.host, hello.pid, hello.host);
}

// ---- the claim ----

std::vector<std::string> Coordinator::awaited() const {
  std::vector<std::string> names;
  if (phase_ != CoordinatorPhase::kGathering || !context_.options.record) return names;
  for (const std::string& name : context_.options.record->members)
    if (!context_.roster.members().contains(name)) names.push_back(name);
  return names;
}

// Claims as soon as there is nothing more to wait for; else sets deadline_ to when that is over.
void Coordinator::gather_more() {
  deadline_.reset();
  if (context_.roster.members().empty() || !first_hello_) return;
  std::optional<TimePoint> until;
  const TimePoint window = *first_hello_ + context_.options.gather;
  if (context_.now < window &&
      (fleet_.none() || context_.roster.members().size() < context_.options.min_sidecars))
    until = window;
  const TimePoint recorded = *began_ + context_.options.gather_recorded;
  if (context_.now < recorded && !awaited().empty())
    until = std::max(recorded, until.value_or(recorded));
  if (until)
    deadline_ = until;
  else
    claim();
}

void Coordinator::claim() {
  if (highest_epoch_ >= limits::kEpochMax)
    return stop(fmt::format(
        "this fleet has come to fence epoch {}, and {} is the last one: no coordinator can claim "
        "above it; stop its trainers and sidecars and remove what their state_dirs hold",
        highest_epoch_, limits::kEpochMax));
  const auto fleet = choose_fleet();
  if (!fleet) return stop(fleet.error().message(), fleet.error().code());
  phase_ = CoordinatorPhase::kClaiming;
  deadline_.reset();
  log_.store_claim(
      context_, {.epoch = highest_epoch_ + 1, .run_id = context_.options.run_id, .fleet = *fleet});
}

void Coordinator::claim_stored() {
  fleet_ = record().fence.fleet;
  fleet_binds_ |= !record().origin.none();
  for (const auto& [name, member] : context_.roster.members())
    fleet_binds_ |= member.fleet == fleet_ && !member.decision.none();
  seen_step_ = std::max(seen_step_, record().target.step);
  deadline_ = context_.now + context_.options.hello;
  for (auto& [name, member] : context_.roster.members()) {
    member.joined = false;
    member.delivery = {};  // of the fence before
    welcome(member, 0);
  }
}

void Coordinator::finish_claim() {
  if (context_.roster.joined_count() == 0) {  // nobody answered: go on waiting
    deadline_ = context_.now + context_.options.hello;
    return;
  }
  phase_ = CoordinatorPhase::kReady;
  deadline_.reset();
  if (!follow_newest()) {
    context_.emit(Ready{.fence = record().fence, .target = record().target});
    for (auto& [name, member] : context_.roster.members()) catch_up(member);
    return;
  }
  context_.emit(Ready{.fence = record().fence, .target = log_.pending()->target});
}

void Coordinator::welcome(Member& member, std::uint64_t request) {
  member.welcomed = context_.now;
  context_.send(member,
                control::Welcome{.host_socket = context_.options.host_socket,
                                 .data_address = context_.options.data_address},
                0, request);
}

// ---- what is stored ----

bool Coordinator::waits_for_store(const CoordinatorEvent& event) const {
  if (!log_.is_storing()) return false;
  // A request to cancel is answered at once: what is being stored cannot be stopped any more.
  return !std::holds_alternative<Stored>(event.what) &&
         !std::holds_alternative<CoordinatorTick>(event.what) &&
         !std::holds_alternative<CancelRequested>(event.what);
}

void Coordinator::on(const Stored& event) {
  const StoreOutcome outcome = log_.handle(context_, event);
  if (outcome.failure) return not_stored(outcome);
  if (outcome.ended == StoreOutcome::Ended::kClaim) claim_stored();
  if (outcome.ended == StoreOutcome::Ended::kDecision) decision_stored(outcome.rollback);
}

void Coordinator::not_stored(const StoreOutcome& outcome) {
  const std::string& why = outcome.failure->message();
  if (outcome.rollback) refuse_rollback(*outcome.rollback, why);
  if (outcome.failure->code() == ErrorCode::kFenced) return stop(why);
  if (outcome.ended == StoreOutcome::Ended::kClaim) return stop(why, ErrorCode::kIo);
  if (outcome.rollback) return;
  if (round_) return abort_round(why);
  context_.emit(Incident{.text = why});
  log_.follow_later(context_.now);
  drop_unneeded();
  start_waiting();
}

}  // namespace wsync::publish
