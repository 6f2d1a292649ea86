// ReplicaSwitch: the switch of one replica (shared/control/protocol.md) as a pure state machine:
// pause, load, commit and resume of its ranks, and their repair afterwards. It always works towards
// the version of the newest decision. A decision that is owed an outcome gets exactly one Done, in
// bounded time, while the repair continues.
//
// The phases and the moves between them are in switch_phase.h. What the switch knows is kept by
// RankTable (what the ranks hold), LoadCandidates (which versions may be loaded) and PendingOutcome
// (what is owed, and the times).
//
// Driving it: give every event to step() with the current time, and execute the commands in order.
// Keep one timer at next_wake() and send Tick when it fires. Commands carry a request number:
// put it into the envelope; the engine echoes it, and it comes back in the event (0 = the engine
// was not asked). An answer to another request is counted and dropped.
//
// What it expects of an engine rank: it handles its commands in order. PAUSE makes the leader open
// a header `stop`, upon which every follower answers PAUSED, also one that was paused already. A
// rank that loses its group pauses, and says so with request 0. LOAD is accepted only while not
// serving, COMMIT only when loaded. A rank never resumes by itself.
//
// It has more than 25 methods, and some 450 lines, because each of the eleven events has an
// overload, and each step of a switch a method of its own. To divide them would spread the moves
// between the phases over several classes that share one phase.
//
// Thread: one. No I/O. Nothing here blocks or throws.
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

  // Aborts the process when an invariant breaks.
  [[nodiscard]] std::vector<SwitchCommand> step(const SwitchEvent& event);

  // When the next Tick is due; none while nothing is waited for.
  [[nodiscard]] std::optional<TimePoint> next_wake() const;
  [[nodiscard]] control::ReplicaReport report(TimePoint now) const;
  [[nodiscard]] SwitchPhase phase() const noexcept { return phase_; }
  // The version in flight while loading and committing; none otherwise.
  [[nodiscard]] Version goal() const noexcept { return goal_; }
  [[nodiscard]] Version target() const noexcept { return target_.target; }
  // Whether a switch is in flight that reads staged bytes of `version`, or may go back to it.
  [[nodiscard]] bool needs(const Version& version) const;
  // Whether the coordinator is owed an outcome.
  [[nodiscard]] bool owes() const noexcept { return outcome_.owed(); }
  [[nodiscard]] std::uint32_t world_size() const noexcept { return options_.world_size; }
  [[nodiscard]] std::uint32_t attached() const noexcept { return ranks_.attached(); }
  // Events that were late, duplicate or of another request.
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_; }
  // Since when it has not served the target; none while it does, and before the first decision.
  [[nodiscard]] const std::optional<TimePoint>& behind_since() const noexcept {
    return behind_since_;
  }
  // kInternal with the first broken rule: no rank is inside a step while bytes are written, no
  // withdrawn version is loaded, ranks that hold different bytes are never resumed, and every phase
  // but idle has a deadline.
  [[nodiscard]] Result<> invariants() const;

 private:
  void handle(const RankAttached& event);
  void handle(const RankDetached& event);
  void handle(const RankPaused& event);
  void handle(const RankLoaded& event);
  void handle(const LoadNotBegun& event);
  void handle(const RankCommitted& event);
  void handle(const RankResumed& event);
  void handle(const TargetSet& event);
  void handle(const WithdrawnSet& event);
  void handle(const StagedSet& event);
  void handle(const Tick& event);

  void advance();
  void advance_idle();
  void phase_deadline();
  void begin_pause();
  void after_pause();
  void leave_load();
  void begin_load(const Version& version);
  void load_failed(std::uint32_t rank, const std::string& why);
  void begin_commit();
  void all_committed();
  void begin_resume();
  void gather(const std::string& why);
  void give_up(control::SwitchOutcome outcome, const std::string& why);
  void settle(control::SwitchOutcome outcome, const std::string& reason);
  // The only place that changes the phase. `deadline`: of the phase; none for idle.
  void enter(SwitchPhase phase, std::optional<std::chrono::nanoseconds> deadline);

  [[nodiscard]] bool answers(std::uint32_t rank, std::uint64_t request, SwitchPhase phase);
  [[nodiscard]] bool serving() const;
  // Whether every rank holds one version that may run.
  [[nodiscard]] bool runnable() const;
  [[nodiscard]] bool needs_load() const { return ranks_.uniform() != target_.target; }

  SwitchOptions options_;
  RankTable ranks_;
  LoadCandidates candidates_;
  PendingOutcome outcome_;
  TargetSet target_;
  SwitchPhase phase_ = SwitchPhase::kIdle;
  Version goal_;
  Version previous_;          // whole on every rank when this switch began
  bool rolled_back_ = false;  // goal_ is previous_, because the target cannot be loaded
  bool retried_ = false;      // a pause has met its deadline under this decision
  bool confirmed_ = false;    // the leader has answered the last RESUME
  std::string last_failure_;
  std::uint64_t request_ = 0;
  std::uint64_t dropped_ = 0;
  TimePoint now_{};
  std::optional<TimePoint> deadline_;  // of the phase
  std::optional<TimePoint> retry_at_;
  std::optional<TimePoint> behind_since_;
  std::vector<SwitchCommand> out_;
};

}  // namespace wsync::reload
