// RoundScheduler: decides which update runs, which one waits, and what each sidecar needs
// meanwhile. It executes the next step of the running round, and brings sidecars outside of the
// round to the target (catch-up).
//
// A newer publish replaces the waiting one. A rollback never waits: it is refused while a round is
// running, except one whose replicas switch in turns or that has a canary. That one ends when the
// rollback is decided, because it may take long, and its first replicas may have shown that the
// version is bad.
//
// While only the canary serves the target (Canary::holds), the next publish waits, and a promotion
// gives the target to the others.
//
// This class has more than 25 methods and 350 lines: a failed delivery can end a round, and the end
// of a round begins the next round and new deliveries. Dividing the class would only turn these
// calls into callbacks.
//
// Thread: confined to one thread. No I/O. Unless a comment says otherwise, all functions except the
// views may be called only when the fence is claimed and nothing is being stored.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "trainer_side/coordinator/canary.h"
#include "trainer_side/coordinator/coordinator_context.h"
#include "trainer_side/coordinator/decision_log.h"
#include "trainer_side/coordinator/held_versions.h"
#include "trainer_side/coordinator/slow_members.h"
#include "trainer_side/coordinator/switch_waves.h"
#include "trainer_side/coordinator/update_round.h"

namespace wsync::coordinator {

// Why a publish that waits for the store ends at its deadline.
inline constexpr std::string_view kStoreSilent =
    "the record of this coordinator was being written, which the disk of its state_dir has not "
    "stored yet";

// The end of a publish that has not become a round and no longer can.
enum class PublishRefusal : std::uint8_t { kFailed, kSuperseded, kCancelled };
void refuse_publish(CoordinatorContext& context, const PublishRequested& publish,
                    const std::string& why, PublishRefusal kind = PublishRefusal::kFailed);
// Ends a rollback that was not decided.
void refuse_rollback(CoordinatorContext& context, const CoordinatorRecord& record,
                     const RollbackRequested& rollback, const std::string& why);
// Ends a promotion that was not decided.
void refuse_promotion(CoordinatorContext& context, const CoordinatorRecord& record,
                      const PromoteRequested& promotion, const std::string& why);
// The reason in the reply to a publish that was cancelled.
inline constexpr std::string_view kCancelledReason =
    "cancelled on request; the engines keep the version they serve";

class RoundScheduler {
 public:
  // Reads max_paused, canary and canary_time.
  explicit RoundScheduler(const CoordinatorOptions& options)
      : waves_(options.max_paused), canary_(options.canary, options.canary_time) {}

  // ---- requests ----

  // A snapshot under a version that may be used, complete or not. Its round begins, or waits for
  // the end of the current round, or until the canary no longer holds its version.
  void publish(CoordinatorContext& context, const DecisionLog& log, const PublishRequested& event);
  // The snapshot of a publish that was requested before it was complete. Does nothing if that
  // publish has ended.
  void end_snapshot(CoordinatorContext& context, DecisionLog& log, const SnapshotEnded& event);
  // Does nothing unless that version is waiting.
  void replace_waiting(CoordinatorContext& context, const WaitingReplaced& event);
  void roll_back(CoordinatorContext& context, DecisionLog& log, const RollbackRequested& event);
  // Why no rollback can begin now, but later; std::nullopt: it can.
  [[nodiscard]] std::optional<std::string> why_rollback_waits(const DecisionLog& log) const;
  void promote(CoordinatorContext& context, DecisionLog& log, const PromoteRequested& event);
  // May also be called while a decision is being stored. `reason`: for the reply to its publish.
  [[nodiscard]] control::CancelReply cancel(CoordinatorContext& context, DecisionLog& log,
                                            const Version& version, const std::string& reason);
  // The trainer is gone, with the bytes of its versions. Ends the waiting round, and the running
  // one unless it is decided or every sidecar of it has staged the version.
  void lose_publisher(CoordinatorContext& context, DecisionLog& log, const std::string& why);
  // Ends the running and the waiting round, because this coordinator stops or claims again. May
  // also be called while a decision is being stored.
  void end_all(CoordinatorContext& context, DecisionLog& log, const std::string& why);

  // ---- sidecars ----

  // A message under the fence from a sidecar that has joined. May also be called before the fence
  // is claimed.
  void handle(CoordinatorContext& context, DecisionLog& log, Member& member,
              const control::Envelope& envelope, const control::Message& message);
  // The sidecar's connection or process is gone, for this reason. May also be called before the
  // fence is claimed.
  void handle_lost(CoordinatorContext& context, DecisionLog& log, Member& member,
                   const std::string& why);
  // A member of the switching round has returned. Sends the decision again.
  void resume_switch(CoordinatorContext& context, const DecisionLog& log, Member& member);
  // Forgets a sidecar. It is removed at the end of the event.
  static void forget(CoordinatorContext& context, DecisionLog& log, Member& member,
                     std::string reason);
  // Offers the target to a sidecar that lacks it, or sends it the newest decision.
  void catch_up(CoordinatorContext& context, const DecisionLog& log, Member& member);
  // Decides the target of the newest known decision if it is not the current target. Returns true
  // if it did.
  bool follow_newest(CoordinatorContext& context, DecisionLog& log);

  // ---- the store and the clock ----

  // The decision is stored, so it is sent now.
  void handle_stored(CoordinatorContext& context, DecisionLog& log,
                     const std::optional<RollbackRequested>& rollback);
  // The decision could not be stored; it may belong to a round or not.
  void handle_not_stored(CoordinatorContext& context, DecisionLog& log, const std::string& why);
  // Ends publishes that have waited too long for their round, or for the store to answer. May also
  // be called while a decision is being stored.
  void expire_waiting(CoordinatorContext& context);
  void handle_tick(CoordinatorContext& context, DecisionLog& log);
  // Call it at the end of each event: counts the members that have changed (Roster::changed()),
  // notes when each of them needs something, and gives them turns. Begins the waiting publish if
  // the canary no longer holds its version. May be called at any time.
  void note_changes(CoordinatorContext& context, const DecisionLog& log);

  // ---- views ----

  // The running round; nullptr if there is none.
  [[nodiscard]] const UpdateRound* round() const noexcept { return round_ ? &*round_ : nullptr; }
  [[nodiscard]] const SwitchWaves& waves() const noexcept { return waves_; }
  [[nodiscard]] const Canary& canary() const noexcept { return canary_; }
  [[nodiscard]] bool is_in_round(const Member& member) const {
    return round_ && round_->has(member);
  }
  // Whether a publish that is requested now begins its round at once.
  [[nodiscard]] bool may_begin(const DecisionLog& log) const noexcept;
  // Whether a round of this version is running or waiting; with 0.0, whether a round is running.
  [[nodiscard]] bool has_update(const Version& version) const noexcept;
  // Whether this snapshot is the last one whose round has lost every sidecar (RoundLost), so that
  // it may be requested again under its name.
  [[nodiscard]] bool may_repeat(const PublishRequested& publish) const noexcept;
  // Whether a sidecar may still ask for this version, or will when its round begins.
  [[nodiscard]] bool holds(const Version& version) const {
    return held_.is_with_trainer(version) || (waiting_ && waiting_->version == version);
  }
  // The version that waits for its round; 0.0 = none.
  [[nodiscard]] Version waiting_version() const { return waiting_ ? waiting_->version : Version{}; }
  // Of a publish that waits for its round or for the store. That of one that waits because the
  // canary holds its version does not count.
  [[nodiscard]] std::optional<TimePoint> waiting_deadline() const;
  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  // Both return kInternal with the first broken rule. The first one costs the same for any number
  // of sidecars; the second one checks each of them, after note_changes().
  [[nodiscard]] Result<> invariants(const DecisionLog& log) const;
  [[nodiscard]] Result<> member_invariants(const CoordinatorContext& context,
                                           const DecisionLog& log) const;

 private:
  void start(CoordinatorContext& context, const DecisionLog& log, const PublishRequested& publish);
  void advance(CoordinatorContext& context, DecisionLog& log);
  void stage_all(CoordinatorContext& context, DecisionLog& log);
  // The content digest is known: sends it to those that read, and a source to those that waited.
  void stage_complete(CoordinatorContext& context, DecisionLog& log);
  void decide(CoordinatorContext& context, DecisionLog& log, const DecisionChoice& choice,
              std::optional<RollbackRequested> rollback = std::nullopt);
  void handle_deadline(CoordinatorContext& context, DecisionLog& log);
  void abort(CoordinatorContext& context, DecisionLog& log, const std::string& why,
             bool cancelled = false);
  // Whether every sidecar of the running round has staged its version.
  [[nodiscard]] bool has_staged(const CoordinatorContext& context) const;
  // Ends the running round of a publish that is kept.
  void give_back(CoordinatorContext& context, DecisionLog& log, const std::string& why);
  // The round has no members any more.
  void lose(CoordinatorContext& context, DecisionLog& log);
  void report_lost(CoordinatorContext& context, const PublishRequested& publish, std::string why);
  void finish(CoordinatorContext& context, DecisionLog& log);
  // After a round: does what the fleet needs before the next one.
  void conclude(CoordinatorContext& context, DecisionLog& log);
  void settle(CoordinatorContext& context, const DecisionLog& log);
  void start_waiting(CoordinatorContext& context, const DecisionLog& log);
  // The round has been decided and ends before all its replicas have switched.
  void end_decided(CoordinatorContext& context, const DecisionLog& log, const std::string& why);
  void withdraw_offer(CoordinatorContext& context, const Version& version, const std::string& why);
  void note_canary(CoordinatorContext& context, const DecisionLog& log);
  void note_held(TimePoint now, const CoordinatorRecord& record);
  void drop_unneeded(CoordinatorContext& context, const DecisionLog& log);

  void handle_accept(CoordinatorContext& context, DecisionLog& log, Member& member);
  void handle_refuse(CoordinatorContext& context, DecisionLog& log, Member& member,
                     const control::Refuse& refuse);
  void handle_staged(CoordinatorContext& context, DecisionLog& log, Member& member,
                     const control::Staged& staged);
  void handle_heartbeat(CoordinatorContext& context, DecisionLog& log, Member& member,
                        const control::Heartbeat& heartbeat);
  void handle_relay(CoordinatorContext& context, DecisionLog& log, Member& member,
                    const control::RelayReady& ready);
  void stage(CoordinatorContext& context, DecisionLog& log, Member& member);
  void fail_delivery(CoordinatorContext& context, DecisionLog& log, Member& member,
                     const std::string& why);
  // Gives members that read from a lost member another source.
  void bridge(CoordinatorContext& context, DecisionLog& log, const Member& lost);
  // Returns false if the sidecar holds the target, or if nobody can send it now.
  [[nodiscard]] bool announce_target(CoordinatorContext& context, const DecisionLog& log,
                                     Member& member);
  // From where the sidecar should read; std::nullopt: it waits until another sidecar has been
  // asked to pass its copy on. Errors as choose_transport().
  [[nodiscard]] Result<std::optional<control::TransportAddress>> source_of(
      CoordinatorContext& context, const Member& member) const;

  // When the sidecar next needs something, unless the round does it; std::nullopt: never.
  [[nodiscard]] std::optional<TimePoint> wake_of(const CoordinatorContext& context,
                                                 const DecisionLog& log,
                                                 const Member& member) const;
  void note_wake(const CoordinatorContext& context, const DecisionLog& log, Member& member);
  void note_turns(CoordinatorContext& context, const DecisionLog& log, const Member& member);
  void send_turns(CoordinatorContext& context, const DecisionLog& log, Member& member);
  // Ends the running round and returns it. Every member of it needs something of its own again.
  [[nodiscard]] UpdateRound take_round(CoordinatorContext& context);

  std::optional<UpdateRound> round_;
  std::optional<PublishRequested> waiting_;
  // Of the last RoundLost, if its snapshot was complete.
  struct LostSnapshot {
    Version version;
    Digest content;
  };
  std::optional<LostSnapshot> lost_;
  std::set<std::pair<TimePoint, std::string>> wakes_;  // Member::wake of all members, with names
  HeldVersions held_;
  SlowMembers slow_;
  SwitchWaves waves_;
  Canary canary_;
  std::optional<PromoteRequested> promoting_;  // while its decision is being stored
  std::optional<Version> unanswered_;          // likewise, after the publish's deadline
  // Since when the waiting publish waits because the canary holds its version. Its deadline does
  // not count that time, because an operator may need longer for the promotion.
  std::optional<TimePoint> held_since_;
  bool ending_ = false;  // inside end_all(): nothing new may begin
};

}  // namespace wsync::coordinator
