// KillLog: what a training run tells while its ranks are killed one after the other, and what each
// kill has come to.
//
// Pure: the clock is given in with each line.
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

// A rank that was killed; the run went on.
struct Kill {
  std::uint32_t rank = 0;
  std::uint64_t step = 0;  // in which it was, or that it was about to begin
  std::string phase;
  std::uint64_t resumed_step = 0;  // that all ranks ran next
  std::string from;
  std::uint64_t bytes = 0;
  double lost_seconds = 0;       // from SIGKILL until "lost" was read
  double recovered_seconds = 0;  // until "recovered" was
  double resumed_seconds = 0;    // until the end of the first step after it was
  double recovery_seconds = 0;   // as rank 0 told it
  // Steps that had been begun and were begun again; 0 when the others ended the rank's step.
  [[nodiscard]] std::uint64_t steps_run_again() const noexcept {
    return step < resumed_step ? 0 : step + 1 - resumed_step;
  }
  // What recovery is for: others gave what the rank had, and at most one step was run again.
  [[nodiscard]] bool recovered_within_a_step() const noexcept {
    return from == "peers" && steps_run_again() <= 1;
  }
};

// Thread: one.
class KillLog {
 public:
  // `ranks`: of the run.
  explicit KillLog(std::uint32_t ranks) : ranks_(ranks) {}

  // The next line of the run, read at `at`. kInvalidInput names a line that is no event or does not
  // go with those before it; kPeerLost: a rank was lost that was not killed; kRefused: the run has
  // failed, with its reason.
  [[nodiscard]] Result<> take(std::string_view line, TimePoint at);
  // The rank is about to be sent SIGKILL. Precondition: is_ready().
  void killed(std::uint32_t rank, TimePoint at);

  // All ranks are known, and a step has ended since the start or since the last recovery.
  [[nodiscard]] bool is_ready() const noexcept {
    return !pids_.empty() && has_stepped_ && !pending_;
  }
  [[nodiscard]] const std::vector<pid_t>& pids() const noexcept { return pids_; }  // by rank
  // Kills after which a step has ended.
  [[nodiscard]] const std::vector<Kill>& kills() const noexcept { return kills_; }
  [[nodiscard]] const std::vector<StepEvent>& steps() const noexcept { return steps_; }
  [[nodiscard]] std::uint64_t last_step() const noexcept { return last_step_; }
  // Steps that were told more than once.
  [[nodiscard]] std::uint64_t steps_told_again() const noexcept { return told_again_; }
  // From one end of a step to the next one's, where no rank was killed in between.
  [[nodiscard]] const std::vector<double>& step_seconds() const noexcept { return step_seconds_; }
  [[nodiscard]] const std::optional<SavedEvent>& saved() const noexcept { return saved_; }
  // What it waits for, for a sentence.
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
  std::map<std::uint64_t, std::uint64_t> times_told_;  // by step
  std::uint64_t last_step_ = 0;
  std::uint64_t told_again_ = 0;
  std::optional<TimePoint> stepped_at_;
  std::vector<double> step_seconds_;
  std::optional<SavedEvent> saved_;
};

}  // namespace wsync::soak
