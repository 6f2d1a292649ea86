// The switch of one replica (protocol.md §5) as a pure state machine: pause, load, commit, resume
// over its ranks, and their repair afterwards. It always works towards the newest decision's
// version; a decision that is owed an outcome gets exactly one Done, in bounded time, while repair
// goes on.
//
// Driving it: give every event to step() with the current time and carry out the commands in order.
// Keep one timer at next_wake() and send Tick when it fires. Commands carry a request number:
// put it into the envelope; the engine echoes it and it comes back in the event (0 = the engine
// spoke unasked). An answer to another request is counted and dropped.
//
// What it expects of an engine rank: it handles its commands in order; PAUSE makes the leader open
// a header `stop`, upon which every follower answers PAUSED, also one that was paused already; a
// rank that loses its group pauses and says so with request 0; LOAD is accepted only while not
// serving; COMMIT only when loaded; a rank never resumes by itself.
//
// Thread: one. No I/O. Nothing here blocks or throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/switch_deadlines.h"
#include "shared/control/messages.h"

namespace wsync::reload {

enum class SwitchPhase : std::uint8_t {
  kIdle,        // nothing in flight
  kPausing,     // PAUSE sent, some rank may still be in a step
  kGathering,   // stopped; waits for a lost rank to attach again
  kLoading,     // LOAD in flight on every rank
  kCommitting,  // COMMIT in flight on every rank
  kResuming,    // RESUME sent to the leader
};

struct SwitchOptions {
  std::string replica;
  std::uint32_t world_size = 1;
  std::chrono::nanoseconds rank_return = std::chrono::milliseconds(limits::kRankReturnDeadlineMs);
  std::chrono::nanoseconds commit = std::chrono::milliseconds(limits::kCommitDeadlineMs);
  std::chrono::nanoseconds retry = std::chrono::milliseconds(limits::kSwitchRetryMs);
  // A version that this replica could not load is tried again after `retry`, then after twice that,
  // up to this.
  std::chrono::nanoseconds retry_max = std::chrono::milliseconds(limits::kSwitchRetryMaxMs);
  // Behind for longer: not ready. 0: a replica that is behind stays ready.
  std::chrono::nanoseconds max_staleness = std::chrono::milliseconds(limits::kMaxStalenessMs);
  PauseMode fallback_mode = PauseMode::kAbort;  // after a pause deadline
};

// ---- events ----

// A rank's hello. One that was attached already counts as lost and attached again.
struct RankAttached {
  std::uint32_t rank = 0;
  bool leader = false;
  control::RankState state = control::RankState::kLoading;
  Version active;
};
struct RankDetached {
  std::uint32_t rank = 0;
};
struct RankPaused {
  std::uint32_t rank = 0;
  std::uint64_t request = 0;  // 0: unasked, the rank lost its group
};
struct RankLoaded {
  std::uint32_t rank = 0;
  std::uint64_t request = 0;
  Version version;
  std::uint64_t bytes = 0;
  std::string failure;  // not empty: the rank's memory matches no version
};
// The load of this request could not begin: no rank was told of it, and each holds what it held.
struct LoadNotBegun {
  std::uint64_t request = 0;
  std::string why;
};
struct RankCommitted {
  std::uint32_t rank = 0;
  std::uint64_t request = 0;
  Version version;
  std::string failure;
};
struct RankResumed {
  std::uint32_t rank = 0;
  std::uint64_t request = 0;
};
// A persisted decision. A newer one replaces an older one wherever the switch stands. The outcome
// is due when the deadlines of pause, load and commit have passed one after the other.
struct TargetSet {
  control::Decision decision;
  Version target;
  std::vector<Version> withdrawn;
  PauseMode mode = PauseMode::kAbort;
  std::chrono::nanoseconds pause_deadline = std::chrono::milliseconds(limits::kPauseDeadlineMs);
  std::chrono::nanoseconds load_deadline = std::chrono::milliseconds(limits::kLoadDeadlineMs);
  bool owed = true;  // false: catching up; no Done is due
};
// Versions that must not be activated, told without a decision of a new target. The target may be
// one of them: then nothing is left to go to, and what is served is not ready.
struct WithdrawnSet {
  std::vector<Version> versions;
};
// The complete and verified versions that can be loaded now.
struct StagedSet {
  std::vector<Version> versions;
};
struct Tick {};

struct SwitchEvent {
  TimePoint now{};
  std::variant<RankAttached, RankDetached, RankPaused, RankLoaded, LoadNotBegun, RankCommitted,
               RankResumed, TargetSet, WithdrawnSet, StagedSet, Tick>
      what;
};

// ---- commands ----

struct SendPause {
  std::uint32_t rank = 0;  // the leader
  std::uint64_t request = 0;
  PauseMode mode = PauseMode::kAbort;
  std::uint32_t deadline_ms = 0;
};
// Load `version` into every rank: Load to each (unified devices) or the group's pipeline (separate
// devices). Each rank ends in a RankLoaded with this request, or all in one LoadNotBegun. A load
// that was cancelled before it is wound down first.
struct BeginLoad {
  std::uint64_t request = 0;
  Version version;
  std::uint32_t deadline_ms = 0;
};
// The load of this request is given up; what still arrives from it is dropped.
struct CancelLoad {
  std::uint64_t request = 0;
};
struct SendCommit {
  std::uint32_t rank = 0;
  std::uint64_t request = 0;
  Version version;
};
struct SendResume {
  std::uint32_t rank = 0;  // the leader
  std::uint64_t request = 0;
};
// The outcome that `decision` was owed.
struct Done {
  control::Decision decision;
  control::ReplicaOutcome outcome;
};
// Two loads of `version` failed here, for whatever reason: its copy is to be verified again. One
// that has changed leaves the staged set; of one that is good nothing has to be said.
struct CopySuspect {
  Version version;
};
using SwitchCommand =
    std::variant<SendPause, BeginLoad, CancelLoad, SendCommit, SendResume, Done, CopySuspect>;

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
  // True when a switch is in flight that reads staged bytes of `version` or may go back to it.
  [[nodiscard]] bool needs(const Version& version) const;
  [[nodiscard]] bool owes() const noexcept { return owed_; }
  [[nodiscard]] std::uint32_t world_size() const noexcept { return options_.world_size; }
  [[nodiscard]] std::uint32_t attached() const noexcept;
  // Events that were late, duplicate or of another request.
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_; }
  // Since when it has not served the target; none while it does, and before the first decision.
  [[nodiscard]] const std::optional<TimePoint>& behind_since() const noexcept {
    return behind_since_;
  }
  // The first broken invariant as a sentence; empty when all hold.
  [[nodiscard]] std::string invariants() const;

 private:
  struct Rank {
    bool attached = false;
    bool leader = false;
    bool serving = false;   // may be inside a step
    bool answered = false;  // of what is in flight
    bool whole = false;     // every byte is of `version`
    bool written = false;   // a load began and no commit ended it
    Version version;
  };

  void on(const RankAttached& event);
  void on(const RankDetached& event);
  void on(const RankPaused& event);
  void on(const RankLoaded& event);
  void on(const LoadNotBegun& event);
  void on(const RankCommitted& event);
  void on(const RankResumed& event);
  void on(const TargetSet& event);
  void on(const WithdrawnSet& event);
  void on(const StagedSet& event);
  void on(const Tick& event);

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
  void enter(SwitchPhase phase, std::optional<std::chrono::nanoseconds> deadline);

  [[nodiscard]] bool answers(std::uint32_t rank, std::uint64_t request, SwitchPhase phase);
  [[nodiscard]] bool complete() const;
  [[nodiscard]] bool quiesced() const;
  [[nodiscard]] bool all_answered() const;
  [[nodiscard]] std::optional<Version> uniform() const;
  [[nodiscard]] bool serving() const;
  [[nodiscard]] bool withdrawn(const Version& version) const;
  [[nodiscard]] bool loadable(const Version& version) const;
  [[nodiscard]] bool needs_load() const;
  [[nodiscard]] std::uint32_t leader() const;
  [[nodiscard]] std::string missing() const;
  void report_state(TimePoint now, control::ReplicaReport& out) const;

  // A version that could not be loaded here, and when it may be tried again.
  struct Failed {
    Version version;
    TimePoint until{};
  };

  SwitchOptions options_;
  std::vector<Rank> ranks_;
  std::vector<Rank> before_load_;  // ranks_ when the last load began
  std::vector<Version> staged_;
  TargetSet target_;
  SwitchPhase phase_ = SwitchPhase::kIdle;
  Version goal_;
  Version previous_;            // whole on every rank when this switch began
  std::vector<Failed> failed_;  // on two loads
  std::chrono::nanoseconds load_retry_;
  Version attempted_;           // the last one whose load began
  std::uint32_t failures_ = 0;  // of loading it
  bool rolled_back_ = false;    // goal_ is previous_, for want of the target
  bool retried_ = false;        // a pause has met its deadline under this decision
  bool confirmed_ = false;      // the leader has answered the last RESUME
  bool owed_ = false;
  std::string last_failure_;
  std::uint64_t request_ = 0;
  std::uint64_t dropped_ = 0;
  TimePoint now_{};
  std::optional<TimePoint> deadline_;       // of the phase
  std::optional<TimePoint> owed_deadline_;  // of the outcome
  std::optional<TimePoint> retry_at_;
  std::optional<TimePoint> behind_since_;
  std::optional<TimePoint> pause_sent_, paused_, load_sent_, loaded_, resumed_;
  std::uint64_t bytes_ = 0;
  std::uint64_t last_paused_ns_ = 0;  // of the last switch that has ended with a resume
  std::vector<SwitchCommand> out_;
};

[[nodiscard]] std::string_view phase_name(SwitchPhase phase) noexcept;

}  // namespace wsync::reload
