// Sidecars that need longer for a version than the trainer needs to publish the next one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/coordinator_fleet.h"

namespace wsync::coordinator {
namespace {

using testing::HasSubstr;

// Sidecars a and b are fast. `slow` is still staging the first version of the test.
class SlowMembers : public testing::Test {
 protected:
  static CoordinatorOptions options(CommitRule rule, std::uint32_t quorum = 0) {
    CoordinatorOptions options;
    options.commit = {.rule = rule, .quorum = quorum};
    options.min_sidecars = 3;
    return options;
  }
  explicit SlowMembers(CoordinatorOptions with = options(CommitRule::kEach))
      : fleet(std::move(with)) {
    fleet.join_all({"a", "b", "slow"});
  }

  // Publishes a version which a and b take; `slow` accepts it if it is offered to it.
  Version publish_fast(std::uint64_t request) {
    const std::size_t offers = fleet.count<control::Announce>("slow");
    fleet.publish(request);
    if (fleet.count<control::Announce>("slow") > offers) fleet.accept("slow");
    for (const char* peer : {"a", "b"}) fleet.accept(peer);
    for (const char* peer : {"a", "b"}) fleet.staged(peer);
    for (const char* peer : {"a", "b"}) fleet.switched(peer);
    return fleet.coordinator.target();
  }
  // The first version, whose round ends at its deadline without `slow`.
  Version first() {
    const Version version = publish_fast(1);
    EXPECT_TRUE(fleet.rounds.empty());
    pass_deadline();
    EXPECT_EQ(fleet.rounds.size(), 1U);
    return version;
  }
  void pass_deadline() {
    fleet.now = std::max(fleet.now, *fleet.coordinator.next_wake());
    fleet.step(CoordinatorTick{});
  }
  void staged_slow(const Version& version, std::uint64_t round) {
    fleet.from(
        "slow",
        control::Staged{.version = version, .content_digest = {2, version.step}, .bytes = 100},
        round);
  }
  void switched_slow(const control::Decide& decide) {
    fleet.from("slow",
               control::Switched{.number = decide.number,
                                 .target = decide.target,
                                 .outcomes = {{.replica = "r-slow",
                                               .outcome = control::SwitchOutcome::kCommitted,
                                               .version = decide.target}}});
  }
  const Member& slow() { return *fleet.coordinator.roster().find("slow"); }

  Fleet fleet;
};

class SlowMembersOfAll : public SlowMembers {
 protected:
  SlowMembersOfAll() : SlowMembers(options(CommitRule::kAll)) {}
};

class SlowMembersOfQuorum : public SlowMembers {
 protected:
  SlowMembersOfQuorum() : SlowMembers(options(CommitRule::kQuorum, 2)) {}
};

class SlowMembersInTurns : public SlowMembers {
 protected:
  static CoordinatorOptions in_turns() {
    CoordinatorOptions with = options(CommitRule::kEach);
    with.max_paused = 1;
    return with;
  }
  SlowMembersInTurns() : SlowMembers(in_turns()) {}
};

TEST_F(SlowMembers, ItFinishesItsVersionWhileTheOthersTakeTheNextOnes) {
  const Version one = first();
  const auto offer = fleet.last<control::Announce>("slow");
  EXPECT_EQ(fleet.count<control::Decide>("slow"), 0U);
  for (std::uint64_t request = 2; request < 6; ++request) {
    (void)publish_fast(request);
    ASSERT_EQ(fleet.rounds.size(), request) << "the round waits for nobody";
    EXPECT_THAT(fleet.rounds.back().reply.reason,
                HasSubstr("went on without sidecar 'slow', which is still staging"));
  }
  EXPECT_EQ(fleet.count<control::Announce>("slow"), 1U);
  EXPECT_EQ(fleet.count<control::Stage>("slow"), 1U);
  const auto decide = fleet.last<control::Decide>("slow");
  ASSERT_TRUE(decide.has_value()) << "it has the decision before its bytes";
  EXPECT_EQ(decide->second.target, one);
  fleet.from("slow", control::Decided{.number = decide->second.number});
  EXPECT_EQ(slow().decided, decide->second.number);
  staged_slow(one, offer->first.round);
  EXPECT_EQ(fleet.last<control::Announce>("slow")->second.version, fleet.coordinator.target())
      << "then it is brought to the newest version";
  switched_slow(decide->second);
  EXPECT_EQ(slow().switched, decide->second.number);
  fleet.accept("slow");
  fleet.staged("slow");
  fleet.switched("slow");
  EXPECT_EQ(slow().decided, fleet.coordinator.record().number);
}

TEST_F(SlowMembers, ItsSnapshotIsKeptInPlaceOfThatOfThePreviousTarget) {
  const Version one = first();
  const Version two = publish_fast(2);
  EXPECT_THAT(fleet.dropped, testing::IsEmpty());
  const Version three = publish_fast(3);
  EXPECT_THAT(fleet.dropped, testing::ElementsAre(two));
  const Version four = publish_fast(4);
  EXPECT_THAT(fleet.dropped, testing::ElementsAre(two, three));
  staged_slow(one, fleet.last<control::Announce>("slow")->first.round);
  (void)publish_fast(5);
  EXPECT_THAT(fleet.dropped, testing::Contains(one));
  EXPECT_THAT(fleet.dropped, testing::Not(testing::Contains(four)));
}

TEST_F(SlowMembers, ADecisionThatItCouldNotStoreIsSentAgain) {
  const Version one = first();
  (void)publish_fast(2);
  ASSERT_EQ(fleet.count<control::Decide>("slow"), 1U);
  fleet.now = fleet.now + std::chrono::milliseconds(1'100);
  fleet.step(CoordinatorTick{});
  ASSERT_EQ(fleet.count<control::Decide>("slow"), 2U);
  EXPECT_EQ(fleet.last<control::Decide>("slow")->second.target, one);
}

TEST_F(SlowMembers, ItsLossEndsThatAndItReturnsToTheNewest) {
  (void)first();
  const Version two = publish_fast(2);
  fleet.step(PeerLost{.peer = "slow", .reason = "killed"});
  fleet.from("slow", Fleet::hello("slow"));
  EXPECT_EQ(fleet.last<control::Announce>("slow")->second.version, two);
  fleet.accept("slow");
  fleet.staged("slow");
  EXPECT_EQ(fleet.last<control::Decide>("slow")->second.target, two);
}

TEST_F(SlowMembers, ItsFailureEndsThatAndItIsOfferedTheNewest) {
  const Version one = first();
  const Version two = publish_fast(2);
  for (const char* kind : {"memfd", "tcp"}) {
    EXPECT_EQ(slow().delivery.transport(), kind);
    const auto offer = fleet.last<control::Announce>("slow");
    EXPECT_EQ(offer->second.version, one) << "it goes on by another transport";
    fleet.from("slow", control::Staged{.version = one, .failure = "no memory"}, offer->first.round);
    if (slow().delivery.state() == DeliveryState::kAnnounced) fleet.accept("slow");
  }
  fleet.now = fleet.now + std::chrono::milliseconds(1'100);
  fleet.step(CoordinatorTick{});
  EXPECT_EQ(fleet.last<control::Announce>("slow")->second.version, two);
}

TEST_F(SlowMembers, ARollbackStopsIt) {
  const Version one = first();
  const Version two = publish_fast(2);
  for (const char* peer : {"a", "b", "slow"})
    fleet.from(peer, control::Heartbeat{.target = two, .staged = {{1, 0}, one, two}});
  fleet.step(RollbackRequested{.request = 9, .to = one});
  const auto abort = fleet.last<control::Abort>("slow");
  ASSERT_TRUE(abort.has_value());
  EXPECT_EQ(abort->second.version, one);
  EXPECT_EQ(fleet.last<control::Decide>("slow")->second.target, one);
  EXPECT_EQ(fleet.last<control::Decide>("slow")->second.kind, control::DecisionKind::kRollback);
}

TEST_F(SlowMembers, ARoundEndsEarlierIfAnotherPublishWaits) {
  (void)publish_fast(1);
  fleet.now = fleet.now + std::chrono::seconds(2);
  fleet.step(CoordinatorTick{});
  ASSERT_TRUE(fleet.rounds.empty()) << "nothing waits";
  fleet.publish(2);
  EXPECT_LE(*fleet.coordinator.next_wake(), fleet.now);
  pass_deadline();
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_THAT(fleet.rounds[0].reply.reason, HasSubstr("is still staging 1.1, and continues"));
  EXPECT_EQ(fleet.count<control::Announce>("a"), 2U) << "the waiting round has begun";
  EXPECT_EQ(fleet.count<control::Announce>("slow"), 1U);
}

// Without an engine a sidecar owes no outcome, so it reports before its bytes have arrived.
TEST_F(SlowMembers, OneWithoutAnEngineFinishesItsVersionToo) {
  const Version one = first();
  const auto offer = fleet.last<control::Announce>("slow");
  (void)publish_fast(2);
  const auto decide = fleet.last<control::Decide>("slow");
  ASSERT_TRUE(decide.has_value());
  fleet.from("slow", control::Decided{.number = decide->second.number});
  fleet.from("slow", control::Switched{.number = decide->second.number, .target = one});
  for (std::uint64_t request = 3; request < 6; ++request) (void)publish_fast(request);
  EXPECT_THAT(fleet.dropped, testing::Not(testing::Contains(one))) << "it is still being read";
  EXPECT_EQ(fleet.count<control::Announce>("slow"), 1U);
  EXPECT_EQ(fleet.last<control::Decide>("slow")->second.target, one);
  staged_slow(one, offer->first.round);
  EXPECT_EQ(fleet.last<control::Announce>("slow")->second.version, fleet.coordinator.target());
  fleet.accept("slow");
  fleet.staged("slow");
  EXPECT_EQ(fleet.last<control::Decide>("slow")->second.target, fleet.coordinator.target());
}

TEST_F(SlowMembers, OneThatFinishesDuringARoundIsOfferedTheVersionOfThatRound) {
  const Version one = first();
  const auto offer = fleet.last<control::Announce>("slow");
  (void)publish_fast(2);
  fleet.publish(3);
  staged_slow(one, offer->first.round);
  EXPECT_EQ(fleet.count<control::Announce>("slow"), 1U) << "the target is about to be replaced";
  for (const char* peer : {"a", "b"}) fleet.accept(peer);
  for (const char* peer : {"a", "b"}) fleet.staged(peer);
  for (const char* peer : {"a", "b"}) fleet.switched(peer);
  EXPECT_EQ(fleet.last<control::Announce>("slow")->second.version, fleet.coordinator.target());
}

TEST_F(SlowMembers, TheEarlierEndOfARoundIsTakenBack) {
  const auto begin = fleet.now;
  fleet.publish(1);
  for (const char* peer : {"a", "b", "slow"}) fleet.accept(peer);
  for (const char* peer : {"a", "b"}) fleet.staged(peer);
  fleet.now = begin + std::chrono::seconds(1);
  for (const char* peer : {"a", "b"}) fleet.switched(peer);
  const TimePoint whole = *fleet.coordinator.next_wake();
  fleet.now = begin + std::chrono::seconds(20);
  fleet.publish(2);
  EXPECT_EQ(*fleet.coordinator.next_wake(), begin + std::chrono::seconds(2))
      << "twice as long as the others needed, however late the publish comes";
  EXPECT_TRUE(fleet.cancel({1, 2}).ok);
  EXPECT_EQ(*fleet.coordinator.next_wake(), whole) << "nothing waits any more";
  fleet.publish(3);
  fleet.staged("slow");
  EXPECT_GT(*fleet.coordinator.next_wake(), fleet.now) << "it is switching now, like any other";
}

TEST_F(SlowMembers, ItIsTakenIntoTheRoundIfTheOthersAreGone) {
  const Version one = first();
  (void)publish_fast(2);
  for (const char* peer : {"a", "b"}) fleet.step(PeerLost{.peer = peer, .reason = "killed"});
  fleet.publish(3);
  EXPECT_GT(fleet.last<control::Announce>("slow")->second.version, one);
}

TEST_F(SlowMembers, AKindOfTransportThatIsTriedAgainAndHangsIsAvoidedAgain) {
  fleet.publish(1);
  for (const char* peer : {"a", "b", "slow"}) fleet.accept(peer);
  const auto offer = fleet.last<control::Announce>("slow");
  fleet.from("slow", control::Staged{.version = offer->second.version, .failure = "no memory"},
             offer->first.round);
  fleet.accept("slow");
  EXPECT_EQ(slow().delivery.transport(), "tcp");
  for (const char* peer : {"a", "b", "slow"}) fleet.staged(peer);
  for (const char* peer : {"a", "b", "slow"}) fleet.switched(peer);
  fleet.now = fleet.now + std::chrono::seconds(11);
  fleet.publish(2);
  for (const char* peer : {"a", "b", "slow"}) fleet.accept(peer);
  EXPECT_EQ(slow().delivery.transport(), "memfd");
  for (const char* peer : {"a", "b"}) fleet.staged(peer);
  for (const char* peer : {"a", "b"}) fleet.switched(peer);
  for (int i = 0; i < 8 && slow().delivery.state() != DeliveryState::kAnnounced; ++i)
    pass_deadline();
  fleet.accept("slow");
  EXPECT_EQ(slow().delivery.transport(), "tcp");
}

TEST_F(SlowMembersOfAll, EveryRoundHasItUnderAll) {
  fleet.full_round({"a", "b", "slow"});
  fleet.publish(2);
  for (const char* peer : {"a", "b", "slow"}) fleet.accept(peer);
  for (const char* peer : {"a", "b"}) fleet.staged(peer);
  EXPECT_EQ(fleet.count<control::Decide>("a"), 1U);
  pass_deadline();
  fleet.publish(3);
  EXPECT_EQ(fleet.count<control::Announce>("slow"), 3U);
}

TEST_F(SlowMembersOfAll, ARoundUnderAllIsNotHurried) {
  fleet.publish(1);
  for (const char* peer : {"a", "b", "slow"}) fleet.accept(peer);
  for (const char* peer : {"a", "b", "slow"}) fleet.staged(peer);
  for (const char* peer : {"a", "b"}) fleet.switched(peer);
  fleet.restarted("slow", Fleet::hello("slow"));
  fleet.accept("slow");
  const TimePoint whole = *fleet.coordinator.next_wake();
  fleet.publish(2);
  EXPECT_EQ(*fleet.coordinator.next_wake(), whole);
}

TEST_F(SlowMembersOfQuorum, ItIsLeftOutOnlyIfTheOthersReachTheQuorum) {
  (void)first();
  (void)publish_fast(2);
  EXPECT_EQ(fleet.count<control::Announce>("slow"), 1U);
  fleet.step(PeerLost{.peer = "b", .reason = "killed"});
  fleet.publish(3);
  EXPECT_EQ(fleet.count<control::Announce>("slow"), 2U);
}

TEST_F(SlowMembersInTurns, ItGetsTurnsUnderTheOlderDecision) {
  const Version one = first();
  const auto offer = fleet.last<control::Announce>("slow");
  (void)publish_fast(2);
  const auto decide = fleet.last<control::Decide>("slow");
  ASSERT_TRUE(decide.has_value());
  fleet.from("slow", control::Decided{.number = decide->second.number});
  staged_slow(one, offer->first.round);
  control::ReplicaReport replica{.replica = "r-slow", .world_size = 1, .ranks_attached = 1};
  replica.turn = control::ReplicaTurn::kWaiting;
  fleet.from("slow", control::Heartbeat{.target = one, .staged = {one}, .replicas = {replica}});
  const auto turns = fleet.last<control::Turns>("slow");
  ASSERT_TRUE(turns.has_value());
  EXPECT_EQ(turns->second.number, decide->second.number);
  EXPECT_EQ(turns->second.turns, 1U);
}

}  // namespace
}  // namespace wsync::coordinator
