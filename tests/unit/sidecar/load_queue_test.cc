// Which loads wait, which run together, and what becomes of them.
#include "inference_side/sidecar/load_queue.h"

#include <algorithm>
#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <set>

namespace wsync::agent {
namespace {

using reload::EngineId;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Version kOne{.epoch = 1, .step = 1};
constexpr Version kTwo{.epoch = 1, .step = 2};
constexpr TimePoint kNow{5'000'000'000};

template <class T>
std::vector<T> all_of(const LoadCommands& commands) {
  std::vector<T> found;
  for (const LoadCommand& command : commands)
    if (const T* one = std::get_if<T>(&command)) found.push_back(*one);
  return found;
}

Error lost() { return {ErrorCode::kPeerLost, "silent"}; }

// Replica "a" has engines 10 and 11, replica "b" has engines 20 and 21, and so on.
class LoadQueueTest : public testing::Test {
 protected:
  explicit LoadQueueTest(bool runs = true) : queue_(runs) {}
  ~LoadQueueTest() override {
    const Result<> rules = queue_.invariants();
    EXPECT_TRUE(rules.has_value()) << rules.error().message();
  }
  [[nodiscard]] static EngineId engine(const std::string& replica, std::uint32_t rank) {
    return EngineId{static_cast<std::uint32_t>(replica[0] - 'a' + 1) * 10 + rank};
  }
  // Everything is ready.
  [[nodiscard]] static LoadNeeds ready(const std::string& replica) {
    LoadNeeds needs{.staged = true, .whole = true, .ranks = {}};
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      needs.ranks.push_back({.rank = {.engine = engine(replica, rank), .rank = rank, .device = {}},
                             .prepared = Result<>{}});
    return needs;
  }
  void begin(const std::string& replica, std::uint64_t request, Version version = kOne) {
    (void)queue_.begin(replica, {.request = request, .version = version, .deadline_ms = 1'000});
  }
  void send(const std::string& replica, std::uint64_t request, Version version = kOne) {
    begin(replica, request, version);
    EXPECT_EQ(all_of<SendLoad>(queue_.advance(replica, ready(replica))).size(), 1U);
  }
  [[nodiscard]] LoadState state(const std::string& replica) {
    return queue_.state(replica).value_or(LoadState::kEnded);
  }
  LoadQueue queue_;
};

class UnifiedLoadQueueTest : public LoadQueueTest {
 protected:
  UnifiedLoadQueueTest() : LoadQueueTest(false) {}
};

TEST(LoadTable, HasARowForTheseMovesAndNoOther) {
  const std::set<std::pair<LoadState, LoadState>> legal = {
      {LoadState::kWaiting, LoadState::kWaiting}, {LoadState::kWaiting, LoadState::kQueued},
      {LoadState::kWaiting, LoadState::kSent},    {LoadState::kWaiting, LoadState::kFailed},
      {LoadState::kWaiting, LoadState::kEnded},   {LoadState::kQueued, LoadState::kRunning},
      {LoadState::kQueued, LoadState::kFailed},   {LoadState::kQueued, LoadState::kEnded},
      {LoadState::kRunning, LoadState::kSent},    {LoadState::kRunning, LoadState::kFailed},
      {LoadState::kRunning, LoadState::kEnded},   {LoadState::kSent, LoadState::kFailed},
      {LoadState::kSent, LoadState::kEnded},      {LoadState::kFailed, LoadState::kEnded}};
  constexpr std::array kAll = {LoadState::kWaiting, LoadState::kQueued, LoadState::kRunning,
                               LoadState::kSent,    LoadState::kFailed, LoadState::kEnded};
  for (const LoadState from : kAll)
    for (const LoadState to : kAll)
      EXPECT_EQ(is_legal(from, to), legal.contains({from, to}))
          << load_state_name(from) << " to " << load_state_name(to);
}

// ---- rows of a load that waits ----

TEST_F(LoadQueueTest, WaitsForEachThingThatIsMissingAndAsksForWhatCanBeAskedFor) {
  begin("a", 7);
  EXPECT_EQ(queue_.waiting_for("a"), kOne);
  EXPECT_THAT(queue_.waiting(), ElementsAre("a"));
  LoadNeeds needs = ready("a");
  needs.whole = false;
  EXPECT_TRUE(queue_.advance("a", needs).empty()) << "a rank is not attached";
  needs = ready("a");
  needs.ranks[1].prepared.reset();
  EXPECT_TRUE(queue_.advance("a", needs).empty()) << "its plan is still being computed";
  needs = ready("a");
  needs.devices.reset();
  EXPECT_TRUE(queue_.advance("a", needs).empty()) << "the bytes are still being registered";
  needs = ready("a");
  needs.connected = needs.buffers = false;
  LoadCommands commands = queue_.advance("a", needs);
  EXPECT_EQ(all_of<ConnectDevices>(commands).size(), 1U);
  EXPECT_EQ(commands.size(), 1U) << "the connection comes before the buffers";
  needs.connected = true;
  commands = queue_.advance("a", needs);
  EXPECT_EQ(all_of<AllocateBuffers>(commands).size(), 1U);
  EXPECT_EQ(commands.size(), 1U);
  EXPECT_EQ(state("a"), LoadState::kWaiting);
  const auto sent = all_of<SendLoad>(queue_.advance("a", ready("a")));
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].request, 7U);
  EXPECT_EQ(sent[0].ranks.size(), 2U);
  EXPECT_EQ(state("a"), LoadState::kQueued);
  EXPECT_TRUE(queue_.advance("a", ready("a")).empty()) << "Load is sent once";
  EXPECT_FALSE(queue_.waiting_for("a"));
}

TEST_F(LoadQueueTest, ARankThatCannotBePreparedIsReportedOnceAndDoesNotHoldTheOthersBack) {
  begin("a", 7);
  LoadNeeds needs = ready("a");
  needs.ranks[1].prepared = fail(ErrorCode::kRefused, "no memory");
  needs.devices.reset();
  const auto failed = all_of<ReportLoadFailed>(queue_.advance("a", needs));
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0].rank, 1U);
  EXPECT_EQ(failed[0].request, 7U);
  EXPECT_EQ(failed[0].version, kOne);
  EXPECT_EQ(failed[0].why, "no memory");
  needs.devices = Result<>{};
  const LoadCommands commands = queue_.advance("a", needs);
  EXPECT_TRUE(all_of<ReportLoadFailed>(commands).empty());
  EXPECT_EQ(all_of<SendLoad>(commands).size(), 1U);
}

TEST_F(LoadQueueTest, AVersionThatIsNotStagedFailsEachRank) {
  begin("a", 7);
  LoadNeeds needs = ready("a");
  needs.staged = false;
  const auto failed = all_of<ReportLoadFailed>(queue_.advance("a", needs));
  ASSERT_EQ(failed.size(), 2U);
  EXPECT_EQ(failed[0].why, "the version is not staged here");
  EXPECT_EQ(state("a"), LoadState::kFailed);
  EXPECT_FALSE(queue_.needs_buffers());
}

TEST_F(LoadQueueTest, DevicesThatCannotBeMadeReadyEndALoadThatHasNotBegun) {
  begin("a", 7);
  LoadNeeds needs = ready("a");
  needs.devices = fail(ErrorCode::kResourceExhausted, "cannot be pinned");
  const auto ended = all_of<ReportLoadNotBegun>(queue_.advance("a", needs));
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].request, 7U);
  EXPECT_EQ(ended[0].why, "cannot be pinned");
  EXPECT_FALSE(queue_.state("a"));
}

TEST_F(LoadQueueTest, WhatCannotBeConnectedOrAllocatedEndsTheLoadsThatWaitForItAndNoOther) {
  for (const bool connect : {true, false}) {
    begin("a", 7);
    begin("b", 8);
    LoadNeeds needs = ready("a");
    (connect ? needs.connected : needs.buffers) = false;
    EXPECT_FALSE(queue_.advance("a", needs).empty());
    const Result<> failure = fail(ErrorCode::kResourceExhausted, "too little is free");
    const DeviceNeed need = connect ? DeviceNeed::kConnection : DeviceNeed::kBuffers;
    EXPECT_TRUE(
        queue_.made(connect ? DeviceNeed::kBuffers : DeviceNeed::kConnection, failure).empty());
    const auto ended = all_of<ReportLoadNotBegun>(queue_.made(need, failure));
    ASSERT_EQ(ended.size(), 1U);
    EXPECT_EQ(ended[0].replica, "a");
    EXPECT_EQ(ended[0].why, "too little is free");
    EXPECT_THAT(queue_.waiting(), ElementsAre("b"));
    EXPECT_TRUE(queue_.made(need, {}).empty());
  }
}

TEST_F(LoadQueueTest, AnAttemptThatHasSucceededIsNotHeldAgainstALoadLater) {
  begin("a", 7);
  LoadNeeds needs = ready("a");
  needs.connected = false;
  (void)queue_.advance("a", needs);
  EXPECT_TRUE(queue_.made(DeviceNeed::kConnection, {}).empty());
  EXPECT_TRUE(queue_.made(DeviceNeed::kConnection, fail(lost())).empty())
      << "it did not wait for this one";
  EXPECT_EQ(state("a"), LoadState::kWaiting);
}

TEST_F(LoadQueueTest, ALostRankEndsTheHopeOfALoadInEveryState) {
  begin("a", 1);
  queue_.engine_lost("a", engine("a", 0));
  EXPECT_EQ(state("a"), LoadState::kFailed);
  EXPECT_TRUE(queue_.advance("a", ready("a")).empty());
  send("b", 2);
  queue_.engine_lost("b", engine("b", 0));
  EXPECT_EQ(state("b"), LoadState::kFailed);
  EXPECT_TRUE(queue_.start_run(kNow).empty()) << "it has left the queue";
  send("c", 3);
  EXPECT_EQ(queue_.start_run(kNow).size(), 1U);
  queue_.engine_lost("c", engine("c", 0));
  queue_.engine_lost("c", engine("c", 1));
  EXPECT_EQ(state("c"), LoadState::kFailed);
  EXPECT_TRUE(queue_.run_finished(LoadQueue::LostEngines{}).empty());
  send("d", 4);
  (void)queue_.start_run(kNow);
  (void)queue_.run_finished(LoadQueue::LostEngines{});
  EXPECT_EQ(state("d"), LoadState::kSent);
  queue_.engine_lost("d", engine("d", 0));
  EXPECT_EQ(state("d"), LoadState::kFailed);
  queue_.engine_lost("nobody", EngineId{99});
}

// ---- a load by a patch ----

TEST_F(LoadQueueTest, APatchIsSentWithoutTheDevicesAndWithoutARun) {
  (void)queue_.begin("a", {.request = 7, .version = kTwo, .deadline_ms = 1'000, .base = kOne});
  EXPECT_EQ(queue_.base_of("a"), kOne);
  EXPECT_EQ(queue_.base_of("b"), Version{});
  LoadNeeds needs = ready("a");
  needs.by_patch = true;
  needs.connected = needs.buffers = false;
  needs.devices = fail(ErrorCode::kResourceExhausted, "the bytes cannot be registered");
  needs.ranks[1].prepared.reset();
  EXPECT_TRUE(queue_.advance("a", needs).empty()) << "a rank does not know the version yet";
  needs.ranks[1].prepared = Result<>{};
  const LoadCommands commands = queue_.advance("a", needs);
  ASSERT_EQ(commands.size(), 1U);
  const auto sent = all_of<SendLoad>(commands);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_TRUE(sent[0].by_patch);
  EXPECT_EQ(sent[0].base, kOne);
  EXPECT_EQ(state("a"), LoadState::kSent);
  EXPECT_TRUE(queue_.start_run(kNow).empty());
  EXPECT_FALSE(queue_.needs_buffers());
  queue_.loaded("a", 7, 0);
  queue_.loaded("a", 7, 1);
  EXPECT_EQ(state("a"), LoadState::kEnded);
}

TEST_F(LoadQueueTest, APatchThatDidNotFitIsFollowedByARunInTheSamePause) {
  send("b", 1, kTwo);
  ASSERT_EQ(all_of<StartRun>(queue_.start_run(kNow)).size(), 1U);
  (void)queue_.begin("a", {.request = 7, .version = kTwo, .deadline_ms = 1'000, .base = kOne});
  LoadNeeds needs = ready("a");
  needs.by_patch = true;
  ASSERT_EQ(all_of<SendLoad>(queue_.advance("a", needs)).size(), 1U);
  const LoadCommands cancelled = queue_.cancel("a", 7);
  EXPECT_EQ(all_of<SendAbort>(cancelled).size(), 1U);
  EXPECT_EQ(cancelled.size(), 1U) << "its ranks are in no run that they could leave";
  begin("a", 8, kTwo);
  needs = ready("a");
  needs.connected = false;
  EXPECT_EQ(all_of<ConnectDevices>(queue_.advance("a", needs)).size(), 1U);
  const auto sent = all_of<SendLoad>(queue_.advance("a", ready("a")));
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_FALSE(sent[0].by_patch);
  EXPECT_EQ(state("a"), LoadState::kQueued);
  (void)queue_.run_finished(LoadQueue::LostEngines{});
  EXPECT_EQ(all_of<StartRun>(queue_.start_run(kNow)).size(), 1U);
}

// ---- unified devices ----

TEST_F(UnifiedLoadQueueTest, NeedsNoRunAndEndsWhenEveryRankHasLoaded) {
  send("a", 7);
  EXPECT_EQ(state("a"), LoadState::kSent);
  EXPECT_TRUE(queue_.start_run(kNow).empty());
  queue_.loaded("a", 6, 0);
  queue_.loaded("a", 7, 0);
  queue_.loaded("a", 7, 0);
  EXPECT_EQ(state("a"), LoadState::kSent);
  queue_.loaded("a", 7, 1);
  EXPECT_FALSE(queue_.state("a"));
}

TEST_F(UnifiedLoadQueueTest, NobodyLeavesARunWhenALoadIsCancelled) {
  send("a", 7);
  const LoadCommands commands = queue_.cancel("a", 7);
  EXPECT_EQ(all_of<SendAbort>(commands).size(), 1U);
  EXPECT_EQ(commands.size(), 1U);
}

// ---- runs ----

TEST_F(LoadQueueTest, LoadsOfOneVersionShareARunAndOthersWaitInTheirOrder) {
  send("a", 1, kTwo);
  send("b", 2, kOne);
  send("c", 3, kTwo);
  auto started = all_of<StartRun>(queue_.start_run(kNow));
  ASSERT_EQ(started.size(), 1U);
  EXPECT_EQ(started[0].version, kTwo);
  EXPECT_EQ(started[0].seats.size(), 4U);
  EXPECT_EQ(started[0].deadline, kNow + std::chrono::milliseconds(1'000));
  EXPECT_EQ(started[0].bucket_ack_deadline, std::chrono::milliseconds(500));
  EXPECT_EQ(state("a"), LoadState::kRunning);
  EXPECT_EQ(state("b"), LoadState::kQueued);
  EXPECT_EQ(state("c"), LoadState::kRunning);
  EXPECT_TRUE(queue_.start_run(kNow).empty()) << "one run at a time";
  ASSERT_TRUE(queue_.seat_of(engine("c", 1)));
  EXPECT_EQ(queue_.seat_of(engine("c", 1))->request, 3U);
  EXPECT_FALSE(queue_.seat_of(engine("b", 0)));
  EXPECT_TRUE(queue_.run_finished(LoadQueue::LostEngines{}).empty());
  EXPECT_EQ(state("a"), LoadState::kSent);
  started = all_of<StartRun>(queue_.start_run(kNow));
  ASSERT_EQ(started.size(), 1U);
  EXPECT_EQ(started[0].version, kOne);
}

TEST_F(LoadQueueTest, ARunWaitsForReplicasThatAreAboutToJoinIt) {
  send("a", 1);
  queue_.expect_more(true);
  EXPECT_TRUE(queue_.start_run(kNow).empty());
  send("b", 2);
  queue_.expect_more(false);
  const auto started = all_of<StartRun>(queue_.start_run(kNow));
  ASSERT_EQ(started.size(), 1U);
  EXPECT_EQ(started[0].seats.size(), 4U);
}

TEST_F(LoadQueueTest, AFailedRunFailsEachRankInIt) {
  send("a", 1);
  send("b", 2);
  (void)queue_.start_run(kNow);
  const auto failed = all_of<ReportLoadFailed>(
      queue_.run_finished(fail(ErrorCode::kDigestMismatch, "bucket 3 is wrong")));
  EXPECT_EQ(failed.size(), 4U);
  EXPECT_EQ(failed[0].why, "bucket 3 is wrong");
  EXPECT_EQ(state("a"), LoadState::kFailed);
  EXPECT_EQ(state("b"), LoadState::kFailed);
}

TEST_F(LoadQueueTest, AnEngineThatTheRunHasLostFailsItsReplicaAlone) {
  send("a", 1);
  send("b", 2);
  (void)queue_.start_run(kNow);
  const auto failed = all_of<ReportLoadFailed>(
      queue_.run_finished(LoadQueue::LostEngines{{engine("a", 1), lost()}}));
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed[0].replica, "a");
  EXPECT_EQ(failed[0].rank, 1U);
  EXPECT_EQ(failed[0].why, "silent");
  EXPECT_EQ(state("a"), LoadState::kFailed);
  EXPECT_EQ(state("b"), LoadState::kSent);
}

TEST_F(LoadQueueTest, RanksThatHaveLoadedBeforeTheRunIsReportedToEndAreNotWaitedForAgain) {
  send("a", 1);
  queue_.loaded("a", 1, 0);
  EXPECT_EQ(state("a"), LoadState::kQueued) << "it has its turn all the same";
  (void)queue_.start_run(kNow);
  queue_.loaded("a", 1, 1);
  EXPECT_EQ(state("a"), LoadState::kRunning);
  EXPECT_TRUE(queue_.run_finished(LoadQueue::LostEngines{}).empty());
  EXPECT_FALSE(queue_.state("a"));
}

TEST_F(LoadQueueTest, AVersionThatIsReleasedFailsTheLoadsThatAreQueuedAndNotTheRun) {
  send("a", 1);
  (void)queue_.start_run(kNow);
  send("b", 2);
  begin("c", 3);
  const auto failed = all_of<ReportLoadFailed>(queue_.release(kOne));
  ASSERT_EQ(failed.size(), 2U);
  EXPECT_EQ(failed[0].replica, "b");
  EXPECT_EQ(failed[0].why, "version 1.1 was released before its load began");
  EXPECT_EQ(state("a"), LoadState::kRunning);
  EXPECT_EQ(state("b"), LoadState::kFailed);
  EXPECT_EQ(state("c"), LoadState::kWaiting);
  EXPECT_TRUE(queue_.release(kTwo).empty());
}

// ---- cancelled and replaced ----

TEST_F(LoadQueueTest, ACancelledLoadIsForgottenInEveryStateAndItsRanksLeaveTheRun) {
  begin("a", 1);
  EXPECT_TRUE(queue_.cancel("a", 9).empty()) << "another request";
  EXPECT_TRUE(queue_.cancel("nobody", 1).empty());
  LoadCommands commands = queue_.cancel("a", 1);
  ASSERT_EQ(all_of<SendAbort>(commands).size(), 1U);
  EXPECT_EQ(all_of<SendAbort>(commands)[0].version, kOne);
  EXPECT_FALSE(queue_.state("a"));
  send("b", 2);
  EXPECT_EQ(all_of<LeaveRun>(queue_.cancel("b", 2)).size(), 2U);
  EXPECT_TRUE(queue_.start_run(kNow).empty());
  send("c", 3);
  (void)queue_.start_run(kNow);
  commands = queue_.cancel("c", 3);
  const auto left = all_of<LeaveRun>(commands);
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left[0].engine, engine("c", 0));
  EXPECT_EQ(left[0].reason.code(), ErrorCode::kCancelled);
  EXPECT_EQ(left[0].reason.message(), "its load was cancelled");
  EXPECT_FALSE(queue_.seat_of(engine("c", 0)));
  EXPECT_TRUE(queue_.needs_buffers()) << "the run ends by itself";
  EXPECT_TRUE(queue_.run_finished(fail(lost())).empty()) << "there is nobody to tell";
  send("d", 4);
  (void)queue_.start_run(kNow);
  (void)queue_.run_finished(fail(lost()));
  EXPECT_EQ(all_of<LeaveRun>(queue_.cancel("d", 4)).size(), 2U)
      << "the acknowledgements that they owe are not waited for";
  EXPECT_FALSE(queue_.needs_buffers());
}

TEST_F(LoadQueueTest, AnEngineThatIsGoneDoesNotLeaveTheRunTwice) {
  send("a", 1);
  (void)queue_.start_run(kNow);
  queue_.engine_lost("a", engine("a", 1));
  EXPECT_FALSE(queue_.seat_of(engine("a", 1)));
  EXPECT_TRUE(queue_.seat_of(engine("a", 0)));
  const auto left = all_of<LeaveRun>(queue_.cancel("a", 1));
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].engine, engine("a", 0));
}

TEST_F(LoadQueueTest, ANewLoadReplacesTheOldOneAndTheRunKnowsTheDifference) {
  send("a", 1);
  (void)queue_.start_run(kNow);
  const LoadCommands replaced =
      queue_.begin("a", {.request = 2, .version = kOne, .deadline_ms = 1'000});
  EXPECT_EQ(all_of<LeaveRun>(replaced).size(), 2U);
  EXPECT_TRUE(all_of<SendAbort>(replaced).empty());
  EXPECT_FALSE(queue_.is_current("a", 1));
  EXPECT_TRUE(queue_.is_current("a", 2));
  EXPECT_FALSE(queue_.seat_of(engine("a", 0))) << "the seat is of the old request";
  (void)queue_.advance("a", ready("a"));
  EXPECT_EQ(state("a"), LoadState::kQueued);
  EXPECT_TRUE(queue_.start_run(kNow).empty());
  EXPECT_TRUE(queue_.run_finished(fail(lost())).empty()) << "the new load has not failed";
  const auto started = all_of<StartRun>(queue_.start_run(kNow));
  ASSERT_EQ(started.size(), 1U);
  EXPECT_EQ(started[0].seats[0].request, 2U);
}

TEST_F(LoadQueueTest, ALoadThatIsQueuedTwiceStandsInTheQueueOnce) {
  send("a", 1);
  send("a", 2);
  const auto started = all_of<StartRun>(queue_.start_run(kNow));
  ASSERT_EQ(started.size(), 1U);
  ASSERT_EQ(started[0].seats.size(), 2U);
  EXPECT_EQ(started[0].seats[0].request, 2U);
}

TEST_F(LoadQueueTest, BuffersAreNeededFromTheBeginningOfALoadToTheEndOfItsRun) {
  EXPECT_FALSE(queue_.needs_buffers());
  begin("a", 1);
  EXPECT_TRUE(queue_.needs_buffers());
  (void)queue_.advance("a", ready("a"));
  EXPECT_TRUE(queue_.needs_buffers());
  (void)queue_.start_run(kNow);
  EXPECT_TRUE(queue_.needs_buffers());
  (void)queue_.run_finished(LoadQueue::LostEngines{});
  EXPECT_FALSE(queue_.needs_buffers());
}

TEST(LoadQueueRules, AMoveWithoutARowIsAnInternalErrorThatTheInvariantsName) {
  LoadQueue queue(true);
  EXPECT_TRUE(queue.invariants().has_value());
  EXPECT_TRUE(queue.run_finished(LoadQueue::LostEngines{}).empty());
  const Result<> broken = queue.invariants();
  ASSERT_FALSE(broken.has_value());
  EXPECT_EQ(broken.error().code(), ErrorCode::kInternal);
  EXPECT_THAT(broken.error().message(), HasSubstr("none was started"));
}

TEST(LoadQueueRules, AnEngineIsInOneLoadOnly) {
  LoadQueue queue(true);
  for (const std::string replica : {"a", "b"}) {
    (void)queue.begin(replica, {.request = 1, .version = kOne, .deadline_ms = 1});
    LoadNeeds needs{.staged = true, .whole = true, .ranks = {}};
    needs.ranks.push_back(
        {.rank = {.engine = EngineId{5}, .rank = 0, .device = {}}, .prepared = Result<>{}});
    (void)queue.advance(replica, needs);
  }
  const Result<> broken = queue.invariants();
  ASSERT_FALSE(broken.has_value());
  EXPECT_THAT(broken.error().message(), HasSubstr("another load"));
}

}  // namespace
}  // namespace wsync::agent
