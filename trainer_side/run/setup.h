// Converts a training configuration to options and to the state in which the run begins.
#pragma once

#include <optional>
#include <string>

#include "shared/base/error.h"
#include "shared/config/train_config.h"
#include "trainer_side/training/corpus.h"
#include "trainer_side/training/run_state.h"
#include "trainer_side/training/training_rank.h"

namespace wsync::cli {

// Reads config.json of the checkpoint or of the state to resume from, if there is one. Returns
// kInvalidInput with the incompatible sizes.
[[nodiscard]] Result<training::TrainingOptions> training_options(const config::TrainConfig& config);

// What may already exist at the output paths of a run.
enum class Outputs : std::uint8_t {
  kNew,        // nothing that the run may write
  kOfThisRun,  // files of this run: a rank was replaced
};
// The state in which a run begins.
struct RunBegin {
  std::optional<training::Corpus> text;           // absent if engines generate
  training::RunFacts facts;                       // facts.step is the last completed step
  std::optional<training::ParameterSet> weights;  // from a checkpoint; absent: random, by the seed
  std::optional<training::RunState> state;        // of a run that is resumed
};
// Returns kInvalidInput also if the state is of another model, text or seed, because the following
// steps would differ; if the state already has all steps; and if a step_N directory exists that the
// run may have to write. Returns kNotFound or kIo if an output cannot be written.
[[nodiscard]] Result<RunBegin> begin_run(const config::TrainConfig& config,
                                         const training::TrainingOptions& options,
                                         Outputs outputs = Outputs::kNew);

// Returns all parameters of the model at the beginning of the run.
[[nodiscard]] training::ParameterSet initial_weights(const config::TrainConfig& config,
                                                     const training::TrainingOptions& options,
                                                     RunBegin& begin);

// Returns the micro-batches of a replica in a step.
[[nodiscard]] std::vector<training::MicroBatch> micro_batches(const config::TrainConfig& config,
                                                              const training::Corpus& text,
                                                              std::uint64_t step,
                                                              std::uint32_t replica);
// Returns whether a run saves its state after this step.
[[nodiscard]] bool saves_after(const config::TrainConfig& config, std::uint64_t step);

// Returns the newest step, not below `first`, whose state is in save.directory; 0 if there is none.
[[nodiscard]] std::uint64_t newest_saved(const config::TrainConfig& config, std::uint64_t first);
// Renames a saved state that cannot be read, and reports it with this reason.
void put_aside(const std::string& path, const std::string& why);
// Removes states that a lost rank 0 had begun to save. No other process of the run may be saving.
void remove_unfinished(const config::TrainConfig& config);

}  // namespace wsync::cli
