// Coordinator: which fleet this is, how its fence is claimed, what is stored before anything is
// told, and which decision it goes on from.
#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"
#include "trainer_side/coordinator/update_round.h"

namespace wsync::publish {
namespace {

// Longer than any write to a disc that works takes. After it nobody can know what is stored.
constexpr std::chrono::seconds kStoreDeadline{40};
constexpr std::chrono::seconds kStoreRetry{1};
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
  const bool decided = !record_.origin.none() || pending_;
  if (!fleet_binds_ && !decided) {
    const std::string why =
        fmt::format("sidecar '{}' has named the fleet that this coordinator leads: {}", hello.name,
                    event.envelope.fence.fleet.to_string());
    out_.emplace_back(Incident{.text = why});
    fleet_ = event.envelope.fence.fleet;
    fleet_binds_ = true;
    highest_epoch_ = std::max({highest_epoch_, record_.fence.epoch, event.envelope.fence.epoch});
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
  ++dropped_;
  answer_error(peer, why);
  if (told_.size() >= kToldMax) told_.clear();
  if (told_.insert(why).second) out_.emplace_back(Incident{.text = why, .refusal = true});
}

// The fleet's id: of the record or the configuration, else the one that sidecars have named, else a
// new one. Two different names cannot both be right, and a wrong choice would lock a fleet out.
Result<control::FleetId> Coordinator::choose_fleet() const {
  if (!fleet_.none()) return fleet_;
  control::FleetId any = options_.new_fleet_id;
  std::set<control::FleetId> binding;
  std::string who;
  for (const auto& [name, member] : roster_.members()) {
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
  for (const auto& [name, other] : roster_.members())
    if (other.peer == event.peer && name != hello.name)
      return fmt::format("it is connected as sidecar '{}' already", name);
  const auto known = roster_.members().find(hello.name);
  if (known == roster_.members().end()) return {};
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
  if (phase_ != CoordinatorPhase::kGathering || !options_.record) return names;
  for (const std::string& name : options_.record->members)
    if (!roster_.members().contains(name)) names.push_back(name);
  return names;
}

// Claims as soon as there is nothing more to wait for; else sets deadline_ to when that is over.
void Coordinator::gather_more() {
  deadline_.reset();
  if (roster_.members().empty() || !first_hello_) return;
  std::optional<TimePoint> until;
  const TimePoint window = *first_hello_ + options_.gather;
  if (now_ < window && (fleet_.none() || roster_.members().size() < options_.min_sidecars))
    until = window;
  const TimePoint recorded = *began_ + options_.gather_recorded;
  if (now_ < recorded && !awaited().empty()) until = std::max(recorded, until.value_or(recorded));
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
  CoordinatorRecord next = record_;
  next.fence = {.epoch = highest_epoch_ + 1, .run_id = options_.run_id, .fleet = *fleet};
  next.number = 0;
  store(Storing::kClaim, std::move(next));
}

void Coordinator::claim_stored() {
  fleet_ = record_.fence.fleet;
  fleet_binds_ |= !record_.origin.none();
  for (const auto& [name, member] : roster_.members())
    fleet_binds_ |= member.fleet == fleet_ && !member.decision.none();
  seen_step_ = std::max(seen_step_, record_.target.step);
  deadline_ = now_ + options_.hello;
  for (auto& [name, member] : roster_.members()) {
    member.joined = false;
    member.delivery = {};  // of the fence before
    welcome(member, 0);
  }
}

void Coordinator::finish_claim() {
  if (roster_.joined_count() == 0) {  // nobody answered: go on waiting
    deadline_ = now_ + options_.hello;
    return;
  }
  phase_ = CoordinatorPhase::kReady;
  deadline_.reset();
  if (!follow_newest()) {
    out_.emplace_back(Ready{.fence = record_.fence, .target = record_.target});
    for (auto& [name, member] : roster_.members()) catch_up(member);
    return;
  }
  out_.emplace_back(Ready{.fence = record_.fence, .target = pending_->next.target});
}

void Coordinator::welcome(Member& member, std::uint64_t request) {
  member.welcomed = now_;
  send(member,
       control::Welcome{.host_socket = options_.host_socket, .data_address = options_.data_address},
       0, request);
}

void Coordinator::remember(const std::string& name) {
  if (std::ranges::find(record_.members, name) != record_.members.end()) return;
  // Names that have not come for so long that the list is full make room.
  if (record_.members.size() >= limits::kSidecarCount)
    std::erase_if(record_.members,
                  [this](const std::string& old) { return !roster_.members().contains(old); });
  record_.members.push_back(name);
  members_changed_ = true;
}

// ---- the newest decision ----

// Each decision has an origin: the publish or rollback that first chose its target. A coordinator
// repeats the newest one under its own fence, so a number says nothing about whose target is newer,
// and an origin does. Whoever brings a greater origin raises the target to its own, also late. When
// a target turns out to have been withdrawn, the newest of the others is repeated, under its own
// origin: a new one would override what a sidecar brings that has not come yet.
bool Coordinator::follow_newest() {
  if (phase_ != CoordinatorPhase::kReady || pending_ || ending_) return false;
  CoordinatorRecord newest;
  const auto consider = [&](const control::Decision& origin, const Version& version,
                            const Digest& content) {
    if (version.none() || contains(record_.withdrawn, version)) return;
    if (!newest.target.none() && origin <= newest.origin) return;
    newest.origin = origin;
    newest.target = version;
    newest.content = content;
  };
  consider(record_.origin, record_.target, record_.content);
  for (const auto& [name, member] : roster_.members())
    if (member.joined && !planted("newest_not_followed"))
      consider(member.origin, member.report.target, member.target_content);
  if (newest.target.none()) {
    if (record_.target.none() && !withdrawn_changed_) return false;
    // Nothing is left that may be served. That is told to all as a decision without a target, and
    // the next publish ends it.
    if (!record_.target.none())
      out_.emplace_back(Incident{
          .text = fmt::format("{} was withdrawn by a decision that this coordinator had not heard "
                              "of, and no sidecar names another version: publish one",
                              record_.target.to_string())});
    decide(control::DecisionKind::kRollback, {}, {}, record_.origin);
    return true;
  }
  const bool same = newest.target == record_.target && newest.origin == record_.origin;
  if (same && record_.number > 0 && !withdrawn_changed_) return false;
  follow_again_.reset();
  const bool back = contains(record_.withdrawn, record_.target);
  control::DecisionKind kind =
      back ? control::DecisionKind::kRollback : control::DecisionKind::kSwitch;
  if (newest.target == record_.target) kind = record_.kind;
  decide(kind, newest.target, newest.content, newest.origin);
  return true;
}

// ---- what is stored ----

bool Coordinator::waits_for_store(const CoordinatorEvent& event) const {
  if (!pending_) return false;
  // A request to cancel is answered at once: what is being stored cannot be stopped any more.
  return !std::holds_alternative<Stored>(event.what) &&
         !std::holds_alternative<CoordinatorTick>(event.what) &&
         !std::holds_alternative<CancelRequested>(event.what);
}

void Coordinator::store(Storing what, CoordinatorRecord next,
                        std::optional<RollbackRequested> rollback) {
  members_changed_ = false;  // they go along
  pending_ = Pending{.token = ++token_,
                     .what = what,
                     .deadline = now_ + kStoreDeadline,
                     .rollback = std::move(rollback),
                     .next = std::move(next)};
  out_.emplace_back(Store{.token = pending_->token, .record = pending_->next});
}

void Coordinator::store_members() {
  if (!members_changed_ || pending_ || members_token_ != 0 || phase_ < CoordinatorPhase::kReady ||
      phase_ == CoordinatorPhase::kStopped || (members_again_ && now_ < *members_again_))
    return;
  members_changed_ = false;
  members_again_.reset();
  members_token_ = ++token_;
  out_.emplace_back(Store{.token = members_token_, .record = record_});
}

void Coordinator::on(const Stored& event) {
  if (event.token == members_token_ && members_token_ != 0) {
    members_token_ = 0;
    if (event.failure.empty()) return;
    if (event.fenced) return stop(event.failure);
    members_changed_ = true;
    members_again_ = now_ + kStoreRetry;
    return;
  }
  if (!pending_ || event.token != pending_->token) {
    ++dropped_;
    return;
  }
  if (!event.failure.empty()) return not_stored(event);
  const Pending done = *std::exchange(pending_, std::nullopt);
  const CoordinatorRecord before = std::exchange(record_, event.record);
  if (before.target != record_.target) {
    previous_target_ = before.target;
    previous_content_ = before.content;
    if (done.rollback) rollback_from_ = before.target;
  }
  if (done.what == Storing::kClaim)
    claim_stored();
  else
    decision_stored(done.rollback);
}

void Coordinator::store_deadline() {
  if (now_ < pending_->deadline) return;
  stop(fmt::format("the record of this coordinator could not be written within {} s, so nobody can "
                   "know which decision holds; see to the disc of its state_dir, then start it "
                   "anew",
                   kStoreDeadline.count()),
       ErrorCode::kIo);
}

void Coordinator::not_stored(const Stored& event) {
  const Pending failed = *std::exchange(pending_, std::nullopt);
  members_changed_ = true;
  withdrawn_changed_ = failed.withdrawn_changed;
  if (event.fenced) {
    const std::string fenced = event.failure + "; start with --take-over to claim the fleet";
    if (failed.rollback) refuse_rollback(*failed.rollback, fenced);
    return stop(fenced);
  }
  if (failed.what == Storing::kClaim)
    return stop(
        fmt::format("cannot store fence epoch {}: {}", failed.next.fence.epoch, event.failure),
        ErrorCode::kIo);
  const std::string why = fmt::format(
      "the decision could not be stored, so nobody was told of it "
      "and the fleet stays as it is: {}",
      event.failure);
  if (failed.rollback) {
    refuse_rollback(*failed.rollback, why);
  } else if (round_) {
    abort_round(why);
  } else {
    out_.emplace_back(Incident{.text = why});
    follow_again_ = now_ + kStoreRetry;
    drop_unneeded();
    start_waiting();
  }
}

}  // namespace wsync::publish
