// What a training configuration makes of a run: options, and what the run begins with.
#pragma once

#include <optional>
#include <string>

#include "shared/base/error.h"
#include "shared/config/train_config.h"
#include "trainer_side/training/corpus.h"
#include "trainer_side/training/run_state.h"
#include "trainer_side/training/training_rank.h"

namespace wsync::cli {

// Reads config.json of the checkpoint or of the state to resume from, if there is one.
// kInvalidInput names the sizes that do not go together.
[[nodiscard]] Result<training::TrainingOptions> training_options(const config::TrainConfig& config);

// What is there already where a run is to write.
enum class Outputs : std::uint8_t {
  kNew,        // nothing of what it may write
  kOfThisRun,  // what it has written: a rank was replaced
};
// Where a run begins.
struct RunBegin {
  std::optional<training::Corpus> text;           // none where engines generate
  training::RunFacts facts;                       // facts.step has been taken
  std::optional<training::ParameterSet> weights;  // of a checkpoint; none: random ones by the seed
  std::optional<training::RunState> state;        // of a run that goes on
};
// kInvalidInput, too: a state of another model, text or seed, whose steps would not be those to
// come; a state that has all its steps; a step_N directory that the run may have to write exists.
// kNotFound and kIo: what the run is to write has no place.
[[nodiscard]] Result<RunBegin> begin_run(const config::TrainConfig& config,
                                         const training::TrainingOptions& options,
                                         Outputs outputs = Outputs::kNew);

// All parameters of the model as the run begins with them.
[[nodiscard]] training::ParameterSet initial_weights(const config::TrainConfig& config,
                                                     const training::TrainingOptions& options,
                                                     RunBegin& begin);

// The micro-batches of a replica in a step.
[[nodiscard]] std::vector<training::MicroBatch> micro_batches(const config::TrainConfig& config,
                                                              const training::Corpus& text,
                                                              std::uint64_t step,
                                                              std::uint32_t replica);
// Whether a run saves its state after this step.
[[nodiscard]] bool saves_after(const config::TrainConfig& config, std::uint64_t step);

// The newest step whose state is in save.directory, of those from `first` on; 0: none.
[[nodiscard]] std::uint64_t newest_saved(const config::TrainConfig& config, std::uint64_t first);
// Renames a saved state that cannot be read, and tells it with this reason.
void put_aside(const std::string& path, const std::string& why);
// Removes what a rank 0 that was lost has begun to save. No other one of the run saves meanwhile.
void remove_unfinished(const config::TrainConfig& config);

}  // namespace wsync::cli
