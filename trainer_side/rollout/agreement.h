// Log-probabilities of generated tokens, computed anew: with the weights as they are published, in
// bfloat16, to see whether trainer and engines compute the same; and with those to stay near.
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

// Differences are absolute ones, of natural logarithms.
struct Agreement {
  std::size_t tokens = 0;   // that were compared with the weights of the version that made them
  double mismatch_max = 0;  // of these
  double mismatch_mean = 0;
  std::size_t all_tokens = 0;  // that were compared with the newest weights
  double drift_max = 0;        // of these: what the policy has moved since, and any mismatch
  double drift_mean = 0;
};

class PublishedWeights {
 public:
  // Keeps the newest `versions` (1 at least), for sequences of up to `sequence` tokens.
  PublishedWeights(const moe::ModelSpec& spec, std::size_t versions, std::size_t sequence);
  // The weights after a step, rounded as they are published. Those of this step or later ones that
  // are kept are forgotten: the run has gone back.
  void keep(std::uint64_t step, training::ParameterSet weights);
  // `batches`: what policy_batches() has made of `groups`. A token whose version is not kept counts
  // for the drift alone; versions of one step are of the same weights, whatever their epoch. After
  // keep().
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
  std::deque<Kept> kept_;  // the newest last
};

// Log-probabilities of the targets that count, batch by batch, in their order.
[[nodiscard]] std::vector<float> counted_log_probabilities(
    const moe::ModelSpec& spec, const training::ParameterSet& weights, std::size_t sequence,
    std::span<const training::MicroBatch> batches);
// Sets the reference of each policy target that counts: its log-probability with these weights.
void refer_to(const moe::ModelSpec& spec, const training::ParameterSet& weights,
              std::size_t sequence, std::span<training::MicroBatch> batches);

}  // namespace wsync::rollout
