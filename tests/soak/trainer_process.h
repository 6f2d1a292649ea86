// TrainerProcess runs `wsync train --events` as a child process and reads its events as they
// arrive.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "tests/soak/harness.h"
#include "tests/soak/kill_log.h"

namespace wsync::soak {

// Thread: one.
class TrainerProcess {
 public:
  // `ranks`: number of ranks of the run.
  [[nodiscard]] static Result<std::unique_ptr<TrainerProcess>> start(ChildOptions options,
                                                                     std::uint32_t ranks);
  TrainerProcess(const TrainerProcess&) = delete;
  TrainerProcess& operator=(const TrainerProcess&) = delete;
  ~TrainerProcess();  // asks it to stop, and kills it if it does not

  [[nodiscard]] const KillLog& log() const noexcept { return log_; }
  // Handles one event. Returns false if none arrived until `deadline`, which is accurate to the
  // millisecond. Errors as KillLog::take() and Child::line().
  [[nodiscard]] Result<bool> take_event(const Interrupt& interrupt, TimePoint deadline);
  // Sends SIGKILL to a rank. Precondition: log().is_ready(). kPeerLost if the rank is no longer a
  // process of the trainer.
  [[nodiscard]] Result<> kill_rank(std::uint32_t rank);
  // Stops the run as a user's interrupt does, and handles its remaining events. kRefused unless it
  // ends as a stopped run. kDeadline.
  [[nodiscard]] Result<> end(const Interrupt& interrupt);

 private:
  TrainerProcess(Child child, std::uint32_t ranks) : child_(std::move(child)), log_(ranks) {}

  Child child_;
  KillLog log_;
};

}  // namespace wsync::soak
