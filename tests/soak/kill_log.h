// KillLog interprets the output of a training run while its ranks are killed one after the other,
// and records the result of each kill.
//
// Pure: the caller passes the time of each line.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "tests/soak/trainer_event.h"

namespace wsync::soak {

// One killed rank, after which the run continued.
struct Kill {
  std::uint32_t rank = 0;
  std::uint64_t step = 0;  // step that was active, or that the rank was about to begin
  std::string phase;
  std::uint64_t resumed_step = 0;  // first step that all ranks executed after the recovery
  std::string from;
  std::uint64_t bytes = 0;
  double lost_seconds = 0;       // from SIGKILL until "lost" was read
  double recovered_seconds = 0;  // from SIGKILL until "recovered" was read
  // from SIGKILL until the end of the first step after the recovery
  double resumed_seconds = 0;
  double recovery_seconds = 0;  // as rank 0 reported it
  // Number of steps that had begun and were executed again. 0 if the other ranks completed the step
  // of the killed rank.
  [[nodiscard]] std::uint64_t steps_run_again() const noexcept {
    return step < resumed_step ? 0 : step + 1 - resumed_step;
  }
  // The requirement on recovery: other ranks restored the state of the killed rank, and at most one
  // step was executed again.
  [[nodiscard]] bool recovered_within_a_step() const noexcept {
    return from == "peers" && steps_run_again() <= 1;
  }
};

// Thread: one.
class KillLog {
 public:
  // `ranks`: number of ranks of the run.
  explicit KillLog(std::uint32_t ranks) : ranks_(ranks) {}

  // Handles the next line of the run, which was read at `at`. kInvalidInput names a line that is
  // not an event or contradicts earlier lines. kPeerLost if a rank was lost without being killed.
  // kRefused, with the reason, if the run has failed.
  [[nodiscard]] Result<> take(std::string_view line, TimePoint at);
  // Call this just before SIGKILL is sent to the rank. Precondition: is_ready().
  void killed(std::uint32_t rank, TimePoint at);

  // True if all ranks are known and a step has ended since the start or the last recovery.
  [[nodiscard]] bool is_ready() const noexcept {
    return !pids_.empty() && has_stepped_ && !pending_;
  }
  [[nodiscard]] const std::vector<pid_t>& pids() const noexcept { return pids_; }  // by rank
  // Kills that were followed by the end of a step.
  [[nodiscard]] const std::vector<Kill>& kills() const noexcept { return kills_; }
  [[nodiscard]] const std::vector<StepEvent>& steps() const noexcept { return steps_; }
  [[nodiscard]] std::uint64_t last_step() const noexcept { return last_step_; }
  // Number of steps that were reported more than once.
  [[nodiscard]] std::uint64_t steps_told_again() const noexcept { return told_again_; }
  // Times between the ends of consecutive steps. Intervals in which a rank was killed are left out.
  [[nodiscard]] const std::vector<double>& step_seconds() const noexcept { return step_seconds_; }
  [[nodiscard]] const std::optional<SavedEvent>& saved() const noexcept { return saved_; }
  // Describes what the log waits for, as part of a sentence.
  [[nodiscard]] std::string state() const;

 private:
  struct Pending {
    TimePoint sent{};
    bool is_lost = false;
    bool is_recovered = false;
    Kill kill;
  };
  [[nodiscard]] Result<> take_event(const OtherEvent& event, TimePoint at);
  [[nodiscard]] Result<> take_event(const StepEvent& event, TimePoint at);
  [[nodiscard]] Result<> take_event(const RanksEvent& event, TimePoint at);
  [[nodiscard]] Result<> take_event(const LostEvent& event, TimePoint at);
  [[nodiscard]] Result<> take_event(const RecoveredEvent& event, TimePoint at);
  [[nodiscard]] Result<> take_event(const SavedEvent& event, TimePoint at);
  [[nodiscard]] Result<> take_event(const FailedEvent& event, TimePoint at);

  const std::uint32_t ranks_;
  std::uint64_t lines_ = 0;
  std::vector<pid_t> pids_;
  bool has_stepped_ = false;
  std::optional<Pending> pending_;
  std::vector<Kill> kills_;
  std::vector<StepEvent> steps_;
  std::map<std::uint64_t, std::uint64_t> times_told_;  // number of reports of each step
  std::uint64_t last_step_ = 0;
  std::uint64_t told_again_ = 0;
  std::optional<TimePoint> stepped_at_;
  std::vector<double> step_seconds_;
  std::optional<SavedEvent> saved_;
};

}  // namespace wsync::soak
