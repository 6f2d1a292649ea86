// The two ends of a led step, and the gate between serving and loading, message by message.
#include "inference_side/reference_engine/step_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "inference_side/reference_engine/step_gate.h"
#include "tests/support/versions.h"

namespace wsync::engine::reference {
namespace {

using ::testing::HasSubstr;
using Phase = LeaderStep::Phase;

StepMessage from(std::uint32_t rank, StepKind kind, std::uint64_t step, Version version = {},
                 std::uint64_t value = 0, bool torn = false) {
  return {
      .kind = kind, .torn = torn, .rank = rank, .step = step, .version = version, .value = value};
}

TEST(StepMessage, comes_back_as_it_was_sent) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const StepMessage message{
        .kind = static_cast<StepKind>(random() % (static_cast<unsigned>(kLastStepKind) + 1)),
        .torn = random() % 2 == 0,
        .rank = static_cast<std::uint32_t>(random() % 256),
        .world_size = static_cast<std::uint32_t>(random() % 257),
        .step = random(),
        .version = {.epoch = static_cast<std::uint32_t>(random()), .step = random()},
        .value = random()};
    const auto back = decode(encode(message));
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_EQ(*back, message);
  }
}

TEST(StepMessage, refuses_bytes_that_are_none) {
  const auto good = encode(from(1, StepKind::kReady, 3, kV1));
  EXPECT_FALSE(decode(std::span(good).first(47)));
  for (const std::size_t at : {0U, 4U, 5U, 6U, 10U, 14U, 44U}) {
    auto bad = good;
    bad[at] = std::byte{0xff};
    EXPECT_FALSE(decode(bad)) << "byte " << at;
  }
}

TEST(LeaderStep, sums_over_all_ranks) {
  LeaderStep step(3, {.kind = StepKind::kGo, .step = 5, .version = kV1});
  EXPECT_TRUE(step.handle(2, from(2, StepKind::kReady, 5, kV1)));
  EXPECT_EQ(step.phase(), Phase::kAgreeing);
  EXPECT_TRUE(step.handle(1, from(1, StepKind::kReady, 5, kV1)));
  EXPECT_EQ(step.phase(), Phase::kComputing);
  EXPECT_TRUE(step.handle(1, from(1, StepKind::kPartial, 5, {}, 10, true)));
  step.add_own({.value = 100, .torn = false});
  EXPECT_EQ(step.phase(), Phase::kComputing);
  EXPECT_TRUE(step.handle(2, from(2, StepKind::kPartial, 5, {}, 1, false)));
  EXPECT_EQ(step.phase(), Phase::kDone);
  EXPECT_EQ(step.total(), (Reading{.value = 111, .torn = true}));
}

TEST(LeaderStep, one_refusal_aborts_the_step_once_all_have_answered) {
  LeaderStep step(3, {.kind = StepKind::kGo, .step = 5, .version = kV2});
  EXPECT_TRUE(step.handle(1, from(1, StepKind::kRefused, 5, kV1)));
  EXPECT_EQ(step.phase(), Phase::kAgreeing);
  EXPECT_TRUE(step.handle(2, from(2, StepKind::kReady, 5, kV2)));
  EXPECT_EQ(step.phase(), Phase::kAborted);
  ASSERT_TRUE(step.refusal());
  EXPECT_EQ(step.refusal()->rank, 1U);
  EXPECT_EQ(step.refusal()->holds, kV1);
}

TEST(LeaderStep, what_is_out_of_place_is_an_error_that_changes_nothing) {
  LeaderStep step(3, {.kind = StepKind::kGo, .step = 5, .version = kV1});
  EXPECT_FALSE(step.handle(1, from(1, StepKind::kReady, 4, kV1)));      // another step
  EXPECT_FALSE(step.handle(1, from(1, StepKind::kReady, 5, kV2)));      // another version
  EXPECT_FALSE(step.handle(1, from(2, StepKind::kReady, 5, kV1)));      // another rank
  EXPECT_FALSE(step.handle(0, from(0, StepKind::kReady, 5, kV1)));      // the leader itself
  EXPECT_FALSE(step.handle(3, from(3, StepKind::kReady, 5, kV1)));      // no rank
  EXPECT_FALSE(step.handle(1, from(1, StepKind::kStopped, 5)));         // of a stop
  EXPECT_FALSE(step.handle(1, from(1, StepKind::kPartial, 5, {}, 1)));  // too early
  EXPECT_TRUE(step.handle(1, from(1, StepKind::kReady, 5, kV1)));
  const auto twice = step.handle(1, from(1, StepKind::kReady, 5, kV1));
  ASSERT_FALSE(twice);
  EXPECT_THAT(twice.error().message(), HasSubstr("rank 1 sent ready for step 5"));
  EXPECT_EQ(step.phase(), Phase::kAgreeing);
}

TEST(LeaderStep, a_stop_is_done_when_every_follower_has_stopped) {
  LeaderStep step(2, {.kind = StepKind::kStop, .step = 9});
  EXPECT_FALSE(step.handle(1, from(1, StepKind::kReady, 9)));
  EXPECT_TRUE(step.handle(1, from(1, StepKind::kStopped, 9)));
  EXPECT_EQ(step.phase(), Phase::kDone);
}

TEST(LeaderStep, a_leader_alone_agrees_with_itself) {
  LeaderStep step(1, {.kind = StepKind::kGo, .step = 1, .version = kV1});
  EXPECT_EQ(step.phase(), Phase::kComputing);
  step.add_own({.value = 4});
  EXPECT_EQ(step.phase(), Phase::kDone);
}

TEST(FollowerStep, follows_a_step_to_its_end) {
  FollowerStep step;
  EXPECT_EQ(step.handle({.kind = StepKind::kGo, .step = 3, .version = kV1}),
            FollowerAction::kEnter);
  step.answered(true);
  EXPECT_TRUE(step.inside());
  EXPECT_EQ(step.handle({.kind = StepKind::kProceed, .step = 3}), FollowerAction::kCompute);
  EXPECT_EQ(step.handle({.kind = StepKind::kTotal, .step = 3}), FollowerAction::kFinish);
  EXPECT_FALSE(step.inside());
  EXPECT_EQ(step.handle({.kind = StepKind::kStop, .step = 3}), FollowerAction::kStop);
  EXPECT_EQ(step.step(), 3U);
}

TEST(FollowerStep, a_refused_step_ends_with_its_abort) {
  FollowerStep step;
  EXPECT_EQ(step.handle({.kind = StepKind::kGo, .step = 3, .version = kV1}),
            FollowerAction::kEnter);
  step.answered(false);
  EXPECT_FALSE(step.inside());
  EXPECT_TRUE(step.owed());
  EXPECT_FALSE(step.handle({.kind = StepKind::kProceed, .step = 3}));
  EXPECT_EQ(step.handle({.kind = StepKind::kAborted, .step = 3}), FollowerAction::kLeave);
  EXPECT_FALSE(step.owed());
}

TEST(FollowerStep, what_is_out_of_place_is_an_error) {
  FollowerStep step;
  EXPECT_FALSE(step.handle({.kind = StepKind::kProceed, .step = 0}));  // nothing was begun
  EXPECT_FALSE(step.handle({.kind = StepKind::kTotal, .step = 0}));
  EXPECT_FALSE(step.handle({.kind = StepKind::kReady, .step = 1}));  // not a leader's
  ASSERT_TRUE(step.handle({.kind = StepKind::kGo, .step = 3, .version = kV1}));
  step.answered(true);
  EXPECT_FALSE(step.handle({.kind = StepKind::kGo, .step = 4, .version = kV1}));  // still inside
  EXPECT_FALSE(step.handle({.kind = StepKind::kStop, .step = 4}));
  EXPECT_FALSE(step.handle({.kind = StepKind::kProceed, .step = 4}));
  step.reset();
  EXPECT_FALSE(step.handle({.kind = StepKind::kGo, .step = 2, .version = kV1}));  // an old header
  EXPECT_TRUE(step.handle({.kind = StepKind::kStop, .step = 3}));
}

TEST(StepGate, a_rank_without_weights_takes_no_part) {
  StepGate gate;
  EXPECT_FALSE(gate.enter({}));
  EXPECT_FALSE(gate.resume());
  EXPECT_FALSE(gate.stop());
}

TEST(StepGate, only_steps_of_the_held_version_are_entered) {
  StepGate gate = StepGate::holding(kV1);
  const auto refused = gate.enter(kV2);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("holds version 1.1, the step's header says 1.2"));
  EXPECT_EQ(gate.view().phase, GatePhase::kPaused);
  EXPECT_EQ(gate.enter(kV1), true);  // it was not serving before
  EXPECT_FALSE(gate.enter(kV1));     // inside already
  gate.leave();
  EXPECT_EQ(gate.enter(kV1), false);
  EXPECT_TRUE(gate.stop());
  EXPECT_FALSE(gate.view().inside);
}

TEST(StepGate, weights_do_not_change_under_a_serving_rank) {
  StepGate gate = StepGate::holding(kV1);
  ASSERT_TRUE(gate.resume());
  EXPECT_FALSE(gate.begin_load(true));
  EXPECT_FALSE(gate.commit(kV2));
  EXPECT_EQ(gate.view().version, kV1);
  (void)gate.stop();
  EXPECT_TRUE(gate.begin_load(false));
  EXPECT_TRUE(gate.enter(kV1));  // the next version lies beside it
  (void)gate.stop();
  EXPECT_TRUE(gate.begin_load(true));
  EXPECT_FALSE(gate.enter(kV1));  // its bytes are gone
  EXPECT_FALSE(gate.enter(kV2));  // and nothing is committed
  EXPECT_TRUE(gate.commit(kV2));
  EXPECT_EQ(gate.view().phase, GatePhase::kPaused);
  EXPECT_TRUE(gate.enter(kV2));
}

}  // namespace
}  // namespace wsync::engine::reference
