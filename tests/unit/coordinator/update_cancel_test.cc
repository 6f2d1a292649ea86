// Cancelling an update in each phase of its round.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/coordinator_fleet.h"

namespace wsync::coordinator {
namespace {

using control::ProgressPhase;
using testing::HasSubstr;
using testing::StartsWith;

// Two sidecars that serve a first version.
Fleet two_that_serve() {
  Fleet fleet({.min_sidecars = 2});
  fleet.join_all({"a", "b"});
  fleet.full_round({"a", "b"});
  fleet.rounds.clear();
  fleet.dropped.clear();
  return fleet;
}

void expect_cancelled(Fleet& fleet, const Version& version, ProgressPhase phase) {
  ASSERT_TRUE(fleet.cancels.back().reply.ok) << fleet.cancels.back().reply.reason;
  EXPECT_EQ(fleet.cancels.back().reply.version, version);
  EXPECT_EQ(fleet.cancels.back().reply.phase, phase);
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].cancelled);
  EXPECT_FALSE(fleet.rounds[0].reply.ok);
  EXPECT_EQ(fleet.rounds[0].reply.version, version);
  EXPECT_THAT(fleet.rounds[0].reply.reason, StartsWith("cancelled on request"));
  EXPECT_EQ(fleet.dropped, (std::vector<Version>{version}));
}

TEST(Cancel, NothingRuns) {
  Fleet fleet = two_that_serve();
  const control::CancelReply reply = fleet.cancel();
  EXPECT_FALSE(reply.ok);
  EXPECT_EQ(reply.reason, "nothing to cancel: no update is running");
  EXPECT_TRUE(reply.version.none());
  EXPECT_EQ(fleet.cancel({1, 9}).reason, "nothing to cancel: no update of 1.9 is running");
  EXPECT_TRUE(fleet.rounds.empty());
}

TEST(Cancel, BeforeTheClaim) {
  Fleet fleet({.min_sidecars = 2});
  fleet.from_fence("a", kNoFence, Fleet::hello("a"));
  EXPECT_FALSE(fleet.cancel().ok);
}

TEST(Cancel, WhileItIsAnnounced) {
  Fleet fleet = two_that_serve();
  const Version first = fleet.coordinator.target();
  fleet.publish();
  const Version second = fleet.last<control::Announce>("a")->second.version;
  fleet.accept("a");
  fleet.cancel();
  expect_cancelled(fleet, second, ProgressPhase::kAnnounce);
  EXPECT_EQ(fleet.count<control::Abort>("a"), 1U);
  EXPECT_EQ(fleet.count<control::Abort>("b"), 1U);
  // What b says of it comes too late.
  const std::uint64_t dropped = fleet.coordinator.dropped();
  fleet.accept("b");
  EXPECT_EQ(fleet.coordinator.dropped(), dropped + 1);
  EXPECT_EQ(fleet.count<control::Stage>("b"), 1U) << "of the first version";
  EXPECT_EQ(fleet.coordinator.target(), first);
}

TEST(Cancel, WhileItIsStaged) {
  Fleet fleet = two_that_serve();
  const Version first = fleet.coordinator.target();
  fleet.publish();
  const Version second = fleet.last<control::Announce>("a")->second.version;
  fleet.accept("a");
  fleet.accept("b");
  fleet.staged("a");
  fleet.cancel(second);
  expect_cancelled(fleet, second, ProgressPhase::kStage);
  for (const char* peer : {"a", "b"}) {
    const auto abort = fleet.last<control::Abort>(peer);
    ASSERT_TRUE(abort.has_value());
    EXPECT_EQ(abort->second.version, second);
    EXPECT_EQ(abort->first.round, fleet.last<control::Announce>(peer)->first.round);
    EXPECT_EQ(fleet.count<control::Decide>(peer), 1U) << "of the first version";
  }
  fleet.staged("b");  // it was on its way
  EXPECT_EQ(fleet.count<control::Decide>("b"), 1U);
  EXPECT_EQ(fleet.coordinator.target(), first);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady);
  // The next one is not held up, and has another name.
  fleet.dropped.clear();
  fleet.full_round({"a", "b"});
  ASSERT_EQ(fleet.rounds.size(), 2U);
  EXPECT_TRUE(fleet.rounds[1].reply.ok);
  EXPECT_GT(fleet.coordinator.target(), second);
}

TEST(Cancel, AfterTheDecisionItGoesOn) {
  Fleet fleet = two_that_serve();
  fleet.publish();
  for (const char* peer : {"a", "b"}) fleet.accept(peer);
  for (const char* peer : {"a", "b"}) fleet.staged(peer);
  const Version second = fleet.coordinator.target();
  const control::CancelReply reply = fleet.cancel();
  EXPECT_FALSE(reply.ok);
  EXPECT_THAT(reply.reason, StartsWith(second.to_string() + " has been decided"));
  EXPECT_THAT(reply.reason, HasSubstr("wsync rollback"));
  EXPECT_EQ(fleet.count<control::Abort>("a"), 0U);
  fleet.switched("a");
  EXPECT_FALSE(fleet.cancel(second).ok) << "one replica serves it";
  fleet.switched("b");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok);
  EXPECT_EQ(fleet.cancel(second).reason,
            "nothing to cancel: no update of " + second.to_string() + " is running");
}

TEST(Cancel, OneThatWaitsBehindADecidedOneIsNamed) {
  Fleet fleet = two_that_serve();
  fleet.publish(1);
  for (const char* peer : {"a", "b"}) fleet.accept(peer);
  for (const char* peer : {"a", "b"}) fleet.staged(peer);
  fleet.publish(2);
  const Version second = fleet.coordinator.target();
  const Version third{second.epoch, second.step + 1};
  EXPECT_THAT(fleet.cancel().reason,
              HasSubstr("; to cancel " + third.to_string() + ", which is queued after it"));
  EXPECT_TRUE(fleet.rounds.empty());
  fleet.cancel(third);
  expect_cancelled(fleet, third, ProgressPhase::kSnapshot);
  EXPECT_EQ(fleet.rounds[0].request, 2U);
  fleet.switched("a");
  fleet.switched("b");
  ASSERT_EQ(fleet.rounds.size(), 2U);
  EXPECT_TRUE(fleet.rounds[1].reply.ok);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady) << "nothing waits any more";
}

TEST(Cancel, TheOneThatWaitsBeginsWhenTheOneBeforeItIsCancelled) {
  Fleet fleet = two_that_serve();
  fleet.publish(1);
  const Version second = fleet.last<control::Announce>("a")->second.version;
  fleet.publish(2);
  fleet.cancel();
  expect_cancelled(fleet, second, ProgressPhase::kAnnounce);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kAnnouncing);
  EXPECT_EQ(fleet.last<control::Announce>("a")->second.version.step, second.step + 1);
}

TEST(Cancel, OneThatStillLackedTheTargetIsGivenItAgain) {
  Fleet fleet = two_that_serve();
  const Version first = fleet.coordinator.target();
  fleet.join("c");
  ASSERT_EQ(fleet.last<control::Announce>("c")->second.version, first);
  fleet.publish();
  const Version second = fleet.last<control::Announce>("c")->second.version;
  ASSERT_NE(second, first);
  fleet.cancel();
  expect_cancelled(fleet, second, ProgressPhase::kAnnounce);
  EXPECT_EQ(fleet.last<control::Announce>("c")->second.version, first);
}

TEST(Cancel, ARollbackGoesOn) {
  Fleet fleet = two_that_serve();
  const Version first = fleet.coordinator.target();
  fleet.full_round({"a", "b"});
  for (const char* peer : {"a", "b"})
    fleet.from(peer, control::Heartbeat{.staged = {first, fleet.coordinator.target()}});
  fleet.step(RollbackRequested{.request = 7});
  ASSERT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kSwitching);
  const control::CancelReply reply = fleet.cancel();
  EXPECT_FALSE(reply.ok);
  EXPECT_THAT(reply.reason, HasSubstr("rollback to " + first.to_string()));
}

TEST(Cancel, OfAnotherVersionThanTheOneThatRuns) {
  Fleet fleet = two_that_serve();
  fleet.publish();
  const Version second = fleet.last<control::Announce>("a")->second.version;
  EXPECT_EQ(fleet.cancel({1, 99}).reason,
            "nothing to cancel: no update of 1.99 is running; the running one is that of " +
                second.to_string());
  EXPECT_TRUE(fleet.rounds.empty());
}

TEST(Cancel, AStoppedCoordinatorRefuses) {
  Fleet fleet = two_that_serve();
  fleet.step(Replaced{.by = "process 7"});
  EXPECT_THAT(fleet.cancel().reason, HasSubstr("has stopped"));
}

TEST(Moved, BytesOfEverySidecarAndReplica) {
  Fleet fleet = two_that_serve();
  fleet.publish();
  EXPECT_EQ(fleet.coordinator.moved_bytes().total, 0U) << "nothing is staged yet";
  for (const char* peer : {"a", "b"}) fleet.accept(peer);
  fleet.from("a", control::Heartbeat{.staged_bytes = 30});
  fleet.from("b", control::Heartbeat{.staged_bytes = 1000});  // more than there is
  EXPECT_EQ(fleet.coordinator.moved_bytes().total, 200U);
  EXPECT_EQ(fleet.coordinator.moved_bytes().done, 130U);
  EXPECT_EQ(fleet.coordinator.status().sidecars[0].staged_bytes, 30U);
  const auto replica = [](const std::string& peer, std::uint64_t loaded) {
    return control::Heartbeat{.replicas = {{.replica = "r-" + peer,
                                            .ranks_attached = 1,
                                            .state = control::ReplicaState::kLoading,
                                            .loaded_bytes = loaded}}};
  };
  fleet.from("a", replica("a", 0));
  fleet.from("b", replica("b", 0));
  for (const char* peer : {"a", "b"}) fleet.staged(peer);
  fleet.from("a", replica("a", 40));
  EXPECT_EQ(fleet.coordinator.moved_bytes().total, 200U);
  EXPECT_EQ(fleet.coordinator.moved_bytes().done, 40U);
}

}  // namespace
}  // namespace wsync::coordinator
