// AlternatingTrainer publishes four sets of random weights of a tiny model in turn. Of every second
// set, all matrices are others than those of the set before; each set after it differs from it in a
// few values, so that a replica can be switched by a patch.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/moe/model_spec.h"
#include "shared/weights/version.h"
#include "trainer_side/plugin/trainer.h"
#include "trainer_side/training/parameters.h"

namespace wsync::soak {

struct Published {
  Version version;
  // last PAUSED of a rank to RESUME of the replica; 0: it did not serve
  std::uint64_t paused_ns = 0;
};

// Thread: the owner's. The trainer library has its own thread.
class AlternatingTrainer {
 public:
  // Writes a checkpoint of the model to `checkpoint`, from which engines read names and shapes, and
  // opens the coordinator's address in `run_directory`. `spec` has passed check_spec(). Errors as
  // plugin::Trainer::start() and save_model().
  [[nodiscard]] static Result<std::unique_ptr<AlternatingTrainer>> create(
      const moe::ModelSpec& spec, const std::string& checkpoint, const std::string& run_directory,
      const std::string& state_directory);

  // Starts to publish the next set. The previous publish has ended.
  [[nodiscard]] Result<> begin();
  // Waits for at most `wait`. Returns std::nullopt if the publish is still active, or the result if
  // the replica serves the version. kRefused, with the reason, if the publish failed.
  [[nodiscard]] Result<std::optional<Published>> ended(std::chrono::milliseconds wait) const;
  // Returns the weights of a version, published or not, rounded to bfloat16. Any thread.
  [[nodiscard]] const training::ParameterSet& weights_of(const Version& version) const noexcept;

 private:
  struct Weights {
    training::ParameterSet rounded;
    std::vector<Bytes> values;  // bfloat16 values
    plugin::RankTensors tensors;
  };
  AlternatingTrainer() = default;
  // Adds a set. `parameters` are rounded to bfloat16.
  void add(training::ParameterSet parameters);

  std::vector<Weights> weights_;              // the step modulo their count selects one
  std::uint64_t step_ = 0;                    // step of the last publish
  std::uint64_t publish_ = 0;                 // number of the last publish
  std::unique_ptr<plugin::Trainer> trainer_;  // destroyed before the weights that it reads
};

}  // namespace wsync::soak
