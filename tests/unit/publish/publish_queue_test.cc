// Every row of the transition table of a publish, and the moves that have none.
#include "trainer_side/publish/publish_queue.h"

#include <algorithm>
#include <array>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <utility>
#include <vector>

#include "shared/base/format.h"

namespace wsync::publish {
namespace {

using control::ProgressPhase;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr TimePoint kStart{1'000'000'000};
constexpr milliseconds kPublishDeadline{60'000};

// A coordinator that says what a test wants.
class FakeCoordinator final : public CoordinatorFacts {
 public:
  [[nodiscard]] std::optional<Error> why_stopped() const override { return stopped; }
  [[nodiscard]] std::optional<std::string> why_not_ready() const override { return not_ready; }
  [[nodiscard]] Result<Version> next_version(std::uint64_t step) const override {
    if (step != 0 && step <= used) return fail(ErrorCode::kInvalidInput, "that step was used");
    return Version{.epoch = epoch, .step = step == 0 ? used + 1 : step};
  }
  [[nodiscard]] std::optional<std::string> why_too_few_engines() const override {
    return too_few_engines;
  }
  [[nodiscard]] bool has_update(const Version& version) const override {
    return update && (version.none() || version == *update);
  }
  [[nodiscard]] bool may_stream() const override { return streams; }

  std::optional<Error> stopped;
  std::optional<std::string> not_ready;
  std::optional<std::string> too_few_engines;
  std::optional<Version> update;
  bool streams = false;
  std::uint32_t epoch = 1;
  std::uint64_t used = 0;
};

// A queue whose commands are kept. Each function fails the test when the queue breaks an invariant.
class PublishQueueTest : public testing::Test {
 protected:
  void add(std::uint64_t request, std::uint64_t step = 0, bool is_kept = false) {
    ASSERT_TRUE(queue_->publish(request, step, at_, is_kept).has_value());
    advance();
  }
  void advance() { execute(queue_->advance(at_)); }
  void snapshot_ended(std::uint64_t request, std::optional<Error> failure = {}) {
    execute(queue_->snapshot_ended(request, failure));
  }
  void enter(std::uint64_t request, ProgressPhase phase) {
    const auto entered = queue_->phase_entered(request, phase);
    EXPECT_TRUE(entered.has_value()) << entered.error().message();
    check();
  }
  void round_ended(std::uint64_t request, RoundEnd end) {
    execute(queue_->round_ended(request, std::move(end)));
  }
  std::optional<control::CancelReply> cancel(const Version& version = {}) {
    auto cancelled = queue_->cancel(version);
    EXPECT_TRUE(cancelled.has_value());
    execute(std::move(cancelled->commands));
    return cancelled->reply;
  }
  void execute(Result<PublishQueue::Commands> commands) {
    ASSERT_TRUE(commands.has_value()) << commands.error().message();
    for (QueueCommand& command : *commands) commands_.push_back(std::move(command));
    check();
  }
  void check() {
    const auto hold = queue_->invariants();
    EXPECT_TRUE(hold.has_value()) << hold.error().message();
  }
  template <class Command>
  [[nodiscard]] std::vector<Command> all() const {
    std::vector<Command> found;
    for (const QueueCommand& command : commands_)
      if (const auto* wanted = std::get_if<Command>(&command)) found.push_back(*wanted);
    return found;
  }
  [[nodiscard]] EndPublish last_end() const {
    const auto ends = all<EndPublish>();
    return ends.empty() ? EndPublish{} : ends.back();
  }
  // Brings a first publish, request 1, to this state.
  void bring_to(JobState state) {
    add(1, 0, state == JobState::kHeld);
    if (state == JobState::kQueued) FAIL() << "it has begun";
    if (state == JobState::kSnapshotting) return;
    if (state == JobState::kStopping) {
      cancel();
      return;
    }
    if (state == JobState::kStreaming) {
      coordinator_.streams = true;
      execute(queue_->copy_began(1));
      enter(1, ProgressPhase::kAnnounce);
      ASSERT_EQ(queue_->state(1), state);
      return;
    }
    if (state == JobState::kHeld) coordinator_.not_ready = "nobody has joined";
    snapshot_ended(1);
    coordinator_.not_ready.reset();
    for (const auto& [phase, reached] : {std::pair(ProgressPhase::kAnnounce, JobState::kAnnouncing),
                                         std::pair(ProgressPhase::kStage, JobState::kStaging),
                                         std::pair(ProgressPhase::kSwitch, JobState::kSwitching)})
      if (state >= reached) enter(1, phase);
    ASSERT_EQ(queue_->state(1), state);
  }

  void start_anew() {
    coordinator_.streams = false;
    queue_.emplace(coordinator_, kPublishDeadline);
  }

  FakeCoordinator coordinator_;
  std::optional<PublishQueue> queue_{std::in_place, coordinator_, kPublishDeadline};
  TimePoint at_ = kStart;
  std::vector<QueueCommand> commands_;
};

// ---- until the snapshot ----

TEST_F(PublishQueueTest, TheNextSnapshotBeginsAtOnceAndOneAtATime) {
  add(1);
  add(2);
  ASSERT_EQ(all<BeginSnapshot>().size(), 1U);
  EXPECT_EQ(all<BeginSnapshot>()[0].request, 1U);
  EXPECT_EQ(all<BeginSnapshot>()[0].version, (Version{1, 1}));
  EXPECT_EQ(all<BeginSnapshot>()[0].deadline, kStart + kPublishDeadline);
  EXPECT_EQ(queue_->snapshotting(), 1U);
  EXPECT_EQ(queue_->state(2), JobState::kQueued);
  EXPECT_EQ(queue_->queued(), 1U);
  snapshot_ended(1);
  advance();
  EXPECT_EQ(queue_->snapshotting(), 2U);
}

TEST_F(PublishQueueTest, ItWaitsForTheCoordinatorAndReportsItOnce) {
  coordinator_.not_ready = "0 of at least 2 sidecars have joined";
  add(1);
  at_ = kStart + seconds(1);
  advance();
  EXPECT_TRUE(commands_.empty());
  at_ = kStart + seconds(2);
  advance();
  advance();
  ASSERT_EQ(commands_.size(), 1U);
  EXPECT_EQ(all<ReportWait>()[0].text,
            "a publish is waiting, at most 60 s (deadlines.publish): 0 of at least 2 sidecars have "
            "joined");
  coordinator_.not_ready.reset();
  advance();
  EXPECT_EQ(queue_->state(1), JobState::kSnapshotting);
}

TEST_F(PublishQueueTest, ItsSnapshotDoesNotWaitForTheCoordinatorAndItsRoundDoes) {
  coordinator_.not_ready = "0 of at least 2 sidecars have joined";
  add(1, 7, true);
  ASSERT_EQ(all<BeginSnapshot>().size(), 1U) << "training waits for the snapshot";
  EXPECT_EQ(all<BeginSnapshot>()[0].version, (Version{0, 7})) << "there is no fence yet";
  snapshot_ended(1);
  ASSERT_EQ(all<HoldSnapshot>().size(), 1U);
  EXPECT_EQ(all<HoldSnapshot>()[0].why, "0 of at least 2 sidecars have joined");
  EXPECT_EQ(queue_->state(1), JobState::kHeld);
  commands_.clear();
  at_ = kStart + seconds(1);
  advance();
  EXPECT_TRUE(commands_.empty());
  at_ = kStart + seconds(2);
  advance();
  advance();
  ASSERT_EQ(commands_.size(), 1U);
  EXPECT_EQ(all<ReportWait>()[0].text,
            "the newest version is kept until it can be published: 0 of at least 2 sidecars have "
            "joined");
  coordinator_.not_ready.reset();
  advance();
  EXPECT_EQ(queue_->state(1), JobState::kWaiting);
  ASSERT_EQ(all<RequestRound>().size(), 1U);
  EXPECT_EQ(all<RequestRound>()[0].version, (Version{1, 7}));
  EXPECT_EQ(all<RequestRound>()[0].deadline, at_ + kPublishDeadline);
}

TEST_F(PublishQueueTest, AHeldPublishKeepsItsNumberUnlessAnotherEpochIsClaimed) {
  for (const bool claims : {false, true}) {
    start_anew();
    commands_.clear();
    coordinator_ = {};
    add(1, 0, true);
    EXPECT_EQ(all<BeginSnapshot>()[0].version, (Version{1, 1}));
    coordinator_.too_few_engines = "the last engine has gone";
    snapshot_ended(1);
    EXPECT_EQ(queue_->state(1), JobState::kHeld);
    add(2, 0, true);
    EXPECT_EQ(all<BeginSnapshot>()[1].version, (Version{1, 2}));
    coordinator_.too_few_engines.reset();
    if (claims) coordinator_.epoch = 2;
    advance();
    EXPECT_EQ(all<RequestRound>()[0].request, 1U);
    EXPECT_EQ(all<RequestRound>()[0].version, (claims ? Version{2, 1} : Version{1, 1}));
    snapshot_ended(2);
    EXPECT_EQ(all<RequestRound>()[1].request, 2U);
    EXPECT_EQ(all<RequestRound>()[1].version, (claims ? Version{2, 2} : Version{1, 2}));
  }
}

TEST_F(PublishQueueTest, AStepThatAHeldPublishGetsIsUsedForTheOneAfterIt) {
  coordinator_.too_few_engines = "no engine is attached";
  add(1, 5, true);
  snapshot_ended(1);
  add(2, 5, true);
  EXPECT_EQ(all<BeginSnapshot>()[1].version, (Version{1, 5})) << "nobody has that name yet";
  coordinator_.too_few_engines.reset();
  advance();
  EXPECT_EQ(all<RequestRound>()[0].version, (Version{1, 5}));
  snapshot_ended(2);
  EXPECT_EQ(last_end().request, 2U);
  EXPECT_EQ(last_end().error->code(), ErrorCode::kInvalidInput);
}

TEST_F(PublishQueueTest, ASnapshotThatIsKeptHasNoDeadlineUntilItsRoundMayBegin) {
  coordinator_.not_ready = "nobody has joined";
  add(1, 0, true);
  snapshot_ended(1);
  at_ = kStart + 10 * kPublishDeadline;
  advance();
  EXPECT_EQ(queue_->state(1), JobState::kHeld);
  EXPECT_EQ(all<ReportWait>()[0].text,
            "the newest version is kept until it can be published: nobody has joined");
  coordinator_.not_ready.reset();
  coordinator_.too_few_engines = "no engine is attached";
  advance();
  EXPECT_EQ(all<HoldSnapshot>().back().why, "no engine is attached");
  EXPECT_EQ(queue_->waits_for(1), "no engine is attached");
  EXPECT_EQ(queue_->waits_for(2), std::nullopt) << "there is no such publish";
  EXPECT_EQ(queue_->state(1), JobState::kHeld) << "a round would fail";
  coordinator_.too_few_engines.reset();
  advance();
  ASSERT_EQ(all<RequestRound>().size(), 1U);
  EXPECT_EQ(all<RequestRound>()[0].deadline, at_ + kPublishDeadline);
  EXPECT_EQ(queue_->waits_for(1), std::nullopt) << "it is not held any more";
}

TEST_F(PublishQueueTest, APublishThatIsNotKeptDoesNotWaitForEngines) {
  coordinator_.too_few_engines = "no engine is attached";
  add(1);
  snapshot_ended(1);
  EXPECT_EQ(queue_->state(1), JobState::kWaiting) << "its round says what is missing";
}

TEST_F(PublishQueueTest, ANewerSnapshotReplacesTheOneThatIsHeld) {
  coordinator_.not_ready = "nobody has joined";
  add(1, 0, true);
  snapshot_ended(1);
  add(2, 0, true);
  EXPECT_EQ(queue_->state(1), JobState::kHeld) << "the newer one may still fail";
  snapshot_ended(2);
  EXPECT_EQ(last_end().request, 1U);
  EXPECT_EQ(last_end().end, JobState::kSuperseded);
  EXPECT_FALSE(last_end().had_round);
  EXPECT_EQ(last_end().error, std::nullopt);
  add(3, 0, true);
  execute(queue_->memory_awaited(3));
  EXPECT_EQ(last_end().request, 2U) << "its memory is needed";
  snapshot_ended(3);
  coordinator_.not_ready.reset();
  advance();
  EXPECT_EQ(all<RequestRound>().back().version, (Version{1, 1}));
  EXPECT_EQ(queue_->state(3), JobState::kWaiting);
}

TEST_F(PublishQueueTest, AHeldSnapshotIsCancelledAndItsUsedStepIsRefused) {
  coordinator_.not_ready = "nobody has joined";
  add(1, 0, true);
  snapshot_ended(1);
  EXPECT_TRUE(cancel()->ok);
  EXPECT_EQ(last_end().end, JobState::kCancelled);
  EXPECT_EQ(last_end().error->message(),
            "the publish was cancelled on request before its round began");
  add(2, 7, true);
  snapshot_ended(2);
  coordinator_.used = 7;  // the claim has shown it
  coordinator_.not_ready.reset();
  advance();
  EXPECT_EQ(last_end().end, JobState::kFailed);
  EXPECT_EQ(last_end().error->code(), ErrorCode::kInvalidInput);
  coordinator_.not_ready = "nobody has joined";
  add(3, 0, true);
  snapshot_ended(3);
  coordinator_.stopped = Error(ErrorCode::kFenced, "another is newer");
  advance();
  EXPECT_EQ(last_end().request, 3U);
  EXPECT_EQ(last_end().error->code(), ErrorCode::kFenced);
}

TEST_F(PublishQueueTest, ItsDeadlineEndsTheWaitForTheCoordinator) {
  coordinator_.not_ready = "nobody has joined";
  add(1);
  at_ = kStart + seconds(1);
  add(2);
  at_ = kStart + kPublishDeadline;
  advance();
  ASSERT_EQ(all<EndPublish>().size(), 1U) << "the second one has another second";
  EXPECT_EQ(last_end().request, 1U);
  EXPECT_EQ(last_end().end, JobState::kFailed);
  EXPECT_FALSE(last_end().had_round);
  EXPECT_EQ(last_end().error->code(), ErrorCode::kDeadline);
  EXPECT_EQ(last_end().reply.reason,
            "the publish waited 60 s (deadlines.publish): nobody has joined");
  EXPECT_EQ(queue_->state(1), std::nullopt);
}

TEST_F(PublishQueueTest, ItsDeadlineMayPassDuringTheSnapshotBeforeIt) {
  add(1);
  add(2);
  at_ = kStart + kPublishDeadline;
  snapshot_ended(1);
  advance();
  EXPECT_EQ(last_end().request, 2U);
  EXPECT_EQ(last_end().reply.reason,
            "its deadline (deadlines.publish) passed while the previous snapshot was taken");
}

TEST_F(PublishQueueTest, AStepThatWasUsedFails) {
  coordinator_.used = 7;
  add(1, 7);
  EXPECT_EQ(last_end().end, JobState::kFailed);
  EXPECT_EQ(last_end().error->code(), ErrorCode::kInvalidInput);
  add(2, 9);
  EXPECT_EQ(all<BeginSnapshot>()[0].version, (Version{1, 9}));
}

TEST_F(PublishQueueTest, ANumberThatTheQueueHasChosenIsNotChosenAgain) {
  add(1);
  EXPECT_EQ(all<BeginSnapshot>().back().version, (Version{1, 1}));
  snapshot_ended(1, Error(ErrorCode::kInvalidInput, "no such tensor"));
  add(2);
  EXPECT_EQ(all<BeginSnapshot>().back().version, (Version{1, 2})) << "1.1 stands in the log";
  snapshot_ended(2, Error(ErrorCode::kInvalidInput, "no such tensor"));
  add(3, 2);
  EXPECT_THAT(last_end().reply.reason,
              HasSubstr("publish a step above 2, or let wsync choose the next free one"));
  // A caller may repeat a step of its own, as the ranks of a trainer do when one of them was lost.
  add(4, 5);
  snapshot_ended(4, Error(ErrorCode::kPeerLost, "rank 1 is lost"));
  add(5, 5);
  EXPECT_EQ(all<BeginSnapshot>().back().version, (Version{1, 5}));
  snapshot_ended(5, Error(ErrorCode::kPeerLost, "rank 1 is lost"));
  add(6);
  EXPECT_EQ(all<BeginSnapshot>().back().version, (Version{1, 6}));
}

// A coordinator that stores a decision keeps the publish for later and counts its step as free.
TEST_F(PublishQueueTest, AVersionThatTheCoordinatorHasIsNotNamedAgain) {
  bring_to(JobState::kWaiting);
  ASSERT_EQ(coordinator_.used, 0U);
  add(2);
  EXPECT_EQ(all<BeginSnapshot>().back().version, (Version{1, 2}));
  snapshot_ended(2);
  add(3, 2);
  EXPECT_THAT(last_end().reply.reason,
              HasSubstr("step 2 was used or passed under epoch 1 (last: 2)"));
  coordinator_.epoch = 2;  // it has claimed anew
  add(4);
  EXPECT_EQ(all<BeginSnapshot>().back().version, (Version{2, 1}));
}

TEST_F(PublishQueueTest, WhatIsQueuedFailsWhenTheCoordinatorStops) {
  add(1);
  add(2);
  add(3);
  coordinator_.stopped =
      Error(ErrorCode::kFenced, "this coordinator has stopped: another is newer");
  snapshot_ended(1);
  advance();
  ASSERT_EQ(all<EndPublish>().size(), 3U);
  for (const EndPublish& end : all<EndPublish>()) {
    EXPECT_EQ(end.end, JobState::kFailed);
    EXPECT_EQ(end.error->code(), ErrorCode::kFenced);
    EXPECT_EQ(end.reply.reason, "this coordinator has stopped: another is newer");
  }
  EXPECT_FALSE(cancel()->ok);
  EXPECT_EQ(cancel()->reason, "this coordinator has stopped: another is newer");
}

// ---- given up ----

TEST_F(PublishQueueTest, AQueuedPublishIsGivenUpWithWhatItWaitsFor) {
  coordinator_.not_ready = "nobody has joined";
  add(1, 5);
  add(2, 6);
  execute(queue_->give_up(6, false));
  EXPECT_EQ(last_end().request, 2U);
  EXPECT_EQ(last_end().error->code(), ErrorCode::kDeadline);
  EXPECT_EQ(last_end().reply.reason, "nobody has joined");
  execute(queue_->give_up(6, false));
  EXPECT_EQ(all<EndPublish>().size(), 1U) << "it has ended";
  coordinator_.not_ready.reset();
  advance();
  add(3, 7);
  execute(queue_->give_up(7, false));
  EXPECT_EQ(last_end().reply.reason, "the previous snapshot is still being taken");
}

TEST_F(PublishQueueTest, AHeldPublishIsNotGivenUp) {
  coordinator_.not_ready = "nobody has joined";
  add(1, 5, true);
  snapshot_ended(1);
  execute(queue_->give_up(5, true));
  EXPECT_EQ(queue_->state(1), JobState::kHeld) << "it has read its weights";
}

TEST_F(PublishQueueTest, ASnapshotIsGivenUpUnlessAWeightWasRead) {
  add(1, 5);
  execute(queue_->give_up(5, true));
  execute(queue_->give_up(6, false));
  EXPECT_TRUE(all<StopSnapshot>().empty());
  execute(queue_->give_up(5, false));
  ASSERT_EQ(all<StopSnapshot>().size(), 1U);
  EXPECT_EQ(queue_->state(1), JobState::kSnapshotting);
  snapshot_ended(1, Error(ErrorCode::kCancelled, "stopped while waiting for a free arena"));
  EXPECT_EQ(last_end().end, JobState::kCancelled);
}

TEST_F(PublishQueueTest, ASnapshotThatWasCompleteWhenItWasGivenUpGoesOn) {
  add(1, 5);
  execute(queue_->give_up(5, false));
  snapshot_ended(1);
  EXPECT_EQ(queue_->state(1), JobState::kWaiting);
}

// ---- the snapshot ----

TEST_F(PublishQueueTest, ACompleteSnapshotIsGivenToTheCoordinator) {
  bring_to(JobState::kWaiting);
  ASSERT_EQ(all<RequestRound>().size(), 1U);
  EXPECT_EQ(all<RequestRound>()[0].request, 1U);
  EXPECT_EQ(all<RequestRound>()[0].deadline, kStart + kPublishDeadline);
}

TEST_F(PublishQueueTest, AFailedSnapshotFreesTheStepThatWasAskedFor) {
  add(1, 4);
  snapshot_ended(1, Error(ErrorCode::kIo, "the source cannot be read"));
  EXPECT_EQ(last_end().end, JobState::kFailed);
  EXPECT_EQ(last_end().reply.reason, "the source cannot be read");
  EXPECT_TRUE(last_end().reply.version.none());
  add(2, 4);
  EXPECT_EQ(all<BeginSnapshot>().back().version, (Version{1, 4}));
}

// ---- cancelled ----

TEST_F(PublishQueueTest, NothingIsCancelledWhereNothingRuns) {
  EXPECT_EQ(cancel(), std::nullopt) << "the coordinator says so";
  add(1);
  EXPECT_EQ(cancel({1, 9}), std::nullopt);
}

TEST_F(PublishQueueTest, AQueuedPublishIsCancelledWithoutAName) {
  coordinator_.not_ready = "nobody has joined";
  add(1);
  add(2);
  const auto reply = cancel();
  ASSERT_TRUE(reply && reply->ok);
  EXPECT_TRUE(reply->version.none());
  EXPECT_EQ(last_end().request, 1U);
  EXPECT_EQ(last_end().end, JobState::kCancelled);
  EXPECT_EQ(last_end().reply.reason,
            "the publish was cancelled on request before its snapshot began");
}

TEST_F(PublishQueueTest, ASnapshotIsCancelledWhateverItsEnd) {
  for (const bool fails : {false, true}) {
    const std::uint64_t request = fails ? 2 : 1;
    add(request);
    const Version version{1, request};  // a number is given once
    const auto reply = cancel(fails ? version : Version{});
    ASSERT_TRUE(reply && reply->ok);
    EXPECT_EQ(reply->version, version);
    EXPECT_EQ(all<StopSnapshot>().back().request, request);
    EXPECT_EQ(queue_->state(request), JobState::kStopping);
    EXPECT_TRUE(cancel()->ok) << "asked again";
    if (fails)
      snapshot_ended(request, Error(ErrorCode::kIo, "the source cannot be read"));
    else
      snapshot_ended(request);
    EXPECT_EQ(last_end().end, JobState::kCancelled);
    EXPECT_EQ(last_end().reply.reason,
              version.to_string() + " was cancelled on request while its snapshot was taken");
    EXPECT_TRUE(all<RequestRound>().empty());
  }
}

TEST_F(PublishQueueTest, AStoppedCoordinatorIsTheReasonOfACancelledSnapshot) {
  bring_to(JobState::kStopping);
  coordinator_.stopped = Error(ErrorCode::kIo, "this coordinator has stopped");
  snapshot_ended(1);
  EXPECT_EQ(last_end().end, JobState::kFailed);
  EXPECT_EQ(last_end().error->code(), ErrorCode::kIo);
}

TEST_F(PublishQueueTest, TheCoordinatorCancelsWhatItHasFirst) {
  bring_to(JobState::kAnnouncing);
  coordinator_.update = Version{1, 1};
  coordinator_.used = 1;
  add(2);
  EXPECT_EQ(cancel(), std::nullopt);
  EXPECT_EQ(cancel({1, 1}), std::nullopt);
  EXPECT_EQ(queue_->state(2), JobState::kSnapshotting);
  EXPECT_EQ(cancel({1, 2})->version, (Version{1, 2}));
  EXPECT_EQ(queue_->state(2), JobState::kStopping);
}

TEST_F(PublishQueueTest, TheCoordinatorReportsACancelFromEachStateBeforeTheDecision) {
  for (const JobState state : {JobState::kWaiting, JobState::kAnnouncing, JobState::kStaging}) {
    start_anew();
    bring_to(state);
    round_ended(1, {.cancelled = true,
                    .reply = {.reason = "cancelled on request; and so on", .version = {1, 1}}});
    EXPECT_EQ(last_end().end, JobState::kCancelled) << job_state_name(state);
    EXPECT_TRUE(last_end().had_round);
    EXPECT_EQ(last_end().error->code(), ErrorCode::kCancelled);
    EXPECT_EQ(last_end().error->message(), "1.1 was cancelled on request; and so on");
  }
}

// ---- the round ----

TEST_F(PublishQueueTest, ARoundGoesThroughItsPhasesAndIsServed) {
  bring_to(JobState::kSwitching);
  round_ended(1, {.reply = {.ok = true, .version = {1, 1}}});
  EXPECT_EQ(last_end().end, JobState::kServed);
  EXPECT_EQ(last_end().error, std::nullopt);
  EXPECT_TRUE(last_end().reply.ok);
  EXPECT_EQ(queue_->state(1), std::nullopt);
}

TEST_F(PublishQueueTest, ANewerPublishTakesThePlaceOfOneThatWaits) {
  bring_to(JobState::kAnnouncing);
  add(2);
  snapshot_ended(2);
  add(3);
  snapshot_ended(3);
  round_ended(2, {.superseded = true, .reply = {.reason = "superseded by 1.3"}});
  EXPECT_EQ(last_end().end, JobState::kSuperseded);
  EXPECT_EQ(last_end().error, std::nullopt);
  EXPECT_EQ(queue_->state(3), JobState::kWaiting);
}

TEST_F(PublishQueueTest, ASnapshotThatWaitsForMemoryReplacesThePublishThatWaitsForItsRound) {
  bring_to(JobState::kAnnouncing);
  add(2);
  execute(queue_->memory_awaited(2));
  EXPECT_TRUE(all<ReplaceWaiting>().empty()) << "a round that runs is not replaced";
  snapshot_ended(2);
  add(3);
  execute(queue_->memory_awaited(3));
  const auto replaced = all<ReplaceWaiting>();
  ASSERT_EQ(replaced.size(), 1U);
  EXPECT_EQ(replaced[0].request, 2U);
  EXPECT_EQ(replaced[0].version, (Version{1, 2}));
  EXPECT_EQ(replaced[0].by, (Version{1, 3}));
  round_ended(2, {.superseded = true, .reply = {.reason = "superseded by 1.3"}});
  EXPECT_EQ(last_end().end, JobState::kSuperseded);
  execute(queue_->memory_awaited(3));
  EXPECT_EQ(all<ReplaceWaiting>().size(), 1U) << "there is none any more";
}

TEST_F(PublishQueueTest, ADraftThatWaitsForMemoryReplacesThemToo) {
  bring_to(JobState::kAnnouncing);
  execute(queue_->draft_awaits_memory(0));
  EXPECT_TRUE(all<ReplaceWaiting>().empty()) << "a round that runs is not replaced";
  add(2);
  snapshot_ended(2);
  execute(queue_->draft_awaits_memory(0));
  const auto replaced = all<ReplaceWaiting>();
  ASSERT_EQ(replaced.size(), 1U);
  EXPECT_EQ(replaced[0].request, 2U);
  EXPECT_EQ(replaced[0].by, (Version{1, 3}));
}

TEST_F(PublishQueueTest, ADraftThatWaitsForMemoryReplacesTheOneThatIsHeld) {
  coordinator_.not_ready = "nobody has joined";
  add(1, 0, true);
  snapshot_ended(1);
  execute(queue_->draft_awaits_memory(0));
  EXPECT_EQ(last_end().request, 1U);
  EXPECT_EQ(last_end().end, JobState::kSuperseded);
}

TEST_F(PublishQueueTest, ARoundFailsInEachOfItsStates) {
  for (const JobState state :
       {JobState::kWaiting, JobState::kAnnouncing, JobState::kStaging, JobState::kSwitching}) {
    start_anew();
    bring_to(state);
    round_ended(1, {.reply = {.reason = "a sidecar refuses it"}});
    EXPECT_EQ(last_end().end, JobState::kFailed) << job_state_name(state);
    EXPECT_EQ(last_end().error, std::nullopt) << "its reply says why";
    EXPECT_EQ(last_end().reply.reason, "a sidecar refuses it");
  }
}

// ---- a round that has lost every sidecar ----

TEST_F(PublishQueueTest, ARoundThatHasLostEverySidecarIsRequestedAgainUnderItsName) {
  for (const JobState state : {JobState::kWaiting, JobState::kAnnouncing, JobState::kStaging}) {
    for (const std::uint64_t step : {0U, 7U}) {
      start_anew();
      commands_.clear();
      coordinator_.used = 0;
      add(1, step, true);
      snapshot_ended(1);
      ASSERT_EQ(all<RequestRound>().size(), 1U);
      const Version version = all<RequestRound>()[0].version;
      coordinator_.used = version.step;
      if (state >= JobState::kAnnouncing) enter(1, ProgressPhase::kAnnounce);
      if (state >= JobState::kStaging) enter(1, ProgressPhase::kStage);
      coordinator_.not_ready = "0 of at least 1 sidecars have joined";
      execute(queue_->round_lost(1, "sidecar 's0' was lost"));
      EXPECT_EQ(queue_->state(1), JobState::kHeld) << job_state_name(state);
      EXPECT_EQ(queue_->waits_for(1),
                "0 of at least 1 sidecars have joined; sidecar 's0' was lost");
      at_ = at_ + 10 * kPublishDeadline;
      advance();
      EXPECT_EQ(queue_->waits_for(1), "0 of at least 1 sidecars have joined");
      ASSERT_EQ(all<ReportWait>().size(), 1U);
      coordinator_.not_ready.reset();
      advance();
      ASSERT_EQ(all<RequestRound>().size(), 2U);
      EXPECT_EQ(all<RequestRound>()[1].version, version);
      EXPECT_EQ(all<RequestRound>()[1].deadline, at_ + kPublishDeadline);
      EXPECT_FALSE(all<RequestRound>()[1].streams);
      EXPECT_TRUE(all<EndPublish>().empty());
      for (const auto phase :
           {ProgressPhase::kAnnounce, ProgressPhase::kStage, ProgressPhase::kSwitch})
        enter(1, phase);
      round_ended(1, {.reply = {.ok = true}});
      EXPECT_EQ(last_end().end, JobState::kServed);
    }
  }
}

TEST_F(PublishQueueTest, AStreamWhoseRoundIsLostGoesOnAsASnapshot) {
  coordinator_.streams = true;
  add(1, 0, true);
  execute(queue_->copy_began(1));
  enter(1, ProgressPhase::kAnnounce);
  coordinator_.not_ready = "nobody has joined";
  execute(queue_->round_lost(1, "sidecar 's0' was lost"));
  EXPECT_EQ(queue_->state(1), JobState::kSnapshotting);
  EXPECT_TRUE(all<StopSnapshot>().empty());
  coordinator_.not_ready.reset();
  advance();
  EXPECT_EQ(queue_->state(1), JobState::kSnapshotting) << "it streams once";
  coordinator_.not_ready = "nobody has joined";
  snapshot_ended(1);
  EXPECT_EQ(queue_->state(1), JobState::kHeld);
  coordinator_.not_ready.reset();
  advance();
  ASSERT_EQ(all<RequestRound>().size(), 2U);
  EXPECT_EQ(all<RequestRound>()[1].version, all<RequestRound>()[0].version);
  EXPECT_FALSE(all<RequestRound>()[1].streams);
}

TEST_F(PublishQueueTest, OnlyTheNewestPublishOutlivesItsRound) {
  add(1, 0, true);
  snapshot_ended(1);
  coordinator_.used = 1;
  add(2, 0, true);
  execute(queue_->round_lost(1, "sidecar 's0' was lost"));
  EXPECT_EQ(queue_->state(1), JobState::kHeld) << "the newer one has no snapshot yet";
  coordinator_.not_ready = "nobody has joined";
  snapshot_ended(2);
  EXPECT_EQ(last_end().request, 1U);
  EXPECT_EQ(last_end().end, JobState::kSuperseded);
  EXPECT_EQ(queue_->state(2), JobState::kHeld);
  coordinator_.not_ready.reset();
  advance();
  add(3, 0, true);
  coordinator_.used = 2;
  snapshot_ended(3);
  ASSERT_EQ(queue_->state(2), JobState::kWaiting);
  ASSERT_EQ(queue_->state(3), JobState::kWaiting);
  execute(queue_->round_lost(2, "sidecar 's0' was lost"));
  EXPECT_EQ(last_end().request, 2U);
  EXPECT_EQ(last_end().end, JobState::kFailed);
  EXPECT_EQ(last_end().reply.reason, "sidecar 's0' was lost; a newer publish follows");
  EXPECT_EQ(queue_->state(3), JobState::kWaiting);
}

TEST_F(PublishQueueTest, ALostRoundIsCancelledByItsNameAndFailsUnderAnotherEpoch) {
  for (const bool is_cancelled : {true, false}) {
    start_anew();
    coordinator_.epoch = 1;
    coordinator_.used = 0;
    coordinator_.not_ready.reset();
    add(1, 7, true);
    snapshot_ended(1);
    coordinator_.used = 7;
    coordinator_.not_ready = "nobody has joined";
    execute(queue_->round_lost(1, "sidecar 's0' was lost"));
    if (is_cancelled) {
      EXPECT_FALSE(cancel({1, 6}).has_value()) << "that is another one";
      EXPECT_TRUE(cancel({1, 7}).value_or(control::CancelReply{}).ok);
      EXPECT_EQ(last_end().end, JobState::kCancelled);
      continue;
    }
    coordinator_.epoch = 2;
    coordinator_.not_ready.reset();
    advance();
    EXPECT_EQ(last_end().end, JobState::kFailed);
    EXPECT_EQ(last_end().reply.reason,
              "the round of 1.7 has lost every sidecar, and another epoch has been claimed since: "
              "publish again");
  }
}

TEST_F(PublishQueueTest, APublishThatIsNotKeptLosesNoRound) {
  bring_to(JobState::kAnnouncing);
  EXPECT_EQ(queue_->round_lost(1, "sidecar 's0' was lost").error().code(), ErrorCode::kInternal);
  EXPECT_EQ(queue_->state(1), JobState::kAnnouncing);
  for (const JobState state : {JobState::kHeld, JobState::kSnapshotting, JobState::kSwitching}) {
    start_anew();
    add(1, 0, true);
    if (state == JobState::kHeld) coordinator_.not_ready = "nobody has joined";
    if (state != JobState::kSnapshotting) snapshot_ended(1);
    coordinator_.not_ready.reset();
    if (state == JobState::kSwitching)
      for (const auto phase :
           {ProgressPhase::kAnnounce, ProgressPhase::kStage, ProgressPhase::kSwitch})
        enter(1, phase);
    EXPECT_FALSE(queue_->round_lost(1, "sidecar 's0' was lost").has_value());
    EXPECT_EQ(queue_->state(1), state);
  }
}

// ---- a round that begins with the snapshot ----

TEST_F(PublishQueueTest, APublishStreamsIfItsRoundMayBeginWithItsSnapshot) {
  coordinator_.streams = true;
  add(1);
  EXPECT_TRUE(all<RequestRound>().empty()) << "its layout is not known yet";
  execute(queue_->copy_began(1));
  ASSERT_EQ(all<RequestRound>().size(), 1U);
  EXPECT_TRUE(all<RequestRound>()[0].streams);
  EXPECT_EQ(all<RequestRound>()[0].version, (Version{1, 1}));
  EXPECT_EQ(queue_->state(1), JobState::kStreaming);
  EXPECT_EQ(queue_->snapshotting(), 1U);
  enter(1, ProgressPhase::kAnnounce);
  enter(1, ProgressPhase::kStage);
  EXPECT_EQ(queue_->state(1), JobState::kStreaming) << "its snapshot is being taken";
  EXPECT_FALSE(queue_->phase_entered(1, ProgressPhase::kSwitch).has_value())
      << "a version is decided before its content digest is known";
  EXPECT_FALSE(queue_->round_ended(1, {.reply = {.ok = true}}).has_value());
  add(2);
  EXPECT_EQ(queue_->state(2), JobState::kQueued) << "one snapshot at a time";
  snapshot_ended(1);
  ASSERT_EQ(all<CompleteRound>().size(), 1U);
  EXPECT_EQ(all<CompleteRound>()[0].version, (Version{1, 1}));
  EXPECT_EQ(queue_->state(1), JobState::kStaging);
  advance();
  EXPECT_EQ(all<BeginSnapshot>().back().version, (Version{1, 2}));
  execute(queue_->copy_began(2));
  EXPECT_EQ(all<RequestRound>().size(), 1U) << "another round runs";
  enter(1, ProgressPhase::kSwitch);
  round_ended(1, {.reply = {.ok = true}});
  EXPECT_EQ(last_end().end, JobState::kServed);
  advance();
  ASSERT_EQ(all<RequestRound>().size(), 2U) << "its copy has begun, and no round runs any more";
  EXPECT_TRUE(all<RequestRound>()[1].streams);
  EXPECT_EQ(all<RequestRound>()[1].version, (Version{1, 2}));
  EXPECT_EQ(queue_->state(2), JobState::kStreaming);
  advance();
  EXPECT_EQ(all<RequestRound>().size(), 2U) << "once";
}

TEST_F(PublishQueueTest, APublishThatIsHeldOrWaitsKeepsANewerOneFromStreaming) {
  coordinator_.too_few_engines = "no engine is attached";
  add(1, 0, true);
  snapshot_ended(1);
  ASSERT_EQ(queue_->state(1), JobState::kHeld);
  add(2, 0, true);
  execute(queue_->copy_began(2));
  coordinator_.streams = true;
  coordinator_.too_few_engines.reset();
  advance();
  EXPECT_EQ(queue_->state(1), JobState::kWaiting);
  EXPECT_EQ(queue_->state(2), JobState::kSnapshotting);
  round_ended(1, {.superseded = true});
  advance();
  EXPECT_EQ(queue_->state(2), JobState::kStreaming);
}

TEST_F(PublishQueueTest, AStreamThatBeganBeforeTheClaimIsNamedWhenItsRoundBegins) {
  coordinator_.streams = true;
  coordinator_.not_ready = "nobody has joined";
  add(1, 0, true);
  EXPECT_EQ(all<BeginSnapshot>()[0].version.epoch, 0U);
  execute(queue_->copy_began(1));
  EXPECT_TRUE(all<RequestRound>().empty());
  coordinator_.not_ready.reset();
  advance();
  ASSERT_EQ(all<RequestRound>().size(), 1U);
  EXPECT_TRUE(all<RequestRound>()[0].streams);
  EXPECT_EQ(all<RequestRound>()[0].version, (Version{1, 1}));
  snapshot_ended(1);
  EXPECT_EQ(all<CompleteRound>()[0].version, (Version{1, 1}));
}

TEST_F(PublishQueueTest, AStepThatWasUsedMeanwhileIsRefusedAtTheEndOfItsSnapshot) {
  coordinator_.not_ready = "nobody has joined";
  add(1, 5, true);
  execute(queue_->copy_began(1));
  coordinator_.not_ready.reset();
  coordinator_.streams = true;
  coordinator_.used = 7;
  advance();
  EXPECT_EQ(queue_->state(1), JobState::kSnapshotting);
  snapshot_ended(1);
  EXPECT_EQ(last_end().end, JobState::kFailed);
  EXPECT_THAT(last_end().reply.reason, HasSubstr("used"));
}

TEST_F(PublishQueueTest, ASnapshotThatEndsWhileItsRoundIsAnnouncedGoesOnFromThere) {
  bring_to(JobState::kStreaming);
  snapshot_ended(1);
  EXPECT_EQ(queue_->state(1), JobState::kAnnouncing);
}

TEST_F(PublishQueueTest, ASnapshotThatEndsBeforeItsRoundHasBegunWaitsForIt) {
  coordinator_.streams = true;
  add(1);
  execute(queue_->copy_began(1));
  snapshot_ended(1);
  EXPECT_EQ(queue_->state(1), JobState::kWaiting);
  EXPECT_EQ(all<CompleteRound>().size(), 1U);
}

TEST_F(PublishQueueTest, APublishDoesNotStreamIfItsRoundWouldHaveToWait) {
  const auto streams = [this] {
    execute(queue_->copy_began(1));
    return queue_->state(1) == JobState::kStreaming;
  };
  add(1);
  EXPECT_FALSE(streams()) << "nobody receives copies";
  coordinator_.streams = true;
  coordinator_.not_ready = "nobody is there any more";
  EXPECT_FALSE(streams());
  coordinator_.not_ready.reset();
  coordinator_.epoch = 2;
  EXPECT_TRUE(streams());
  EXPECT_EQ(all<RequestRound>()[0].version.epoch, 2U) << "another one was claimed meanwhile";
  execute(queue_->copy_began(1));
  EXPECT_EQ(all<RequestRound>().size(), 1U) << "once";

  start_anew();
  coordinator_.streams = true;
  coordinator_.too_few_engines = "no engine is attached";
  add(1, 0, true);
  EXPECT_FALSE(streams()) << "it is kept until there are engines";
}

TEST_F(PublishQueueTest, AFailedSnapshotEndsItsRoundAndTheAnswerHasItsError) {
  bring_to(JobState::kStreaming);
  snapshot_ended(1, Error(ErrorCode::kPeerLost, "rank 1 was lost"));
  ASSERT_EQ(all<AbandonRound>().size(), 1U);
  EXPECT_EQ(all<AbandonRound>()[0].why.message(), "rank 1 was lost");
  EXPECT_TRUE(all<EndPublish>().empty()) << "the coordinator ends it";
  round_ended(1, {.reply = {.reason = "rank 1 was lost"}});
  EXPECT_EQ(last_end().end, JobState::kFailed);
  ASSERT_TRUE(last_end().error.has_value());
  EXPECT_EQ(last_end().error->code(), ErrorCode::kPeerLost);
}

TEST_F(PublishQueueTest, AStepWhoseStreamedSnapshotHasFailedMayBeNamedAgain) {
  coordinator_.streams = true;
  add(1, 5);
  execute(queue_->copy_began(1));
  snapshot_ended(1, Error(ErrorCode::kPeerLost, "rank 1 was lost"));
  round_ended(1, {.reply = {.reason = "rank 1 was lost"}});
  add(2, 5);
  EXPECT_EQ(all<BeginSnapshot>().back().version, (Version{1, 5}));
  execute(queue_->copy_began(2));
  snapshot_ended(2);
  add(3, 5);
  EXPECT_EQ(last_end().request, 3U);
  EXPECT_THAT(last_end().reply.reason, HasSubstr("was used"));
}

TEST_F(PublishQueueTest, ARoundThatEndsBeforeItsSnapshotIsAnsweredWhenThatHasStopped) {
  struct Case {
    RoundEnd end;
    JobState becomes;
  };
  for (const Case& one :
       {Case{{.reply = {.reason = "every sidecar was lost"}}, JobState::kFailed},
        Case{{.cancelled = true, .reply = {.reason = "cancelled"}}, JobState::kCancelled},
        Case{{.superseded = true, .reply = {.reason = "superseded"}}, JobState::kSuperseded}}) {
    start_anew();
    commands_.clear();
    bring_to(JobState::kStreaming);
    round_ended(1, one.end);
    EXPECT_EQ(queue_->state(1), JobState::kStopping);
    ASSERT_EQ(all<StopSnapshot>().size(), 1U);
    EXPECT_TRUE(all<EndPublish>().empty()) << "its weights are still being read";
    const auto again = cancel();
    ASSERT_TRUE(again.has_value());
    EXPECT_FALSE(again->ok);
    EXPECT_THAT(again->reason, HasSubstr("nothing to cancel"));
    snapshot_ended(1, Error(ErrorCode::kCancelled, "the snapshot was stopped"));
    EXPECT_EQ(last_end().end, one.becomes);
    EXPECT_TRUE(last_end().had_round);
    EXPECT_EQ(last_end().reply.reason, one.end.reply.reason);
    EXPECT_EQ(last_end().error.has_value(), one.becomes == JobState::kCancelled);
    EXPECT_TRUE(all<AbandonRound>().empty()) << "the coordinator has ended it";
  }
}

TEST_F(PublishQueueTest, ASnapshotThatIsLateSaysSoAfterItsRoundHasEnded) {
  bring_to(JobState::kStreaming);
  round_ended(1, {.reply = {.reason = "the deadline of the whole publish passed"}});
  snapshot_ended(1, Error(ErrorCode::kDeadline, "the weights were not copied before the deadline"));
  EXPECT_EQ(last_end().end, JobState::kFailed);
  ASSERT_TRUE(last_end().error.has_value());
  EXPECT_EQ(last_end().error->code(), ErrorCode::kDeadline);
}

TEST_F(PublishQueueTest, AStreamThatIsCancelledIsTheCoordinatorsToEnd) {
  bring_to(JobState::kStreaming);
  coordinator_.update = Version{1, 1};
  EXPECT_EQ(cancel(), std::nullopt);
  EXPECT_EQ(queue_->state(1), JobState::kStreaming);
}

// ---- what has no row ----

TEST_F(PublishQueueTest, RequestsGrow) {
  ASSERT_TRUE(queue_->publish(4, 0, at_).has_value());
  const auto refused = queue_->publish(4, 0, at_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInternal);
  EXPECT_FALSE(queue_->publish(3, 0, at_).has_value());
  EXPECT_EQ(queue_->queued(), 1U);
}

TEST_F(PublishQueueTest, WhatNobodyHasAskedForIsRefused) {
  EXPECT_EQ(queue_->snapshot_ended(9, {}).error().message(), "publish 9 is not running");
  EXPECT_FALSE(queue_->phase_entered(9, ProgressPhase::kAnnounce).has_value());
  EXPECT_FALSE(queue_->round_ended(9, {}).has_value());
}

// Each event in each state: it is taken where the table has a row, and changes nothing elsewhere.
TEST_F(PublishQueueTest, EventsWithoutARowAreRefusedAndChangeNothing) {
  struct Event {
    std::string name;
    std::function<bool(PublishQueue&)> happen;
    std::vector<JobState> allowed;
  };
  const auto phase = [](ProgressPhase entered) {
    return [entered](PublishQueue& queue) { return queue.phase_entered(1, entered).has_value(); };
  };
  const auto end = [](RoundEnd how) {
    return [how](PublishQueue& queue) { return queue.round_ended(1, how).has_value(); };
  };
  using enum JobState;
  const std::vector<Event> events = {
      {"the snapshot ends",
       [](PublishQueue& queue) { return queue.snapshot_ended(1, {}).has_value(); },
       {kSnapshotting, kStopping, kStreaming}},
      {"a snapshot phase", phase(ProgressPhase::kSnapshot), {}},
      {"announce", phase(ProgressPhase::kAnnounce), {kWaiting}},
      {"stage", phase(ProgressPhase::kStage), {kAnnouncing, kStreaming}},
      {"switch", phase(ProgressPhase::kSwitch), {kStaging}},
      {"served", end({.reply = {.ok = true}}), {kSwitching}},
      {"failed", end({}), {kWaiting, kAnnouncing, kStaging, kSwitching, kStreaming}},
      {"superseded", end({.superseded = true}), {kWaiting, kStreaming}},
      {"cancelled", end({.cancelled = true}), {kWaiting, kAnnouncing, kStaging, kStreaming}},
  };
  for (const JobState state : {kQueued, kSnapshotting, kStopping, kHeld, kWaiting, kAnnouncing,
                               kStaging, kSwitching, kStreaming})
    for (const Event& event : events) {
      SCOPED_TRACE(fmt::format("{} while it is {}", event.name, job_state_name(state)));
      start_anew();
      if (state == kQueued) {
        ASSERT_TRUE(queue_->publish(1, 0, at_).has_value());
      } else {
        bring_to(state);
      }
      const bool is_allowed = std::ranges::find(event.allowed, state) != event.allowed.end();
      EXPECT_EQ(event.happen(*queue_), is_allowed);
      if (!is_allowed) {
        EXPECT_EQ(queue_->state(1), state);
      }
      check();
    }
}

TEST(PublishTable, HasNoWayBackButFromALostRoundAndNoEndThatGoesOn) {
  using enum JobState;
  constexpr std::array kAll = {kQueued,  kSnapshotting, kStopping,  kHeld,
                               kWaiting, kAnnouncing,   kStaging,   kSwitching,
                               kServed,  kFailed,       kCancelled, kSuperseded};
  for (const JobState from : kAll)
    for (const JobState to : kAll) {
      SCOPED_TRACE(fmt::format("{} -> {}", job_state_name(from), job_state_name(to)));
      const bool is_lost = from >= kWaiting && from <= kStaging && to == kHeld;
      if (has_ended(from) || (to < from && !is_lost)) {
        EXPECT_FALSE(is_legal(from, to));
      }
    }
  EXPECT_TRUE(is_legal(kSwitching, kServed));
  EXPECT_FALSE(is_legal(kStaging, kServed)) << "nothing is served without a decision";
  EXPECT_FALSE(is_legal(kSwitching, kCancelled)) << "what was decided goes on";
  EXPECT_FALSE(is_legal(kSwitching, kHeld)) << "what was decided is not published again";
  EXPECT_FALSE(is_legal(kAnnouncing, kSuperseded)) << "only one that waits gives way";
  EXPECT_FALSE(is_legal(kStopping, kWaiting));
}

}  // namespace
}  // namespace wsync::publish
