// Led steps: how the ranks of a replica stop and go at the same step. One rank, the leader, decides
// before each step and writes its decision into a header. The engine carries the header to the
// other ranks by a way of its own, and each of them asks here whether it may step.
//
// StepLeader and StepFollower decide; they are pure. LedSteps connects them with the rank's link.
// The rule for headers is in <wsync/engine.h>.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/base/transitions.h"
#include "shared/control/messages.h"
#include "shared/weights/version.h"

namespace wsync::engine {

// What a leader has decided. Its fields are those of wsync_step_header.
struct StepHeader {
  bool go = false;
  std::uint64_t step = 0;      // go: to be begun now; stop: the last one
  std::uint64_t decision = 0;  // counts the decisions of the leader; 0: it has not made one yet
  std::uint64_t leader = 0;    // another number for each leader that was ever created
  Version version;             // under which the leader steps, or would
  friend bool operator==(const StepHeader&, const StepHeader&) = default;
};

enum class LeaderState : std::uint8_t {
  kStopped,   // no rank may step
  kRunning,   // each rank steps
  kStopping,  // a pause is asked for; the step that runs has not ended
};
[[nodiscard]] std::string_view leader_state_name(LeaderState state) noexcept;
// The transition table of StepLeader, for the protocol documentation.
[[nodiscard]] TransitionTable step_leader_transitions();

// Decides whether a step is begun. Thread: confined to one, or guarded by its owner.
class StepLeader {
 public:
  // `is_serving`: it serves weights without a version when it attaches.
  StepLeader(std::uint64_t leader, bool is_serving) noexcept
      : state_(is_serving ? LeaderState::kRunning : LeaderState::kStopped),
        last_{.go = false, .step = 0, .decision = 0, .leader = leader, .version = {}} {}

  // The sidecar asks for a pause. It takes effect at the next decision.
  void handle_pause() noexcept;
  // The sidecar resumes, or withdraws a pause that has not taken effect.
  void handle_resume() noexcept;
  // The engine has stopped by itself, after `step`.
  void handle_stopped() noexcept;
  struct Decision {
    StepHeader header;
    bool has_paused = false;  // this ends a pause: report that the rank has paused
  };
  // Between two steps. `active`: the version that the leader's rank holds.
  [[nodiscard]] Decision next(const Version& active) noexcept;
  [[nodiscard]] LeaderState state() const noexcept { return state_; }
  // The number of the last step that has begun.
  [[nodiscard]] std::uint64_t step() const noexcept { return last_.step; }

 private:
  LeaderState state_;
  StepHeader last_;
  bool is_new_stop_ = false;  // the next header tells of a stop that no header has told of
};

enum class FollowerState : std::uint8_t { kStopped, kRunning };
[[nodiscard]] std::string_view follower_state_name(FollowerState state) noexcept;
// The transition table of StepFollower, for the protocol documentation.
[[nodiscard]] TransitionTable step_follower_transitions();

// What a rank holds.
struct HeldVersion {
  Version version;       // 0.0: none
  bool is_whole = true;  // false: its memory belongs to no version, or to one that is not committed
  std::string_view state;  // of the rank, for sentences
};

// Decides whether a rank may take part in a step. Thread: as StepLeader.
class StepFollower {
 public:
  StepFollower(std::string name, bool is_serving)
      : name_(std::move(name)),
        state_(is_serving ? FollowerState::kRunning : FollowerState::kStopped) {}

  struct Decision {
    bool go = false;
    // Report that the rank runs, beginning with the header's step, or that it has paused after it.
    enum class Report : std::uint8_t { kNone, kRunning, kPaused } report = Report::kNone;
    std::uint64_t step = 0;  // of the report
    std::string refusal;     // not empty: this rank must not step, and why
  };
  // A header has arrived.
  [[nodiscard]] Decision handle(const StepHeader& header, const HeldVersion& held);
  // What is no header has arrived.
  [[nodiscard]] Decision refuse_garbage();
  // The rank cannot step under the last header after all.
  [[nodiscard]] Decision refuse(std::string why);
  // The engine has stopped by itself.
  void handle_stopped() noexcept { state_ = FollowerState::kStopped; }
  [[nodiscard]] FollowerState state() const noexcept { return state_; }
  // Why a rank that holds this must not take part in the step of a header; empty: it may.
  [[nodiscard]] std::string other_version(const StepHeader& header, const HeldVersion& held) const;

 private:
  [[nodiscard]] std::string out_of_order(const StepHeader& header) const;

  std::string name_;  // "replica r0 rank 1"
  FollowerState state_;
  std::optional<StepHeader> last_;
  std::uint64_t step_ = 0;  // the last one that this rank took part in
};

class EngineLink;

// The led steps of one rank. Thread: any thread, one call at a time for lead() and follow(); the
// calls that begin with handle_ may run at the same time.
class LedSteps {
 public:
  LedSteps(std::string replica, std::uint32_t rank, bool is_leader, bool is_serving);

  // `link`: of this rank; borrowed. Call it before the link is served.
  void attach(EngineLink& link) noexcept { link_ = &link; }
  // As StepLeader; a follower is asked for neither.
  void handle_pause();
  void handle_resume();
  // The engine reports by itself that it has stopped.
  void handle_stopped();
  // The leader's decision, which is also reported to the sidecar. kInvalidInput for a follower.
  [[nodiscard]] Result<StepHeader> lead();
  // Whether this rank may step, which is also reported to the sidecar. `header`: std::nullopt if
  // what arrived is no header. kRefused, with the reason, if the rank must not step although its
  // leader has not stopped it; kInvalidInput for a leader.
  [[nodiscard]] Result<bool> follow(const std::optional<StepHeader>& header);

 private:
  [[nodiscard]] Result<> check_attached() const;
  void report(const StepFollower::Decision& decision);

  const bool is_leader_;
  EngineLink* link_ = nullptr;
  std::mutex mutex_;  // of all below
  StepLeader leader_;
  StepFollower follower_;
};

}  // namespace wsync::engine
