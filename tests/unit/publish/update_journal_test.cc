#include "trainer_side/publish/update_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/limits.h"

namespace wsync::publish {
namespace {

using control::ProgressPhase;
using std::chrono::milliseconds;

constexpr TimePoint kBegin{1'000'000'000};
constexpr std::uint64_t kModel = 1'000'000;

control::StatusReply told(const UpdateJournal& journal, TimePoint at, PhaseBytes moved = {}) {
  control::StatusReply reply;
  journal.report(moved, at, reply);
  return reply;
}

control::PushReply committed(const Version& version) {
  return {.ok = true,
          .version = version,
          .bytes = kModel,
          .snapshot_ns = 1'000'000,
          .staged_ns = 200'000'000,
          .switch_ns = 100'000'000,
          .outcomes = {{.paused_ns = 5}, {.paused_ns = 9}}};
}

TEST(Journal, NothingHasRun) {
  const control::StatusReply reply = told({}, kBegin);
  EXPECT_TRUE(reply.running.version.none());
  EXPECT_TRUE(reply.last.version.none());
  EXPECT_EQ(UpdateJournal().shown(), 0U);
}

TEST(Journal, TheFirstUpdateKnowsWhatRemainsWhileItIsStaged) {
  UpdateJournal journal;
  journal.began(4, {1, 2}, kBegin);
  control::StatusReply reply = told(journal, kBegin + milliseconds(100), {100, 1000});
  EXPECT_EQ(reply.running.version, (Version{1, 2}));
  EXPECT_EQ(reply.running.phase, ProgressPhase::kSnapshot);
  EXPECT_EQ(reply.running.bytes_per_s, 1000U);
  EXPECT_FALSE(reply.running.remaining_known) << "nothing tells how long staging takes";
  journal.snapshot_taken(4, {1, 2}, kModel);
  journal.entered(4, ProgressPhase::kAnnounce, kBegin + milliseconds(200));
  EXPECT_FALSE(told(journal, kBegin + milliseconds(250)).running.remaining_known);
  journal.entered(4, ProgressPhase::kStage, kBegin + milliseconds(300));
  EXPECT_FALSE(told(journal, kBegin + milliseconds(350), {0, 2 * kModel}).running.remaining_known);
  reply = told(journal, kBegin + milliseconds(400), {kModel / 2, 2 * kModel});
  EXPECT_TRUE(reply.running.remaining_known);
  EXPECT_EQ(reply.running.remaining_ns, 300'000'000U);
  EXPECT_EQ(reply.running.elapsed_ns, 400'000'000U);
  EXPECT_EQ(reply.running.phase_ns, 100'000'000U);
  EXPECT_EQ(reply.running.bytes_per_s, 5 * kModel);
  journal.entered(4, ProgressPhase::kSwitch, kBegin + milliseconds(500));
  EXPECT_FALSE(told(journal, kBegin + milliseconds(510), {0, kModel}).running.remaining_known);
  reply = told(journal, kBegin + milliseconds(520), {kModel / 4, kModel});
  EXPECT_EQ(reply.running.remaining_ns, 60'000'000U);
}

TEST(Journal, LaterUpdatesAreMeasuredByTheNewestGoodOne) {
  UpdateJournal journal;
  journal.began(1, {1, 1}, kBegin);
  journal.ended(1, UpdateEnd::kCommitted, committed({1, 1}), kBegin + milliseconds(300));
  const TimePoint begin = kBegin + milliseconds(1000);
  journal.began(2, {1, 2}, begin);
  // Of a model twice the size: 400 ms to stage, 200 ms to switch.
  control::StatusReply reply = told(journal, begin + milliseconds(10), {kModel, 2 * kModel});
  EXPECT_EQ(reply.running.remaining_ns, 610'000'000U);
  journal.snapshot_taken(2, {1, 2}, 2 * kModel);
  journal.entered(2, ProgressPhase::kAnnounce, begin + milliseconds(20));
  EXPECT_EQ(told(journal, begin + milliseconds(25)).running.remaining_ns, 600'000'000U);
  journal.entered(2, ProgressPhase::kStage, begin + milliseconds(30));
  EXPECT_EQ(told(journal, begin + milliseconds(130), {0, 2 * kModel}).running.remaining_ns,
            500'000'000U);
  EXPECT_EQ(told(journal, begin + milliseconds(130), {kModel, 2 * kModel}).running.remaining_ns,
            300'000'000U);
  journal.entered(2, ProgressPhase::kSwitch, begin + milliseconds(400));
  EXPECT_EQ(told(journal, begin + milliseconds(450), {0, kModel}).running.remaining_ns,
            150'000'000U);
  EXPECT_EQ(told(journal, begin + milliseconds(900), {0, kModel}).running.remaining_ns, 0U);
  // It has taken longer than staging and switching together: somebody is waited for.
  EXPECT_FALSE(told(journal, begin + milliseconds(1001), {0, kModel}).running.remaining_known);
}

TEST(Journal, WhatEndedIsCountedAndTheLastIsKept) {
  UpdateJournal journal;
  journal.began(1, {1, 1}, kBegin);
  journal.ended(1, UpdateEnd::kCommitted, committed({1, 1}), kBegin + milliseconds(300));
  control::StatusReply reply = told(journal, kBegin + milliseconds(1300));
  EXPECT_TRUE(reply.last.ok);
  EXPECT_EQ(reply.last.paused_ns, 9U);
  EXPECT_EQ(reply.last.ended_ago_ns, 1'000'000'000U);
  EXPECT_TRUE(reply.running.version.none());
  EXPECT_TRUE(reply.incidents.empty());
  journal.began(2, {1, 2}, kBegin);
  journal.ended(2, UpdateEnd::kCancelled, {.reason = "on request"}, kBegin);
  EXPECT_TRUE(told(journal, kBegin).last.cancelled);
  EXPECT_EQ(told(journal, kBegin).last.version, (Version{1, 2})) << "the name it began with";
  journal.ended(3, UpdateEnd::kFailed, {.reason = "no sidecar"}, kBegin);  // it never began
  journal.began(4, {1, 3}, kBegin);
  journal.ended(4, UpdateEnd::kSuperseded, {.reason = "superseded by 1.4"}, kBegin);
  reply = told(journal, kBegin);
  EXPECT_EQ(reply.last.reason, "no sidecar");
  EXPECT_EQ(reply.updates.committed, 1U);
  EXPECT_EQ(reply.updates.cancelled, 1U);
  EXPECT_EQ(reply.updates.failed, 1U);
  ASSERT_EQ(reply.incidents.size(), 1U) << "what was asked for is no incident";
  EXPECT_EQ(reply.incidents[0].text, "an update failed: no sidecar");
}

TEST(Journal, TheOneInARoundIsShownAndTheOthersWait) {
  UpdateJournal journal;
  journal.began(1, {1, 1}, kBegin);
  journal.snapshot_taken(1, {1, 1}, kModel);
  journal.began(2, {1, 2}, kBegin);
  EXPECT_EQ(journal.shown(), 1U);
  journal.entered(2, ProgressPhase::kAnnounce, kBegin);
  EXPECT_EQ(journal.shown(), 2U);
  EXPECT_EQ(told(journal, kBegin).running.waiting, 1U);
}

TEST(Journal, APublishWhoseRoundIsLostWaitsAndEndsOnce) {
  UpdateJournal journal;
  journal.began(1, {1, 1}, kBegin);
  journal.entered(1, ProgressPhase::kStage, kBegin + milliseconds(1));
  journal.began(2, {1, 2}, kBegin + milliseconds(2));
  journal.round_lost(1, kBegin + milliseconds(3));
  journal.round_lost(7, kBegin + milliseconds(3));  // unknown
  control::StatusReply reply = told(journal, kBegin + milliseconds(4));
  EXPECT_EQ(reply.running.version, (Version{1, 1}));
  EXPECT_EQ(reply.running.phase, ProgressPhase::kSnapshot);
  EXPECT_TRUE(reply.last.version.none()) << "it has not ended";
  journal.entered(2, ProgressPhase::kAnnounce, kBegin + milliseconds(5));
  EXPECT_EQ(journal.shown(), 2U) << "the other one is in a round now";
  journal.ended(1, UpdateEnd::kCommitted, committed({1, 1}), kBegin + milliseconds(6));
  reply = told(journal, kBegin + milliseconds(7));
  EXPECT_EQ(reply.last.version, (Version{1, 1}));
  EXPECT_EQ(reply.updates.committed, 1U);
  EXPECT_EQ(reply.updates.failed, 0U);
}

TEST(Journal, ARollbackIsShownAndCounted) {
  UpdateJournal journal;
  journal.rollback_began(5, {1, 1}, kBegin);
  control::StatusReply reply = told(journal, kBegin + milliseconds(10));
  EXPECT_TRUE(reply.running.rollback);
  EXPECT_EQ(reply.running.phase, ProgressPhase::kSwitch);
  journal.rollback_ended(5, {.ok = true, .from = {1, 2}, .to = {1, 1}}, kBegin + milliseconds(20));
  reply = told(journal, kBegin + milliseconds(20));
  EXPECT_EQ(reply.last.version, (Version{1, 1}));
  EXPECT_EQ(reply.last.switch_ns, 20'000'000U);
  EXPECT_EQ(reply.updates.committed, 1U);
  journal.rollback_ended(6, {.reason = "refused at once"}, kBegin);
  EXPECT_EQ(told(journal, kBegin).updates.failed, 0U) << "nothing was decided";
}

TEST(Journal, TheOldestIncidentGivesWay) {
  UpdateJournal journal;
  for (std::uint64_t i = 0; i < limits::kIncidentCount + 3; ++i)
    journal.incident(std::to_string(i), kBegin + milliseconds(i));
  const control::StatusReply reply = told(journal, kBegin + milliseconds(100));
  ASSERT_EQ(reply.incidents.size(), limits::kIncidentCount);
  EXPECT_EQ(reply.incidents.front().text, std::to_string(limits::kIncidentCount + 2));
  EXPECT_EQ(reply.incidents.back().text, "3");
}

TEST(Journal, AnEstimateOfYearsIsNone) {
  UpdateJournal journal;
  journal.began(1, {1, 1}, kBegin);
  journal.snapshot_taken(1, {1, 1}, kModel);
  journal.entered(1, ProgressPhase::kStage, kBegin);
  const auto reply = told(journal, kBegin + std::chrono::hours(1), {1, ~std::uint64_t{0}});
  EXPECT_FALSE(reply.running.remaining_known);
}

}  // namespace
}  // namespace wsync::publish
