// `wsync_soak kills`: the ranks of a training run are killed at random times, one after the
// other, and it goes on; how long that takes, what it costs, and whether it comes to the same
// weights as a run whose ranks live. README.md says how to read the table, and its limits.
//
// When all ranks have ended a step, one of them, chosen at random and rank 0 as likely as any
// other, is sent SIGKILL at a random moment of the next `between` steps. The next kill follows when
// the run has gone on and ended a step. The seed gives the same ranks and the same shares of a
// step's time. At the end the run is stopped as a user stops it, and saves its state. Then the same
// command without kills is run to the same step and saves its state there. Loss and gradient norm
// of every step, however often it was told, must be equal to the bit, and every file that was saved
// equal byte by byte. heartbeat.deadline is one minute, so that a busy machine is no loss. A start
// from a checkpoint is measured as the same command with --resume, until its first step has ended;
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
  std::string directory;   // of mode 0700, empty; the owner removes it
  training::ParallelSizes sizes{.pp = 2, .vpp = 2, .ep = 1, .dp = 2};
  unsigned kills = 200;
  unsigned between = 4;  // steps, in whose time after a step has ended a rank is killed
  std::uint64_t seed = 1;
};

struct KillResult {
  Machine machine;
  KillOptions options;
  std::vector<Kill> kills;
  std::uint64_t steps = 0;  // that the run has come to
  std::uint64_t steps_told_again = 0;
  double seconds = 0;                   // of the run with kills
  std::vector<double> step_seconds;     // of the run without, from one to the next
  std::vector<double> restart_seconds;  // from a start with what was saved to the end of a step
  Divergence steps_diverged, files_diverged;
  double others_busy = 0;  // share of the cores' time that was used before
  double stolen = 0;       // share that the host withheld meanwhile
  // Nothing diverged, and every kill was recovered from by what other ranks hold, with at most one
  // step run again.
  [[nodiscard]] bool passed() const;
};

// kInvalidInput: sizes of which a lost rank could not be recovered from others, or that do not go
// together.
[[nodiscard]] Result<> check_kill_options(const KillOptions& options);

// Told what is being done: "kill 3 of 200, step 17".
using OnKillProgress = std::function<void(const std::string& doing)>;

// What diverged is a result; what keeps the run from its end is an error: a rank that is lost but
// was not killed, a run that fails or does not go on after a kill (kDeadline). Ends early, leaving
// no process, with kCancelled on a signal.
[[nodiscard]] Result<KillResult> run_kills(const KillOptions& options, const Interrupt& interrupt,
                                           const OnKillProgress& on_progress);

}  // namespace wsync::soak
