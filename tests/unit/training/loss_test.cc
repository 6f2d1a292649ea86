// The loss against its formula written down a second time, plainly and in double, and its gradient
// against finite differences of that.
#include "trainer_side/training/loss.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "shared/moe/operators.h"
#include "tests/unit/training/rank_threads.h"
#include "trainer_side/training/reference_trainer.h"
#include "trainer_side/training/sequential.h"

namespace wsync::training {
namespace {

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();
constexpr float kLossScale = 0.25F;
constexpr std::size_t kColumns = 7;

// A micro-batch with logits of its own.
struct LossCase {
  MicroBatch batch;
  std::vector<float> logits;

  [[nodiscard]] std::size_t rows() const { return batch.targets.size(); }
  [[nodiscard]] std::size_t columns() const { return logits.size() / rows(); }
  [[nodiscard]] moe::ConstMatrix matrix() const { return {logits, rows(), columns()}; }
  [[nodiscard]] std::vector<double> row(std::size_t i) const {
    const std::span<const float> values = matrix().row(i);
    return {values.begin(), values.end()};
  }
};

LossCase case_of(std::size_t rows) {
  LossCase one;
  for (std::size_t i = 0; i < rows; ++i) {
    one.batch.targets.push_back(static_cast<std::uint32_t>(i * 3 % kColumns));
    for (std::size_t j = 0; j < kColumns; ++j)
      one.logits.push_back(0.37F * static_cast<float>((i * 7 + j * 5) % 11) - 1.5F);
  }
  return one;
}

struct LossAndGradients {
  double loss = 0;
  std::vector<float> dlogits;
};
// Nothing that was in the gradients before is left in them.
LossAndGradients computed(const LossCase& one) {
  LossAndGradients result{.dlogits = std::vector<float>(one.logits.size(), kNoNumber)};
  result.loss = loss_and_logit_gradients(one.batch, one.matrix(), kLossScale,
                                         {result.dlogits, one.rows(), one.columns()});
  return result;
}

double plain_log_probability(const std::vector<double>& logits, std::uint32_t target) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  return logits[target] - std::log(sum);
}

// The loss of target i, as micro_batch.h has it.
double plain_loss(const LossCase& one, std::size_t i, const std::vector<double>& logits) {
  const MicroBatch& batch = one.batch;
  const double log_p = plain_log_probability(logits, batch.targets[i]);
  const double weight = batch.weights.empty() ? 1 : static_cast<double>(batch.weights[i]);
  if (batch.policy.empty()) return -weight * log_p;
  const PolicyTarget& of = batch.policy[i];
  const auto advantage = static_cast<double>(of.advantage);
  const double ratio = std::exp(log_p - static_cast<double>(of.behaviour));
  const double clipped = std::clamp(ratio, 1 - static_cast<double>(batch.policy_loss.clip_low),
                                    1 + static_cast<double>(batch.policy_loss.clip_high));
  double loss = -std::min(ratio * advantage, clipped * advantage);
  if (batch.policy_loss.kl != 0) {
    const double apart = static_cast<double>(of.reference) - log_p;
    loss += static_cast<double>(batch.policy_loss.kl) * (std::exp(apart) - apart - 1);
  }
  return weight * loss;
}

void expect_value_and_slope(const LossCase& one) {
  const LossAndGradients result = computed(one);
  double sum = 0;
  constexpr double kStep = 1e-5;
  for (std::size_t i = 0; i < one.rows(); ++i) {
    const std::vector<double> logits = one.row(i);
    sum += plain_loss(one, i, logits);
    for (std::size_t j = 0; j < one.columns(); ++j) {
      std::vector<double> above = logits;
      std::vector<double> below = logits;
      above[j] += kStep;
      below[j] -= kStep;
      const double slope =
          (plain_loss(one, i, above) - plain_loss(one, i, below)) / (2 * kStep) * kLossScale;
      EXPECT_NEAR(result.dlogits[i * one.columns() + j], slope, 1e-6 * (1 + std::abs(slope)))
          << "row " << i << ", logit " << j << ": not the slope of the objective";
    }
  }
  EXPECT_NEAR(result.loss, sum, 1e-9 * (1 + std::abs(sum)));
}

// A token by its advantage and the ratio of its probabilities. The bounds are 0.8 and 1.3.
struct Branch {
  float advantage;
  double ratio;
  bool is_flat;  // has no slope: the ratio is clipped, or nothing is to be gained
};
constexpr Branch kBranches[] = {
    {1.5F, 0.5, false},  {1.5F, 0.85, false},   {1.5F, 1.2, false},   {1.5F, 2, true},
    {-0.75F, 0.5, true}, {-0.75F, 0.85, false}, {-0.75F, 1.2, false}, {-0.75F, 2, false},
    {0.0F, 0.5, true},   {0.0F, 1, true},
};

LossCase every_branch(float kl, bool weighted) {
  LossCase one = case_of(std::size(kBranches));
  one.batch.policy_loss = {.clip_low = 0.2F, .clip_high = 0.3F, .kl = kl};
  for (std::size_t i = 0; i < one.rows(); ++i) {
    const double log_p = plain_log_probability(one.row(i), one.batch.targets[i]);
    // Without a penalty the reference is of no meaning.
    one.batch.policy.push_back(
        {.advantage = kBranches[i].advantage,
         .behaviour = static_cast<float>(log_p - std::log(kBranches[i].ratio)),
         .reference = kl == 0 ? kNoNumber : static_cast<float>(log_p + (i % 2 == 0 ? 0.7 : -0.4))});
    if (weighted) one.batch.weights.push_back(0.5F + 0.75F * static_cast<float>(i % 4));
  }
  return one;
}

TEST(Loss, ValueAndGradientOfEveryBranchOfThePolicy) {
  for (const float kl : {0.0F, 0.3F})
    for (const bool weighted : {false, true}) {
      SCOPED_TRACE("kl " + std::to_string(kl) + (weighted ? ", weights" : ""));
      expect_value_and_slope(every_branch(kl, weighted));
    }
}

TEST(Loss, AFlatBranchHasNoGradientAtAll) {
  const LossCase one = every_branch(0, true);
  const LossAndGradients result = computed(one);
  for (std::size_t i = 0; i < one.rows(); ++i)
    for (std::size_t j = 0; j < kColumns; ++j)
      EXPECT_EQ(result.dlogits[i * kColumns + j] == 0.0F, kBranches[i].is_flat)
          << "row " << i << ", logit " << j;
}

TEST(Loss, ValueAndGradientOfWeightedCrossEntropy) {
  LossCase one = case_of(6);
  one.batch.weights = {1, 0.5F, 2, 0, 0.125F, 3};
  expect_value_and_slope(one);
}

TEST(Loss, WithoutWeightsItHasTheBitsOfCrossEntropy) {
  LossCase one = case_of(9);
  std::vector<float> dlogits(one.logits.size());
  const double loss = moe::cross_entropy(one.matrix(), one.batch.targets, kLossScale,
                                         {dlogits, one.rows(), one.columns()});
  for (const std::vector<float>& weights : {std::vector<float>{}, std::vector<float>(9, 1.0F)}) {
    one.batch.weights = weights;
    const LossAndGradients result = computed(one);
    EXPECT_EQ(result.loss, loss);
    EXPECT_TRUE(same_bits(result.dlogits, dlogits)) << weights.size() << " weights";
  }
}

// What a target of weight 0 has besides does not matter, be it no number.
TEST(Loss, TargetsOfWeightZeroAreNotThere) {
  for (const bool policy : {false, true}) {
    const auto row_alone = [&](std::size_t i) {
      const LossCase all = every_branch(0.3F, true);
      LossCase one;
      const std::span<const float> logits = all.matrix().row(i);
      one.logits.assign(logits.begin(), logits.end());
      one.batch.targets = {all.batch.targets[i]};
      one.batch.weights = {all.batch.weights[i]};
      if (policy) one.batch.policy = {all.batch.policy[i]};
      one.batch.policy_loss = all.batch.policy_loss;
      return one;
    };
    LossCase one = every_branch(0.3F, true);
    if (!policy) one.batch.policy.clear();
    for (std::size_t i = 1; i < one.rows(); i += 2) {
      one.batch.weights[i] = 0;
      std::fill_n(one.logits.begin() + static_cast<std::ptrdiff_t>(i * kColumns), kColumns,
                  kNoNumber);
      if (policy) one.batch.policy[i] = {kNoNumber, kNoNumber, kNoNumber};
    }
    const LossAndGradients result = computed(one);
    double sum = 0;
    for (std::size_t i = 0; i < one.rows(); ++i) {
      const bool counts = i % 2 == 0;
      const LossAndGradients alone = counts
                                         ? computed(row_alone(i))
                                         : LossAndGradients{.dlogits = std::vector(kColumns, 0.0F)};
      sum += alone.loss;
      EXPECT_TRUE(
          same_bits(std::span(result.dlogits).subspan(i * kColumns, kColumns), alone.dlogits))
          << "row " << i << (policy ? " of a policy" : "");
    }
    EXPECT_EQ(result.loss, sum);
  }
}

// The first step on what the policy itself has generated is that of policy gradients.
TEST(Loss, OnPolicyItHasTheGradientOfCrossEntropy) {
  LossCase one = case_of(8);
  const LossAndGradients expected = computed(one);
  std::vector<float> behaviour(one.rows());
  target_log_probabilities(one.matrix(), one.batch.targets, behaviour);
  for (const float log_p : behaviour) one.batch.policy.push_back({1, log_p, 0});
  const LossAndGradients result = computed(one);
  EXPECT_NEAR(result.loss, -8, 1e-6);
  for (std::size_t i = 0; i < expected.dlogits.size(); ++i)
    EXPECT_NEAR(result.dlogits[i], expected.dlogits[i], 1e-6) << i;
}

// One target, with what has to come out.
LossAndGradients of_one_target(const std::array<float, 3>& logits, const PolicyTarget& target,
                               float kl = 0) {
  LossCase one;
  one.logits.assign(logits.begin(), logits.end());
  one.batch.targets = {0};
  one.batch.policy = {target};
  one.batch.policy_loss = {.clip_low = 0.25F, .clip_high = 0.5F, .kl = kl};
  return computed(one);
}
bool all_zero(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return value == 0; });
}
constexpr std::array<float, 3> kLikely{1, 0, -1};       // a target that the policy would take
constexpr std::array<float, 3> kUnlikely{-2000, 0, 0};  // and one whose probability is 0 in double

TEST(Loss, ARatioBeyondDoubleDoesNoHarmWhereItIsClipped) {
  const LossAndGradients gain = of_one_target(kLikely, {2, -2000, 0});
  EXPECT_EQ(gain.loss, -3);
  EXPECT_TRUE(all_zero(gain.dlogits));
  for (const float nothing : {0.0F, -0.0F}) {
    const LossAndGradients without = of_one_target(kLikely, {nothing, -2000, 0});
    EXPECT_EQ(without.loss, 0);
    EXPECT_TRUE(all_zero(without.dlogits));
  }
  const LossAndGradients harm = of_one_target(kLikely, {-2, -2000, 0});
  EXPECT_EQ(harm.loss, std::numeric_limits<double>::infinity());
}

TEST(Loss, ARatioOfZero) {
  const LossAndGradients gain = of_one_target(kUnlikely, {2, -1, 0});
  EXPECT_EQ(gain.loss, 0);
  EXPECT_TRUE(all_zero(gain.dlogits));
  const LossAndGradients harm = of_one_target(kUnlikely, {-2, -1, 0});
  EXPECT_EQ(harm.loss, 1.5);
  EXPECT_TRUE(all_zero(harm.dlogits));
}

TEST(Loss, APenaltyFarFromTheReference) {
  // The policy takes what the reference never would: grows as the log-probability, gradient kl.
  const LossAndGradients far = of_one_target(kLikely, {0, 0, -2000}, 0.5F);
  const double log_p = plain_log_probability({1, 0, -1}, 0);
  EXPECT_NEAR(far.loss, 0.5 * (2000 + log_p - 1), 1e-9);
  EXPECT_NEAR(far.dlogits[0], 0.5 * kLossScale * (1 - std::exp(log_p)), 1e-6);
  // The other way it is infinite.
  EXPECT_EQ(of_one_target(kUnlikely, {0, 0, -1}, 0.5F).loss,
            std::numeric_limits<double>::infinity());
  // At the reference there is none.
  std::vector<float> same(1);
  target_log_probabilities({kLikely, 1, 3}, std::vector<std::uint32_t>{0}, same);
  const LossAndGradients near = of_one_target(kLikely, {0, 0, same[0]}, 0.5F);
  EXPECT_NEAR(near.loss, 0, 1e-12);
  EXPECT_NEAR(near.dlogits[0], 0, 1e-7);
}

TEST(Loss, WhatIsNoNumberIsNotClipped) {
  EXPECT_TRUE(std::isnan(of_one_target({kNoNumber, 0, 0}, {1, -1, 0}).loss));
  EXPECT_TRUE(std::isnan(of_one_target({0, kNoNumber, 0}, {-1, -1, 0}).loss));
  EXPECT_TRUE(std::isnan(of_one_target(kLikely, {kNoNumber, -1, 0}).loss));
  EXPECT_TRUE(std::isnan(of_one_target(kLikely, {1, kNoNumber, 0}).loss));
  EXPECT_TRUE(std::isnan(of_one_target(kLikely, {1, -1, kNoNumber}, 0.5F).loss));
}

TEST(LossDeathTest, WhatDoesNotFit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto expect_death_of = [](auto&& change, const char* rule) {
    LossCase one = every_branch(0, true);
    change(one.batch);
    EXPECT_DEATH(static_cast<void>(computed(one)), rule);
  };
  const char* sizes = "weights and policy are empty or have one element for each target";
  expect_death_of([](MicroBatch& batch) { batch.weights.pop_back(); }, sizes);
  expect_death_of([](MicroBatch& batch) { batch.weights.push_back(1); }, sizes);
  expect_death_of([](MicroBatch& batch) { batch.policy.pop_back(); }, sizes);
  const char* bounds = "the bounds of the ratio and the weight of the divergence are finite";
  expect_death_of([](MicroBatch& batch) { batch.policy_loss.clip_low = kNoNumber; }, bounds);
  expect_death_of([](MicroBatch& batch) { batch.policy_loss.clip_high = -1; }, bounds);
  const char* targets = "each row of logits has a target of the vocabulary";
  expect_death_of([](MicroBatch& batch) { batch.targets[2] = kColumns; }, targets);
  const LossCase one = case_of(2);
  std::vector<float> out(3);
  EXPECT_DEATH(target_log_probabilities(one.matrix(), one.batch.targets, out),
               "each target gets a log-probability");
}

// A model, and a micro-batch of its own for it.
struct LossModel {
  TrainingOptions options = small_options({}, 1);
  ParameterSet weights = initial(moe::all_parameters(options.spec));
  MicroBatch batch = batch_of(options, 1, 0);
  SequentialModel model{options.spec, weights, options.sequence};

  // As if `model` had generated the targets: what it says of them, moved by `by`.
  void be_policy(float advantage, float by = 0) {
    for (const float log_p : model.log_probabilities(batch))
      batch.policy.push_back({advantage, log_p + by, 0});
  }
};

TEST(Loss, LogProbabilitiesOfAModelAreThoseOfItsLogits) {
  const LossModel one;
  const std::vector<float> of_targets = one.model.log_probabilities(one.batch);
  const Buffer logits = one.model.logits(one.batch);
  ASSERT_EQ(of_targets.size(), one.batch.targets.size());
  for (std::size_t i = 0; i < of_targets.size(); ++i) {
    const std::span<const float> row = logits.matrix().row(i);
    EXPECT_NEAR(of_targets[i],
                plain_log_probability({row.begin(), row.end()}, one.batch.targets[i]), 1e-6);
  }
  ParameterSet unused(one.weights.parameters());
  const double loss = one.model.loss_and_gradients(one.batch, 1, unused);
  EXPECT_NEAR(std::accumulate(of_targets.begin(), of_targets.end(), 0.0), -loss, 1e-5);
}

TEST(Loss, AModelOnPolicyLearnsAsByCrossEntropy) {
  LossModel one;
  ParameterSet expected(one.weights.parameters());
  one.model.loss_and_gradients(one.batch, 1, expected);
  one.be_policy(1);
  ParameterSet gradients(one.weights.parameters());
  const double loss = one.model.loss_and_gradients(one.batch, 1, gradients);
  EXPECT_NEAR(loss, -static_cast<double>(one.batch.targets.size()), 1e-5);
  for (std::size_t i = 0; i < expected.all().size(); ++i)
    EXPECT_NEAR(gradients.all()[i], expected.all()[i], 1e-4) << i;
}

// Steps along the gradient raise what is of advantage and lower what is not.
TEST(Loss, StepsOfAPolicyFollowTheAdvantages) {
  LossModel one;
  one.be_policy(0);
  for (std::size_t i = 0; i < one.batch.policy.size(); ++i)
    one.batch.policy[i].advantage = i % 2 == 0 ? 1.0F : -1.0F;
  const std::vector<float> before = one.model.log_probabilities(one.batch);
  ReferenceTrainer trainer(one.options.spec, one.options.optimizer, one.weights);
  for (std::uint64_t step = 1; step <= kSteps; ++step)
    ASSERT_TRUE(trainer.run_step(step, {{one.batch}}).has_value());
  const SequentialModel after(one.options.spec, trainer.weights(), one.options.sequence);
  const std::vector<float> changed = after.log_probabilities(one.batch);
  double gained = 0;
  double lost = 0;
  for (std::size_t i = 0; i < before.size(); ++i)
    (i % 2 == 0 ? gained : lost) += static_cast<double>(changed[i] - before[i]);
  EXPECT_GT(gained, 0.1);
  EXPECT_LT(lost, -0.1);
}

// A token that became likely beyond all measure, and should not have: the step is refused.
TEST(Loss, AnInfiniteLossOfAPolicyChangesNoWeight) {
  LossModel one;
  one.be_policy(-1, -2000);
  ReferenceTrainer reference(one.options.spec, one.options.optimizer, one.weights);
  const auto of_reference = reference.run_step(1, {{one.batch}});
  auto rank = TrainingRank::create(one.options, nullptr);
  ASSERT_TRUE(rank.has_value());
  ASSERT_TRUE(set_weights(**rank).has_value());
  const ParameterSet before = (*rank)->weights().dense;
  const auto of_rank = (*rank)->run_step(1, {one.batch});
  ASSERT_FALSE(of_reference.has_value());
  ASSERT_FALSE(of_rank.has_value());
  for (const Error& error : {of_reference.error(), of_rank.error()}) {
    EXPECT_EQ(error.code(), ErrorCode::kRefused);
    EXPECT_NE(error.message().find("step 1: the loss is inf, and"), std::string::npos)
        << error.message();
  }
  EXPECT_TRUE(same_bits(reference.weights().all(), std::as_const(one.weights).all()));
  EXPECT_TRUE(same_bits(std::as_const((*rank)->weights().dense).all(), before.all()));
  // Of advantage, such a token is clipped, and the step is one.
  for (PolicyTarget& target : one.batch.policy) target.advantage = 1;
  const auto clipped = (*rank)->run_step(1, {one.batch});
  ASSERT_TRUE(clipped.has_value()) << clipped.error().message();
  EXPECT_EQ(clipped->result.gradient_norm, 0);
  EXPECT_NEAR(clipped->result.loss, -1.2, 1e-6);
}

TEST(LossDeathTest, ARankRefusesMicroBatchesWhoseWeightsDoNotFit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  LossModel one;
  auto rank = TrainingRank::create(one.options, nullptr);
  ASSERT_TRUE(rank.has_value());
  one.batch.weights = {1, 1};
  EXPECT_DEATH(static_cast<void>((*rank)->run_step(1, {one.batch})),
               "a micro-batch has a weight for each target or none");
}

}  // namespace
}  // namespace wsync::training
