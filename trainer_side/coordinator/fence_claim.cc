#include "trainer_side/coordinator/fence_claim.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/liveness.h"
#include "shared/base/planted.h"
#include "shared/base/weight_limits.h"

namespace wsync::coordinator {
namespace {

constexpr std::array<Transition<FenceClaimState>, 14> kClaimTransitions = {{
    {FenceClaimState::kGathering, "the claim begins", FenceClaimState::kStoring, "Store"},
    {FenceClaimState::kStoring, "the claim is stored", FenceClaimState::kWelcoming,
     "Welcome to every sidecar that is known"},
    {FenceClaimState::kWelcoming, "the deadline passes and no sidecar has joined",
     FenceClaimState::kWelcoming, "wait again"},
    {FenceClaimState::kWelcoming,
     "every known sidecar has joined, or the deadline passes and one has",
     FenceClaimState::kClaimed, "follow the newest decision"},
    {FenceClaimState::kWelcoming, "a decided sidecar names another fleet",
     FenceClaimState::kStoring, "claim its next epoch"},
    {FenceClaimState::kWelcoming, "a higher fence is seen, with --take-over",
     FenceClaimState::kStoring, "claim above it"},
    {FenceClaimState::kClaimed, "a decided sidecar names another fleet", FenceClaimState::kStoring,
     "end the rounds; claim its next epoch"},
    {FenceClaimState::kClaimed, "a higher fence is seen, with --take-over",
     FenceClaimState::kStoring, "end the rounds; claim above it"},
    {FenceClaimState::kGathering,
     "the fleet or an epoch cannot be chosen, or another process takes the address",
     FenceClaimState::kStopped, "fail the requested operations"},
    {FenceClaimState::kStoring, "the claim cannot be stored in time", FenceClaimState::kStopped,
     "fail the requested operations"},
    {FenceClaimState::kWelcoming, "a higher fence is seen, or the store or the address is taken",
     FenceClaimState::kStopped, "fail the requested operations"},
    {FenceClaimState::kClaimed, "a higher fence is seen, or the store or the address is taken",
     FenceClaimState::kStopped, "fail the requested operations"},
    {FenceClaimState::kClaimed, "a decision is not stored in time", FenceClaimState::kStopped,
     "fail the requested operations"},
    {FenceClaimState::kStopped, "any event", FenceClaimState::kStopped, "refuse or drop it"},
}};

const std::chrono::milliseconds kWelcomeAgain{limits::kHeartbeatDeadlineMs / 2};
constexpr std::size_t kToldMax = 64;  // maximum number of remembered refusals

Result<> check_record(const CoordinatorContext& context, const CoordinatorRecord& record,
                      const control::Fence& said_under, const control::Hello& hello) {
  const auto refuse = [](std::string why) { return fail(ErrorCode::kRefused, std::move(why)); };
  if (hello.decision.fence.epoch > limits::kEpochMax)
    return refuse(fmt::format("it reports fence epoch {}, but at most {} is allowed",
                              hello.decision.fence.epoch, limits::kEpochMax));
  if (hello.decision.fence == record.fence && hello.decision.number > record.number)
    return refuse(fmt::format("it reports decision {} of this coordinator, which has taken only {}",
                              hello.decision.number, record.number));
  if (hello.decision.fence > said_under)
    return refuse(
        fmt::format("it reports a decision under fence epoch {}, above its own fence epoch {}",
                    hello.decision.fence.epoch, said_under.epoch));
  if (const control::FleetId& fleet = hello.decision.fence.fleet;
      !fleet.none() && fleet != said_under.fleet)
    return refuse(fmt::format("its decision is of fleet {}, but it belongs to fleet {}",
                              fleet.to_string(), said_under.fleet.to_string()));
  if (!hello.origin.none() && (hello.decision.none() || hello.origin > hello.decision))
    return refuse("its decision is older than the origin of that decision");
  for (const auto* versions : {&hello.staged, &hello.withdrawn})
    for (const Version& version : *versions)
      if (version.step > limits::kStepMax)
        return refuse(fmt::format("it reports version {}, whose step is above the limit",
                                  version.to_string()));
  if (hello.target.step > limits::kStepMax)
    return refuse(fmt::format("it reports target {}, whose step is above the limit",
                              hello.target.to_string()));
  if (context.roster.find(hello.name) == nullptr && context.roster.size() >= limits::kSidecarCount)
    return refuse(fmt::format(
        "this coordinator already knows {} sidecars, the maximum; give the new one the name of one "
        "that it replaces, or forget one that no longer exists (`wsync forget`)",
        context.roster.size()));
  return {};
}

// A name stands for one process. If messages of two processes with one name alternated, data stored
// by one of them would be attributed to the other.
Result<> check_name(const Roster& roster, const PeerMessage& event, const control::Hello& hello) {
  if (const Member* other = roster.find_peer(event.peer);
      other != nullptr && other->name != hello.name)
    return fail(ErrorCode::kRefused,
                fmt::format("it is already connected as sidecar '{}'", other->name));
  const Member* known = roster.find(hello.name);
  if (known == nullptr) return {};
  const Member& member = *known;
  if (member.peer.empty() || member.peer == event.peer || event.predecessor_gone ||
      planted("names_taken_in_turns"))
    return {};
  return fail(ErrorCode::kRefused,
              fmt::format("process {} on {} is connected under this name; process {} on {} is "
                          "refused while the first one runs: give one of them another name",
                          member.report.pid, member.report.host, hello.pid, hello.host));
}

}  // namespace

std::string_view fence_claim_state_name(FenceClaimState state) noexcept {
  switch (state) {
    case FenceClaimState::kGathering:
      return "gathering";
    case FenceClaimState::kStoring:
      return "storing";
    case FenceClaimState::kWelcoming:
      return "welcoming";
    case FenceClaimState::kClaimed:
      return "claimed";
    case FenceClaimState::kStopped:
      return "stopped";
  }
  return "unknown";
}

TransitionTable fence_claim_transitions() {
  return describe<FenceClaimState>("FenceClaim", "How a coordinator becomes the leader of a fleet.",
                                   kClaimTransitions, fence_claim_state_name);
}

FenceClaim::FenceClaim(const CoordinatorOptions& options)
    : fleet_(options.fleet_id), fleet_binds_(!options.fleet_id.none()) {
  if (!options.record) return;
  highest_epoch_ = options.record->fence.epoch;
  WSYNC_CHECK(highest_epoch_ <= limits::kEpochMax, "the stored epoch is checked where it is read");
  if (fleet_.none()) fleet_ = options.record->fence.fleet;
  fleet_binds_ = fleet_binds_ || !options.record->origin.none();
}

void FenceClaim::move(FenceClaimState to) {
  WSYNC_CHECK(allows<FenceClaimState>(kClaimTransitions, state_, to),
              fmt::format("FenceClaim cannot go from {} to {}", fence_claim_state_name(state_),
                          fence_claim_state_name(to)));
  state_ = to;
}

// ---- who may join ----

bool FenceClaim::is_foreign(const control::Fence& fence) const {
  return !fleet_.none() && !fence.fleet.none() && fence.fleet != fleet_ &&
         !planted("fleets_not_compared");
}

// A fleet id is binding from the first decision under it. Before that, this coordinator adopts the
// id of the first fleet whose sidecar connects: a sidecar without a record may have connected
// earlier than the real sidecars of the fleet.
bool FenceClaim::may_change_fleet(const DecisionLog& log) const {
  const bool decided = !log.record().origin.none() || log.is_storing();
  return !fleet_binds_ && !decided;
}

void FenceClaim::change_fleet(const control::Fence& own, const control::Fence& seen) {
  fleet_ = seen.fleet;
  fleet_binds_ = true;
  highest_epoch_ = std::max({highest_epoch_, own.epoch, seen.epoch});
}

Result<> FenceClaim::check_hello(const CoordinatorContext& context, const CoordinatorRecord& record,
                                 const PeerMessage& event, const control::Hello& hello) const {
  WSYNC_TRY(check_record(context, record, event.envelope.fence, hello));
  return check_name(context.roster, event, hello);
}

// Notify once only, because a refused sidecar repeats its Hello.
void FenceClaim::refuse(CoordinatorContext& context, const std::string& peer,
                        const std::string& why) {
  ++context.dropped;
  context.send_refusal(peer, why);
  if (told_.size() >= kToldMax) told_.clear();
  if (told_.insert(why).second) context.emit(Incident{.text = why, .refusal = true});
}

// ---- the claim ----

std::vector<std::string> FenceClaim::awaited(const CoordinatorContext& context) const {
  std::vector<std::string> names;
  if (state_ != FenceClaimState::kGathering || !context.options.record) return names;
  for (const std::string& name : context.options.record->members)
    if (context.roster.find(name) == nullptr) names.push_back(name);
  return names;
}

void FenceClaim::note_event(TimePoint now) {
  if (!began_) began_ = now;
}

void FenceClaim::note_hello(TimePoint now, const control::Fence& said_under,
                            const control::Hello& hello) {
  highest_epoch_ = std::max({highest_epoch_, said_under.epoch, hello.decision.fence.epoch});
  if (!first_hello_) first_hello_ = now;
}

void FenceClaim::note_epoch(std::uint64_t epoch) {
  highest_epoch_ = std::max(highest_epoch_, epoch);
}

bool FenceClaim::gather(const CoordinatorContext& context) {
  deadline_.reset();
  const std::size_t known = context.roster.size();
  if (known == 0 || !first_hello_) return false;
  const TimePoint window = *first_hello_ + context.options.gather;
  if (context.now < window && (fleet_.none() || known < context.options.min_sidecars))
    deadline_ = window;
  const TimePoint recorded = *began_ + context.options.gather_recorded;
  if (context.now < recorded && !awaited(context).empty())
    deadline_ = std::max(recorded, deadline_.value_or(recorded));
  return !deadline_;
}

// The fleet's id is that of the record or the configuration, otherwise the one that the sidecars
// name, otherwise a new one. If the sidecars name two ids, both cannot be right, and a wrong choice
// would lock out a fleet.
Result<control::FleetId> FenceClaim::choose_fleet(const CoordinatorContext& context) const {
  if (!fleet_.none()) return fleet_;
  control::FleetId any = context.options.new_fleet_id;
  std::set<control::FleetId> binding;
  std::string who;
  for (const auto& [name, member] : context.roster.members()) {
    if (member.fleet.none()) continue;
    any = member.fleet;
    if (member.decision.none() || !binding.insert(member.fleet).second) continue;
    who +=
        fmt::format("{}'{}' reports {}", who.empty() ? "" : ", ", name, member.fleet.to_string());
  }
  if (binding.size() > 1)
    return fail(
        ErrorCode::kRefused,
        fmt::format("sidecars of different fleets have connected to this coordinator, which has no "
                    "record of its own: {}; set fleet_id to the fleet that it should lead",
                    who));
  return binding.empty() ? any : *binding.begin();
}

Result<> FenceClaim::begin(CoordinatorContext& context, DecisionLog& log) {
  if (highest_epoch_ >= limits::kEpochMax)
    return fail(ErrorCode::kFenced,
                fmt::format("this fleet has reached fence epoch {}, and {} is the highest one: no "
                            "coordinator can claim above it; stop its trainers and sidecars and "
                            "delete the contents of their state_dirs",
                            highest_epoch_, limits::kEpochMax));
  const control::FleetId fleet = WSYNC_TRY(choose_fleet(context));
  move(FenceClaimState::kStoring);
  deadline_.reset();
  log.store_claim(context,
                  {.epoch = highest_epoch_ + 1, .run_id = context.options.run_id, .fleet = fleet});
  return {};
}

void FenceClaim::handle_stored(CoordinatorContext& context, const CoordinatorRecord& record) {
  move(FenceClaimState::kWelcoming);
  fleet_ = record.fence.fleet;
  fleet_binds_ |= !record.origin.none();
  for (const auto& [name, member] : context.roster.members())
    fleet_binds_ |= member.fleet == fleet_ && !member.decision.none();
  deadline_ = context.now + context.options.hello;
  for (auto& [name, member] : context.roster.change_all()) {
    member.joined = false;
    member.delivery.forget();  // belongs to the previous fence
    member.finishes.reset();
    welcome(context, member, 0);
  }
}

bool FenceClaim::finish(const CoordinatorContext& context) {
  if (context.roster.joined_count() == 0) {
    move(FenceClaimState::kWelcoming);
    deadline_ = context.now + context.options.hello;
    return false;
  }
  move(FenceClaimState::kClaimed);
  deadline_.reset();
  return true;
}

void FenceClaim::stop(CoordinatorContext& context, const Error& why) {
  move(FenceClaimState::kStopped);
  deadline_.reset();
  stopped_ = Stopped{.code = why.code(), .reason = why.message()};
  context.emit(*stopped_);
}

void FenceClaim::welcome(CoordinatorContext& context, Member& member, std::uint64_t request) const {
  member.welcomed = context.now;
  context.send(member,
               control::Welcome{.transports = context.options.transports,
                                .trainer = context.options.trainer},
               0, request);
}

void FenceClaim::welcome_back(CoordinatorContext& context, const PeerMessage& event) {
  const auto* beat = std::get_if<control::Heartbeat>(&event.message);
  if (beat == nullptr || state_ == FenceClaimState::kGathering ||
      event.envelope.fence > context.fence)
    return;
  Member* member = context.roster.by_last_peer(event.peer);
  if (member == nullptr && event.envelope.fence.epoch > 0) {
    // A late Hello of the sidecar's dead predecessor has replaced this sidecar. Its own Hello
    // repairs that. (Commands also send heartbeats, without a fence.)
    if (stranger_welcomed_ && context.now - *stranger_welcomed_ < kWelcomeAgain) return;
    stranger_welcomed_ = context.now;
    Member stranger;
    stranger.peer = event.peer;
    welcome(context, stranger, 0);
    return;
  }
  if (member == nullptr || member->joined || context.now - member->welcomed < kWelcomeAgain) return;
  member->peer = event.peer;
  welcome(context, *member, 0);
}

Result<> FenceClaim::invariants() const {
  const auto broken = [this](std::string_view rule) {
    return fail(ErrorCode::kInternal,
                fmt::format("the claim is {} {}", fence_claim_state_name(state_), rule));
  };
  if (state_ == FenceClaimState::kWelcoming && !deadline_) return broken("without a deadline");
  if (state_ != FenceClaimState::kWelcoming && state_ != FenceClaimState::kGathering && deadline_)
    return broken("with a deadline");
  if ((state_ == FenceClaimState::kStopped) != stopped_.has_value())
    return broken("and its reason disagrees");
  if (state_ != FenceClaimState::kGathering && state_ != FenceClaimState::kStopped &&
      fleet_.none() && state_ != FenceClaimState::kStoring)
    return broken("and leads no fleet");
  return {};
}

}  // namespace wsync::coordinator
