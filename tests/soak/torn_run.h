// `wsync_soak torn`: a replica generates under load while its weights change repeatedly. Every rank
// compares every layer's version in every forward step. README.md explains the table and its
// limits.
//
// Clients keep completions running over HTTP, with random prompts, random lengths (64 to 256
// tokens) and temperature 1. The calling process is the trainer. It publishes four sets of random
// weights in turn through the trainer library with pause_mode keep, so that sequences continue with
// the new weights after every switch. Every second set differs from the one before in a few values,
// so that the replica is switched by a patch and in full in turn.
//
// In every step every rank reads the version word of each layer before and after it reads the
// layer's weights. It compares both with the version in the step's header. A step is torn if any of
// them differs on any rank, or if a layer was left out. Ranks count their comparisons. The run
// fails unless each rank has made steps times layers comparisons.
//
// The engine writes the version words itself. They cannot show wrong bytes under the right name, or
// keys and values of older weights. Therefore every answer that overlapped a switch, and one of 16
// others, is recomputed from the published bytes (recomputed.h). An answer is wrong in these cases:
// * Its spans are not contiguous from 0 to its number of tokens.
// * Its versions do not ascend, or are older than the version that was served when the request was
//   sent (answer.h).
// * A recomputed token has another log-probability.
//
// Planted faults prove that the run detects a rank that flips early (rank_flips_before_the_pause,
// by the words), and keys and values that outlive their weights (switch_keeps_keys, by the
// numbers).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/moe/model_spec.h"
#include "tests/soak/harness.h"
#include "tests/soak/load.h"

namespace wsync::soak {

inline constexpr unsigned kTornRanksMax = 8;
inline constexpr unsigned kTornRequestsMax = 256;

struct TornOptions {
  std::string executable;  // wsync
  std::string directory;   // mode 0700, empty; the owner removes it
  std::uint64_t steps = 1'000'000;
  unsigned switch_ms = 500;  // minimum time between the starts of two switches
  unsigned requests = 32;    // concurrent requests
  unsigned ranks = 2;
};
// Returns the smallest useful model: a step costs messages and almost no arithmetic. Any number of
// ranks up to kTornRanksMax can share it.
[[nodiscard]] moe::ModelSpec torn_model(unsigned ranks);

struct TornResult {
  Machine machine;
  TornOptions options;
  std::uint64_t steps = 0;            // steps of the replica
  std::uint32_t layers = 0;           // layers of the model
  std::uint64_t layers_compared = 0;  // total over all steps and ranks
  double seconds = 0;                 // from the first request to the last required step
  LoadFigures load;
  std::uint64_t switches = 0;  // switches under load
  // What the sidecar has counted of these switches: loads of ranks by a patch and of all bytes, and
  // patches that failed, which were followed by a load of all bytes.
  std::uint64_t loads_by_patch = 0;
  std::uint64_t loads_in_full = 0;
  std::uint64_t patches_failed = 0;
  std::vector<double> pauses_ms;  // pause of each switch, in order
  Spread paused_ms;
  std::uint64_t versions = 0;          // number of versions that executed steps
  std::uint64_t torn = 0;              // torn steps
  std::uint64_t aborted = 0;           // steps that a rank refused
  std::vector<std::string> torn_told;  // first torn step of each rank, one sentence each
  // share of the cores' time that other processes used before the run
  double others_busy = 0;
  double stolen = 0;  // share that the host withheld during the run
  // True if no step was torn, the spans of every answer are right, all recomputed
  // log-probabilities agree, and every patch fitted.
  [[nodiscard]] bool passed() const { return torn == 0 && load.wrong == 0 && patches_failed == 0; }
};

using OnTornSteps =
    std::function<void(std::uint64_t done, std::uint64_t total, std::uint64_t switches)>;

// Torn steps and wrong answers are results. An error means that the run proves nothing: a process
// fails, the replica does not accept a publish, a group breaks, a layer was not compared, or no
// switch occurred during a request (kRefused). On a signal the run ends early with kCancelled and
// leaves no process.
[[nodiscard]] Result<TornResult> run_torn(const TornOptions& options, const Interrupt& interrupt,
                                          const OnTornSteps& on_steps);

}  // namespace wsync::soak
