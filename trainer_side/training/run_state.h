// The state of a training run at the end of a step, and its directory. The directory is a
// checkpoint in Hugging Face form (float32), with the optimizer's state and the facts of the run in
// optimizer/state.safetensors (the facts are its metadata). A run that resumes from it, with the
// same optimizer and the same last step, computes the same steps as a run that was not interrupted.
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

// The facts that determine the following steps, besides parameters and the optimizer's state.
struct RunFacts {
  std::uint64_t step = 0;  // the last completed step
  std::uint64_t data_seed = 0;
  Digest text;  // digest of the training text
  // Sizes of a step: replicas, micro-batches of each replica, sequences of each micro-batch, tokens
  // of each sequence.
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

// Returns "<directory>/step_<N>".
[[nodiscard]] std::string state_directory(const std::string& directory, std::uint64_t step);
// Errors as write_checkpoint_directory(); no directory remains after an error.
[[nodiscard]] Result<> save_state(const std::string& path, const RunState& state);
// Returns kNotFound, or kInvalidInput with the file and what does not match.
[[nodiscard]] Result<RunState> load_state(const std::string& path);

// Collects the state of all ranks on rank 0; the other ranks get std::nullopt. Every rank must call
// it, between steps, with the same deadline for each exchange. Errors as ProcessGroup::exchange().
[[nodiscard]] Result<std::optional<RunState>> gather_state(TrainingRank& rank,
                                                           const RunFacts& facts,
                                                           collective::ProcessGroup* group);
// As gather_state(), but for the parameters only.
[[nodiscard]] Result<std::optional<ParameterSet>> gather_weights(TrainingRank& rank,
                                                                 collective::ProcessGroup* group);
// Copies a rank's part of a state into the rank. Call Update::share_tied_head() afterwards.
void adopt_state(TrainingRank& rank, const RunState& state);
// Copies a rank's part of parameters that have no optimizer's state yet. `all` holds all
// parameters.
void adopt_weights(TrainingRank& rank, const ParameterSet& all);

}  // namespace wsync::training
