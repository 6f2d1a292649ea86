// FenceClaim: how a coordinator comes to lead a fleet. It gathers the Hellos of sidecars, chooses
// the fleet and the epoch, stores its claim, welcomes the sidecars, and waits until they have come
// under the new fence. It also says which sidecars may join.
//
// Thread: one. No I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shared/base/transitions.h"
#include "trainer_side/coordinator/coordinator_context.h"
#include "trainer_side/coordinator/decision_log.h"

namespace wsync::publish {

enum class FenceClaimState : std::uint8_t {
  kGathering,  // collects Hellos
  kStoring,    // the fence is chosen; it is told to nobody before it is stored
  kWelcoming,  // stored; waits for Hellos under the fence
  kClaimed,    // rounds may run
  kStopped,    // this coordinator must not act any more
};
[[nodiscard]] std::string_view fence_claim_state_name(FenceClaimState state) noexcept;
// For the page of the protocol.
[[nodiscard]] TransitionTable fence_claim_transitions();

class FenceClaim {
 public:
  explicit FenceClaim(const CoordinatorOptions& options);

  [[nodiscard]] FenceClaimState state() const noexcept { return state_; }
  [[nodiscard]] bool is_claimed() const noexcept { return state_ == FenceClaimState::kClaimed; }
  // Why this coordinator has stopped; nothing while it has not.
  [[nodiscard]] const std::optional<Stopped>& stopped() const noexcept { return stopped_; }
  // None: not known yet.
  [[nodiscard]] const control::FleetId& fleet() const noexcept { return fleet_; }
  // When the wait of this state is over; nothing while it waits for no time.
  [[nodiscard]] const std::optional<TimePoint>& deadline() const noexcept { return deadline_; }
  // Names of the record whose sidecars have not come; empty unless gathering.
  [[nodiscard]] std::vector<std::string> awaited(const CoordinatorContext& context) const;

  // ---- who may join ----

  // Whether a fence is of another fleet than this one.
  [[nodiscard]] bool is_foreign(const control::Fence& fence) const;
  // Whether this coordinator may still become that of another fleet: nothing binds it to its own.
  [[nodiscard]] bool may_change_fleet(const DecisionLog& log) const;
  // The sidecar of this fence binds this coordinator to its fleet, above its epoch.
  void change_fleet(const control::Fence& own, const control::Fence& seen);
  // kRefused, with what no sidecar of this fleet would say: it is a stranger, its record is
  // damaged, or its name is that of another process that is connected.
  [[nodiscard]] Result<> check_hello(const CoordinatorContext& context,
                                     const CoordinatorRecord& record, const PeerMessage& event,
                                     const control::Hello& hello) const;
  // Answers with `why`. The people of this fleet are told it once.
  void refuse(CoordinatorContext& context, const std::string& peer, const std::string& why);

  // ---- the claim ----

  // The first event counts: from then on sidecars of the record are waited for.
  void note_event(TimePoint now);
  // A Hello has come while gathering.
  void note_hello(TimePoint now, const control::Fence& said_under, const control::Hello& hello);
  // A higher fence has been seen: the next claim goes above it.
  void note_epoch(std::uint64_t epoch);
  // Gathering: true when nothing more is to be waited for; else sets the deadline.
  [[nodiscard]] bool gather(const CoordinatorContext& context);
  // Chooses a fence above all that are known and has it stored. kFenced: there is no epoch left;
  // kRefused: the sidecars name different fleets.
  [[nodiscard]] Result<> begin(CoordinatorContext& context, DecisionLog& log);
  // The claim is stored: every sidecar that is known is asked for a Hello under it.
  void handle_stored(CoordinatorContext& context, const CoordinatorRecord& record);
  // The wait for Hellos is over. False: nobody has joined, and it begins again.
  [[nodiscard]] bool finish(const CoordinatorContext& context);
  void stop(CoordinatorContext& context, const Error& why);

  // `request`: of the Hello that this answers; 0 asks for one.
  void welcome(CoordinatorContext& context, Member& member, std::uint64_t request) const;
  // A sidecar speaks that was taken for lost and has not noticed: it is asked for a Hello.
  void welcome_back(CoordinatorContext& context, const PeerMessage& event);

  // kInternal with the first broken rule.
  [[nodiscard]] Result<> invariants() const;

 private:
  void move(FenceClaimState to);
  [[nodiscard]] Result<control::FleetId> choose_fleet(const CoordinatorContext& context) const;

  FenceClaimState state_ = FenceClaimState::kGathering;
  std::optional<TimePoint> deadline_;
  control::FleetId fleet_;           // none: not known yet
  bool fleet_binds_ = false;         // it was configured, or somebody has taken a decision under it
  std::uint64_t highest_epoch_ = 0;  // that was heard of
  std::optional<TimePoint> began_;
  std::optional<TimePoint> first_hello_;
  std::optional<TimePoint> stranger_welcomed_;
  std::set<std::string> told_;  // why sidecars were refused
  std::optional<Stopped> stopped_;
};

}  // namespace wsync::publish
