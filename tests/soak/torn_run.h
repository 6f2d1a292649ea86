// `wsync_soak torn`: a replica generates under load while its weights change again and
// again, and every layer's version is compared in every forward step, on every rank. README.md says
// how to read the table, and its limits.
//
// Clients keep completions running over HTTP: prompts and lengths (64 to 256 tokens) at random,
// temperature 1. The calling process is the trainer: it publishes two sets of random weights in
// turn through the trainer library with pause_mode keep, so that every switch meets sequences that
// go on with the new weights.
//
// In every step every rank reads the version word of each layer before and after it reads the
// layer's weights, and compares both with the version that the step's header names. A step in which
// any of them differs on any rank is torn; so is a step that has left out a layer. Ranks count what
// they have compared, and the run fails unless that is steps times layers on each of them.
//
// The words are the engine's own, so they see neither bytes that came under another name nor keys
// and values of older weights. Therefore every answer that a switch has met, and one of 16 others,
// is computed anew from the bytes that were published (recomputed.h). Wrong is an answer whose
// spans are not contiguous from 0 to its tokens, whose versions do not ascend or are older than the
// one that was served when it was asked (answer.h), or that has, computed anew, a token of another
// log-probability. Planted faults prove that the run sees a rank that flips early
// (rank_flips_before_the_pause, by the words) and keys and values that outlive their weights
// (switch_keeps_keys, by the numbers).
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
  std::string directory;   // of mode 0700, empty; the owner removes it
  std::uint64_t steps = 1'000'000;
  unsigned switch_ms = 500;  // from one switch's beginning to the next one's, at least
  unsigned requests = 32;    // at once
  unsigned ranks = 2;
};
// As small as it may be: a step costs its messages, hardly its arithmetic. Any number of ranks up
// to kTornRanksMax can share it.
[[nodiscard]] moe::ModelSpec torn_model(unsigned ranks);

struct TornResult {
  Machine machine;
  TornOptions options;
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
[[nodiscard]] Result<TornResult> run_torn(const TornOptions& options, const Interrupt& interrupt,
                                          const OnTornSteps& on_steps);

}  // namespace wsync::soak
