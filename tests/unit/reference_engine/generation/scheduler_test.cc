// What is computed when, in which blocks, one rule at a time. scheduler_load_test.cc has them all
// at once.
#include "inference_side/reference_engine/generation/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "tests/unit/reference_engine/generation/scheduler_fixture.h"

namespace wsync::engine::generation {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SchedulerPlan : public SchedulerFixture {};

TEST_F(SchedulerPlan, NothingToDoIsAnEmptyBatch) {
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_FALSE(scheduler_->running());
  EXPECT_TRUE(scheduler_->plan().slices.empty());
  EXPECT_TRUE(scheduler_->plan().slices.empty()) << "nothing was open";
  EXPECT_TRUE(scheduler_->take(kFirst, {}).empty());
}

TEST_F(SchedulerPlan, APromptIsComputedInPieces) {
  const RequestId id = add(greedy(counting(19), 3));
  Batch batch = compute();
  EXPECT_THAT(shape(batch), ElementsAre(std::pair(0, 8)));
  EXPECT_FALSE(batch.slices[0].wants_logits);
  EXPECT_THAT(batch.slices[0].tokens, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  batch = compute();
  EXPECT_THAT(shape(batch), ElementsAre(std::pair(8, 8)));
  EXPECT_FALSE(batch.slices[0].wants_logits);
  EXPECT_TRUE(told_.empty());
  batch = compute();
  EXPECT_THAT(shape(batch), ElementsAre(std::pair(16, 3)));
  EXPECT_TRUE(batch.slices[0].wants_logits);
  EXPECT_EQ(told_[id].tokens.size(), 1U);
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(19, 1)));
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(20, 1)));
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_EQ(told_[id].tokens, alone(counting(19), 3, kFirst));
  EXPECT_EQ(told_[id].finished, FinishReason::kLength);
  EXPECT_EQ(scheduler_->stats().prompt_tokens, 19U);
  EXPECT_EQ(scheduler_->stats().generated_tokens, 3U);
  EXPECT_EQ(scheduler_->stats().blocks_used, 0U);
}

TEST_F(SchedulerPlan, DecodingComesFirstThenPromptsThenArrivals) {
  add(greedy({1, 2}, 9));
  compute();
  add(greedy(counting(13), 9));
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(2, 1), std::pair(0, 7)));
  add(greedy({7, 7, 7}, 9));
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(3, 1), std::pair(7, 6), std::pair(0, 1)))
      << "what is left of the step goes to the newest";
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(4, 1), std::pair(13, 1), std::pair(1, 2)));
}

TEST_F(SchedulerPlan, RequestsBeginInTheOrderOfTheirArrival) {
  std::vector<RequestId> ids;
  for (Token t = 0; t < 6; ++t) ids.push_back(add(greedy({t}, 2)));
  EXPECT_EQ(compute().slices.size(), 4U) << "max_sequences";
  EXPECT_EQ(scheduler_->stats().running, 4U);
  EXPECT_EQ(scheduler_->stats().waiting, 2U);
  compute();
  const Batch batch = compute();
  ASSERT_EQ(batch.slices.size(), 2U);
  EXPECT_THAT(batch.slices[0].tokens, ElementsAre(4));
  EXPECT_THAT(batch.slices[1].tokens, ElementsAre(5));
  compute_all();
  for (Token t = 0; t < 6; ++t) EXPECT_EQ(told_[ids[t]].tokens, alone({t}, 2, kFirst));
}

TEST_F(SchedulerPlan, ALargeOneAtTheHeadIsNotOvertaken) {
  add(greedy(counting(40), 1));  // 10 of the 16 blocks
  compute();
  add(greedy(std::vector<Token>(28, 3), 1));  // 7 blocks
  add(greedy({1}, 1));
  EXPECT_EQ(scheduler_->plan().slices.size(), 1U);
  scheduler_->drop();
  EXPECT_EQ(scheduler_->stats().waiting, 2U);
  compute_all();
  EXPECT_EQ(scheduler_->stats().preempted, 0U);
}

TEST_F(SchedulerPlan, OneBeginsWhenThereIsABlockToSpareForEachThatRuns) {
  add(greedy(counting(46), 2));  // 12 blocks
  for (int step = 0; step < 6; ++step) compute();
  add(greedy({1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4}, 1));  // 4 blocks
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(46, 1))) << "none would be left";
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(0, 8)));
}

TEST_F(SchedulerPlan, TheYoungestIsPutBackAndGoesOnWhereItWas) {
  SchedulerOptions options = small_options();
  options.blocks = 6;
  use(options);
  const RequestId old = add(greedy({1, 2, 3}, 18));
  const RequestId young = add(greedy({4, 5, 6, 7}, 14));
  compute_all();
  EXPECT_GE(scheduler_->stats().preempted, 1U);
  EXPECT_EQ(told_[old].tokens, alone({1, 2, 3}, 18, kFirst));
  EXPECT_EQ(told_[young].tokens, alone({4, 5, 6, 7}, 14, kFirst));
  EXPECT_EQ(scheduler_->stats().prompt_tokens, 7U) << "counted once";
  EXPECT_EQ(scheduler_->stats().generated_tokens, 32U);
}

TEST_F(SchedulerPlan, WhatIsPutBackInTheMiddleOfAPlanLeavesItsRoom) {
  SchedulerOptions options = small_options();
  options.blocks = 8;
  options.max_step_tokens = 24;
  use(options);
  add(greedy(counting(15), 9));
  compute();
  add(greedy(counting(15), 9));
  add(greedy({1}, 9));
  EXPECT_EQ(scheduler_->plan().slices.size(), 3U) << "the second uses three blocks of the first";
  scheduler_->drop();
  // Now each of the two needs four blocks of its own.
  scheduler_->weights_changed(CachePolicy::kFlush);
  model_->forbid_before(kSecond);
  EXPECT_THAT(shape(compute(kSecond)), ElementsAre(std::pair(0, 16), std::pair(0, 8)));
  EXPECT_EQ(scheduler_->stats().preempted, 1U);
  compute_all(kSecond);
  EXPECT_EQ(told_[2].tokens, alone(counting(15), 9, kSecond));
  EXPECT_EQ(told_[3].tokens, alone({1}, 9, kSecond));
}

TEST_F(SchedulerPlan, APrefixThatIsKnownIsNotComputedAgain) {
  add(greedy(counting(10), 1));
  compute_all();
  EXPECT_EQ(scheduler_->stats().blocks_cached, 2U);
  const RequestId again = add(greedy(counting(10), 1));
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(8, 2)));
  EXPECT_EQ(scheduler_->stats().prefix_hit_tokens, 8U);
  EXPECT_EQ(told_[again].tokens, alone(counting(10), 1, kFirst));

  add(greedy(counting(7), 1));
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(4, 3))) << "one of its blocks is full";
  std::vector<Token> other = counting(10);
  other[1] = 9;
  add(greedy(other, 1));
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(0, 8))) << "its second block equals";
}

TEST_F(SchedulerPlan, OfACachedPrefixTheEndIsTakenFirst) {
  add(greedy(counting(13), 1));  // leaves 3 of 16 blocks cached
  compute_all();
  add(greedy(std::vector<Token>(54, 9), 1));  // 14 blocks
  compute_all();
  add(greedy(counting(13), 1));
  compute();
  EXPECT_EQ(scheduler_->stats().prefix_hit_tokens, 8U);
}

TEST_F(SchedulerPlan, TheLastTokenOfAPromptIsAlwaysComputed) {
  add(greedy(counting(8), 1));
  compute_all();
  EXPECT_EQ(scheduler_->stats().blocks_cached, 2U);
  const RequestId again = add(greedy(counting(8), 3));
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(4, 4)))
      << "its second block is computed in a block of its own";
  compute_all();
  EXPECT_EQ(told_[again].tokens, alone(counting(8), 3, kFirst));
}

TEST_F(SchedulerPlan, SequencesThatRunShareBlocks) {
  add(greedy(counting(9), 9));
  compute();
  compute();
  EXPECT_EQ(scheduler_->stats().blocks_used, 3U);
  add(greedy(counting(9), 9));
  compute();
  EXPECT_EQ(scheduler_->stats().blocks_used, 4U) << "two of three are the other's";
  compute_all();
  EXPECT_GT(model_->shared(), 0U);
  EXPECT_EQ(told_[1].tokens, told_[2].tokens);
}

TEST_F(SchedulerPlan, WhatWasGeneratedIsAPrefixToo) {
  add(greedy({1, 2}, 7));
  compute_all();
  std::vector<Token> turn{1, 2};
  for (const Token token : told_[1].tokens) turn.push_back(token);
  turn.push_back(5);
  add(greedy(turn, 1));
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(8, 2)));
}

TEST_F(SchedulerPlan, AFlushComputesAgainAndKeepsWhatWasGenerated) {
  const RequestId id = add(greedy(counting(6), 8));
  for (int step = 0; step < 3; ++step) compute();
  scheduler_->weights_changed(CachePolicy::kFlush);
  model_->forbid_before(kSecond);
  EXPECT_EQ(scheduler_->stats().blocks_cached, 0U);
  EXPECT_TRUE(scheduler_->running());
  EXPECT_THAT(shape(compute(kSecond)), ElementsAre(std::pair(0, 8)));
  compute_all(kSecond);

  std::vector<Token> expected = alone(counting(6), 3, kFirst);
  std::vector<Token> so_far = counting(6);
  so_far.insert(so_far.end(), expected.begin(), expected.end());
  const std::vector<Token> rest = alone(so_far, 5, kSecond);
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(told_[id].tokens, expected);
  EXPECT_EQ(told_[id].spans,
            (std::vector<VersionSpan>{{.begin = 0, .end = 3, .version = kFirst},
                                      {.begin = 3, .end = 8, .version = kSecond}}));

  add(greedy(counting(6), 1));
  compute(kSecond);
  EXPECT_EQ(scheduler_->stats().prefix_hit_tokens, 4U) << "of the second version";
}

TEST_F(SchedulerPlan, AFlushInTheMiddleOfAPromptBeginsItAgain) {
  const RequestId id = add(greedy(counting(12), 1));
  compute();
  scheduler_->weights_changed(CachePolicy::kFlush);
  model_->forbid_before(kSecond);
  EXPECT_THAT(shape(compute(kSecond)), ElementsAre(std::pair(0, 8)));
  compute_all(kSecond);
  EXPECT_EQ(told_[id].tokens, alone(counting(12), 1, kSecond));
  EXPECT_EQ(told_[id].spans.size(), 1U);
}

TEST_F(SchedulerPlan, KeepGoesOnWithWhatIsThere) {
  add(greedy(counting(6), 8));
  compute();
  scheduler_->weights_changed(CachePolicy::kKeep);
  EXPECT_THAT(shape(compute(kSecond)), ElementsAre(std::pair(6, 1)));
  add(greedy(counting(6), 1));
  EXPECT_THAT(shape(compute(kSecond)), ElementsAre(std::pair(7, 1), std::pair(4, 2)));
}

TEST_F(SchedulerPlan, ForgottenPrefixesAreKeptByThoseThatRun) {
  add(greedy(counting(9), 9));
  compute();
  compute();
  scheduler_->forget_prefixes();
  add(greedy(counting(9), 1));
  EXPECT_THAT(shape(compute()), ElementsAre(std::pair(9, 1), std::pair(0, 7)));
  compute_all();
  EXPECT_EQ(scheduler_->stats().prefix_hit_tokens, 0U);
  EXPECT_EQ(scheduler_->stats().blocks_cached, 2U) << "of the second request only";
}

TEST_F(SchedulerPlan, ADroppedStepIsPlannedAgain) {
  add(greedy(counting(5), 4));
  compute();
  add(greedy(counting(20), 4));
  std::mt19937_64 random(1);
  const Batch dropped = scheduler_->plan();
  model_->break_off(dropped, kFirst, random);
  scheduler_->drop();
  EXPECT_EQ(scheduler_->plan(), dropped);
  scheduler_->drop();
  compute_all();
  EXPECT_EQ(told_[1].tokens, alone(counting(5), 4, kFirst));
  EXPECT_EQ(told_[2].tokens, alone(counting(20), 4, kFirst));
}

TEST_F(SchedulerPlan, WhatIsNotAdmittedWaits) {
  scheduler_->admit(false);
  add(greedy({1}, 2));
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_FALSE(scheduler_->running());
  EXPECT_THAT(scheduler_->plan().slices, IsEmpty());
  scheduler_->admit(true);
  EXPECT_FALSE(scheduler_->idle());
  compute();
  EXPECT_TRUE(scheduler_->running());
  scheduler_->admit(false);
  add(greedy({2}, 2));
  compute_all();
  EXPECT_EQ(told_[1].finished, FinishReason::kLength) << "what runs goes on";
  EXPECT_FALSE(told_.contains(2));
  EXPECT_EQ(scheduler_->stats().waiting, 1U);
}

TEST_F(SchedulerPlan, WhatWasPutBackGoesOnWithoutAdmission) {
  SchedulerOptions options = small_options();
  options.blocks = 6;
  use(options);
  add(greedy({1, 2, 3}, 18));
  add(greedy({4, 5, 6, 7}, 14));
  compute();
  scheduler_->admit(false);
  add(greedy({8}, 1));
  while (scheduler_->stats().preempted == 0) compute();
  compute_all();
  EXPECT_FALSE(scheduler_->running());
  EXPECT_EQ(told_[2].tokens, alone({4, 5, 6, 7}, 14, kFirst));
  EXPECT_FALSE(told_.contains(3));
}

TEST_F(SchedulerPlan, ACancelledRequestIsForgotten) {
  add(greedy(counting(5), 4));
  add(greedy(counting(6), 4));
  for (Token t = 0; t < 3; ++t) add(greedy({t}, 4));
  compute();
  EXPECT_EQ(scheduler_->stats().waiting, 3U);
  scheduler_->cancel(1);
  scheduler_->cancel(5);
  scheduler_->cancel(5);
  scheduler_->cancel(77);
  compute_all();
  EXPECT_FALSE(told_.contains(1) && told_[1].finished);
  EXPECT_FALSE(told_.contains(5));
  for (const RequestId id : {2U, 3U, 4U}) EXPECT_EQ(told_[id].tokens.size(), 4U);
  EXPECT_EQ(scheduler_->stats().blocks_used, 0U);
}

TEST_F(SchedulerPlan, AbortAllEndsWhatRunsAndWhatWaits) {
  for (Token t = 0; t < 6; ++t) add(greedy({t}, 4));
  compute();
  note(scheduler_->abort_all());
  ASSERT_EQ(told_.size(), 6U);
  for (const auto& [id, told] : told_) {
    EXPECT_EQ(told.finished, FinishReason::kAbort);
    EXPECT_EQ(told.tokens.size(), id <= 4 ? 1U : 0U);
  }
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_FALSE(scheduler_->running());
  EXPECT_EQ(scheduler_->stats().blocks_used, 0U);
  add(greedy({1}, 1));
  compute_all();
  EXPECT_EQ(told_[7].finished, FinishReason::kLength) << "it goes on afterwards";
}

TEST_F(SchedulerPlan, WhatTheBlocksCouldNeverHoldIsRefused) {
  SchedulerOptions options = small_options();
  options.blocks = 3;
  use(options);
  EXPECT_THAT(add_refusal(greedy(counting(10), 4), ErrorCode::kInvalidInput),
              HasSubstr("the prompt's 10 tokens and max_tokens 4 need 4 blocks of 4 tokens for "
                        "their keys and values; the engine has 3"));
  add(greedy(counting(10), 3));  // the last token is never computed
  compute_all();
  EXPECT_EQ(told_[1].tokens.size(), 3U);
  EXPECT_THAT(add_refusal(greedy({10}, 1), ErrorCode::kInvalidInput),
              HasSubstr("prompt: token 10"));
}

TEST_F(SchedulerPlan, AFullQueueRefuses) {
  for (int i = 0; i < 8; ++i) add(greedy({1}, 1));
  EXPECT_THAT(add_refusal(greedy({1}, 1), ErrorCode::kResourceExhausted),
              HasSubstr("the queue is full with 8 requests"));
  compute();
  add(greedy({1}, 1));
}

TEST_F(SchedulerPlan, NothingChangesInsideAStep) {
  add(greedy({1}, 2));
  EXPECT_EQ(scheduler_->plan().slices.size(), 1U);
  const char* rule = "take\\(\\) or drop\\(\\) follows plan\\(\\)";
  EXPECT_DEATH(scheduler_->cancel(1), rule);
  EXPECT_DEATH(static_cast<void>(scheduler_->abort_all()), rule);
  EXPECT_DEATH(scheduler_->weights_changed(CachePolicy::kFlush), rule);
  EXPECT_DEATH(static_cast<void>(scheduler_->plan()), rule);
  EXPECT_DEATH(static_cast<void>(scheduler_->take(kFirst, {})), "returns one row of logits");
}

}  // namespace
}  // namespace wsync::engine::generation
