// Ranks as threads of the test, each with a group of its own, and what they train on.
#pragma once

#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "shared/process_group/memory/host_segment.h"
#include "trainer_side/training/training_rank.h"

namespace wsync::training {

constexpr std::uint64_t kSteps = 3;
constexpr std::uint64_t kSeed = 5;

// Runs `rank` for each rank of a group, in threads of their own; a rank leaves the group when it
// returns. One rank has no group.
inline void run_as_threads(
    std::uint32_t ranks,
    const std::function<void(std::uint32_t, std::unique_ptr<collective::ProcessGroup>)>& rank) {
  if (ranks == 1) return rank(0, nullptr);
  const auto segment = collective::memory::HostSegment::create({.size = ranks});
  ASSERT_TRUE(segment.has_value());
  std::vector<std::unique_ptr<collective::ProcessGroup>> groups;
  for (std::uint32_t i = 0; i < ranks; ++i) groups.push_back(std::move(segment->attach(i).value()));
  std::vector<std::jthread> threads;
  for (std::uint32_t i = 0; i < ranks; ++i)
    threads.emplace_back([&, i] { rank(i, std::move(groups[i])); });
}

// A model with `layers` layers, small enough for hundreds of runs.
inline TrainingOptions small_options(const ParallelSizes& sizes, std::uint32_t microbatches,
                                     std::uint32_t layers_of_stage = 1) {
  TrainingOptions options;
  options.spec = {.vocabulary = 37,
                  .hidden = 16,
                  .layers = sizes.stages() * layers_of_stage,
                  .heads = 4,
                  .key_value_heads = 2,
                  .head_dim = 4,
                  .experts = 4,
                  .experts_per_token = 2,
                  .expert_hidden = 12,
                  .max_positions = 16};
  options.sizes = sizes;
  options.schedule.shape = {.pp = sizes.pp, .vpp = sizes.vpp, .microbatches = microbatches};
  // Large steps: what differs shows.
  options.optimizer = {.learning_rate = 0.01, .warmup_steps = 1, .total_steps = kSteps};
  options.sequences = 2;
  options.sequence = 8;
  return options;
}

inline MicroBatch batch_of(const TrainingOptions& options, std::uint64_t step,
                           std::uint32_t number) {
  MicroBatch batch{.sequence = options.sequence, .tokens = {}, .targets = {}};
  for (std::uint64_t i = 0; i < options.sequences * options.sequence; ++i) {
    const std::uint64_t seed = (step * 100 + number) * 1000 + i;
    batch.tokens.push_back(static_cast<std::uint32_t>(seed * seed * 7 % options.spec.vocabulary));
    batch.targets.push_back(static_cast<std::uint32_t>((seed * 11 + 3) % options.spec.vocabulary));
  }
  return batch;
}
inline std::vector<MicroBatch> batches_of(const TrainingOptions& options, std::uint64_t step,
                                          std::uint32_t replica) {
  const std::uint32_t count = options.schedule.shape.microbatches;
  std::vector<MicroBatch> batches;
  for (std::uint32_t i = 0; i < count; ++i)
    batches.push_back(batch_of(options, step, replica * count + i));
  return batches;
}

inline ParameterSet initial(const std::vector<moe::Parameter>& parameters) {
  ParameterSet set(parameters);
  initialise(set, kSeed, 0.3);
  return set;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Experts 0 and 1 have one row of the router, 2 and 3 its negative: where two ranks share four
// experts, a token's two lie with one of them, whichever.
inline void send_all_to_one_member(ParameterSet& set) {
  for (const moe::Parameter& parameter : set.parameters()) {
    if (!parameter.name.ends_with("mlp.gate.weight")) continue;
    const moe::Matrix router = set.matrix(parameter.name);
    for (std::size_t i = 0; i < router.columns(); ++i) {
      router.row(1)[i] = router.row(0)[i];
      router.row(2)[i] = router.row(3)[i] = -router.row(0)[i];
    }
  }
}

// Sets the weights of a rank to those of initial(), changed by `change`.
inline Result<> set_weights(TrainingRank& rank,
                            const std::function<void(ParameterSet&)>& change = {}) {
  for (ParameterSet* set : {&rank.weights().dense, &rank.weights().experts}) {
    initialise(*set, kSeed, 0.3);
    if (change) change(*set);
  }
  return rank.update().share_tied_head();
}

}  // namespace wsync::training
