// UpdateRound: one attempt to bring the fleet to a version. A publish is announced, staged, decided
// and switched; a rollback and a promotion begin after they have been decided. The round knows its
// members and its deadline, and decides what comes next; RoundScheduler executes it.
//
// Thread: confined to one thread. No I/O.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/transitions.h"
#include "trainer_side/coordinator/coordinator_context.h"

namespace wsync::coordinator {

enum class RoundState : std::uint8_t {
  kAnnouncing,  // waiting for Accept or Refuse
  kStaging,     // bytes are moving
  kDeciding,    // the decision is being stored: the round can no longer be cancelled
  kSwitching,   // decided; waiting for the sidecars' outcomes
  kFinished,
};
[[nodiscard]] std::string_view round_state_name(RoundState state) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable round_transitions();

// What a round brings the fleet to.
enum class RoundKind : std::uint8_t {
  kPublish,    // a new version
  kRollback,   // an earlier version
  kPromotion,  // the version that only the canary serves
};

// The next step of a round.
enum class RoundStep : std::uint8_t { kWait, kStage, kDecide, kFinish, kAbort };

// Bytes moved in a round so far, and in total.
struct MovedBytes {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
};

// This class has more than 25 methods: half of them are views of one field for the coordinator, its
// tests and its pages.
class UpdateRound {
 public:
  // Begins a round of all sidecars that have joined, except those that it leaves out because they
  // finish the version before it (SlowMembers). Reports the phase that it enters.
  [[nodiscard]] static UpdateRound begin_publish(CoordinatorContext& context,
                                                 const PublishRequested& publish,
                                                 const std::set<std::string>& left_out = {});
  // Begins the round of a rollback that has just been decided. `from`: the previous target, `to`:
  // the current target.
  [[nodiscard]] static UpdateRound begin_rollback(CoordinatorContext& context,
                                                  std::uint64_t request, const Version& from,
                                                  const Version& to);
  // Begins the round of a promotion that has just been decided, to the target `version`.
  [[nodiscard]] static UpdateRound begin_promotion(CoordinatorContext& context,
                                                   std::uint64_t request, const Version& version);

  [[nodiscard]] RoundState state() const noexcept { return state_; }
  [[nodiscard]] RoundKind kind() const noexcept { return kind_; }
  // The version to which the fleet is brought.
  [[nodiscard]] const Version& version() const noexcept { return publish_.version; }
  // Whether the content digest of its version is known. Only then it may be decided.
  [[nodiscard]] bool is_complete() const noexcept { return publish_.is_complete; }
  // Names of the members, in the order of the chain.
  [[nodiscard]] const std::vector<std::string>& members() const noexcept { return members_; }
  [[nodiscard]] bool has(const Member& member) const;
  // Deadline of the current state; never after that of the whole publish.
  [[nodiscard]] TimePoint deadline() const noexcept {
    return hurried_ ? std::min(deadline_, *hurried_) : deadline_;
  }
  // Current activity for messages: "announcing", "staging", "switching".
  [[nodiscard]] std::string_view activity() const noexcept;

  // ---- progress ----

  // `why` completes "sidecar 's0' ...". `is_lost`: it is no longer connected.
  void leave(const Member& member, std::string why, bool is_lost);
  void add_problems(const std::vector<control::Problem>& problems);
  // Returns the next step after a change. `number`: of the newest decision. May start to wait, with
  // a separate deadline, for more complete replicas.
  [[nodiscard]] RoundStep advance(const CoordinatorContext& context, std::uint64_t number);
  // Counts the members again that have changed (Roster::changed()). `number` as above. advance()
  // does this too.
  void count(const CoordinatorContext& context, std::uint64_t number);
  void begin_staging(CoordinatorContext& context);
  // The snapshot of its version is complete, so staging has all of its time from now on.
  void complete_snapshot(const CoordinatorContext& context, const SnapshotEnded& snapshot);
  void begin_deciding();
  void begin_switching(CoordinatorContext& context);
  // The deadline of the switch begins again, because another replica has begun to switch in its
  // turn. Does nothing before the decision.
  void extend_switch(const CoordinatorContext& context);

  // Call it after count(). While another publish waits and only slow members are missing (they are
  // still staging), the round ends when it has lasted twice as long as the other members needed.
  void hurry(const CoordinatorContext& context, bool publish_waits);

  // The canary's name if the member has it and must report its outcome; otherwise empty.
  [[nodiscard]] std::string canary_of(const Member& member) const;

  // ---- end of the round ----

  // Why the round must end at its deadline; std::nullopt if only the members for which is_late() is
  // true fail, or if it is switching.
  [[nodiscard]] std::optional<std::string> why_over(const CoordinatorContext& context) const;
  // When a publish ends although the store has not answered; std::nullopt unless it is deciding.
  [[nodiscard]] std::optional<TimePoint> store_deadline() const;
  [[nodiscard]] bool is_late(const Member& member) const;
  // Returns kRefused, with the reason, if it is too late to cancel the round. `waiting`: the
  // version that waits for the end of this round, null for none.
  [[nodiscard]] Result<> check_cancel(const Version* waiting) const;
  // Why it has no members any more: names those that have left it, and why.
  [[nodiscard]] std::string why_empty() const;
  // Whether its publish is kept, and each member that has left it was lost.
  [[nodiscard]] bool may_be_lost() const noexcept { return publish_.is_kept && !has_failed_; }
  // Ends a round without members, whose publish is kept (may_be_lost).
  void end_lost();
  // Ends the round of a publish before its decision, or a decided one before all have switched.
  [[nodiscard]] RoundDone abort(TimePoint now, const std::string& why, bool cancelled);
  // Ends the round after its decision. Each function is for one kind. `same_as`: the version before
  // it, if that has the same content.
  [[nodiscard]] RoundDone finish_publish(const CoordinatorContext& context, std::uint64_t number,
                                         const Version& same_as = {});
  [[nodiscard]] RollbackDone finish_rollback(const CoordinatorContext& context,
                                             const CoordinatorRecord& record);
  // `why`: not empty if it ends before all have switched.
  [[nodiscard]] PromotionDone finish_promotion(const CoordinatorContext& context,
                                               std::uint64_t number, const std::string& why);

  // ---- views ----

  // From where `member` reads the version by this kind of transport: the nearest earlier member
  // that relays by it, that it reaches and has not lost, otherwise the trainer. `served`: the
  // trainer's address.
  [[nodiscard]] control::TransportAddress chain_source(const CoordinatorContext& context,
                                                       const Member& member,
                                                       control::TransportAddress served) const;
  // Sum over the members while staging, and over their replicas after the decision. Both are 0
  // before staging. The total is 0 unless it is a publish, because it is not known here.
  [[nodiscard]] MovedBytes moved(const CoordinatorContext& context) const;
  // Return kInternal with the first broken rule. The second one counts all members.
  [[nodiscard]] Result<> invariants() const;
  [[nodiscard]] Result<> count_invariants(const CoordinatorContext& context) const;

 private:
  // How far a member is, and the sum over all members.
  struct Standing {
    std::uint32_t accepted = 0;  // members whose delivery is accepted
    std::uint32_t staged = 0;    // members that have staged
    std::uint32_t replicas = 0;  // complete replicas of those
    std::uint32_t canaries = 0;  // of these replicas, those that switch first
    std::uint32_t over = 0;      // members from which no more is expected after the decision
    std::uint32_t slow = 0;      // the other members that are still staging
    friend bool operator==(const Standing&, const Standing&) = default;
  };

  UpdateRound(const CoordinatorContext& context, RoundState state, RoundKind kind,
              const std::set<std::string>& left_out = {});
  void move(RoundState to);
  [[nodiscard]] TimePoint in_time(const CoordinatorContext& context,
                                  std::chrono::milliseconds phase) const;
  [[nodiscard]] control::PushReply decided_reply(TimePoint now) const;
  [[nodiscard]] Standing standing_of(const Member& member) const;
  // Whether the member has stored the decision `number`, which concerns none of its replicas.
  [[nodiscard]] bool owes_nothing(const Member& member, std::uint64_t number) const;
  [[nodiscard]] std::string missing_canary(const CoordinatorContext& context) const;
  // What the members say of replicas that lack ranks, as missing_replicas().
  [[nodiscard]] std::string missing_in_round(const CoordinatorContext& context) const;
  [[nodiscard]] std::string why_none_switched(const CoordinatorContext& context) const;
  void add(const Standing& standing, bool once_more);
  void count_one(const Member& member);
  [[nodiscard]] bool enough_staged(const CoordinatorContext& context) const;

  RoundState state_;
  RoundKind kind_;
  std::string canary_;        // CoordinatorOptions::canary
  PublishRequested publish_;  // unless a publish: only request and version
  std::vector<std::string> members_;
  std::set<std::string> left_out_;
  std::map<std::string, std::string> left_;  // why members have left it, by name
  bool has_failed_ = false;                  // one of them has left it while it was connected
  std::map<std::string, Standing, std::less<>> standings_;  // of each member, as counted in total_
  Standing total_;
  std::set<std::string> canary_members_;      // sidecars that had the canary at the decision
  std::optional<std::uint64_t> counted_for_;  // number of the newest decision at the last count
  TimePoint deadline_{};
  TimePoint started_{};  // or the end of the snapshot, if that was later
  TimePoint decided_{};
  std::optional<TimePoint> hurried_;          // the earlier deadline of hurry()
  std::optional<TimePoint> only_slow_since_;  // since when only slow members are missing
  Version from_;                              // of a rollback
  std::vector<control::Problem> problems_;
  std::uint64_t problems_left_out_ = 0;
  bool lacks_replicas_ = false;  // all have staged; the deadline is that of `attach`
};

}  // namespace wsync::coordinator
