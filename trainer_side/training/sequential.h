// The reference for all other ways to train: one process, no lanes, plain loops, one layer after
// the other, one micro-batch after the other.
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

  // Returns the logits of every token, [tokens, vocabulary].
  [[nodiscard]] Buffer logits(const MicroBatch& batch) const;
  // Returns the log-probability of each target, given the tokens before it.
  [[nodiscard]] std::vector<float> log_probabilities(const MicroBatch& batch) const;
  // Adds to `gradients` the gradients of the loss (see loss.h), summed over tokens and multiplied
  // by `scale`. Returns the loss summed over tokens, without `scale`. The gradient of a tied head
  // is added to `tied_head`, or to that of the embedding if `tied_head` is absent.
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
