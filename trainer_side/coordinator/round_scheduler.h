// RoundScheduler: which update runs and which one waits, and what each sidecar needs meanwhile. It
// does what the round that runs says comes next, and brings sidecars that are in no round to the
// target (they catch up).
//
// A newer publish takes the place of the one that waits. A rollback waits for nothing: it is
// refused while a round runs.
//
// More than 25 methods and 350 lines: a failed delivery can end a round, and the end of a round
// begins the next one and new deliveries. Dividing them would only turn these calls into
// call-backs.
//
// Thread: one. No I/O. All but the views are called only once the fence is claimed, and while
// nothing is being stored, unless they say otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trainer_side/coordinator/coordinator_context.h"
#include "trainer_side/coordinator/decision_log.h"
#include "trainer_side/coordinator/held_versions.h"
#include "trainer_side/coordinator/update_round.h"

namespace wsync::coordinator {

// The end of a publish that never became a round, or no longer can.
enum class PublishRefusal : std::uint8_t { kFailed, kSuperseded, kCancelled };
void refuse_publish(CoordinatorContext& context, const PublishRequested& publish,
                    const std::string& why, PublishRefusal kind = PublishRefusal::kFailed);
// The end of a rollback that was not decided.
void refuse_rollback(CoordinatorContext& context, const CoordinatorRecord& record,
                     const RollbackRequested& rollback, const std::string& why);
// The reason in the reply of a publish that a request to cancel has ended.
inline constexpr std::string_view kCancelledReason =
    "cancelled on request; the engines keep the version they serve";

class RoundScheduler {
 public:
  // ---- requests ----

  // A snapshot under a version that may be used. Its round begins, or it waits for the round's end.
  void publish(CoordinatorContext& context, const PublishRequested& event);
  void roll_back(CoordinatorContext& context, DecisionLog& log, const RollbackRequested& event);
  // Also while a decision is being stored.
  [[nodiscard]] control::CancelReply cancel(CoordinatorContext& context, DecisionLog& log,
                                            const Version& version);
  // Ends the round and what waits, because this coordinator stops or claims anew. Also while a
  // decision is being stored.
  void end_all(CoordinatorContext& context, DecisionLog& log, const std::string& why);

  // ---- sidecars ----

  // A message of a sidecar that has joined, under the fence. Also before the fence is claimed.
  void handle(CoordinatorContext& context, DecisionLog& log, Member& member,
              const control::Envelope& envelope, const control::Message& message);
  // Its connection or its process is gone. Also before the fence is claimed.
  void handle_lost(CoordinatorContext& context, DecisionLog& log, Member& member);
  // A member of the round that switches has come back: it is asked again.
  void resume_switch(CoordinatorContext& context, const DecisionLog& log, Member& member);
  // Offers the target to a sidecar that lacks it, or tells it the newest decision.
  void catch_up(CoordinatorContext& context, const DecisionLog& log, Member& member);
  // Decides what the newest of all known decisions has chosen, if that is not the target. True when
  // it did.
  bool follow_newest(CoordinatorContext& context, DecisionLog& log);

  // ---- the store and the clock ----

  // The decision is stored: now it is told.
  void handle_stored(CoordinatorContext& context, DecisionLog& log,
                     const std::optional<RollbackRequested>& rollback);
  // The decision of the round, or of no round, could not be stored.
  void handle_not_stored(CoordinatorContext& context, DecisionLog& log, const std::string& why);
  // Refuses what has waited too long. Also while a decision is being stored.
  void expire_waiting(CoordinatorContext& context);
  void handle_tick(CoordinatorContext& context, DecisionLog& log);

  // ---- views ----

  // The round that runs; null when none does.
  [[nodiscard]] const UpdateRound* round() const noexcept { return round_ ? &*round_ : nullptr; }
  [[nodiscard]] bool is_in_round(const Member& member) const {
    return round_ && round_->has(member);
  }
  // Whether a round of this version runs or waits; with 0.0, whether a round runs.
  [[nodiscard]] bool has_update(const Version& version) const noexcept;
  [[nodiscard]] std::optional<TimePoint> waiting_deadline() const;
  [[nodiscard]] std::optional<TimePoint> next_wake(const CoordinatorContext& context,
                                                   const DecisionLog& log) const;
  // kInternal with the first broken rule.
  [[nodiscard]] Result<> invariants(const CoordinatorContext& context,
                                    const DecisionLog& log) const;

 private:
  void start(CoordinatorContext& context, const PublishRequested& publish);
  void advance(CoordinatorContext& context, DecisionLog& log);
  void stage_all(CoordinatorContext& context, DecisionLog& log);
  void decide(CoordinatorContext& context, DecisionLog& log, const DecisionChoice& choice,
              std::optional<RollbackRequested> rollback = std::nullopt);
  void handle_deadline(CoordinatorContext& context, DecisionLog& log);
  void abort(CoordinatorContext& context, DecisionLog& log, const std::string& why,
             bool cancelled = false);
  void finish(CoordinatorContext& context, DecisionLog& log);
  // After a round: what the fleet needs before the next one.
  void conclude(CoordinatorContext& context, DecisionLog& log);
  void settle(CoordinatorContext& context, const DecisionLog& log);
  void start_waiting(CoordinatorContext& context, const DecisionLog& log);
  void drop_unneeded(CoordinatorContext& context, const DecisionLog& log);

  void handle_accept(CoordinatorContext& context, DecisionLog& log, Member& member);
  void handle_refuse(CoordinatorContext& context, DecisionLog& log, Member& member,
                     const control::Refuse& refuse);
  void handle_staged(CoordinatorContext& context, DecisionLog& log, Member& member,
                     const control::Staged& staged);
  void handle_heartbeat(CoordinatorContext& context, DecisionLog& log, Member& member,
                        const control::Heartbeat& heartbeat);
  void stage(CoordinatorContext& context, DecisionLog& log, Member& member);
  void fail_delivery(CoordinatorContext& context, DecisionLog& log, Member& member,
                     const std::string& why);
  // Lets the members that read from a lost one read from another source.
  void bridge(CoordinatorContext& context, DecisionLog& log, const Member& lost);
  // False when the sidecar holds the target, or its snapshot is not here.
  [[nodiscard]] bool announce_target(CoordinatorContext& context, const DecisionLog& log,
                                     Member& member);
  [[nodiscard]] std::string chain_source(const CoordinatorContext& context,
                                         const Member& member) const;

  std::optional<UpdateRound> round_;
  std::optional<PublishRequested> waiting_;
  HeldVersions held_;
  bool ending_ = false;  // in end_all(): nothing new begins
};

}  // namespace wsync::coordinator
