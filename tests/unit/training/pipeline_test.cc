// A run over many ranks gives the bits of a run in one process with plain loops. Ranks are threads
// here, each with a group of its own.
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "shared/base/format.h"
#include "tests/unit/training/rank_threads.h"
#include "trainer_side/training/reference_trainer.h"
#include "trainer_side/training/training_rank.h"

namespace wsync::training {
namespace {

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
  TrainingOptions options =
      small_options({.pp = one.pp, .vpp = one.vpp, .ep = one.ep, .dp = one.dp}, one.microbatches,
                    one.layers_of_stage);
  options.spec.tied_embeddings = one.tied;
  options.schedule.order = one.order;
  options.schedule.overlap = one.overlap;
  options.schedule.delay_wgrad = one.delay_wgrad;
  options.offload = one.offload;
  return options;
}

// Weights and micro-batches, where they are not the usual ones.
struct Changes {
  std::function<void(ParameterSet&)> weights;
  std::function<void(MicroBatch&)> batch;
};
std::vector<MicroBatch> batches_of(const TrainingOptions& options, std::uint64_t step,
                                   std::uint32_t replica, const Changes& changes) {
  std::vector<MicroBatch> batches = training::batches_of(options, step, replica);
  if (changes.batch) std::for_each(batches.begin(), batches.end(), changes.batch);
  return batches;
}

// What one rank had at the end.
struct Outcome {
  std::vector<StepResult> steps;
  std::unique_ptr<TrainingRank> rank;
  std::string error;
};

Outcome run_rank(const TrainingOptions& options, const Changes& changes,
                 collective::ProcessGroup* group) {
  Outcome outcome;
  auto rank = TrainingRank::create(options, group);
  if (!rank) return {.steps = {}, .rank = {}, .error = rank.error().message()};
  if (const auto set = set_weights(**rank, changes.weights); !set)
    return {.steps = {}, .rank = {}, .error = set.error().message()};
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const auto done =
        (*rank)->run_step(step, batches_of(options, step, (*rank)->place().replica, changes));
    if (!done) {
      outcome.error = done.error().message();
      break;
    }
    outcome.steps.push_back(done->result);
  }
  outcome.rank = std::move(*rank);
  return outcome;
}

void expect_the_bits_of_one_process(const TrainingOptions& options, const Changes& changes = {}) {
  ParameterSet weights = initial(moe::all_parameters(options.spec));
  if (changes.weights) changes.weights(weights);
  const ParameterSet before = weights;
  ReferenceTrainer reference(options.spec, options.optimizer, std::move(weights));
  std::vector<StepResult> expected;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    std::vector<std::vector<MicroBatch>> replicas;
    for (std::uint32_t replica = 0; replica < options.sizes.dp; ++replica)
      replicas.push_back(batches_of(options, step, replica, changes));
    expected.push_back(reference.run_step(step, replicas).value());
  }
  EXPECT_FALSE(same_bits(reference.weights().all(), before.all()));
  std::vector<Outcome> outcomes(options.sizes.ranks());
  std::vector<std::unique_ptr<collective::ProcessGroup>> groups(outcomes.size());
  run_as_threads(options.sizes.ranks(), [&](std::uint32_t rank, auto group) {
    groups[rank] = std::move(group);
    outcomes[rank] = run_rank(options, changes, groups[rank].get());
  });
  for (const Outcome& outcome : outcomes) {
    ASSERT_EQ(outcome.error, "");
    for (std::uint64_t i = 0; i < kSteps; ++i) {
      EXPECT_EQ(outcome.steps[i].loss, expected[i].loss);
      EXPECT_EQ(outcome.steps[i].gradient_norm, expected[i].gradient_norm);
    }
    RankWeights& had = outcome.rank->weights();
    for (const ParameterSet* set : {&had.dense, &had.experts})
      for (const moe::Parameter& parameter : set->parameters())
        EXPECT_TRUE(same_bits(set->values(parameter.name),
                              std::as_const(reference.weights()).values(parameter.name)))
            << parameter.name << " is not what one process gives";
    if (options.offload) {
      EXPECT_LE(outcome.rank->pipeline().device_pool().slots(), 4U);
    }
  }
}

class Bitwise : public testing::TestWithParam<Case> {};

TEST_P(Bitwise, EqualsTheRunInOneProcess) {
  expect_the_bits_of_one_process(options_of(GetParam()));
}

// The thread sanitizer takes ten times as long, and sees the same lanes in fewer cases.
#ifdef WSYNC_SANITIZED_THREADS
constexpr bool kAllCases = false;
#else
constexpr bool kAllCases = true;
#endif

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [p, v, m] : {std::array{1U, 1U, 4U}, {2U, 2U, 4U}, {4U, 2U, 8U}, {2U, 3U, 6U}})
    for (const auto& [dp, ep] : {std::array{1U, 1U}, {2U, 1U}, {2U, 2U}})
      for (const bool offload : {false, true})
        for (const bool delay : {false, true})
          for (const bool overlap : {false, true})
            if ((!overlap || (ep == 2 && v >= 2)) &&
                (kAllCases || (offload == delay && (offload || p < 4))))
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

// All experts that are chosen lie with one member: the other has no row of some source, and of
// experts that no token of a micro-batch has chosen nothing is computed.
TEST(Routing, AMemberWithoutRowsTakesPart) {
  for (const bool same_token : {false, true}) {
    TrainingOptions options = options_of({2, 2, 4, 4, 2, true, true, true});
    expect_the_bits_of_one_process(
        options, {.weights = send_all_to_one_member, .batch = [&](MicroBatch& batch) {
                    if (same_token) std::fill(batch.tokens.begin(), batch.tokens.end(), 3U);
                  }});
  }
}

// With tokens that are all one, in each micro-batch two experts of a layer have rows.
TEST(Routing, ExpertsWithoutRowsKeepTheirGradients) {
  for (const auto& one :
       {Case{2, 1, 3, 1, 1, false, true, false}, {1, 2, 2, 2, 2, true, false, true}})
    expect_the_bits_of_one_process(
        options_of(one), {.weights = {}, .batch = [](MicroBatch& batch) {
                            std::fill(batch.tokens.begin(), batch.tokens.end(), batch.tokens[0]);
                          }});
}

// Ratios below, between and beyond the bounds; about every fifth target does not count.
void make_policy(MicroBatch& batch) {
  batch.policy_loss = {.clip_low = 0.2F, .clip_high = 0.28F, .kl = 0.1F};
  for (std::size_t i = 0; i < batch.targets.size(); ++i) {
    const std::uint32_t some = (batch.tokens[i] * 5 + batch.targets[i] * 3) % 7;
    batch.weights.push_back(i % 5 == 0 ? 0.0F : 0.5F + 0.25F * static_cast<float>(i % 3));
    batch.policy.push_back({.advantage = static_cast<float>(i % 4) - 1.5F,
                            .behaviour = 0.3F * static_cast<float>(some) - 4.5F,
                            .reference = -3.2F - 0.2F * static_cast<float>(some)});
  }
}

TEST(Losses, OfAPolicyAndOfWeightedTargetsAreThoseOfOneProcess) {
  for (const auto& one :
       {Case{1, 1, 4, 1, 1, false, false, false},
        {2, 2, 4, 2, 1, false, true, false},
        {2, 2, 4, 2, 2, true, true, true, 2, true},
        {2, 1, 4, 1, 1, false, true, false, 2, false, schedule::Order::kZeroBubbleH1}}) {
    SCOPED_TRACE(name_of(one));
    expect_the_bits_of_one_process(options_of(one), {.weights = {}, .batch = make_policy});
    expect_the_bits_of_one_process(options_of(one), {.weights = {}, .batch = [](MicroBatch& batch) {
                                                       make_policy(batch);
                                                       batch.policy.clear();
                                                     }});
  }
}

}  // namespace
}  // namespace wsync::training
