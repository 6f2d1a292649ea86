// AlternatingTrainer: a trainer that publishes two sets of random weights of a tiny model in turn.
#pragma once

#include <array>
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
  std::uint64_t paused_ns = 0;  // the replica's last rank's PAUSED to RESUME; 0: it did not serve
};

// Thread: the owner's; the trainer has its own.
class AlternatingTrainer {
 public:
  // Writes a checkpoint of the model to `checkpoint`, for the engines' names and shapes, and opens
  // the coordinator's address in `run_directory`. `spec` as checked by check_spec(). Errors as
  // plugin::Trainer::start() and save_model().
  [[nodiscard]] static Result<std::unique_ptr<AlternatingTrainer>> create(
      const moe::ModelSpec& spec, const std::string& checkpoint, const std::string& run_directory,
      const std::string& state_directory);

  // Begins to publish the other set; the publish before has ended.
  [[nodiscard]] Result<> begin();
  // What has become of it: nothing yet after `wait`, or that the replica serves it. kRefused
  // otherwise, with the reason.
  [[nodiscard]] Result<std::optional<Published>> ended(std::chrono::milliseconds wait) const;
  // What a version that it has published holds, or would hold: rounded to bfloat16. Any thread.
  [[nodiscard]] const training::ParameterSet& weights_of(const Version& version) const noexcept;

 private:
  struct Weights {
    training::ParameterSet rounded;
    std::vector<Bytes> values;  // bfloat16
    plugin::RankTensors tensors;
  };
  AlternatingTrainer() = default;

  std::vector<Weights> weights_;              // two; that of a step is its number by their count
  std::uint64_t step_ = 0;                    // of the last publish
  std::uint64_t publish_ = 0;                 // its number
  std::unique_ptr<plugin::Trainer> trainer_;  // before the weights, which it reads
};

}  // namespace wsync::soak
