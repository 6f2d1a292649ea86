// Training in one process with plain loops: what a run over many ranks is held to, bit for bit. It
// shares the operators with them, and nothing of the executor.
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
  // All parameters of the model; `optimizer` as checked.
  ReferenceTrainer(const moe::ModelSpec& spec, const OptimizerOptions& optimizer,
                   ParameterSet weights);
  ReferenceTrainer(const ReferenceTrainer&) = delete;
  ReferenceTrainer& operator=(const ReferenceTrainer&) = delete;

  // Step `step`, counted from 1: replica after replica, micro-batch after micro-batch, an
  // accumulator for each replica, replicas added by number. Fails with not_finite() only.
  [[nodiscard]] Result<StepResult> run_step(std::uint64_t step,
                                            const std::vector<std::vector<MicroBatch>>& replicas);
  [[nodiscard]] ParameterSet& weights() noexcept { return weights_; }
  // The optimizer's state, as weights() are.
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
