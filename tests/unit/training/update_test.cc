// The end of a step by itself: what each rank's shard becomes is what plain loops over the whole
// model make of the same gradients.
#include "trainer_side/training/update.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "tests/unit/training/rank_threads.h"
#include "trainer_side/training/random.h"
#include "trainer_side/training/reference_trainer.h"

namespace wsync::training {
namespace {

constexpr std::uint64_t kUpdateTokens = 10;

// What a replica gives for a parameter in a step; the same whoever asks.
void fill_gradient(const std::string& name, std::uint32_t replica, std::uint64_t step,
                   std::span<float> gradient) {
  const std::string seed = name + " " + std::to_string(replica) + " " + std::to_string(step);
  Random random(digest_of(std::as_bytes(std::span(seed))).low);
  for (float& value : gradient) value = static_cast<float>(random.normal());
}
void fill_gradients(ParameterSet& set, std::uint32_t replica, std::uint64_t step) {
  for (const moe::Parameter& parameter : set.parameters())
    fill_gradient(parameter.name, replica, step, set.values(parameter.name));
}
double loss_of(std::uint32_t replica) { return 1.0 / (1 + replica); }

// Matrices of more than one block, and of no whole number of them.
moe::ModelSpec updated_spec(const ParallelSizes& sizes, bool tied) {
  moe::ModelSpec spec = small_options(sizes, sizes.pp).spec;
  spec.vocabulary = 700;
  spec.tied_embeddings = tied;
  return spec;
}

struct Expected {
  ParameterSet weights, mean, variance;
  std::vector<StepResult> steps;
};
Expected expected_of(const moe::ModelSpec& spec, std::uint32_t replicas,
                     const OptimizerOptions& optimizer) {
  const std::vector<moe::Parameter> all = moe::all_parameters(spec);
  Expected is{initial(all), ParameterSet(all), ParameterSet(all), {}};
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    double loss = 0;
    for (std::uint32_t replica = 0; replica < replicas; ++replica) loss += loss_of(replica);
    ParameterSet sums(all);
    double squares = 0;
    for (const moe::Parameter& parameter : all) {
      const std::span<float> sum = sums.values(parameter.name);
      const auto add = [&](const std::string& name, std::span<float> to) {
        for (std::uint32_t replica = 0; replica < replicas; ++replica) {
          std::vector<float> gradient(to.size());
          fill_gradient(name, replica, step, gradient);
          for (std::size_t i = 0; i < to.size(); ++i)
            to[i] = replica == 0 ? gradient[i] : to[i] + gradient[i];
        }
      };
      add(parameter.name, sum);
      if (spec.tied_embeddings && parameter.name == moe::kEmbedding) {
        std::vector<float> head(sum.size());
        add("head", head);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += head[i];
      }
      for (std::size_t first = 0; first < sum.size(); first += kNormBlock) {
        double block = 0;
        for (std::size_t i = first; i < std::min(sum.size(), first + kNormBlock); ++i)
          block += static_cast<double>(sum[i]) * static_cast<double>(sum[i]);
        squares += block;
      }
    }
    const double norm = std::sqrt(squares);
    for (const moe::Parameter& parameter : all)
      adamw_step(
          optimizer, step, parameter.shape.size() == 2, clip_factor(norm, optimizer.clip_norm),
          std::as_const(sums).values(parameter.name), is.weights.values(parameter.name),
          {.mean = is.mean.values(parameter.name), .variance = is.variance.values(parameter.name)});
    is.steps.push_back({.loss = loss / kUpdateTokens,
                        .gradient_norm = norm,
                        .learning_rate = learning_rate_of(optimizer, step)});
  }
  return is;
}

// One rank, all by itself: weights, gradients, update.
struct OneRank {
  OneRank(const moe::ModelSpec& spec, const ParallelSizes& sizes, std::uint32_t rank,
          const OptimizerOptions& optimizer, collective::ProcessGroup* group,
          bool second_holders = false)
      : place(place_of(sizes, rank)),
        weights(spec, sizes, place),
        gradients(spec, sizes, place),
        update({.spec = spec,
                .sizes = sizes,
                .place = place,
                .optimizer = optimizer,
                .group = group,
                .second_holders = second_holders},
               weights) {
    initialise(weights.dense, kSeed, 0.3);
    initialise(weights.experts, kSeed, 0.3);
  }
  Result<StepResult> run(std::uint64_t step) {
    const double loss = gradients.dense.contains(moe::kFinalNorm) ? loss_of(place.replica) : 0;
    return update.run(step, loss, kUpdateTokens, gradients);
  }
  void fill(std::uint64_t step) {
    fill_gradients(gradients.dense, place.replica, step);
    for (std::uint32_t i = 0; i < gradients.experts.size(); ++i)
      fill_gradients(gradients.experts[i], place.replica - place.expert + i, step);
    if (gradients.tied_head) fill_gradient("head", place.replica, step, gradients.tied_head->all());
  }

  const Place place;
  RankWeights weights;
  RankGradients gradients;
  Update update;
};

const std::vector<ParallelSizes>& layouts() {
  static const std::vector<ParallelSizes> all{
      {},                                      // one rank
      {.pp = 2, .vpp = 1, .ep = 1, .dp = 1},   // stages apart
      {.pp = 1, .vpp = 2, .ep = 1, .dp = 3},   // shards that are cut inside parameters
      {.pp = 1, .vpp = 1, .ep = 4, .dp = 4},   // an expert each
      {.pp = 2, .vpp = 1, .ep = 2, .dp = 4}};  // copies of experts
  return all;
}

TEST(Update, EveryShardIsThatOfPlainLoopsOverTheWholeModel) {
  const OptimizerOptions optimizer{.warmup_steps = 1, .total_steps = kSteps};
  for (const ParallelSizes& sizes : layouts())
    for (const bool tied : {false, true}) {
      moe::ModelSpec spec = updated_spec(sizes, tied);
      const Expected expected = expected_of(spec, sizes.dp, optimizer);
      EXPECT_GT(expected.steps[0].gradient_norm, optimizer.clip_norm);
      run_as_threads(sizes.ranks(), [&](std::uint32_t number, auto group) {
        OneRank rank(spec, sizes, number, optimizer, group.get());
        ASSERT_TRUE(rank.update.share_tied_head());
        for (std::uint64_t step = 1; step <= kSteps; ++step) {
          rank.fill(step);
          const auto result = rank.run(step);
          ASSERT_TRUE(result.has_value()) << result.error().message();
          EXPECT_EQ(result->loss, expected.steps[step - 1].loss);
          EXPECT_EQ(result->gradient_norm, expected.steps[step - 1].gradient_norm)
              << "the norm depends on the layout";
          EXPECT_EQ(result->learning_rate, expected.steps[step - 1].learning_rate);
        }
        for (const ParameterSet* set : {&rank.weights.dense, &rank.weights.experts})
          for (const moe::Parameter& parameter : set->parameters())
            EXPECT_TRUE(
                same_bits(set->values(parameter.name), expected.weights.values(parameter.name)))
                << parameter.name << (tied ? ", tied" : "");
        if (rank.weights.tied_head) {
          EXPECT_TRUE(same_bits(std::as_const(*rank.weights.tied_head).all(),
                                expected.weights.values(moe::kEmbedding)));
        }
      });
    }
}

// The elements of an array that a rank holds, of all the parameters.
std::vector<float> part_of(const Shard& shard, const HeldPart& held, const ParameterSet& all) {
  std::vector<float> array;
  for (const moe::Parameter& parameter : shard.weights->parameters()) {
    const std::span<const float> values = all.values(parameter.name);
    array.insert(array.end(), values.begin(), values.end());
  }
  return {array.begin() + static_cast<std::ptrdiff_t>(held.begin),
          array.begin() + static_cast<std::ptrdiff_t>(held.end)};
}

TEST(Update, ASecondHolderHasTheStateOfTheShardBeforeItsOwn) {
  const OptimizerOptions optimizer{.warmup_steps = 1, .total_steps = kSteps};
  for (const ParallelSizes& sizes : layouts())
    for (const bool tied : {false, true}) {
      const moe::ModelSpec spec = updated_spec(sizes, tied);
      const Expected expected = expected_of(spec, sizes.dp, optimizer);
      run_as_threads(sizes.ranks(), [&](std::uint32_t number, auto group) {
        OneRank rank(spec, sizes, number, optimizer, group.get(), true);
        for (std::uint64_t step = 1; step <= kSteps; ++step) {
          rank.fill(step);
          const auto result = rank.run(step);
          ASSERT_TRUE(result.has_value()) << result.error().message();
          EXPECT_EQ(result->gradient_norm, expected.steps[step - 1].gradient_norm);
        }
        for (Shard& shard : rank.update.shards()) {
          const std::uint32_t members = shard.team.size();
          ASSERT_EQ(shard.second.has_value(), members > 1);
          EXPECT_TRUE(same_bits(shard.own.mean, part_of(shard, shard.own, expected.mean)));
          EXPECT_TRUE(same_bits(shard.own.variance, part_of(shard, shard.own, expected.variance)));
          if (!shard.second) continue;
          const std::uint32_t before = (shard.team.index() + members - 1) % members;
          EXPECT_EQ(shard.second->begin, shard.cuts[before]);
          EXPECT_EQ(shard.second->end, shard.cuts[before + 1]);
          EXPECT_TRUE(same_bits(shard.second->mean, part_of(shard, *shard.second, expected.mean)));
          EXPECT_TRUE(
              same_bits(shard.second->variance, part_of(shard, *shard.second, expected.variance)));
          EXPECT_EQ(shard.held_of(shard.team.index()), &shard.own);
          EXPECT_EQ(shard.held_of(before), members == 1 ? &shard.own : &*shard.second);
          if (members > 2) {
            EXPECT_EQ(shard.held_of((shard.team.index() + 1) % members), nullptr);
          }
        }
        for (const ParameterSet* set : {&rank.weights.dense, &rank.weights.experts})
          for (const moe::Parameter& parameter : set->parameters())
            EXPECT_TRUE(
                same_bits(set->values(parameter.name), expected.weights.values(parameter.name)))
                << parameter.name;
      });
    }
}

TEST(Update, WithoutClippingGradientsAreTakenAsTheyAre) {
  const OptimizerOptions optimizer{.warmup_steps = 0, .total_steps = kSteps, .clip_norm = 0};
  const moe::ModelSpec spec = updated_spec({}, false);
  const Expected expected = expected_of(spec, 1, optimizer);
  OneRank rank(spec, {}, 0, optimizer, nullptr);
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    rank.fill(step);
    EXPECT_EQ(rank.run(step).value().gradient_norm, expected.steps[step - 1].gradient_norm);
  }
  EXPECT_TRUE(same_bits(std::as_const(rank.weights.dense).values(moe::kHead),
                        expected.weights.values(moe::kHead)));
}

// Runs one step with what `spoil` has spoilt on its rank; all ranks must say `expected`, and no
// parameter and no state may be another one afterwards.
template <class Spoil>
void expect_refused(const ParallelSizes& sizes, const std::string& expected, const Spoil& spoil) {
  const moe::ModelSpec spec = updated_spec(sizes, true);
  run_as_threads(sizes.ranks(), [&](std::uint32_t number, auto group) {
    OneRank rank(spec, sizes, number, {}, group.get());
    rank.fill(7);
    double loss = number;
    spoil(rank, loss);
    const RankWeights before = rank.weights;
    const auto result = rank.update.run(7, loss, kUpdateTokens, rank.gradients);
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), ErrorCode::kRefused);
    EXPECT_EQ(result.error().message().find(expected), 0U) << result.error().message();
    EXPECT_TRUE(same_bits(before.dense.all(), std::as_const(rank.weights.dense).all()));
    EXPECT_TRUE(same_bits(before.experts.all(), std::as_const(rank.weights.experts).all()));
    for (const Shard& shard : rank.update.shards())
      for (const auto* state : {&shard.own.mean, &shard.own.variance})
        EXPECT_TRUE(std::all_of(state->begin(), state->end(), [](float v) { return v == 0; }));
  });
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

TEST(Update, TheFirstWeightThatIsNotFiniteIsNamedOnEveryRank) {
  const ParallelSizes sizes{.pp = 2, .vpp = 1, .ep = 2, .dp = 2};
  // Found by rank 0 in its experts and by rank 3 behind it in the model; the loss tells.
  expect_refused(sizes,
                 "step 7: the loss is nan, and model.layers.0.mlp.experts.1.up_proj.weight holds a "
                 "value that is not finite; no parameter was changed",
                 [](OneRank& rank, double& loss) {
                   if (rank.place.rank == 3) {
                     loss = kNan;
                     rank.weights.dense.values(moe::kFinalNorm)[3] = kNan;
                   }
                   if (rank.place.rank == 0)
                     rank.weights.experts.values("model.layers.0.mlp.experts.1.up_proj.weight")[0] =
                         kNan;
                 });
}

TEST(Update, TheFirstGradientThatIsNotFiniteIsNamedOnEveryRank) {
  const ParallelSizes sizes{.pp = 2, .vpp = 1, .ep = 2, .dp = 2};
  expect_refused(sizes,
                 "step 7: the loss is 0.5, and the gradient of model.layers.0.mlp.gate.weight is "
                 "not finite",
                 [](OneRank& rank, double&) {
                   if (rank.place.rank == 1)
                     rank.gradients.dense.values("model.layers.0.mlp.gate.weight")[5] =
                         std::numeric_limits<float>::infinity();
                   if (rank.place.rank == 2)
                     rank.gradients.experts[1].values(
                         "model.layers.1.mlp.experts.0.down_proj.weight")[1] = kNan;
                 });
  // Of a tied head, which is a gradient of the embeddings.
  expect_refused(sizes,
                 "step 7: the loss is 0.5, and the gradient of model.embed_tokens.weight is not "
                 "finite",
                 [](OneRank& rank, double&) {
                   if (rank.gradients.tied_head) rank.gradients.tied_head->all().back() = kNan;
                 });
}

TEST(Update, AnInfiniteLossAloneStopsTheStep) {
  for (const ParallelSizes& sizes : layouts())
    expect_refused(sizes, "step 7: the loss is inf, and all parameters and gradients are finite",
                   [&](OneRank& rank, double& loss) {
                     if (rank.place.pipeline + 1 == sizes.pp) loss = kInfinite;
                   });
}

TEST(Update, RanksAtDifferentStepsChangeNothing) {
  const ParallelSizes sizes{.dp = 3};
  const moe::ModelSpec spec = updated_spec(sizes, false);
  run_as_threads(3, [&](std::uint32_t number, auto group) {
    OneRank rank(spec, sizes, number, {}, group.get());
    const std::uint64_t step = number == 1 ? 4 : 3;
    rank.fill(step);
    const RankWeights before = rank.weights;
    const auto result = rank.run(step);
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), ErrorCode::kRefused);
    EXPECT_EQ(result.error().message(),
              "rank 1 is at step 4, rank 0 at step 3; begin all ranks from the same checkpoint");
    EXPECT_TRUE(same_bits(before.dense.all(), std::as_const(rank.weights.dense).all()));
  });
}

}  // namespace
}  // namespace wsync::training
