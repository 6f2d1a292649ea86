// One replica switches first, and the others wait for its promotion.
#include "trainer_side/coordinator/canary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/coordinator_fleet.h"

namespace wsync::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CanaryTest : public testing::Test {
 protected:
  explicit CanaryTest(CoordinatorOptions options = {.min_sidecars = 2, .canary = "r-a"})
      : fleet(std::move(options)) {
    fleet.join_all({"a", "b"});
  }

  // Publishes until the decision.
  void publish(std::uint64_t request = 1) {
    fleet.publish(request);
    for (const char* name : {"a", "b"}) fleet.accept(name);
    for (const char* name : {"a", "b"}) fleet.staged(name);
  }
  void reports(const std::string& name, const Version& version,
               control::ReplicaTurn turn = control::ReplicaTurn::kNone) {
    control::Heartbeat heartbeat{.target = fleet.record.target,
                                 .staged = {fleet.record.target},
                                 .replicas = Fleet::hello(name).replicas,
                                 .turns = 0};
    control::ReplicaReport& replica = heartbeat.replicas[0];
    replica.version = version;
    replica.state = control::ReplicaState::kServing;
    replica.turn = turn;
    fleet.from(name, heartbeat);
  }
  // The sidecar has stored the decision, which concerns none of its replicas.
  void stands_aside(const std::string& name, const Version& serves) {
    fleet.from(name, control::Decided{.number = fleet.record.number});
    reports(name, serves, control::ReplicaTurn::kWaiting);
  }
  // Publishes a version that only the canary takes.
  Version on_the_canary(std::uint64_t request = 1) {
    const Version before = fleet.record.target;
    publish(request);
    stands_aside("b", before.none() ? Version{1, 900} : before);
    fleet.switched("a");
    reports("a", fleet.record.target);
    return fleet.record.target;
  }
  void promote(bool force = false) { fleet.step(PromoteRequested{.request = 7, .force = force}); }

  Fleet fleet;
};

TEST_F(CanaryTest, OnlyItGetsATurn) {
  publish();
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kSwitchCanary);
  for (const char* name : {"a", "b"})
    EXPECT_EQ(fleet.last<control::Decide>(name)->second.canary, "r-a");
  stands_aside("b", {1, 900});
  stands_aside("a", {1, 900});
  EXPECT_EQ(fleet.count<control::Turns>("b"), 0U);
  ASSERT_EQ(fleet.count<control::Turns>("a"), 1U);
  EXPECT_EQ(fleet.last<control::Turns>("a")->second.replica, "r-a");
  EXPECT_EQ(fleet.last<control::Turns>("a")->second.turns, 1U);
}

TEST_F(CanaryTest, ThePublishEndsWhenItHasSwitched) {
  publish();
  stands_aside("b", {1, 900});
  EXPECT_THAT(fleet.rounds, IsEmpty());
  fleet.switched("a");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
  EXPECT_EQ(fleet.rounds[0].reply.canary, "r-a");
  ASSERT_EQ(fleet.rounds[0].reply.outcomes.size(), 1U);
  EXPECT_EQ(fleet.rounds[0].reply.outcomes[0].replica, "r-a");
}

TEST_F(CanaryTest, AFailureOfItIsThatOfThePublish) {
  publish();
  stands_aside("b", {1, 900});
  fleet.switched("a", control::SwitchOutcome::kRolledBack);
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_FALSE(fleet.rounds[0].reply.ok);
  EXPECT_EQ(control::failure_code(fleet.rounds[0].reply), ErrorCode::kPartial);
  promote();
  ASSERT_EQ(fleet.promotions.size(), 1U);
  EXPECT_THAT(fleet.promotions[0].reply.reason,
              AllOf(HasSubstr("the canary 'r-a' does not serve"), HasSubstr("--force")));
}

TEST_F(CanaryTest, APromotionGivesTheVersionToTheOthers) {
  const Version version = on_the_canary();
  EXPECT_THAT(
      fleet.coordinator.status().activity,
      HasSubstr(version.to_string() +
                " is only on the canary 'r-a', and 1 other replica waits: `wsync promote`"));
  EXPECT_EQ(fleet.coordinator.canary_waiting(), 1U);
  promote();
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kSwitch);
  EXPECT_EQ(fleet.record.target, version);
  EXPECT_THAT(fleet.promotions, IsEmpty()) << "b has not switched";
  for (const char* name : {"a", "b"}) fleet.switched(name);
  ASSERT_EQ(fleet.promotions.size(), 1U);
  EXPECT_EQ(fleet.promotions[0].request, 7U);
  EXPECT_TRUE(fleet.promotions[0].reply.ok) << fleet.promotions[0].reply.reason;
  EXPECT_EQ(fleet.promotions[0].reply.version, version);
  EXPECT_EQ(fleet.promotions[0].reply.outcomes.size(), 2U);
  EXPECT_EQ(fleet.coordinator.canary_waiting(), 0U);
  promote();
  EXPECT_THAT(fleet.promotions.back().reply.reason,
              HasSubstr("the target of every replica already"));
}

TEST_F(CanaryTest, APromotionNamesWhoHasNotSwitched) {
  on_the_canary();
  promote();
  fleet.switched("a");
  fleet.step(PeerLost{.peer = "b", .reason = "silent"});
  ASSERT_EQ(fleet.promotions.size(), 1U);
  EXPECT_TRUE(fleet.promotions[0].reply.partial);
  EXPECT_THAT(fleet.promotions[0].reply.reason,
              HasSubstr("sidecar 'b' (it was lost during the switch)"));
}

TEST_F(CanaryTest, TheNextPublishWaitsForThePromotion) {
  on_the_canary();
  fleet.rounds.clear();
  fleet.publish(2);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady);
  fleet.publish(3);
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].superseded);
  promote();
  for (const char* name : {"a", "b"}) fleet.switched(name);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kAnnouncing);
}

TEST_F(CanaryTest, TheNextPublishBeginsIfTheCanaryIsLost) {
  on_the_canary();
  fleet.publish(2);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady);
  fleet.step(PeerLost{.peer = "a", .reason = "silent"});
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kAnnouncing);
}

TEST_F(CanaryTest, TheNextPublishBeginsIfNobodyWaits) {
  const Version version = on_the_canary();
  reports("b", version);
  fleet.publish(2);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kAnnouncing);
}

TEST_F(CanaryTest, TheTimeOfAWaitingPublishStandsStillWhileTheCanaryHolds) {
  on_the_canary();
  fleet.rounds.clear();
  fleet.publish(2, fleet.now + std::chrono::seconds(5));
  fleet.now = fleet.now + std::chrono::hours(1);
  fleet.step(CoordinatorTick{});
  ASSERT_TRUE(fleet.rounds.empty()) << fleet.rounds[0].reply.reason;
  promote();
  fleet.now = fleet.now + std::chrono::seconds(4);
  fleet.step(CoordinatorTick{});
  ASSERT_TRUE(fleet.rounds.empty()) << "it has as much time as it had before";
  fleet.now = fleet.now + std::chrono::seconds(2);
  fleet.step(CoordinatorTick{});
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_THAT(fleet.rounds[0].reply.reason,
              HasSubstr("its deadline (deadlines.publish) passed while the previous round was"));
}

TEST_F(CanaryTest, ARollbackTakesTheVersionBack) {
  const Version first = on_the_canary();
  promote();
  for (const char* name : {"a", "b"}) fleet.switched(name);
  const Version second = on_the_canary(2);
  for (const char* name : {"a", "b"})
    fleet.from(name, control::Heartbeat{.target = second,
                                        .staged = {first, second},
                                        .replicas = Fleet::hello(name).replicas});
  fleet.step(RollbackRequested{.request = 9});
  for (const char* name : {"a", "b"}) fleet.switched(name);
  ASSERT_EQ(fleet.rollbacks.size(), 1U);
  EXPECT_TRUE(fleet.rollbacks[0].reply.ok) << fleet.rollbacks[0].reply.reason;
  EXPECT_EQ(fleet.record.target, first);
  promote();
  EXPECT_THAT(fleet.promotions.back().reply.reason,
              HasSubstr("the target of every replica already"));
}

TEST_F(CanaryTest, ARollbackEndsAPromotionInTurns) {
  Fleet turns({.min_sidecars = 2, .max_paused = 1, .canary = "r-a"});
  std::swap(fleet.coordinator, turns.coordinator);
  fleet.join_all({"a", "b"});
  const Version first = on_the_canary();
  promote();
  for (const char* name : {"a", "b"}) fleet.switched(name);
  const Version second = on_the_canary(2);
  promote();
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kSwitchInTurns);
  for (const char* name : {"a", "b"})
    fleet.from(name, control::Heartbeat{.target = second,
                                        .staged = {first, second},
                                        .replicas = Fleet::hello(name).replicas});
  fleet.promotions.clear();
  fleet.step(RollbackRequested{.request = 9});
  ASSERT_EQ(fleet.promotions.size(), 1U);
  EXPECT_TRUE(fleet.promotions[0].reply.partial);
  EXPECT_THAT(fleet.promotions[0].reply.reason, HasSubstr("a rollback to " + first.to_string()));
}

TEST_F(CanaryTest, APublishWithoutItIsRefused) {
  fleet.from("a", control::Heartbeat{.sequence = 1});  // its engines are gone
  publish();
  EXPECT_EQ(fleet.record.number, 0U);
  fleet.wake();
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_FALSE(fleet.rounds[0].reply.ok);
  EXPECT_THAT(fleet.rounds[0].reply.reason,
              AllOf(HasSubstr("the canary 'r-a' is not attached"), HasSubstr("attached: r-b")));
}

TEST_F(CanaryTest, ARestartedCoordinatorStillHoldsTheVersion) {
  const Version version = on_the_canary();
  Fleet next({.record = fleet.record, .min_sidecars = 2, .canary = "r-a"});
  std::swap(fleet.coordinator, next.coordinator);
  const auto returns = [&](const std::string& name, const Version& serves) {
    control::Hello hello = Fleet::hello(name, {version});
    hello.target = version;
    hello.decision = fleet.record.origin;
    hello.origin = fleet.record.origin;
    hello.replicas[0].version = serves;
    hello.replicas[0].state = control::ReplicaState::kServing;
    return hello;
  };
  const control::Fence before = fleet.record.fence;
  const control::Hello a = returns("a", version);
  const control::Hello b = returns("b", {1, 900});
  fleet.from_fence("a", before, a);
  fleet.from_fence("b", before, b);
  fleet.from("a", a);
  fleet.from("b", b);
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kSwitchCanary);
  EXPECT_EQ(fleet.record.number, 1U);
  EXPECT_EQ(fleet.coordinator.canary_waiting(), 1U);
  fleet.publish(2);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady);
  promote();
  EXPECT_EQ(fleet.record.number, 2U);
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kSwitch);
}

TEST_F(CanaryTest, APromotionThatCannotBeStoredChangesNothing) {
  on_the_canary();
  fleet.hold_stores = true;
  promote();
  fleet.answer_store("no space left");
  ASSERT_EQ(fleet.promotions.size(), 1U);
  EXPECT_THAT(fleet.promotions[0].reply.reason, HasSubstr("no space left"));
  EXPECT_EQ(fleet.coordinator.canary_waiting(), 1U);
  fleet.hold_stores = false;
  fleet.now = fleet.now + std::chrono::seconds(5);
  fleet.step(CoordinatorTick{});
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kSwitchCanary)
      << "it was told that it failed";
}

TEST_F(CanaryTest, ALostCanaryEndsThePublishAsPartial) {
  publish();
  stands_aside("b", {1, 900});
  fleet.from("a", control::Decided{.number = fleet.record.number});
  fleet.step(PeerLost{.peer = "a", .reason = "killed"});
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_EQ(control::failure_code(fleet.rounds[0].reply), ErrorCode::kPartial);
}

// The sidecar of the canary is killed after the switch and before its report.
TEST_F(CanaryTest, TheOutcomeThatWasLostWithItsSidecarIsRecovered) {
  publish();
  fleet.from("a", control::Decided{.number = fleet.record.number});
  fleet.step(PeerLost{.peer = "a", .reason = "killed"});
  EXPECT_THAT(fleet.rounds, IsEmpty()) << "b has not stored the decision";
  control::Hello again = Fleet::hello("a", {fleet.record.target});
  again.pid = 2;
  again.replicas.clear();
  again.target = fleet.record.target;
  again.decision = {.fence = fleet.record.fence, .number = fleet.record.number};
  fleet.restarted("a2", again);
  control::Heartbeat beat{.target = fleet.record.target,
                          .staged = {fleet.record.target},
                          .replicas = Fleet::hello("a").replicas};
  beat.replicas[0].version = fleet.record.target;
  beat.replicas[0].state = control::ReplicaState::kServing;
  fleet.from("a2", beat);
  stands_aside("b", {1, 900});
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
}

class CanaryTime : public CanaryTest {
 protected:
  CanaryTime()
      : CanaryTest({.min_sidecars = 2, .canary = "r-a", .canary_time = std::chrono::seconds(30)}) {}
};

TEST_F(CanaryTime, TheOthersSwitchWhenItIsOver) {
  on_the_canary();
  fleet.now = fleet.now + std::chrono::seconds(29);
  fleet.step(CoordinatorTick{});
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kSwitchCanary);
  fleet.wake();
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kSwitch);
  for (const char* name : {"a", "b"}) fleet.switched(name);
  ASSERT_EQ(fleet.promotions.size(), 1U);
  EXPECT_EQ(fleet.promotions[0].request, 0U);
  EXPECT_TRUE(fleet.promotions[0].reply.ok);
}

TEST_F(CanaryTime, ItBeginsAgainWhenTheCanaryComesBack) {
  const Version version = on_the_canary();
  fleet.now = fleet.now + std::chrono::seconds(29);
  fleet.step(CoordinatorTick{});
  reports("a", {1, 900});
  reports("a", version);
  fleet.now = fleet.now + std::chrono::seconds(29);
  fleet.step(CoordinatorTick{});
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kSwitchCanary);
}

TEST_F(CanaryTime, AFullDiscIsTriedAgain) {
  on_the_canary();
  fleet.hold_stores = true;
  fleet.now = fleet.now + std::chrono::seconds(30);
  fleet.step(CoordinatorTick{});
  fleet.answer_store("no space left");
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kSwitchCanary);
  fleet.hold_stores = false;
  fleet.wake();
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kSwitch);
}

}  // namespace
}  // namespace wsync::coordinator
