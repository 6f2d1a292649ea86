// DecisionLog: what the coordinator has decided, and what of it is stored.
//
// A claim of a fence and every decision are written to the decision store first; they come into
// force when the store has answered. While one is being written, the coordinator handles no other
// event. A record that cannot be written is told to nobody, and the record before it stays in
// force.
//
// Thread: one. No I/O: the store is asked by the command Store and answers by the event Stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/transitions.h"
#include "trainer_side/coordinator/coordinator_context.h"

namespace wsync::coordinator {

enum class DecisionLogState : std::uint8_t {
  kIdle,             // what is in force is stored
  kStoringClaim,     // all other events wait
  kStoringDecision,  // all other events wait
};
[[nodiscard]] std::string_view decision_log_state_name(DecisionLogState state) noexcept;
// For the page of the protocol.
[[nodiscard]] TransitionTable decision_log_transitions();

// A target, and the decision that first chose it.
struct DecisionChoice {
  control::DecisionKind kind = control::DecisionKind::kSwitch;
  Version target;
  Digest content;            // of the target; zero: not known to whoever chooses
  control::Decision origin;  // none: the decision is new, and is its own origin
};

// What an answer of the store has brought to its end.
struct StoreOutcome {
  enum class Ended : std::uint8_t { kNothing, kClaim, kDecision };
  Ended ended = Ended::kNothing;
  std::optional<RollbackRequested> rollback;  // that the decision is of
  // Why it was not stored. kFenced: another coordinator has the store now, and this one must stop.
  std::optional<Error> failure;
};

// It has more than 25 methods: half of them are views of the record for the other parts of the
// coordinator.
class DecisionLog {
 public:
  // Begins with the target, origin and withdrawn versions of the record that was stored last.
  explicit DecisionLog(const std::optional<CoordinatorRecord>& stored);

  [[nodiscard]] DecisionLogState state() const noexcept { return state_; }
  [[nodiscard]] bool is_storing() const noexcept { return state_ != DecisionLogState::kIdle; }
  // What is in force: it is stored, except that members and withdrawn versions may be newer.
  [[nodiscard]] const CoordinatorRecord& record() const noexcept { return record_; }
  // What is being stored; null when nothing is.
  [[nodiscard]] const CoordinatorRecord* pending() const noexcept {
    return pending_ ? &pending_->next : nullptr;
  }
  // The rollback whose decision is being stored; null when there is none.
  [[nodiscard]] const RollbackRequested* pending_rollback() const noexcept {
    return pending_ && pending_->rollback ? &*pending_->rollback : nullptr;
  }
  // The target before this one, decided or found by this process; 0.0 = none.
  [[nodiscard]] const Version& previous_target() const noexcept { return previous_target_; }
  // What the newest rollback has left; 0.0 when it repeated the target.
  [[nodiscard]] const Version& rollback_from() const noexcept { return rollback_from_; }

  // Stores a claim, which must be above everything that is known. Only while idle.
  void store_claim(CoordinatorContext& context, const control::Fence& fence);
  // Stores a new decision under the own fence. `snapshot`: of the target, null when this process
  // has none; its digest is the content then. Only while idle.
  void decide(CoordinatorContext& context, const DecisionChoice& choice,
              const PublishRequested* snapshot,
              std::optional<RollbackRequested> rollback = std::nullopt);
  // Stores the record once more when its members have changed. Nothing waits for this write.
  void store_members(CoordinatorContext& context);
  [[nodiscard]] StoreOutcome handle(CoordinatorContext& context, const Stored& event);
  // kIo when the store has not answered in time: nobody can know then what is stored.
  [[nodiscard]] Result<> check_deadline(TimePoint now) const;
  // This coordinator stops: what is being stored is waited for no more.
  void abandon();

  // Whether a decision is on its way, so that the target may be one that was withdrawn.
  [[nodiscard]] bool leaves_target() const noexcept { return pending_ || follow_again_; }
  // What has to be decided so that the fleet follows its newest decision; nothing when it does.
  // Tells the people of the fleet when no version is left that may be served.
  [[nodiscard]] std::optional<DecisionChoice> newest(CoordinatorContext& context);
  // Asks for newest() again later, because its decision could not be stored.
  void follow_later(TimePoint now);
  // Whether that time has come; true once.
  [[nodiscard]] bool take_follow_due(TimePoint now);
  // Which version a rollback to `to` (0.0: the previous one) goes to; the error says why it may
  // not.
  [[nodiscard]] Result<Version> choose_rollback(const Roster& roster, const Version& to) const;

  // A sidecar has joined, or has left for good.
  void add_member(const Roster& roster, const std::string& name);
  void remove_member(const std::string& name);
  // Versions that a sidecar knows to be withdrawn. The next decision tells everybody.
  void learn_withdrawn(const Roster& roster, const std::vector<Version>& versions);

  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  // kInternal with the first broken rule.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Pending {
    std::uint64_t token = 0;
    TimePoint deadline{};
    std::optional<RollbackRequested> rollback;
    CoordinatorRecord next;
    bool withdrawn_changed = false;  // as it was before
  };
  void move(DecisionLogState to);
  void store(CoordinatorContext& context, DecisionLogState what, CoordinatorRecord next,
             std::optional<RollbackRequested> rollback);
  [[nodiscard]] StoreOutcome members_stored(const CoordinatorContext& context, const Stored& event);
  // Adds to what every Decide forbids, within the bound of the message.
  void withdraw(const Roster& roster, std::vector<Version>& withdrawn,
                const std::vector<Version>& versions) const;

  DecisionLogState state_ = DecisionLogState::kIdle;
  CoordinatorRecord record_;
  Version previous_target_;
  Digest previous_content_;
  Version rollback_from_;
  std::optional<Pending> pending_;
  std::uint64_t token_ = 0;
  bool members_changed_ = false;
  bool withdrawn_changed_ = false;          // since the newest decision
  std::uint64_t members_token_ = 0;         // of the write of members under way; 0 = none
  std::optional<TimePoint> members_again_;  // after a write that failed
  std::optional<TimePoint> follow_again_;   // after a decision without a round was not stored
};

}  // namespace wsync::coordinator
