// TrainerProcess: a run of `wsync train --events` as a child, whose events are read as they come.
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
  // `ranks`: of the run.
  [[nodiscard]] static Result<std::unique_ptr<TrainerProcess>> start(ChildOptions options,
                                                                     std::uint32_t ranks);
  TrainerProcess(const TrainerProcess&) = delete;
  TrainerProcess& operator=(const TrainerProcess&) = delete;
  ~TrainerProcess();  // asks it to stop; kills it when it does not

  [[nodiscard]] const KillLog& log() const noexcept { return log_; }
  // Takes one event; false when there was none until `deadline`, which is met to the millisecond.
  // Errors as KillLog::take() and Child::line().
  [[nodiscard]] Result<bool> take_event(const Interrupt& interrupt, TimePoint deadline);
  // Sends SIGKILL to a rank. Precondition: log().is_ready(). kPeerLost when it is none of the
  // trainer's processes any more.
  [[nodiscard]] Result<> kill_rank(std::uint32_t rank);
  // Asks it to stop, as a user does who interrupts it, and takes its events to the end. kRefused
  // unless it ends as one that was stopped; kDeadline.
  [[nodiscard]] Result<> end(const Interrupt& interrupt);

 private:
  TrainerProcess(Child child, std::uint32_t ranks) : child_(std::move(child)), log_(ranks) {}

  Child child_;
  KillLog log_;
};

}  // namespace wsync::soak
