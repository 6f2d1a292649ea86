// The version on its way in: its states, and which of the coordinator's rounds counts.
#include "inference_side/staging/receive_round.h"

#include <gtest/gtest.h>

#include "tests/support/versions.h"

namespace wsync::staging {
namespace {

control::Announce offer() {
  control::Announce announce;
  announce.version = kV1;
  announce.content_digest = {.low = 1};
  return announce;
}
control::Envelope round_of(std::uint64_t round) {
  control::Envelope envelope;
  envelope.round = round;
  return envelope;
}
control::Stage from(const char* source) { return {.version = kV1, .source = source}; }

TEST(ReceiveRound, GoesFromItsOfferToAHeldCopy) {
  ReceiveRound round;
  EXPECT_TRUE(round.version().none());
  EXPECT_EQ(round.activity(), "") << "nothing is received";
  ASSERT_TRUE(round.raise_round(4));
  round.open(round_of(4), offer(), false);
  EXPECT_EQ(round.state(), ReceiveState::kChecking);
  EXPECT_EQ(round.activity(), "checking the layout of " + kV1.to_string());
  EXPECT_TRUE(round.is(4, kV1));
  EXPECT_FALSE(round.is(3, kV1));
  round.accept();
  EXPECT_TRUE(round.assign(11, from("a")));
  EXPECT_EQ(round.state(), ReceiveState::kWaiting);
  EXPECT_EQ(round.request(), 11U);
  const StartStaging start = round.start({});
  EXPECT_FALSE(start.resume);
  EXPECT_EQ(start.stage.source, "a");
  EXPECT_TRUE(round.stages(start.attempt));
  EXPECT_EQ(round.activity(), "staging " + kV1.to_string());
  round.complete();
  EXPECT_EQ(round.state(), ReceiveState::kStaged);
  EXPECT_EQ(round.activity(), kV1.to_string() + " is staged and waits for its decision");
  EXPECT_FALSE(round.stages(start.attempt));
  EXPECT_FALSE(round.assign(12, from("b"))) << "its bytes are here";
  round.close();
  EXPECT_EQ(round.state(), ReceiveState::kIdle);
  EXPECT_TRUE(round.version().none());
  EXPECT_TRUE(round.invariants().has_value());
}

TEST(ReceiveRound, AHeldVersionIsStagedAtOnce) {
  ReceiveRound round;
  round.open(round_of(1), offer(), true);
  EXPECT_EQ(round.state(), ReceiveState::kStaged);
  EXPECT_FALSE(round.begun()) << "its copy is not this round's";
}

TEST(ReceiveRound, ResumesFromAnotherSource) {
  ReceiveRound round;
  round.open(round_of(1), offer(), false);
  round.accept();
  ASSERT_TRUE(round.assign(1, from("a")));
  EXPECT_FALSE(round.assign(2, from("b"))) << "it waits already";
  const StartStaging first = round.start({});
  EXPECT_EQ(first.stage.source, "b") << "the newest source";
  EXPECT_FALSE(round.assign(3, from("b"))) << "it comes from there";
  EXPECT_TRUE(round.assign(4, from("c")));
  const StartStaging second = round.start({});
  EXPECT_TRUE(second.resume);
  EXPECT_FALSE(round.stages(first.attempt));
  round.stall();
  EXPECT_EQ(round.state(), ReceiveState::kStalled);
  EXPECT_TRUE(round.assign(5, from("c"))) << "the same source may be back";
  EXPECT_GT(round.start({}).attempt, second.attempt);
}

TEST(ReceiveRound, LearnsItsContentOnce) {
  ReceiveRound round;
  control::Announce streamed = offer();
  streamed.content_digest = {};
  round.open(round_of(1), streamed, false);
  EXPECT_FALSE(round.has_content());
  round.accept();
  ASSERT_TRUE(round.assign(1, from("a")));
  EXPECT_EQ(round.start({}).announce.content_digest, Digest{});
  EXPECT_EQ(round.activity(), "staging " + kV1.to_string() + ", whose snapshot is under way");
  EXPECT_FALSE(round.learn_content({})) << "it is not known yet";
  EXPECT_TRUE(round.learn_content({.low = 7}));
  EXPECT_TRUE(round.has_content());
  EXPECT_FALSE(round.learn_content({.low = 7}));
  EXPECT_EQ(round.activity(), "staging " + kV1.to_string());
  ASSERT_TRUE(round.assign(2, from("b")));
  EXPECT_EQ(round.start({}).announce.content_digest, (Digest{.low = 7}));
}

TEST(ReceiveRound, OnlyANewerRoundCountsUnderOneFence) {
  ReceiveRound round;
  EXPECT_TRUE(round.raise_round(5));
  EXPECT_FALSE(round.raise_round(5));
  EXPECT_FALSE(round.raise_round(4));
  round.forget_rounds();
  EXPECT_TRUE(round.raise_round(1));
}

TEST(ReceiveRoundDeathTest, AMoveWithoutARowAborts) {
  ReceiveRound round;
  round.open(round_of(1), offer(), false);
  EXPECT_DEATH((void)round.start({}), "cannot go from checking to staging");
}

}  // namespace
}  // namespace wsync::staging
