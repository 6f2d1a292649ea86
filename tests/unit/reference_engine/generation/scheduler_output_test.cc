// What is told of an output: where it ends, what is held back, probabilities, seeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <vector>

#include "inference_side/reference_engine/generation/scheduler.h"
#include "tests/unit/reference_engine/generation/scheduler_fixture.h"

namespace wsync::engine::generation {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SchedulerOutput : public SchedulerFixture {};

TEST_F(SchedulerOutput, AbortTellsWhatWasHeldBack) {
  Request request = greedy({1}, 9);
  request.stops = {{5, 6}};
  add(request);
  EXPECT_THAT(told_while({4, 5}), ElementsAre(ElementsAre(4), IsEmpty()));
  const std::optional<Progress> ended = scheduler_->abort(1);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->finished, FinishReason::kAbort);
  ASSERT_EQ(ended->tokens.size(), 1U);
  EXPECT_EQ(ended->tokens[0].token, 5U);
  EXPECT_FALSE(scheduler_->abort(1));
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_EQ(scheduler_->stats().blocks_used, 0U);
}

TEST_F(SchedulerOutput, WhatMayBeginAStopIsHeldBack) {
  Request request = greedy({1}, 20);
  request.stops = {{1, 2, 3}, {2, 4}};
  add(request);
  EXPECT_THAT(told_while({5, 1, 2, 5}),
              ElementsAre(ElementsAre(5), IsEmpty(), IsEmpty(), ElementsAre(1, 2, 5)));
  EXPECT_THAT(told_while({1, 1, 2}), ElementsAre(IsEmpty(), ElementsAre(1), IsEmpty()));
  EXPECT_EQ(last_finished_, std::nullopt);
  EXPECT_THAT(told_while({4}), ElementsAre(ElementsAre(1))) << "the 1 is not of the stop 2 4";
  EXPECT_EQ(last_finished_, FinishReason::kStop);
  EXPECT_TRUE(scheduler_->idle());
}

TEST_F(SchedulerOutput, AStopInThePromptIsNone) {
  Request request = greedy({1, 2}, 3);
  request.stops = {{1, 2}, {2, 3}};
  add(request);
  EXPECT_THAT(told_while({3, 4, 5}), ElementsAre(ElementsAre(3), ElementsAre(4), ElementsAre(5)));
  EXPECT_EQ(last_finished_, FinishReason::kLength);
}

TEST_F(SchedulerOutput, OtherEndsTellWhatWasHeldBack) {
  Request request = greedy({1}, 3);
  request.stops = {{1, 2, 3, 4}};
  add(request);
  EXPECT_THAT(told_while({1, 2, 3}), ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(1, 2, 3)));
  EXPECT_EQ(last_finished_, FinishReason::kLength);

  request.end_token = 9;
  add(request);
  EXPECT_THAT(told_while({1, 9}), ElementsAre(IsEmpty(), ElementsAre(1, 9)));
  EXPECT_EQ(last_finished_, FinishReason::kStop);
}

TEST_F(SchedulerOutput, EndTokensOfTheRequestAreToldAsTheLast) {
  Request request = greedy({1}, 3);
  request.end_token = 9;
  request.end_tokens = {7, 8};
  for (const Token last : {7U, 8U, 9U}) {
    add(request);
    EXPECT_THAT(told_while({1, last}), ElementsAre(ElementsAre(1), ElementsAre(last)));
    EXPECT_EQ(last_finished_, FinishReason::kStop);
  }
}

TEST_F(SchedulerOutput, AStopRulesOverTheEndTokenAndTheLength) {
  Request request = greedy({1}, 2);
  request.stops = {{1, 9}};
  request.end_token = 9;
  add(request);
  EXPECT_THAT(told_while({1, 9}), ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_EQ(last_finished_, FinishReason::kStop);

  request.stops.clear();
  add(request);
  EXPECT_THAT(told_while({1, 9}), ElementsAre(ElementsAre(1), ElementsAre(9)));
  EXPECT_EQ(last_finished_, FinishReason::kStop) << "the end token rules over the length";
}

TEST_F(SchedulerOutput, TokensCarryTheirProbabilities) {
  Request request = greedy({1}, 2);
  request.logprobs = 3;
  add(request);
  const std::vector<float> logits{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(scheduler_->plan().slices.size(), 1U);
  const std::vector<Progress> news = scheduler_->take(kSecond, {logits, 1, 10});
  ASSERT_EQ(news.size(), 1U);
  ASSERT_EQ(news[0].tokens.size(), 1U);
  const GeneratedToken& token = news[0].tokens[0];
  EXPECT_EQ(token.token, 9U);
  EXPECT_EQ(token.version, kSecond);
  EXPECT_NEAR(token.logprob, -0.4586, 1e-4);
  ASSERT_EQ(token.most_likely.size(), 3U);
  EXPECT_EQ(token.most_likely[0], (Likelihood{.token = 9, .logprob = token.logprob}));
  EXPECT_EQ(token.most_likely[2].token, 7U);

  request.logprobs = 0;
  add(request);
  static_cast<void>(scheduler_->abort(1));
  const Batch batch = scheduler_->plan();
  EXPECT_EQ(batch.slices.size(), 1U);
  EXPECT_THAT(scheduler_->take(kSecond, {logits, 1, 10})[0].tokens[0].most_likely, IsEmpty());
}

TEST_F(SchedulerOutput, SeedsRepeatAndStreamsDiffer) {
  Request request = greedy({1}, 30);
  request.sampling = {.temperature = 5, .seed = 3};
  add(request);
  add(request);
  request.sampling.seed.reset();
  add(request);
  add(request);
  compute_all();
  EXPECT_EQ(told_[1].tokens, told_[2].tokens);
  EXPECT_NE(told_[1].tokens, told_[3].tokens);
  EXPECT_NE(told_[3].tokens, told_[4].tokens);

  const std::vector<Token> third = told_[3].tokens;
  told_.clear();
  SchedulerOptions options = small_options();
  options.stream = 1;
  use(options);
  for (int i = 0; i < 3; ++i) add(request);
  compute_all();
  EXPECT_EQ(told_[2].tokens, third) << "stream 0 and request 3 are stream 1 and request 2";
  EXPECT_NE(told_[3].tokens, third) << "another engine, the same request";
}

}  // namespace
}  // namespace wsync::engine::generation
