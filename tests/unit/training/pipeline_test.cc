// A run over many ranks gives the bits of a run in one process with plain loops. Ranks are threads
// here, each with a group of its own; tests/scenario runs them as processes.
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shared/base/format.h"
#include "shared/collective/memory/host_segment.h"
#include "trainer_side/training/reference_trainer.h"
#include "trainer_side/training/training_rank.h"

namespace wsync::training {
namespace {

constexpr std::uint64_t kSteps = 3;

struct Case {
  std::uint32_t pp, vpp, microbatches;
  std::uint32_t dp, ep;
  bool offload, delay_wgrad, overlap;
  std::uint32_t layers_of_stage = 1;
  bool tied = false;
  schedule::Order order = schedule::Order::kInterleaved;
};

std::string name_of(const Case& one) {
  return fmt::format("pp{}_vpp{}_m{}_dp{}_ep{}{}{}{}{}{}{}", one.pp, one.vpp, one.microbatches,
                     one.dp, one.ep, one.offload ? "_offload" : "", one.delay_wgrad ? "_delay" : "",
                     one.overlap ? "_overlap" : "",
                     one.layers_of_stage > 1 ? "_layers" + std::to_string(one.layers_of_stage) : "",
                     one.tied ? "_tied" : "",
                     one.order == schedule::Order::kInterleaved
                         ? ""
                         : "_order" + std::to_string(static_cast<int>(one.order)));
}

TrainingOptions options_of(const Case& one) {
  TrainingOptions options;
  options.spec = {.vocabulary = 37,
                  .hidden = 16,
                  .layers = one.pp * one.vpp * one.layers_of_stage,
                  .heads = 4,
                  .key_value_heads = 2,
                  .head_dim = 4,
                  .experts = 4,
                  .experts_per_token = 2,
                  .expert_hidden = 12,
                  .max_positions = 16,
                  .tied_embeddings = one.tied};
  options.sizes = {.pp = one.pp, .vpp = one.vpp, .ep = one.ep, .dp = one.dp};
  options.schedule = {.order = one.order,
                      .shape = {.pp = one.pp, .vpp = one.vpp, .microbatches = one.microbatches},
                      .overlap = one.overlap,
                      .delay_wgrad = one.delay_wgrad};
  options.offload = one.offload;
  // Large steps: what differs shows.
  options.optimizer = {.learning_rate = 0.01, .warmup_steps = 1, .total_steps = kSteps};
  options.sequences = 2;
  options.sequence = 8;
  return options;
}

MicroBatch batch_of(const TrainingOptions& options, std::uint64_t step, std::uint32_t number) {
  MicroBatch batch{.sequence = options.sequence, .tokens = {}, .targets = {}};
  for (std::uint64_t i = 0; i < options.sequences * options.sequence; ++i) {
    const std::uint64_t seed = (step * 100 + number) * 1000 + i;
    batch.tokens.push_back(static_cast<std::uint32_t>(seed * seed * 7 % options.spec.vocabulary));
    batch.targets.push_back(static_cast<std::uint32_t>((seed * 11 + 3) % options.spec.vocabulary));
  }
  return batch;
}
std::vector<MicroBatch> batches_of(const TrainingOptions& options, std::uint64_t step,
                                   std::uint32_t replica) {
  const std::uint32_t count = options.schedule.shape.microbatches;
  std::vector<MicroBatch> batches;
  for (std::uint32_t i = 0; i < count; ++i)
    batches.push_back(batch_of(options, step, replica * count + i));
  return batches;
}

constexpr std::uint64_t kSeed = 5;
ParameterSet initial(const std::vector<moe::Parameter>& parameters) {
  ParameterSet set(parameters);
  initialise(set, kSeed, 0.3);
  return set;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// What one rank had at the end.
struct Outcome {
  std::vector<StepResult> steps;
  std::unique_ptr<TrainingRank> rank;
  std::string error;
};

Outcome run_rank(const TrainingOptions& options, collective::ProcessGroup* group) {
  Outcome outcome;
  auto rank = TrainingRank::create(options, group);
  if (!rank) return {.steps = {}, .rank = {}, .error = rank.error().message()};
  RankWeights& weights = (*rank)->weights();
  initialise(weights.dense, kSeed, 0.3);
  initialise(weights.experts, kSeed, 0.3);
  if (const auto shared = (*rank)->update().share_tied_head(); !shared)
    return {.steps = {}, .rank = {}, .error = shared.error().message()};
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const auto done = (*rank)->run_step(step, batches_of(options, step, (*rank)->place().replica));
    if (!done) {
      outcome.error = done.error().message();
      break;
    }
    outcome.steps.push_back(done->result);
  }
  outcome.rank = std::move(*rank);
  return outcome;
}

std::vector<Outcome> run_ranks(const TrainingOptions& options) {
  const std::uint32_t ranks = options.sizes.ranks();
  std::vector<Outcome> outcomes(ranks);
  if (ranks == 1) {
    outcomes[0] = run_rank(options, nullptr);
    return outcomes;
  }
  const auto segment = collective::memory::HostSegment::create({.size = ranks});
  EXPECT_TRUE(segment.has_value());
  std::vector<std::unique_ptr<collective::memory::MemoryGroup>> groups;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    groups.push_back(std::move(segment->attach(rank).value()));
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { outcomes[rank] = run_rank(options, groups[rank].get()); });
  threads.clear();
  return outcomes;
}

class Bitwise : public testing::TestWithParam<Case> {};

TEST_P(Bitwise, EqualsTheRunInOneProcess) {
  const TrainingOptions options = options_of(GetParam());
  ReferenceTrainer reference(options.spec, options.optimizer,
                             initial(moe::all_parameters(options.spec)));
  std::vector<StepResult> expected;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    std::vector<std::vector<MicroBatch>> replicas;
    for (std::uint32_t replica = 0; replica < options.sizes.dp; ++replica)
      replicas.push_back(batches_of(options, step, replica));
    expected.push_back(reference.run_step(step, replicas).value());
  }
  EXPECT_FALSE(
      same_bits(reference.weights().all(), initial(moe::all_parameters(options.spec)).all()));
  for (const Outcome& outcome : run_ranks(options)) {
    ASSERT_EQ(outcome.error, "");
    for (std::uint64_t i = 0; i < kSteps; ++i) {
      EXPECT_EQ(outcome.steps[i].loss, expected[i].loss);
      EXPECT_EQ(outcome.steps[i].gradient_norm, expected[i].gradient_norm);
    }
    RankWeights& weights = outcome.rank->weights();
    for (const ParameterSet* set : {&weights.dense, &weights.experts})
      for (const moe::Parameter& parameter : set->parameters())
        EXPECT_TRUE(same_bits(set->values(parameter.name),
                              std::as_const(reference.weights()).values(parameter.name)))
            << parameter.name;
    if (options.offload) {
      EXPECT_LE(outcome.rank->pipeline().device_pool().most_used(), 4U);
    }
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [p, v, m] : {std::array{1U, 1U, 4U}, {2U, 2U, 4U}, {4U, 2U, 8U}, {2U, 3U, 6U}})
    for (const auto& [dp, ep] : {std::array{1U, 1U}, {2U, 1U}, {2U, 2U}})
      for (const bool offload : {false, true})
        for (const bool delay : {false, true})
          for (const bool overlap : {false, true})
            if (!overlap || (ep == 2 && v >= 2))
              all.push_back({.pp = p,
                             .vpp = v,
                             .microbatches = m,
                             .dp = dp,
                             .ep = ep,
                             .offload = offload,
                             .delay_wgrad = delay,
                             .overlap = overlap});
  // Beyond the list: stages of several layers, tied embeddings, two groups of expert parallelism,
  // and the other orders.
  all.push_back({2, 2, 4, 2, 2, true, true, true, 2, true});
  all.push_back({1, 2, 3, 4, 2, false, true, true, 1, true});
  all.push_back({2, 1, 4, 4, 2, false, false, false, 1, true});
  all.push_back({2, 1, 4, 1, 1, false, true, false, 2, false, schedule::Order::kZeroBubbleH1});
  all.push_back({2, 1, 4, 1, 1, true, false, false, 1, false, schedule::Order::kGPipe});
  all.push_back(
      {3, 1, 5, 1, 1, true, false, false, 1, true, schedule::Order::kOneForwardOneBackward});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Layouts, Bitwise, testing::ValuesIn(cases()),
                         [](const auto& one) { return name_of(one.param); });

}  // namespace
}  // namespace wsync::training
