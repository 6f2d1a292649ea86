// `wsync_soak kills` kills the ranks of a training run at random times, one after the other, while
// the run continues. It measures how long each recovery takes and what it costs, and checks that
// the run reaches the same weights as a run without kills. README.md explains the table and its
// limits.
//
// When all ranks have ended a step, a random rank gets SIGKILL at a random moment of the next
// `between` steps. All ranks, including rank 0, are equally likely. The next kill follows after the
// run has resumed and ended a step. The seed determines the ranks and the moments, as shares of the
// step time.
//
// At the end the run is stopped as a user stops it, and saves its state. The same command without
// kills then runs to the same step and saves its state there. Loss and gradient norm of every
// report of every step must agree to the last bit, and all saved files must agree byte by byte.
// heartbeat.deadline is one minute, so that a busy machine does not cause a loss. A start from a
// checkpoint is measured as the same command with --resume until its first step has ended, as the
// median of five.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "tests/soak/divergence.h"
#include "tests/soak/harness.h"
#include "tests/soak/kill_log.h"
#include "trainer_side/training/layout.h"

namespace wsync::soak {

inline constexpr unsigned kKillsMax = 100'000;
inline constexpr unsigned kKillRanksMax = 64;
inline constexpr unsigned kKillBetweenMax = 1'000;

struct KillOptions {
  std::string executable;  // wsync
  std::string directory;   // mode 0700, empty; the owner removes it
  training::ParallelSizes sizes{.pp = 2, .vpp = 2, .ep = 1, .dp = 2};
  unsigned kills = 200;
  // a rank is killed within the time of this many steps after a step has ended
  unsigned between = 4;
  std::uint64_t seed = 1;
};

struct KillResult {
  Machine machine;
  KillOptions options;
  std::vector<Kill> kills;
  std::uint64_t steps = 0;  // number of steps of the run
  std::uint64_t steps_told_again = 0;
  double seconds = 0;  // duration of the run with kills
  // of the run without kills, between the ends of consecutive steps
  std::vector<double> step_seconds;
  // from a start with the saved state to the end of its first step
  std::vector<double> restart_seconds;
  Divergence steps_diverged, files_diverged;
  double others_busy = 0;  // share of the cores' time that other processes used before the run
  double stolen = 0;       // share that the host withheld during the run
  // True if nothing diverged and every killed rank was restored from other ranks with at most one
  // step executed again.
  [[nodiscard]] bool passed() const;
};

// kInvalidInput if the sizes are inconsistent, or if other ranks could not restore a lost rank with
// them.
[[nodiscard]] Result<> check_kill_options(const KillOptions& options);

// Called with a description of the current action: "kill 3 of 200, step 17".
using OnKillProgress = std::function<void(const std::string& doing)>;

// A divergence is a result. An error means that the run could not be completed: a rank was lost
// without being killed, the run failed, or it did not resume after a kill (kDeadline). On a signal
// the run ends early with kCancelled and leaves no process.
[[nodiscard]] Result<KillResult> run_kills(const KillOptions& options, const Interrupt& interrupt,
                                           const OnKillProgress& on_progress);

}  // namespace wsync::soak
