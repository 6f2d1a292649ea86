#include "trainer_side/rollout/agreement.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer_side/training/checkpoint.h"
#include "trainer_side/training/sequential.h"

namespace wsync::rollout {
namespace {

using testing::ElementsAre;
using testing::Gt;
using testing::Lt;
using training::MicroBatch;
using training::ParameterSet;

constexpr BatchShape kAgreementShape{.micro_batches = 2, .sequences = 1, .sequence = 6};
constexpr float kOther = 0.5F;  // added to a log-probability, to be seen

moe::ModelSpec tiny_spec() {
  return {.vocabulary = 256,
          .hidden = 8,
          .layers = 1,
          .heads = 2,
          .key_value_heads = 1,
          .head_dim = 4,
          .experts = 2,
          .experts_per_token = 1,
          .expert_hidden = 8,
          .max_positions = 8};
}

ParameterSet weights_of(std::uint64_t seed) {
  ParameterSet weights(moe::all_parameters(tiny_spec()));
  training::initialise(weights, seed, 0.3);
  return weights;
}

ParameterSet rounded(ParameterSet weights) {
  for (float& value : weights.all()) value = training::from_bfloat16(training::to_bfloat16(value));
  return weights;
}

// Two answers, of three tokens and of two, with their spans.
std::vector<Group> groups_with(std::vector<Span> first, std::vector<Span> second) {
  Group group{.problem = {.prompt = "ab", .answer = "x"}, .rollouts = {}};
  group.rollouts.push_back({.tokens = {'c', 'd', '\n'},
                            .log_probabilities = {0, 0, 0},
                            .spans = std::move(first),
                            .replica = {}});
  group.rollouts.push_back({.tokens = {'e', '\n'},
                            .log_probabilities = {0, 0},
                            .spans = std::move(second),
                            .replica = {}});
  return {group};
}

std::vector<MicroBatch> batches_of(const std::vector<Group>& groups) {
  return policy_batches(groups, kAgreementShape, {}).value();
}

// As an engine with these weights says it, from token `first` of each answer on.
void say(std::vector<Group>& groups, const ParameterSet& weights, std::size_t first = 0) {
  const std::vector<float> all =
      counted_log_probabilities(tiny_spec(), weights, kAgreementShape.sequence, batches_of(groups));
  std::size_t next = 0;
  for (Rollout& rollout : groups[0].rollouts)
    for (std::size_t i = 0; i < rollout.tokens.size(); ++i, ++next)
      if (i >= first) rollout.log_probabilities[i] = all[next];
}

Span span_of(std::uint32_t start, std::uint32_t end, const Version& version) {
  return {.start = start, .end = end, .version = version};
}

TEST(CountedLogProbabilities, AreThoseOfTheGeneratedTokens) {
  const ParameterSet weights = weights_of(1);
  const Version any{.epoch = 1, .step = 1};
  const auto batches = batches_of(groups_with({span_of(0, 3, any)}, {span_of(0, 2, any)}));
  const training::SequentialModel model(tiny_spec(), weights, kAgreementShape.sequence);
  const std::vector<float> first = model.log_probabilities(batches[0]);
  const std::vector<float> second = model.log_probabilities(batches[1]);
  // 'b' predicts the first token of an answer.
  EXPECT_THAT(counted_log_probabilities(tiny_spec(), weights, kAgreementShape.sequence, batches),
              ElementsAre(first[1], first[2], first[3], second[1], second[2]));
}

TEST(ReferTo, EachTokenThatCountsGetsItsReference) {
  const ParameterSet weights = weights_of(2);
  const Version any{.epoch = 1, .step = 1};
  auto batches = batches_of(groups_with({span_of(0, 3, any)}, {span_of(0, 2, any)}));
  const std::vector<float> expected =
      counted_log_probabilities(tiny_spec(), weights, kAgreementShape.sequence, batches);
  refer_to(tiny_spec(), weights, kAgreementShape.sequence, batches);
  std::vector<float> found;
  for (const MicroBatch& batch : batches)
    for (std::size_t i = 0; i < batch.policy.size(); ++i) {
      if (batch.weights[i] == 0)
        EXPECT_EQ(batch.policy[i], training::PolicyTarget{});
      else
        found.push_back(batch.policy[i].reference);
    }
  EXPECT_EQ(found, expected);
  EXPECT_THAT(expected, testing::Each(Lt(0)));
}

// Engines have the weights in bfloat16.
TEST(PublishedWeights, WhatIsGeneratedWithThemAgreesToTheBit) {
  const Version version{.epoch = 1, .step = 7};
  auto groups = groups_with({span_of(0, 3, version)}, {span_of(0, 2, version)});
  say(groups, rounded(weights_of(1)));
  PublishedWeights published(tiny_spec(), 1, kAgreementShape.sequence);
  published.keep(7, weights_of(1));
  const Agreement same = published.compare(groups, batches_of(groups));
  EXPECT_EQ(same.tokens, 5U);
  EXPECT_EQ(same.all_tokens, 5U);
  EXPECT_EQ(same.mismatch_max, 0);
  EXPECT_EQ(same.drift_max, 0);
  groups[0].rollouts[1].log_probabilities[1] += kOther;
  const Agreement other = published.compare(groups, batches_of(groups));
  EXPECT_NEAR(other.mismatch_max, kOther, 1e-6);
  EXPECT_NEAR(other.mismatch_mean, kOther / 5, 1e-6);
  EXPECT_EQ(other.drift_mean, other.mismatch_mean);
}

// The first token of each answer is of step 7, the others are of step 8.
TEST(PublishedWeights, EachTokenIsHeldToTheWeightsOfItsVersion) {
  const Version older{.epoch = 1, .step = 7};
  const Version newer{.epoch = 1, .step = 8};
  auto groups = groups_with({span_of(0, 1, older), span_of(1, 3, newer)},
                            {span_of(0, 1, older), span_of(1, 2, newer)});
  say(groups, rounded(weights_of(1)));
  say(groups, rounded(weights_of(2)), 1);
  PublishedWeights published(tiny_spec(), 2, kAgreementShape.sequence);
  published.keep(7, weights_of(1));
  published.keep(8, weights_of(2));
  const Agreement agreement = published.compare(groups, batches_of(groups));
  EXPECT_EQ(agreement.tokens, 5U);
  EXPECT_EQ(agreement.mismatch_max, 0);
  EXPECT_THAT(agreement.drift_max, Gt(1e-3));
  EXPECT_EQ(agreement.all_tokens, 5U);
}

// As a rank 0 that is new: it has the weights that it begins with, and none from before.
TEST(PublishedWeights, ATokenOfAnUnknownVersionCountsForTheDriftAlone) {
  const Version older{.epoch = 1, .step = 7};
  const Version newer{.epoch = 2, .step = 8};
  auto groups = groups_with({span_of(0, 1, older), span_of(1, 3, newer)}, {span_of(0, 2, older)});
  say(groups, rounded(weights_of(2)));
  groups[0].rollouts[0].log_probabilities[0] += kOther;
  for (const std::size_t versions : {1U, 3U}) {
    PublishedWeights published(tiny_spec(), versions, kAgreementShape.sequence);
    published.keep(8, weights_of(2));
    const Agreement agreement = published.compare(groups, batches_of(groups));
    EXPECT_EQ(agreement.tokens, 2U);
    EXPECT_EQ(agreement.mismatch_max, 0);
    EXPECT_EQ(agreement.all_tokens, 5U);
    EXPECT_NEAR(agreement.drift_max, kOther, 1e-6);
  }
}

TEST(PublishedWeights, TheOldestAreLetGoOf) {
  const Version version{.epoch = 1, .step = 7};
  auto groups = groups_with({span_of(0, 3, version)}, {span_of(0, 2, version)});
  PublishedWeights published(tiny_spec(), 2, kAgreementShape.sequence);
  for (const std::uint64_t step : {6U, 7U, 8U}) published.keep(step, weights_of(step));
  EXPECT_EQ(published.compare(groups, batches_of(groups)).tokens, 5U);
  published.keep(9, weights_of(9));
  EXPECT_EQ(published.compare(groups, batches_of(groups)).tokens, 0U);
}

// The weights of a step that is taken again are the newest, and there is nothing after them.
TEST(PublishedWeights, ARunThatGoesBackForgetsWhatWasAfter) {
  const Version of_seven{.epoch = 1, .step = 7};
  const Version of_eight{.epoch = 1, .step = 8};
  auto groups = groups_with({span_of(0, 3, of_seven)}, {span_of(0, 2, of_eight)});
  say(groups, rounded(weights_of(3)));
  PublishedWeights published(tiny_spec(), 3, kAgreementShape.sequence);
  published.keep(7, weights_of(1));
  published.keep(8, weights_of(2));
  published.keep(7, weights_of(3));
  const Agreement agreement = published.compare(groups, batches_of(groups));
  EXPECT_EQ(agreement.tokens, 3U);
  EXPECT_EQ(agreement.mismatch_max, 0);
  EXPECT_EQ(agreement.drift_max, 0);
}

}  // namespace
}  // namespace wsync::rollout
