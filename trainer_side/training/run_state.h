// All that a training run has come to at the end of a step, and its directory: a checkpoint in
// Hugging Face form (float32), and optimizer/state.safetensors with the optimizer's state, the
// facts of the run in its metadata. A run that goes on from it, with the same optimizer and the
// same last step, takes the steps that it would have taken.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "trainer_side/training/parameters.h"
#include "trainer_side/training/training_rank.h"

namespace wsync::training {

// What decides the steps to come, beside parameters and the optimizer's state.
struct RunFacts {
  std::uint64_t step = 0;  // that has been taken
  std::uint64_t data_seed = 0;
  Digest text;  // that is trained on
  // Of a step: replicas, micro-batches of each, sequences of each, tokens of each.
  std::uint32_t dp = 1;
  std::uint32_t microbatches = 1;
  std::uint32_t sequences = 1;
  std::uint32_t sequence = 1;
  friend bool operator==(const RunFacts&, const RunFacts&) = default;
};

struct RunState {
  moe::ModelSpec spec;
  RunFacts facts;
  ParameterSet weights, mean, variance;  // of all parameters of the model
};

// "<directory>/step_<N>".
[[nodiscard]] std::string state_directory(const std::string& directory, std::uint64_t step);
// Errors as write_checkpoint_directory's: nothing is left then.
[[nodiscard]] Result<> save_state(const std::string& path, const RunState& state);
// kNotFound, or kInvalidInput naming the file and what does not fit.
[[nodiscard]] Result<RunState> load_state(const std::string& path);

// Rank 0 gets the state of all ranks, the others nothing. Every rank calls it, between steps, with
// the same deadline for each exchange. Errors as ProcessGroup::exchange().
[[nodiscard]] Result<std::optional<RunState>> gather_state(TrainingRank& rank,
                                                           const RunFacts& facts,
                                                           collective::ProcessGroup* group);
// As gather_state(), of the parameters alone.
[[nodiscard]] Result<std::optional<ParameterSet>> gather_weights(TrainingRank& rank,
                                                                 collective::ProcessGroup* group);
// Gives a rank its part of a state. Then Update::share_tied_head().
void adopt_state(TrainingRank& rank, const RunState& state);
// Gives a rank its part of parameters that have no optimizer's state yet; `all` has every one.
void adopt_weights(TrainingRank& rank, const ParameterSet& all);

}  // namespace wsync::training
