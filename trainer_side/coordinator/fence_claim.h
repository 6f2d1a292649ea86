// FenceClaim: the process by which a coordinator becomes the leader of a fleet. It gathers the
// Hellos of sidecars, chooses the fleet and the epoch, stores its claim, welcomes the sidecars, and
// waits until they have joined under the new fence. It also decides which sidecars may join.
//
// Thread: confined to one thread. No I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shared/base/transitions.h"
#include "trainer_side/coordinator/coordinator_context.h"
#include "trainer_side/coordinator/decision_log.h"

namespace wsync::coordinator {

enum class FenceClaimState : std::uint8_t {
  kGathering,  // collecting Hellos
  kStoring,    // the fence is chosen; sent to nobody before it is stored
  kWelcoming,  // stored; waiting for Hellos under the fence
  kClaimed,    // rounds may run
  kStopped,    // this coordinator must not act any more
};
[[nodiscard]] std::string_view fence_claim_state_name(FenceClaimState state) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable fence_claim_transitions();

class FenceClaim {
 public:
  explicit FenceClaim(const CoordinatorOptions& options);

  [[nodiscard]] FenceClaimState state() const noexcept { return state_; }
  [[nodiscard]] bool is_claimed() const noexcept { return state_ == FenceClaimState::kClaimed; }
  // Why this coordinator has stopped; std::nullopt if it has not.
  [[nodiscard]] const std::optional<Stopped>& stopped() const noexcept { return stopped_; }
  // The fleet's id; none if it is not known yet.
  [[nodiscard]] const control::FleetId& fleet() const noexcept { return fleet_; }
  // When the wait of this state ends; std::nullopt if it has no time limit.
  [[nodiscard]] const std::optional<TimePoint>& deadline() const noexcept { return deadline_; }
  // While gathering: names in the record whose sidecars have not arrived; otherwise empty.
  [[nodiscard]] std::vector<std::string> awaited(const CoordinatorContext& context) const;

  // ---- who may join ----

  // Whether a fence belongs to another fleet.
  [[nodiscard]] bool is_foreign(const control::Fence& fence) const;
  // Whether this coordinator may still join another fleet, because nothing binds it to its own.
  [[nodiscard]] bool may_change_fleet(const DecisionLog& log) const;
  // The sidecar with this fence binds this coordinator to its fleet. The next claim must be above
  // its epoch.
  void change_fleet(const control::Fence& own, const control::Fence& seen);
  // Returns kRefused, with the reason, if the Hello cannot be from a sidecar of this fleet: the
  // fleet is another one, its record is damaged, or another connected process has the same name.
  [[nodiscard]] Result<> check_hello(const CoordinatorContext& context,
                                     const CoordinatorRecord& record, const PeerMessage& event,
                                     const control::Hello& hello) const;
  // Answers with `why`. The operators of this fleet are notified once for each reason.
  void refuse(CoordinatorContext& context, const std::string& peer, const std::string& why);

  // ---- the claim ----

  // The first event starts the wait for the sidecars in the record.
  void note_event(TimePoint now);
  // A Hello has arrived while gathering.
  void note_hello(TimePoint now, const control::Fence& said_under, const control::Hello& hello);
  // A higher fence was seen, so the next claim must be above it.
  void note_epoch(std::uint64_t epoch);
  // While gathering: returns true if no further sidecar is awaited; otherwise sets the deadline.
  [[nodiscard]] bool gather(const CoordinatorContext& context);
  // Chooses a fence above all known fences and stores it. Returns kFenced if no epoch is left;
  // kRefused if the sidecars name different fleets.
  [[nodiscard]] Result<> begin(CoordinatorContext& context, DecisionLog& log);
  // The claim is stored. Asks every known sidecar for a Hello under it.
  void handle_stored(CoordinatorContext& context, const CoordinatorRecord& record);
  // The wait for Hellos has ended. Returns false if no sidecar has joined; the wait then begins
  // again.
  [[nodiscard]] bool finish(const CoordinatorContext& context);
  void stop(CoordinatorContext& context, const Error& why);

  // `request`: the Hello that this answers; 0 asks for a Hello.
  void welcome(CoordinatorContext& context, Member& member, std::uint64_t request) const;
  // A sidecar that counted as lost has sent a message without noticing the loss. Asks it for a
  // Hello.
  void welcome_back(CoordinatorContext& context, const PeerMessage& event);

  // Returns kInternal with the first broken rule.
  [[nodiscard]] Result<> invariants() const;

 private:
  void move(FenceClaimState to);
  [[nodiscard]] Result<control::FleetId> choose_fleet(const CoordinatorContext& context) const;

  FenceClaimState state_ = FenceClaimState::kGathering;
  std::optional<TimePoint> deadline_;
  control::FleetId fleet_;           // none: not known yet
  bool fleet_binds_ = false;         // it was configured, or a decision was made under it
  std::uint64_t highest_epoch_ = 0;  // highest epoch seen
  std::optional<TimePoint> began_;
  std::optional<TimePoint> first_hello_;
  std::optional<TimePoint> stranger_welcomed_;
  std::set<std::string> told_;  // reasons of refusals that were reported
  std::optional<Stopped> stopped_;
};

}  // namespace wsync::coordinator
