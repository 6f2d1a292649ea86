// `wsync bench recovery --torn`: a replica generates under load while its weights change again and
// again, and every layer's version is compared in every forward step, on every rank. What each
// figure means: bench/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/harness/child.h"
#include "bench/harness/machine.h"
#include "bench/harness/spread.h"
#include "bench/recovery/load.h"
#include "shared/base/error.h"
#include "shared/moe/model_spec.h"

namespace wsync::bench {

inline constexpr unsigned kTornRanksMax = 8;
inline constexpr unsigned kTornRequestsMax = 256;

struct TornBenchOptions {
  std::string executable;  // wsync
  std::string directory;   // of mode 0700, empty; the owner removes it
  std::uint64_t steps = 1'000'000;
  unsigned switch_ms = 500;  // from one switch's beginning to the next one's, at least
  unsigned requests = 32;    // at once
  unsigned ranks = 2;
};
// As small as it may be: a step costs its messages, hardly its arithmetic. Any number of ranks up
// to kTornRanksMax can share it.
[[nodiscard]] moe::ModelSpec torn_model(unsigned ranks);

struct TornBenchResult {
  Machine machine;
  TornBenchOptions options;
  std::uint64_t steps = 0;            // of the replica
  std::uint32_t layers = 0;           // of the model
  std::uint64_t layers_compared = 0;  // over all steps and ranks
  double seconds = 0;                 // from the first request to the last step that was asked for
  LoadFigures load;
  std::uint64_t switches = 0;     // under load
  std::vector<double> pauses_ms;  // of them, in their order
  Spread paused_ms;
  std::uint64_t versions = 0;          // that steps were run with
  std::uint64_t torn = 0;              // steps
  std::uint64_t aborted = 0;           // steps that a rank refused
  std::vector<std::string> torn_told;  // the first of each rank, one sentence each
  double others_busy = 0;              // share of the cores' time that was used before
  double stolen = 0;                   // share that the host withheld meanwhile
  // No step was torn, every answer's spans are right, and so are the log-probabilities of those
  // that were computed anew.
  [[nodiscard]] bool passed() const { return torn == 0 && load.wrong == 0; }
};

using OnTornSteps =
    std::function<void(std::uint64_t done, std::uint64_t total, std::uint64_t switches)>;

// A torn step and a wrong answer are results; what keeps the run from showing anything is an error:
// a process that fails, a publish that the replica does not take, a group that breaks, a layer that
// was not compared, or a run that no switch has met (kRefused). Ends early, leaving no process,
// with kCancelled on a signal.
[[nodiscard]] Result<TornBenchResult> run_torn_bench(const TornBenchOptions& options,
                                                     const Interrupt& interrupt,
                                                     const OnTornSteps& on_steps);

}  // namespace wsync::bench
