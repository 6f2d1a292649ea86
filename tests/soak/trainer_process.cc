#include "tests/soak/trainer_process.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "shared/base/format.h"

namespace wsync::soak {
namespace {

constexpr std::chrono::seconds kTrainerWaitLimit{20};
constexpr std::chrono::seconds kTrainerEndDeadline{120};
constexpr int kStoppedExitCode = 130;

// Returns the parent from /proc/PID/stat: "77 (wsync) S 76 ...".
std::optional<pid_t> parent_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 4 > text.size()) return std::nullopt;
  return static_cast<pid_t>(std::strtol(text.c_str() + name_end + 4, nullptr, 10));
}

}  // namespace

Result<std::unique_ptr<TrainerProcess>> TrainerProcess::start(ChildOptions options,
                                                              std::uint32_t ranks) {
  auto child = WSYNC_TRY(Child::start(std::move(options)));
  return std::unique_ptr<TrainerProcess>(new TrainerProcess(std::move(child), ranks));
}

TrainerProcess::~TrainerProcess() { child_.stop(kTrainerWaitLimit); }

Result<bool> TrainerProcess::take_event(const Interrupt& interrupt, TimePoint deadline) {
  const auto line = child_.line(interrupt, deadline);
  if (!line && line.error().code() == ErrorCode::kDeadline) return false;
  if (!line) return fail(line.error());
  WSYNC_TRY(log_.take(*line, now()));
  return true;
}

Result<> TrainerProcess::kill_rank(std::uint32_t rank) {
  const pid_t pid = log_.pids()[rank];
  // Another process may have the same PID by now.
  const bool is_ours = parent_of(pid) == child_.pid();
  const TimePoint at = now();
  if (!is_ours || ::kill(pid, SIGKILL) != 0)
    return fail(ErrorCode::kPeerLost,
                fmt::format("rank {} (pid {}) is no process of the trainer's any more, and nobody "
                            "had killed it",
                            rank, pid));
  log_.killed(rank, at);
  return {};
}

Result<> TrainerProcess::end(const Interrupt& interrupt) {
  ::kill(child_.pid(), SIGTERM);
  const TimePoint deadline = now() + kTrainerEndDeadline;
  for (;;) {
    const auto more = take_event(interrupt, deadline);
    if (more && *more) continue;
    if (more)
      return fail(ErrorCode::kDeadline, fmt::format("the trainer has not ended within {} s after "
                                                    "it was asked to: {}",
                                                    kTrainerEndDeadline.count(), log_.state()));
    if (more.error().code() != ErrorCode::kPeerLost) return fail(more.error());
    // Its output has ended; the exit code remains.
    const auto ended = WSYNC_TRY(child_.wait(interrupt, deadline));
    if (ended.exit_code == kStoppedExitCode) return {};
    return fail(ErrorCode::kRefused,
                fmt::format("the trainer ended with {}, expected {} when it is asked to stop: {}",
                            ended.exit_code, kStoppedExitCode, more.error().message()));
  }
}

}  // namespace wsync::soak
