// One call records an update everywhere: in the status, on the page, in the trace.
#include "trainer_side/publish/update_recorder.h"

#include <gtest/gtest.h>

namespace wsync::publish {
namespace {

using control::ProgressPhase;
using std::chrono::milliseconds;

constexpr TimePoint kRecorded{5'000'000'000};

control::StatusReply status_of(const UpdateRecorder& recorder) {
  control::StatusReply reply;
  recorder.report({}, kRecorded + milliseconds(900), reply);
  return reply;
}

TEST(UpdateRecorder, APublishThatIsServed) {
  UpdateRecorder recorder("", 100);
  const std::uint64_t request = recorder.next_request();
  recorder.snapshot_began(request, {1, 2}, kRecorded);
  EXPECT_EQ(recorder.shown(), request);
  for (const auto& [phase, at] :
       {std::pair(ProgressPhase::kAnnounce, 100), std::pair(ProgressPhase::kStage, 200),
        std::pair(ProgressPhase::kSwitch, 300)})
    recorder.phase_entered(request, phase, kRecorded + milliseconds(at));
  EXPECT_EQ(status_of(recorder).running.phase, ProgressPhase::kSwitch);
  recorder.round_ended({.request = request, .reply = {.ok = true, .version = {1, 2}}},
                       kRecorded + milliseconds(400));
  const control::StatusReply reply = status_of(recorder);
  EXPECT_TRUE(reply.last.ok);
  EXPECT_EQ(reply.last.version, (Version{1, 2}));
  EXPECT_EQ(reply.updates.committed, 1U);
  EXPECT_TRUE(reply.running.version.none());
  const auto rounds = recorder.rounds(kRecorded + milliseconds(900));
  ASSERT_EQ(rounds.size(), 1U);
  EXPECT_EQ(rounds[0]->result, "served");
  EXPECT_EQ(rounds[0]->phases.size(), 4U) << "with its snapshot";
  EXPECT_EQ(recorder.spans().spans().size(), 3U) << "one for each phase of the round";
}

TEST(UpdateRecorder, EachEndHasItsName) {
  struct Case {
    coordinator::RoundDone done;
    std::string_view result;
  };
  for (const Case& ended :
       {Case{{.cancelled = true}, "cancelled"}, Case{{.superseded = true}, "superseded"},
        Case{{}, "failed"}, Case{{.reply = {.switch_ns = 1}}, "partial"}}) {
    UpdateRecorder recorder("", 0);
    coordinator::RoundDone done = ended.done;
    done.request = recorder.next_request();
    done.reply.reason = "why";
    recorder.snapshot_began(done.request, {1, 1}, kRecorded);
    recorder.round_ended(done, kRecorded + milliseconds(1));
    const auto rounds = recorder.rounds(kRecorded + milliseconds(2));
    ASSERT_EQ(rounds.size(), 1U);
    EXPECT_EQ(rounds[0]->result, ended.result);
    EXPECT_EQ(rounds[0]->reason, "why");
    const control::StatusReply reply = status_of(recorder);
    EXPECT_EQ(reply.updates.cancelled, ended.done.cancelled ? 1U : 0U);
    const bool is_incident = ended.result == "failed" || ended.result == "partial";
    EXPECT_EQ(reply.incidents.size(), is_incident ? 1U : 0U);
    EXPECT_EQ(is_partial(reply.last), ended.result == "partial");
  }
}

TEST(UpdateRecorder, APublishThatNeverBecameARound) {
  UpdateRecorder recorder("", 0);
  const std::uint64_t waits = recorder.next_request();
  recorder.failed(waits, Error(ErrorCode::kDeadline, "nobody has joined"), kRecorded);
  EXPECT_EQ(status_of(recorder).updates.failed, 1U);
  EXPECT_EQ(status_of(recorder).last.reason, "nobody has joined");
  EXPECT_TRUE(recorder.rounds(kRecorded).empty()) << "its snapshot had not begun";
  const std::uint64_t copied = recorder.next_request();
  recorder.snapshot_began(copied, {1, 1}, kRecorded);
  recorder.failed(copied, Error(ErrorCode::kCancelled, "cancelled"), kRecorded);
  EXPECT_EQ(status_of(recorder).updates.cancelled, 1U);
  ASSERT_EQ(recorder.rounds(kRecorded).size(), 1U);
  EXPECT_EQ(recorder.rounds(kRecorded)[0]->result, "cancelled");
}

TEST(UpdateRecorder, ARollbackThatIsPartial) {
  UpdateRecorder recorder("", 0);
  const std::uint64_t request = recorder.next_request();
  recorder.rollback_began(request, {1, 1}, kRecorded);
  EXPECT_TRUE(status_of(recorder).running.rollback);
  control::RollbackReply reply;
  reply.partial = true;
  reply.to = {1, 1};
  reply.reason = "sidecar 'b' has not gone back";
  recorder.rollback_ended(request, reply, kRecorded + milliseconds(5));
  ASSERT_EQ(recorder.rounds(kRecorded).size(), 1U);
  EXPECT_EQ(recorder.rounds(kRecorded)[0]->result, "partial");
  EXPECT_EQ(status_of(recorder).last.reason, reply.reason);
}

TEST(UpdateRecorder, WhatNoUpdateHasBegunIsIgnored) {
  UpdateRecorder recorder("", 100);
  recorder.phase_entered(9, ProgressPhase::kStage, kRecorded);
  EXPECT_EQ(recorder.shown(), 0U);
  EXPECT_TRUE(recorder.spans().spans().empty());
  recorder.incident("sidecar a lost: silent", kRecorded);
  ASSERT_EQ(status_of(recorder).incidents.size(), 1U);
  EXPECT_EQ(status_of(recorder).incidents[0].text, "sidecar a lost: silent");
}

// An answer of a sidecar ends what it was asked, in the trace and on the page.
TEST(UpdateRecorder, TheStagesOfASidecar) {
  UpdateRecorder recorder("", 100);
  const std::uint64_t request = recorder.next_request();
  recorder.snapshot_began(request, {1, 1}, kRecorded);
  recorder.sent("a", control::Stage{.version = {1, 1}}, kRecorded + milliseconds(10));
  recorder.sent("a", control::Stage{.version = {1, 1}, .content_digest = {.low = 1}},
                kRecorded + milliseconds(12));  // the same, with the digest that is known now
  recorder.received("a", control::Accept{.version = {1, 1}}, kRecorded + milliseconds(15));
  recorder.received("a", control::Staged{.version = {1, 1}}, kRecorded + milliseconds(20));
  const auto rounds = recorder.rounds(kRecorded + milliseconds(30));
  ASSERT_EQ(rounds[0]->lanes.size(), 1U);
  EXPECT_EQ(rounds[0]->lanes[0].sidecar, "a");
  ASSERT_EQ(rounds[0]->lanes[0].stages.size(), 1U);
  EXPECT_EQ(rounds[0]->lanes[0].stages[0].name, "stage");
  EXPECT_EQ(rounds[0]->lanes[0].stages[0].begin, kRecorded + milliseconds(10));
  EXPECT_EQ(recorder.spans().spans().size(), 1U);
}

}  // namespace
}  // namespace wsync::publish
