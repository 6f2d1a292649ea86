// Recomputes the log-probabilities of generated tokens. With the weights as published (bfloat16),
// this shows whether trainer and engines compute the same values. With the reference weights, it
// gives the reference of the divergence.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "shared/moe/model_spec.h"
#include "trainer_side/rollout/rollout.h"
#include "trainer_side/training/micro_batch.h"
#include "trainer_side/training/parameters.h"

namespace wsync::rollout {

// Absolute differences of natural logarithms.
struct Agreement {
  std::size_t tokens = 0;   // tokens compared with the weights of the version that generated them
  double mismatch_max = 0;  // over `tokens`
  double mismatch_mean = 0;
  std::size_t all_tokens = 0;  // tokens compared with the newest weights
  // Over `all_tokens`: the change of the policy since then, plus any mismatch.
  double drift_max = 0;
  double drift_mean = 0;
};

class PublishedWeights {
 public:
  // Keeps the newest `versions` (at least 1), for sequences of up to `sequence` tokens.
  PublishedWeights(const moe::ModelSpec& spec, std::size_t versions, std::size_t sequence);
  // Keeps the weights after a step, rounded as they are published. Weights of this step and of
  // later ones are dropped: the run has resumed from an earlier step.
  void keep(std::uint64_t step, training::ParameterSet weights);
  // Compares `batches`, the result of policy_batches() for `groups`. A token whose version is not
  // kept counts for the drift only. Versions of one step have the same weights in all epochs. Call
  // keep() first.
  [[nodiscard]] Agreement compare(std::span<const Group> groups,
                                  std::span<const training::MicroBatch> batches) const;

 private:
  struct Kept {
    std::uint64_t step = 0;
    training::ParameterSet weights;
  };
  const moe::ModelSpec spec_;
  const std::size_t versions_;
  const std::size_t sequence_;
  std::deque<Kept> kept_;  // newest last
};

// Returns the log-probabilities of all targets with a weight, batch by batch and in order.
[[nodiscard]] std::vector<float> counted_log_probabilities(
    const moe::ModelSpec& spec, const training::ParameterSet& weights, std::size_t sequence,
    std::span<const training::MicroBatch> batches);
// Sets the reference of each policy target with a weight to its log-probability with these weights.
void refer_to(const moe::ModelSpec& spec, const training::ParameterSet& weights,
              std::size_t sequence, std::span<training::MicroBatch> batches);

}  // namespace wsync::rollout
