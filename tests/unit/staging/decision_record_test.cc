// What a sidecar stores: whose fence counts, which decision is taken, and what waits for a write.
#include "inference_side/staging/decision_record.h"

#include <gtest/gtest.h>

#include "tests/support/versions.h"

namespace wsync::staging {
namespace {

using control::Decide;
using control::Fence;

const Fence kRecordFence{.epoch = 2};
const Digest kOwnBytes{.low = 1, .high = 9};
const Digest kOtherBytes{.low = 2, .high = 9};

SidecarRecord record_of(const Version& target) {
  SidecarRecord record;
  record.fence = kRecordFence;
  record.decision = record.origin = {.fence = kRecordFence, .number = 3};
  record.target = target;
  record.content = kOwnBytes;
  return record;
}

CoordinatorMessage cause_of(const Decide& decide) {
  return {.envelope = {.fence = kRecordFence}, .message = decide};
}

TEST(DecisionRecord, ChecksAFence) {
  DecisionRecord fresh{{}};
  EXPECT_EQ(fresh.check({.epoch = 1}), FenceCheck::kHigher);
  const DecisionRecord record(record_of(kV1));
  EXPECT_EQ(record.check(kRecordFence), FenceCheck::kFollowed);
  EXPECT_EQ(record.check({.epoch = 1}), FenceCheck::kLower);
  EXPECT_EQ(record.check({.epoch = 3}), FenceCheck::kHigher);
}

TEST(DecisionRecord, AFleetBindsWithTheFirstDecision) {
  const Fence own{.epoch = 2, .fleet = {.high = 1, .low = 1}};
  const Fence other{.epoch = 1, .fleet = {.high = 2, .low = 2}};
  SidecarRecord record;
  record.fence = own;
  EXPECT_EQ(DecisionRecord(record).check(other), FenceCheck::kHigher) << "nothing is decided yet";
  record.decision = {.fence = own, .number = 1};
  EXPECT_EQ(DecisionRecord(record).check(other), FenceCheck::kOtherFleet);
}

TEST(DecisionRecord, JudgesADecisionByItsNumber) {
  const DecisionRecord record(record_of(kV1));
  EXPECT_EQ(record.judge(kRecordFence, {.number = 3, .target = kV1}, {}).verdict,
            DecisionVerdict::kRepeated);
  EXPECT_EQ(record.judge(kRecordFence, {.number = 2, .target = kV2}, {}).verdict,
            DecisionVerdict::kOutdated);
  EXPECT_EQ(record.judge(kRecordFence, {.number = 0, .target = kV2}, {}).verdict,
            DecisionVerdict::kRefused);
  const Judgement taken =
      record.judge(kRecordFence, {.number = 4, .target = kV2}, {.held = kOtherBytes});
  EXPECT_EQ(taken.verdict, DecisionVerdict::kDecides);
  EXPECT_EQ(taken.next.target, kV2);
  EXPECT_EQ(taken.next.decision.number, 4U);
  EXPECT_EQ(taken.next.origin, taken.next.decision);
  EXPECT_EQ(taken.next.content, kOtherBytes) << "of the held copy, when the decision names none";
  EXPECT_EQ(record.stored(), record_of(kV1)) << "judging changes nothing";
}

TEST(DecisionRecord, StoresWhatARefusedDecisionWithdrawsThenRefusesIt) {
  DecisionRecord record(record_of(kV1));
  const Decide decide{.number = 4, .target = kV2, .withdrawn = {kV2}};
  const Judgement first = record.judge(kRecordFence, decide, {});
  EXPECT_EQ(first.verdict, DecisionVerdict::kWithdraws);
  const Persist persist = record.write(first.next, cause_of(decide));
  const auto finished = record.finish({.token = persist.token, .failure = {}});
  ASSERT_TRUE(finished);
  EXPECT_EQ(finished->effect, WriteEffect::kWithdrawn);
  EXPECT_TRUE(record.is_withdrawn(kV2));
  EXPECT_EQ(record.stored().target, kV1);
  const Judgement again = record.judge(kRecordFence, decide, {});
  EXPECT_EQ(again.verdict, DecisionVerdict::kRefused);
  EXPECT_EQ(again.reason, "version 1.2 was withdrawn");
}

TEST(DecisionRecord, RefusesOtherBytesUnderAKnownName) {
  const DecisionRecord record(record_of(kV1));
  const Decide decide{.number = 4, .target = kV2, .content_digest = kOwnBytes};
  EXPECT_EQ(record.judge(kRecordFence, decide, {.held = kOwnBytes}).verdict,
            DecisionVerdict::kDecides);
  const Judgement held = record.judge(kRecordFence, decide, {.held = kOtherBytes});
  EXPECT_EQ(held.verdict, DecisionVerdict::kRefused);
  EXPECT_TRUE(held.other_bytes);
  const Judgement announced = record.judge(kRecordFence, decide, {.announced = kOtherBytes});
  EXPECT_EQ(announced.verdict, DecisionVerdict::kRefused);
  EXPECT_FALSE(announced.other_bytes) << "what is announced may never arrive";
  const Judgement target =
      record.judge(kRecordFence, {.number = 4, .target = kV1, .content_digest = kOtherBytes}, {});
  EXPECT_EQ(target.verdict, DecisionVerdict::kRefused);
  EXPECT_TRUE(target.other_bytes);
}

TEST(DecisionRecord, MessagesWaitBehindAWriteAndComeInOrder) {
  DecisionRecord record(record_of(kV1));
  EXPECT_FALSE(record.next_deferred());
  SidecarRecord next = record.stored();
  next.fence.epoch = 5;
  const Persist persist = record.write(next, cause_of({}));
  EXPECT_EQ(record.state(), RecordState::kWriting);
  for (std::uint64_t round = 1; round <= 256; ++round)
    ASSERT_TRUE(record.defer({.envelope = {.round = round}, .message = control::Heartbeat{}}));
  EXPECT_FALSE(record.defer({.envelope = {}, .message = control::Heartbeat{}})) << "it is full";
  EXPECT_FALSE(record.next_deferred()) << "the write goes on";
  EXPECT_FALSE(record.finish({.token = persist.token + 1, .failure = {}}));
  const auto finished = record.finish({.token = persist.token, .failure = {}});
  ASSERT_TRUE(finished);
  EXPECT_EQ(finished->effect, WriteEffect::kFence);
  EXPECT_FALSE(record.finish({.token = persist.token, .failure = {}})) << "once";
  for (std::uint64_t round = 1; round <= 256; ++round)
    EXPECT_EQ(record.next_deferred()->envelope.round, round);
  EXPECT_TRUE(record.invariants().has_value());
}

// The decision is not acted on, but nobody may be routed to what it withdraws.
TEST(DecisionRecord, AWriteThatFailsKeepsTheRecordAndRemembersWhatWasWithdrawn) {
  DecisionRecord record(record_of(kV1));
  Decide decide{.number = 4, .target = kV2, .withdrawn = {kV1}};
  Persist persist = record.write(record.judge(kRecordFence, decide, {}).next, cause_of(decide));
  EXPECT_TRUE(record.targets(kV2)) << "also what is being written";
  auto finished = record.finish({.token = persist.token, .failure = "the disc is full"});
  ASSERT_TRUE(finished);
  EXPECT_EQ(finished->effect, WriteEffect::kFailed);
  EXPECT_EQ(record.stored(), record_of(kV1));
  EXPECT_FALSE(record.targets(kV2));
  EXPECT_EQ(record.unready_reason(kV1),
            "1.1 was withdrawn, but this sidecar could not store that decision: the disc is full");
  EXPECT_FALSE(record.unready_reason(kV2));
  decide.number = 5;
  persist = record.write(record.judge(kRecordFence, decide, {}).next, cause_of(decide));
  finished = record.finish({.token = persist.token, .failure = {}});
  ASSERT_TRUE(finished);
  EXPECT_EQ(finished->effect, WriteEffect::kDecided);
  EXPECT_FALSE(record.unready_reason(kV1));
}

TEST(DecisionRecord, OtherBytesUnderAVersionsNameCountUntilTheNextDecision) {
  DecisionRecord record(record_of(kV1));
  record.set_other_bytes(kV1);
  EXPECT_EQ(record.unready_reason(kV1), "the fleet has decided different bytes under the name 1.1");
  const Decide decide{.number = 4, .target = kV2};
  const Persist persist =
      record.write(record.judge(kRecordFence, decide, {}).next, cause_of(decide));
  ASSERT_TRUE(record.finish({.token = persist.token, .failure = {}}));
  EXPECT_FALSE(record.unready_reason(kV1));
}

}  // namespace
}  // namespace wsync::staging
