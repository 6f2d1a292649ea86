// DecisionLog: the decisions of the coordinator, and which of them are stored.
//
// A claim of a fence and every decision are written to the decision store first. They take effect
// when the store has answered. While one is being written, the coordinator handles no other event.
// A record that cannot be written is sent to nobody, and the previous record stays in effect.
//
// Thread: confined to one thread. No I/O: the command Store asks the store, and the event Stored is
// its answer.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shared/base/transitions.h"
#include "trainer_side/coordinator/coordinator_context.h"

namespace wsync::coordinator {

enum class DecisionLogState : std::uint8_t {
  kIdle,             // the record in effect is stored
  kStoringClaim,     // all other events wait
  kStoringDecision,  // all other events wait
};
[[nodiscard]] std::string_view decision_log_state_name(DecisionLogState state) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable decision_log_transitions();

// A target, and the decision that first chose it.
struct DecisionChoice {
  control::DecisionKind kind = control::DecisionKind::kSwitch;
  Version target;
  Digest content;            // of the target; zero: unknown
  control::Decision origin;  // none: a new decision, which is its own origin
};

// What an answer of the store has completed.
struct StoreOutcome {
  enum class Ended : std::uint8_t { kNothing, kClaim, kDecision };
  Ended ended = Ended::kNothing;
  std::optional<RollbackRequested> rollback;  // whose decision was stored
  // Why it was not stored. kFenced: another coordinator has the store now, and this one must stop.
  std::optional<Error> failure;
};

// This class has more than 25 methods: half of them are views of the record for other classes of
// the coordinator.
class DecisionLog {
 public:
  // Begins with the target, origin and withdrawn versions of the last stored record.
  explicit DecisionLog(const std::optional<CoordinatorRecord>& stored);

  [[nodiscard]] DecisionLogState state() const noexcept { return state_; }
  [[nodiscard]] bool is_storing() const noexcept { return state_ != DecisionLogState::kIdle; }
  // The record in effect. It is stored, except that members and withdrawn versions may be newer.
  [[nodiscard]] const CoordinatorRecord& record() const noexcept { return record_; }
  // The record being stored; nullptr if there is none.
  [[nodiscard]] const CoordinatorRecord* pending() const noexcept {
    return pending_ ? &pending_->next : nullptr;
  }
  // The rollback whose decision is being stored; nullptr if there is none.
  [[nodiscard]] const RollbackRequested* pending_rollback() const noexcept {
    return pending_ && pending_->rollback ? &*pending_->rollback : nullptr;
  }
  // The previous target that this process has decided or found; 0.0 = none.
  [[nodiscard]] const Version& previous_target() const noexcept { return previous_target_; }
  // The previous target, if the target has the same content; 0.0 if it has not, or nobody knows.
  [[nodiscard]] Version same_as() const noexcept;
  // The version that the newest rollback has left; 0.0 if it repeated the target.
  [[nodiscard]] const Version& rollback_from() const noexcept { return rollback_from_; }

  // Stores a claim, which must be above every known fence. Only while idle.
  void store_claim(CoordinatorContext& context, const control::Fence& fence);
  // Stores a new decision under the own fence. `snapshot`: of the target, null if this process has
  // none; otherwise its digest is the content. Only while idle.
  void decide(CoordinatorContext& context, const DecisionChoice& choice,
              const PublishRequested* snapshot,
              std::optional<RollbackRequested> rollback = std::nullopt);
  // Stores the record again if its members have changed. Nothing waits for this write.
  void store_members(CoordinatorContext& context);
  [[nodiscard]] StoreOutcome handle(CoordinatorContext& context, const Stored& event);
  // Returns kIo if the store has not answered in time: what is stored is then unknown.
  [[nodiscard]] Result<> check_deadline(TimePoint now) const;
  // This coordinator stops. The answer of the store is no longer awaited.
  void abandon();

  // Whether a decision is being stored or due, so that the target may be a withdrawn version.
  [[nodiscard]] bool leaves_target() const noexcept { return pending_ || follow_again_; }
  // Whether the newest decision names every version that is known here to be withdrawn.
  [[nodiscard]] bool names_all_withdrawn() const noexcept { return !withdrawn_changed_; }
  // The decision that is needed for the fleet to follow its newest decision; std::nullopt if none
  // is needed. Notifies the operators if no version is left that may be served.
  [[nodiscard]] std::optional<DecisionChoice> newest(CoordinatorContext& context);
  // Its decision could not be stored, so newest() must be called again later.
  void follow_later(TimePoint now);
  // Whether that time has come; returns true once.
  [[nodiscard]] bool take_follow_due(TimePoint now);
  // A snapshot of this version is given to this coordinator. It is no version to go back to before
  // it was decided.
  void note_offered(const Version& version);
  // The version to which a rollback without a name goes: the newest one before the target that was
  // decided, is not withdrawn, and is held by every joined sidecar.
  [[nodiscard]] std::optional<Version> rollback_target(const Roster& roster) const;
  // The version to which a rollback to `to` goes (0.0: the previous version), or an error with the
  // reason why it may not.
  [[nodiscard]] Result<Version> choose_rollback(const Roster& roster, const Version& to) const;

  // A sidecar has joined, or has left permanently or is forgotten.
  void add_member(const Roster& roster, const std::string& name);
  void remove_member(const std::string& name);
  // Removes the members that have not connected to this process, and returns their names. Keeps
  // them if a version was withdrawn: none of them has acknowledged that here.
  [[nodiscard]] std::vector<std::string> remove_absent(const Roster& roster);
  // Adds versions that a sidecar knows to be withdrawn. The next decision carries them to all
  // sidecars.
  void learn_withdrawn(const Roster& roster, const std::vector<Version>& versions);

  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  // Returns kInternal with the first broken rule.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Pending {
    std::uint64_t token = 0;
    TimePoint begun{};
    std::optional<TimePoint> deadline;
    std::optional<RollbackRequested> rollback;
    CoordinatorRecord next;
    bool withdrawn_changed = false;  // value before the write
  };
  void move(DecisionLogState to);
  void note_decided(const Version& version);
  // Whether a version that every joined sidecar holds was ever decided.
  [[nodiscard]] bool was_decided(const Roster& roster, const Version& version) const;
  void store(CoordinatorContext& context, DecisionLogState what, CoordinatorRecord next,
             std::optional<RollbackRequested> rollback);
  [[nodiscard]] StoreOutcome members_stored(const CoordinatorContext& context, const Stored& event);
  // Adds to the versions that every Decide forbids, within the limit of the message.
  void withdraw(const Roster& roster, std::vector<Version>& withdrawn,
                const std::vector<Version>& versions) const;

  DecisionLogState state_ = DecisionLogState::kIdle;
  CoordinatorRecord record_;
  Version previous_target_;
  Digest previous_content_;
  Version rollback_from_;
  std::set<Version> decided_;  // as far as this process knows
  std::set<Version> offered_;  // to this process, and not decided
  std::optional<Pending> pending_;
  std::uint64_t token_ = 0;
  bool members_changed_ = false;
  bool withdrawn_changed_ = false;          // since the newest decision
  std::uint64_t members_token_ = 0;         // of the running write of members; 0 = none
  std::optional<TimePoint> members_again_;  // after a write that failed
  std::optional<TimePoint> follow_again_;   // after a decision without a round could not be stored
};

}  // namespace wsync::coordinator
