#include "trainer_side/rollout/rollout.h"

#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>

namespace wsync::rollout {
namespace {

using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using training::MicroBatch;
using training::PolicyLoss;
using training::PolicyTarget;

constexpr float kHalf = -0.5F;

// An answer whose tokens have the log-probabilities -0.5, -1, -1.5, ...
Rollout answered(const std::string& text, double advantage) {
  Rollout rollout;
  for (const char byte : text) {
    rollout.tokens.push_back(static_cast<unsigned char>(byte));
    rollout.log_probabilities.push_back(kHalf * static_cast<float>(rollout.tokens.size()));
  }
  rollout.advantage = advantage;
  return rollout;
}

Group group_of(const std::string& prompt, std::vector<Rollout> rollouts) {
  return {.problem = {.prompt = prompt, .answer = "x"}, .rollouts = std::move(rollouts)};
}

double sum_of_weights(const std::vector<MicroBatch>& batches) {
  double sum = 0;
  for (const MicroBatch& batch : batches)
    sum = std::accumulate(batch.weights.begin(), batch.weights.end(), sum);
  return sum;
}

std::string refusal(const Result<std::vector<MicroBatch>>& result) {
  EXPECT_FALSE(result);
  if (result) return "not refused";
  EXPECT_EQ(result.error().code(), ErrorCode::kInvalidInput);
  return result.error().message();
}

TEST(OldestStep, IsTheLowestOfAllTokens) {
  Group group = group_of("p", {answered("ab", 0), answered("c", 0)});
  EXPECT_EQ(oldest_step(group), 0U);
  group.rollouts[0].spans = {{.start = 0, .end = 1, .version = {.epoch = 1, .step = 7}},
                             {.start = 1, .end = 2, .version = {.epoch = 2, .step = 5}}};
  group.rollouts[1].spans = {{.start = 0, .end = 1, .version = {.epoch = 1, .step = 6}}};
  EXPECT_EQ(oldest_step(group), 5U);
  group.rollouts[1].spans[0].version = {};
  EXPECT_EQ(oldest_step(group), 0U);
}

TEST(OldestEpoch, NeedNotBeThatOfTheOldestStep) {
  Group group = group_of("p", {answered("ab", 0)});
  EXPECT_EQ(oldest_epoch(group), 0U);
  group.rollouts[0].spans = {{.start = 0, .end = 1, .version = {.epoch = 3, .step = 5}},
                             {.start = 1, .end = 2, .version = {.epoch = 2, .step = 9}}};
  EXPECT_EQ(oldest_epoch(group), 2U);
  EXPECT_EQ(oldest_step(group), 5U);
}

TEST(GroupAdvantages, AreDistancesFromTheMeanInDeviations) {
  EXPECT_THAT(group_advantages(std::vector<double>{1, 0}),
              ElementsAre(DoubleNear(0.5 / 0.5001, 1e-12), DoubleNear(-0.5 / 0.5001, 1e-12)));
  // Mean 0.25, deviation sqrt(3) / 4.
  const double deviation = std::sqrt(3.0) / 4 + 1e-4;
  EXPECT_THAT(
      group_advantages(std::vector<double>{0, 0, 1, 0}),
      ElementsAre(DoubleNear(-0.25 / deviation, 1e-12), DoubleNear(-0.25 / deviation, 1e-12),
                  DoubleNear(0.75 / deviation, 1e-12), DoubleNear(-0.25 / deviation, 1e-12)));
}

TEST(GroupAdvantages, EqualRewardsTeachNothing) {
  EXPECT_THAT(group_advantages({}), IsEmpty());
  EXPECT_THAT(group_advantages(std::vector<double>{1}), ElementsAre(0));
  // A mean of these rounds.
  EXPECT_THAT(group_advantages(std::vector<double>(7, 0.1)), Each(0));
}

TEST(PolicyBatches, TargetsFollowTheirTokensAndOnlyAnswersCount) {
  const std::vector<Group> groups = {group_of("ab", {answered("cd\n", 1), answered("\n", -1)}),
                                     group_of("xy", {answered("z", 0.5), answered("zz", 0)})};
  const PolicyLoss loss{.clip_low = 0.1F, .clip_high = 0.3F, .kl = 0};
  const auto batches =
      policy_batches(groups, {.micro_batches = 2, .sequences = 2, .sequence = 5}, loss).value();
  ASSERT_EQ(batches.size(), 2U);
  EXPECT_EQ(batches[0].sequence, 5U);
  EXPECT_EQ(batches[0].policy_loss, loss);
  EXPECT_THAT(batches[0].tokens, ElementsAre('a', 'b', 'c', 'd', 0, 'a', 'b', 0, 0, 0));
  EXPECT_THAT(batches[0].targets, ElementsAre('b', 'c', 'd', '\n', 0, 'b', '\n', 0, 0, 0));
  EXPECT_THAT(batches[1].tokens, ElementsAre('x', 'y', 0, 0, 0, 'x', 'y', 'z', 0, 0));
  EXPECT_THAT(batches[1].targets, ElementsAre('y', 'z', 0, 0, 0, 'y', 'z', 'z', 0, 0));
  // 20 tokens in the step, 7 of them generated.
  const float counts = 20.0F / 7;
  EXPECT_THAT(batches[0].weights, ElementsAre(0, counts, counts, counts, 0, 0, counts, 0, 0, 0));
  EXPECT_THAT(batches[1].weights, ElementsAre(0, counts, 0, 0, 0, 0, counts, counts, 0, 0));
  EXPECT_NEAR(sum_of_weights(batches), 20, 1e-4);
  const PolicyTarget none;
  const auto target = [](float advantage, float behaviour) {
    return PolicyTarget{.advantage = advantage, .behaviour = behaviour, .reference = 0};
  };
  EXPECT_THAT(batches[0].policy,
              ElementsAre(none, target(1, -0.5F), target(1, -1), target(1, -1.5F), none, none,
                          target(-1, -0.5F), none, none, none));
  EXPECT_THAT(batches[1].policy, ElementsAre(none, target(0.5F, -0.5F), none, none, none, none,
                                             target(0, -0.5F), target(0, -1), none, none));
}

TEST(PolicyBatches, ALossWithADivergenceIsTakenOver) {
  const std::vector<Group> groups = {group_of("a", {answered("b\n", 1), answered("\n", -1)})};
  const PolicyLoss loss{.clip_low = 0, .clip_high = 7, .kl = 0.5F};
  const auto batches = policy_batches(groups, {.sequences = 2, .sequence = 2}, loss).value();
  EXPECT_EQ(batches.at(0).policy_loss, loss);
}

TEST(PolicyBatches, NumbersAreFinite) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const std::vector<Group> groups = {group_of("a", {answered("b\n", 1), answered("\n", -1)})};
  const BatchShape shape{.sequences = 2, .sequence = 2};
  const PolicyLoss wrong[] = {{.clip_low = std::nanf("")},
                              {.clip_low = -0.1F},
                              {.clip_high = std::nanf("")},
                              {.clip_high = -0.1F},
                              {.clip_high = kInfinite},
                              {.kl = std::nanf("")},
                              {.kl = -0.1F},
                              {.kl = kInfinite}};
  for (const PolicyLoss& loss : wrong)
    EXPECT_THAT(refusal(policy_batches(groups, shape, loss)),
                HasSubstr("expected finite numbers of 0 or more"));
  std::vector<Group> changed = groups;
  changed[0].rollouts[1].log_probabilities[0] = -kInfinite;
  EXPECT_THAT(refusal(policy_batches(changed, shape, {})),
              HasSubstr("rollout 1: the log-probability of token 0 is -inf; expected a finite"));
  changed = groups;
  changed[0].rollouts[0].advantage = 1e300;
  EXPECT_THAT(refusal(policy_batches(changed, shape, {})),
              HasSubstr("rollout 0: its advantage is 1e+300; expected a finite number"));
}

TEST(PolicyBatches, WhatDoesNotFitIsNamed) {
  const std::vector<Group> groups = {group_of("ab", {answered("cd\n", 1), answered("\n", -1)})};
  EXPECT_TRUE(policy_batches(groups, {.micro_batches = 2, .sequences = 1, .sequence = 4}, {}));
  EXPECT_THAT(refusal(policy_batches(groups, {.micro_batches = 3, .sequence = 4}, {})),
              HasSubstr("2 sequences for 3 micro-batches of 1 each; expected 3"));
  EXPECT_THAT(refusal(policy_batches(groups, {.micro_batches = 1, .sequence = 4}, {})),
              HasSubstr("expected 1"));
  EXPECT_THAT(refusal(policy_batches({}, {.micro_batches = 0}, {})),
              HasSubstr("expected 1 or more of each"));
  EXPECT_THAT(refusal(policy_batches(groups, {.micro_batches = 2, .sequence = 3}, {})),
              HasSubstr("sequence 0: 2 tokens of prompt and 3 of answer but the last; at most 3"));
  const std::vector<Group> silent = {group_of("ab", {answered("", 1)})};
  EXPECT_THAT(refusal(policy_batches(silent, {.sequence = 4}, {})),
              HasSubstr("no generated token"));
  const std::vector<Group> unasked = {group_of("", {answered("a", 1)})};
  EXPECT_THAT(refusal(policy_batches(unasked, {.sequence = 4}, {})),
              HasSubstr("sequence 0: its prompt is empty"));
  std::vector<Group> cut = groups;
  cut[0].rollouts[1].log_probabilities.clear();
  EXPECT_THAT(refusal(policy_batches(cut, {.micro_batches = 2, .sequence = 4}, {})),
              HasSubstr("rollout 1: 1 token and 0 log-probabilities; expected as many"));
}

TEST(SupervisedBatches, TeachTheAnswerAndItsEnd) {
  const std::vector<Problem> problems = {{.prompt = "ab", .answer = "c"},
                                         {.prompt = "d", .answer = "\xFF"}};
  const auto batches =
      supervised_batches(problems, {.micro_batches = 1, .sequences = 2, .sequence = 4}).value();
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_THAT(batches[0].tokens, ElementsAre('a', 'b', 'c', 0, 'd', 0xFF, 0, 0));
  EXPECT_THAT(batches[0].targets, ElementsAre('b', 'c', '\n', 0, 0xFF, '\n', 0, 0));
  EXPECT_THAT(batches[0].weights, ElementsAre(0, 2, 2, 0, 2, 2, 0, 0));
  EXPECT_THAT(batches[0].policy, IsEmpty());
  EXPECT_THAT(refusal(supervised_batches(problems, {.micro_batches = 1, .sequence = 4})),
              HasSubstr("2 sequences for 1 micro-batches"));
  EXPECT_THAT(refusal(supervised_batches(problems, {.micro_batches = 2, .sequence = 2})),
              HasSubstr("at most 2 fit"));
}

class BatchCodec : public testing::Test {
 protected:
  BatchCodec() {
    const std::vector<Group> groups = {group_of("ab", {answered("cd\n", 1), answered("\n", -1)})};
    policy_ =
        policy_batches(groups, shape_, {.clip_low = 0.1F, .clip_high = 0.3F, .kl = 0}).value();
    plain_ = policy_;
    for (MicroBatch& batch : plain_) {
      batch.weights.clear();
      batch.policy.clear();
    }
  }
  [[nodiscard]] std::string why(std::span<const std::byte> bytes) const {
    return refusal(decode_batches(bytes, shape_));
  }
  // The encoding with a number in it changed.
  [[nodiscard]] Bytes with(std::size_t at, std::uint64_t value) const {
    Bytes bytes = encode_batches(policy_);
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
  }

  BatchShape shape_{.micro_batches = 2, .sequences = 1, .sequence = 4};
  std::vector<MicroBatch> policy_;
  std::vector<MicroBatch> plain_;  // with lists left out
};

TEST_F(BatchCodec, WhatIsEncodedIsDecoded) {
  EXPECT_EQ(decode_batches(encode_batches(policy_), shape_).value(), policy_);
  EXPECT_EQ(decode_batches(encode_batches(plain_), shape_).value(), plain_);
}

TEST_F(BatchCodec, EveryCutIsRefused) {
  for (const auto& batches : {policy_, plain_}) {
    const Bytes bytes = encode_batches(batches);
    for (std::size_t kept = 0; kept < bytes.size(); ++kept)
      EXPECT_NE(why(std::span(bytes).first(kept)), "not refused") << kept;
  }
}

// The last of a batch's numbers are those of its loss.
TEST_F(BatchCodec, ALossThatIsNoneIsRefused) {
  policy_[1].policy_loss.kl = std::nanf("");
  EXPECT_THAT(why(encode_batches(policy_)),
              HasSubstr("policy_loss: clip_low 0.1, clip_high 0.3, kl nan"));
}

TEST_F(BatchCodec, WhatIsLeftOverIsRefused) {
  Bytes bytes = encode_batches(policy_);
  bytes.push_back(std::byte{0});
  EXPECT_THAT(why(bytes), HasSubstr("1 bytes left over"));
}

// The count, the sequence and the length of the tokens are the first numbers.
TEST_F(BatchCodec, AnotherShapeIsRefused) {
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  EXPECT_THAT(why(with(0, 1)), HasSubstr("micro_batches: 1, expected 2"));
  EXPECT_THAT(why(with(0, kHuge)), HasSubstr("micro_batches: 18446744073709551615, expected 2"));
  EXPECT_THAT(why(with(8, 5)), HasSubstr("sequence: 5, expected 4"));
  EXPECT_THAT(why(with(16, kHuge)), HasSubstr("tokens: 18446744073709551615 elements, expected 4"));
  EXPECT_THAT(why(with(16, 0)), HasSubstr("tokens: 0 elements, expected 4"));
  EXPECT_THAT(why(with(40, 3)), HasSubstr("targets: 3 elements, expected 4"));
  EXPECT_THAT(why(with(64, 3)), HasSubstr("weights: 3 elements, expected 4"));
  EXPECT_THAT(why(with(88, 5)), HasSubstr("policy: 5 elements, expected 4"));

  const Bytes bytes = encode_batches(policy_);
  // What the shape says is not allocated before it is there.
  constexpr std::size_t kMuch = std::size_t{1} << 50U;
  EXPECT_FALSE(decode_batches(bytes, {.micro_batches = kMuch, .sequences = 1, .sequence = 4}));
  EXPECT_FALSE(decode_batches(bytes, {.micro_batches = 2, .sequences = kMuch, .sequence = 4}));
  Bytes lying = with(16, kMuch * 4);
  EXPECT_THAT(
      refusal(decode_batches(lying, {.micro_batches = 2, .sequences = kMuch, .sequence = 4})),
      HasSubstr("do not fit in the"));
}

}  // namespace
}  // namespace wsync::rollout
