// Training in one process with plain loops. Runs over many ranks are compared with it bit for bit.
// It shares the operators with them, but no part of the executor.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer_side/training/optimizer.h"
#include "trainer_side/training/parameters.h"
#include "trainer_side/training/sequential.h"
#include "trainer_side/training/update.h"

namespace wsync::training {

class ReferenceTrainer {
 public:
  // `weights` has all parameters of the model; `optimizer` has passed check_optimizer().
  ReferenceTrainer(const moe::ModelSpec& spec, const OptimizerOptions& optimizer,
                   ParameterSet weights);
  ReferenceTrainer(const ReferenceTrainer&) = delete;
  ReferenceTrainer& operator=(const ReferenceTrainer&) = delete;

  // Runs step `step`, counted from 1: replica after replica, micro-batch after micro-batch, with an
  // accumulator for each replica. Replicas are added by number. Fails with not_finite() only.
  [[nodiscard]] Result<StepResult> run_step(std::uint64_t step,
                                            const std::vector<std::vector<MicroBatch>>& replicas);
  [[nodiscard]] ParameterSet& weights() noexcept { return weights_; }
  // The optimizer's state, with the same layout as weights().
  [[nodiscard]] ParameterSet& mean() noexcept { return mean_; }
  [[nodiscard]] ParameterSet& variance() noexcept { return variance_; }

 private:
  [[nodiscard]] Error why_not_finite(std::uint64_t step, double loss,
                                     const ParameterSet& gradients) const;
  const moe::ModelSpec spec_;
  const OptimizerOptions optimizer_;
  ParameterSet weights_, mean_, variance_;
};

}  // namespace wsync::training
