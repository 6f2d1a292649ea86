// ReplicaSwitch: the switch of one replica (shared/control/protocol.md) as a pure state machine:
// pause, load, commit and resume of its ranks, and repair after a failure. Its goal is always the
// version of the newest decision. A decision that is owed an outcome gets exactly one Done, in
// bounded time, even while a repair continues.
//
// The phases and their transitions are in switch_phase.h. The state is kept by RankTable (what the
// ranks hold), LoadCandidates (which versions may be loaded) and PendingOutcome (the owed outcome
// and the durations).
//
// Usage: pass every event to step() with the current time, and execute the commands in order. Keep
// one timer at next_wake() and send Tick when it fires. Commands carry a request number. Put it
// into the envelope; the engine echoes it, and it returns in the event (0 = the engine was not
// asked). An answer to another request is counted and dropped.
//
// Requirements for an engine rank: it handles its commands in order. On PAUSE the leader opens a
// header `stop`, and every follower then answers PAUSED, even if it was already paused. A rank that
// loses its group pauses and reports this with request 0. LOAD is accepted only while not serving,
// COMMIT only when loaded. A rank never resumes by itself.
//
// This class has more than 25 methods and some 450 lines, because each of the seventeen events has
// an overload, and each step of a switch has its own method. Dividing it would spread the
// transitions over several classes that share one phase.
//
// Thread: confined to one thread. No I/O. Nothing here blocks or throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/reload/load_candidates.h"
#include "inference_side/reload/pending_outcome.h"
#include "inference_side/reload/rank_table.h"
#include "inference_side/reload/switch_events.h"
#include "inference_side/reload/switch_phase.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/control/messages.h"

namespace wsync::reload {

class ReplicaSwitch {
 public:
  explicit ReplicaSwitch(SwitchOptions options);

  // Aborts the process if an invariant is broken.
  [[nodiscard]] std::vector<SwitchCommand> step(const SwitchEvent& event);

  // When the next Tick is due; std::nullopt if no timer is needed.
  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  [[nodiscard]] control::ReplicaReport report(TimePoint now) const;
  [[nodiscard]] SwitchPhase phase() const noexcept { return phase_; }
  // The version in flight while loading and committing; otherwise none (0.0).
  [[nodiscard]] Version goal() const noexcept { return goal_; }
  [[nodiscard]] Version target() const noexcept { return target_.target; }
  // Whether a switch in flight reads staged bytes of `version`, or may roll back to it.
  [[nodiscard]] bool needs(const Version& version) const;
  // Where it stands in a decision in turns.
  [[nodiscard]] control::ReplicaTurn turn() const;
  // How many turns it has had for the newest decision.
  [[nodiscard]] std::uint32_t turns_taken() const noexcept { return turns_taken_; }
  // Whether an outcome is owed to the coordinator.
  [[nodiscard]] bool owes() const noexcept { return outcome_.owed(); }
  [[nodiscard]] std::uint32_t world_size() const noexcept { return options_.world_size; }
  [[nodiscard]] std::uint32_t attached() const noexcept { return ranks_.attached(); }
  // The ranks that are not attached, in order.
  [[nodiscard]] std::vector<std::uint32_t> absent() const { return ranks_.absent(); }
  // Number of events that were late, duplicate or for another request.
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_; }
  // The time since which it has not served the target; std::nullopt while it serves the target,
  // before the first decision, and while it waits for its first turn.
  [[nodiscard]] const std::optional<TimePoint>& behind_since() const noexcept {
    return behind_since_;
  }
  // Returns kInternal with the first broken rule: no rank is inside a step while bytes are written;
  // no version is loaded that was withdrawn or that does not fit a rank; ranks that hold different
  // bytes are never resumed; every phase except idle has a deadline; a turn is held only during a
  // switch.
  [[nodiscard]] Result<> invariants() const;

 private:
  void handle(const RankAttached& event);
  void handle(const RankDetached& event);
  void handle(const RankPaused& event);
  void handle(const RankLoaded& event);
  void handle(const LoadNotBegun& event);
  void handle(const RankCommitted& event);
  void handle(const RankResumed& event);
  void handle(const RankRefused& event);
  void handle(const RankSilent& event);
  void handle(const RankHeard& event);
  void handle(const RankDamaged& event);
  void handle(const RankUnfit& event);
  void handle(const TargetSet& event);
  void handle(const TurnGiven& event);
  void handle(const WithdrawnSet& event);
  void handle(const StagedSet& event);
  void handle(const Tick& event);

  void advance();
  void advance_idle();
  void phase_deadline();
  void pause_failed(const std::string& why);
  void begin_pause();
  [[nodiscard]] Version held_by_all() const;
  void after_pause();
  void leave_load();
  void begin_load(const Version& version);
  void load_failed(const std::string& why);
  void patch_failed(const std::string& why);
  [[nodiscard]] bool may_come(const Version& version) const;
  [[nodiscard]] bool leads_back(const Version& version) const;
  void begin_commit();
  void all_committed();
  void begin_resume();
  void gather(const std::string& why);
  void give_up(control::SwitchOutcome outcome, const std::string& why);
  void settle(control::SwitchOutcome outcome, const std::string& reason);
  // The only function that changes the phase. `deadline` of the new phase; std::nullopt for idle.
  void enter(SwitchPhase phase, std::optional<std::chrono::nanoseconds> deadline);

  [[nodiscard]] bool answers(std::uint32_t rank, std::uint64_t request, SwitchPhase phase);
  [[nodiscard]] bool serving() const;
  // Whether a pause that begins now needs a turn.
  [[nodiscard]] bool needs_turn() const;
  [[nodiscard]] std::chrono::nanoseconds outcome_time() const {
    return target_.pause_deadline + target_.load_deadline + options_.commit;
  }
  // Whether every rank holds the same version, undamaged, and this version may run.
  [[nodiscard]] bool runnable() const;
  [[nodiscard]] bool needs_load() const {
    return ranks_.uniform() != target_.target || ranks_.damaged();
  }

  SwitchOptions options_;
  RankTable ranks_;
  LoadCandidates candidates_;
  Version coming_;                // as in StagedSet
  std::vector<Version> changes_;  // likewise
  PendingOutcome outcome_;
  TargetSet target_;
  SwitchPhase phase_ = SwitchPhase::kIdle;
  Version goal_;
  Version previous_;          // complete on every rank when this switch began
  bool rolled_back_ = false;  // goal_ is previous_, because the target cannot be loaded
  bool retried_ = false;      // a pause has missed its deadline under this decision
  bool confirmed_ = false;    // the leader has answered the last RESUME
  bool has_turn_ = false;     // of a decision in turns; ends with the switch
  std::uint32_t turns_taken_ = 0;
  bool is_given_up_ = false;  // a rank is damaged, and loading it again has not helped
  std::string last_failure_;
  std::string patch_note_;  // why the newest decision was not carried out by a patch
  struct LoadFacts {
    control::LoadKind kind = control::LoadKind::kNone;
    std::uint64_t written_bytes = 0;  // by all ranks
    std::uint64_t bytes = 0;          // of all their tensors
  };
  LoadFacts load_;       // the load in progress
  LoadFacts last_load_;  // the one that was committed last
  std::uint64_t request_ = 0;
  std::uint64_t dropped_ = 0;
  TimePoint now_{};
  std::optional<TimePoint> deadline_;  // of the phase
  std::optional<TimePoint> retry_at_;
  std::optional<TimePoint> behind_since_;
  std::vector<SwitchCommand> out_;
};

}  // namespace wsync::reload
