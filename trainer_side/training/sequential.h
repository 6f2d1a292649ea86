// The reference that every other way to train is held to: one process, no lanes, plain loops, all
// layers one after the other, one micro-batch after the other.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shared/moe/model_spec.h"
#include "shared/moe/operators.h"
#include "trainer_side/training/layer.h"
#include "trainer_side/training/micro_batch.h"
#include "trainer_side/training/parameters.h"

namespace wsync::training {

class SequentialModel {
 public:
  // `weights` is borrowed and may change between calls.
  SequentialModel(const moe::ModelSpec& spec, const ParameterSet& weights, std::size_t positions);

  // Logits of every token, [tokens, vocabulary].
  [[nodiscard]] Buffer logits(const MicroBatch& batch) const;
  // Of each target, given the tokens up to its own.
  [[nodiscard]] std::vector<float> log_probabilities(const MicroBatch& batch) const;
  // Adds to `gradients` those of the loss (see loss.h) summed over tokens, times `scale`; returns
  // the loss summed over tokens, not scaled. `tied_head`: where a tied head's gradient is added;
  // without, to that of the embedding.
  double loss_and_gradients(const MicroBatch& batch, float scale, ParameterSet& gradients,
                            std::optional<moe::Matrix> tied_head = std::nullopt) const;

 private:
  struct Forward;
  [[nodiscard]] std::unique_ptr<Forward> run_forward(const MicroBatch& batch) const;
  [[nodiscard]] moe::ConstMatrix head() const;

  moe::ModelSpec spec_;
  const ParameterSet& weights_;
  moe::RotaryTable rotary_;
  ExpertParallel alone_;
  std::vector<LayerWeights> layers_;
};

}  // namespace wsync::training
