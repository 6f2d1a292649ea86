// Which sidecars may pause replicas now: never more places than the limit, and nobody waits for
// ever.
#include "trainer_side/coordinator/switch_waves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "tests/unit/coordinator/coordinator_fleet.h"

namespace wsync::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SwitchWaves, SharesThePlacesInTheOrderOfWaiting) {
  SwitchWaves waves(3);
  (void)waves.report("b", {.waiting = 2});
  (void)waves.report("a", {.waiting = 2});
  (void)waves.report("c", {.waiting = 1});
  EXPECT_THAT(waves.share(), ElementsAre("b", "a"));
  EXPECT_EQ(waves.turns("b"), 2U);
  EXPECT_EQ(waves.turns("a"), 1U);
  EXPECT_EQ(waves.turns("c"), 0U);
  EXPECT_EQ(waves.state("c"), WaveState::kQueued);
  EXPECT_EQ(waves.used(), 3U);
  EXPECT_EQ(waves.waiting(), 5U);
  EXPECT_THAT(waves.share(), IsEmpty());
}

TEST(SwitchWaves, APlaceIsFreeWhenTheSidecarHasReportedThat) {
  SwitchWaves waves(1);
  (void)waves.report("a", {.waiting = 1});
  (void)waves.report("b", {.waiting = 1});
  EXPECT_THAT(waves.share(), ElementsAre("a"));
  EXPECT_TRUE(waves.report("a", {.held = 1, .known = 1})) << "its replica has begun";
  EXPECT_THAT(waves.share(), IsEmpty());
  (void)waves.report("a", {.known = 1});
  EXPECT_EQ(waves.turns("a"), 0U) << "it needs none";
  EXPECT_THAT(waves.share(), IsEmpty()) << "but it still has one to give";
  (void)waves.report("a", {});
  EXPECT_THAT(waves.share(), ElementsAre("b"));
  EXPECT_TRUE(waves.invariants().has_value());
}

TEST(SwitchWaves, ALostSidecarLosesItsPlaces) {
  SwitchWaves waves(1);
  (void)waves.report("a", {.waiting = 1});
  (void)waves.report("b", {.waiting = 1});
  (void)waves.share();
  waves.forget("a");
  EXPECT_THAT(waves.share(), ElementsAre("b"));
  waves.forget("b");
  EXPECT_EQ(waves.used(), 0U);
  EXPECT_EQ(waves.waiting(), 0U);
}

TEST(SwitchWaves, AReplicaThatSwitchesUnderAnEarlierCoordinatorTakesAPlace) {
  SwitchWaves waves(2);
  (void)waves.report("a", {.held = 1});
  (void)waves.report("b", {.waiting = 2});
  EXPECT_THAT(waves.share(), ElementsAre("b"));
  EXPECT_EQ(waves.turns("b"), 1U);
  (void)waves.report("a", {});
  EXPECT_THAT(waves.share(), ElementsAre("b"));
  EXPECT_EQ(waves.turns("b"), 2U);
}

TEST(SwitchWaves, AReplicaThatFailsGoesToTheEndOfTheQueue) {
  SwitchWaves waves(1);
  (void)waves.report("a", {.waiting = 1});
  (void)waves.report("b", {.waiting = 1});
  (void)waves.share();
  (void)waves.report("a", {.held = 1, .known = 1});
  (void)waves.report("a", {});              // it has failed, and waits for a moment
  (void)waves.report("a", {.waiting = 1});  // it tries again
  EXPECT_THAT(waves.share(), ElementsAre("b"));
}

TEST(SwitchWaves, WithoutALimitNobodyWaits) {
  SwitchWaves waves(0);
  (void)waves.report("a", {.waiting = 500});
  EXPECT_THAT(waves.share(), ElementsAre("a"));
  EXPECT_EQ(waves.turns("a"), 500U);
}

// Sidecars that give the turns that they know to replicas that switch, some of which fail.
TEST(SwitchWaves, NeverMoreThanTheLimitAndAllEnd) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&random](std::uint32_t n) {
      return static_cast<std::uint32_t>(random() % n);
    };
    const std::uint32_t limit = 1 + pick(4);
    SwitchWaves waves(limit);
    struct Model {
      std::string name;
      std::uint32_t waiting, held = 0, known = 0;
    };
    std::vector<Model> sidecars;
    for (std::uint32_t s = 0; s < 5; ++s)
      sidecars.push_back({.name = std::string(1, static_cast<char>('a' + s)), .waiting = pick(5)});
    std::uint32_t left = 1;
    for (int turn = 0; left > 0; ++turn) {
      ASSERT_LT(turn, 10'000) << "seed " << seed;
      Model& sidecar = sidecars[pick(5)];
      switch (pick(4)) {
        case 0:  // the message with its turns arrives
          sidecar.known = waves.turns(sidecar.name);
          break;
        case 1:
          if (sidecar.held == 0) break;
          --sidecar.held;
          if (pick(4) == 0) ++sidecar.waiting;  // it has failed
          break;
        default:  // its report arrives
          (void)waves.report(
              sidecar.name,
              {.waiting = sidecar.waiting, .held = sidecar.held, .known = sidecar.known});
          (void)waves.share();
      }
      while (sidecar.waiting > 0 && sidecar.held < sidecar.known) {
        --sidecar.waiting;
        ++sidecar.held;
      }
      std::uint32_t held = 0;
      left = 0;
      for (const Model& each : sidecars) {
        held += each.held;
        left += each.held + each.waiting;
      }
      ASSERT_LE(held, limit) << "seed " << seed;
      const Result<> holds = waves.invariants();
      ASSERT_TRUE(holds.has_value()) << holds.error().message();
    }
  }
}

// ---- through the coordinator ----

class InTurns : public testing::Test {
 protected:
  InTurns() { fleet.join_all({"a", "b"}); }

  void publish() {
    fleet.publish();
    for (const char* name : {"a", "b"}) fleet.accept(name);
    for (const char* name : {"a", "b"}) fleet.staged(name);
  }
  void reports(const std::string& name, control::ReplicaTurn turn, std::uint32_t turns = 0) {
    control::Heartbeat heartbeat{.target = fleet.record.target,
                                 .staged = {fleet.record.target},
                                 .replicas = Fleet::hello(name).replicas,
                                 .turns = turns};
    heartbeat.replicas[0].turn = turn;
    fleet.from(name, heartbeat);
  }
  // The sidecar has stored the decision, and its replica waits.
  void waits(const std::string& name) {
    fleet.from(name, control::Decided{.number = fleet.record.number});
    reports(name, control::ReplicaTurn::kWaiting);
  }
  std::uint32_t turns(const std::string& name) {
    const auto sent = fleet.last<control::Turns>(name);
    return sent && sent->second.number == fleet.record.number ? sent->second.turns : 0;
  }
  void switched(const std::string& name) {
    reports(name, control::ReplicaTurn::kNone, 0);
    fleet.switched(name);
  }

  Fleet fleet{{.min_sidecars = 2, .max_paused = 1}};
};

TEST_F(InTurns, OneSidecarAfterTheOtherGetsATurn) {
  publish();
  EXPECT_EQ(fleet.last<control::Decide>("b")->second.kind, control::DecisionKind::kSwitchInTurns);
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kSwitchInTurns) << "a restart continues it";
  waits("a");
  waits("b");
  EXPECT_EQ(turns("a"), 1U);
  EXPECT_EQ(turns("b"), 0U);
  EXPECT_THAT(fleet.coordinator.status().activity,
              HasSubstr("2 replicas are waiting for their turn (max_paused: 1)"));
  reports("a", control::ReplicaTurn::kHeld, 1);
  EXPECT_EQ(turns("b"), 0U);
  EXPECT_THAT(fleet.coordinator.status().activity, HasSubstr("1 replica is waiting for its turn"));
  switched("a");
  EXPECT_EQ(turns("b"), 1U);
  EXPECT_TRUE(fleet.rounds.empty());
  reports("b", control::ReplicaTurn::kHeld, 1);
  switched("b");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
}

TEST_F(InTurns, TheDeadlineOfTheSwitchBeginsAgainWithEachTurn) {
  publish();
  waits("a");
  waits("b");
  const TimePoint first = *fleet.coordinator.next_wake();
  fleet.now = first + std::chrono::seconds(-1);
  reports("a", control::ReplicaTurn::kHeld, 1);
  switched("a");
  fleet.now = first + std::chrono::seconds(1);
  fleet.step(CoordinatorTick{});
  EXPECT_TRUE(fleet.rounds.empty()) << fleet.rounds[0].reply.reason;
  fleet.now = first + std::chrono::hours(1);
  fleet.step(CoordinatorTick{});
  EXPECT_EQ(fleet.rounds.size(), 1U) << "nobody waits for ever";
}

TEST_F(InTurns, ALostSidecarHoldsUpNobody) {
  publish();
  waits("a");
  waits("b");
  reports("a", control::ReplicaTurn::kHeld, 1);
  fleet.step(PeerLost{.peer = "a", .reason = "silent"});
  EXPECT_EQ(turns("b"), 1U);
}

TEST_F(InTurns, TurnsThatWereLostAreSentAgain) {
  publish();
  waits("a");
  ASSERT_EQ(fleet.count<control::Turns>("a"), 1U);
  reports("a", control::ReplicaTurn::kWaiting, 0);
  EXPECT_EQ(fleet.count<control::Turns>("a"), 2U);
  reports("a", control::ReplicaTurn::kHeld, 1);
  EXPECT_EQ(fleet.count<control::Turns>("a"), 2U);
}

TEST_F(InTurns, ARollbackEndsThem) {
  publish();
  const Version first = fleet.record.target;
  for (const char* name : {"a", "b"}) switched(name);
  publish();
  const Version second = fleet.record.target;
  waits("a");
  waits("b");
  for (const char* name : {"a", "b"})
    fleet.from(name, control::Heartbeat{.target = second,
                                        .staged = {first, second},
                                        .replicas = Fleet::hello(name).replicas});
  fleet.publish(9);  // waits for its round
  fleet.rounds.clear();
  fleet.step(RollbackRequested{.request = 3, .to = first});
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_FALSE(fleet.rounds[0].reply.ok);
  EXPECT_THAT(fleet.rounds[0].reply.reason, HasSubstr("a rollback to " + first.to_string()));
  EXPECT_EQ(fleet.record.target, first);
  EXPECT_THAT(fleet.record.withdrawn, ElementsAre(second));
  EXPECT_EQ(fleet.last<control::Decide>("a")->second.kind, control::DecisionKind::kRollback);
  for (const char* name : {"a", "b"}) fleet.switched(name);
  ASSERT_EQ(fleet.rollbacks.size(), 1U);
  EXPECT_TRUE(fleet.rollbacks[0].reply.ok) << fleet.rollbacks[0].reply.reason;
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kAnnouncing) << "the one that waited";
}

TEST_F(InTurns, ARollbackThatCannotBeStoredLeavesThemAsTheyAre) {
  publish();
  const Version first = fleet.record.target;
  for (const char* name : {"a", "b"}) switched(name);
  publish();
  const Version second = fleet.record.target;
  waits("a");
  for (const char* name : {"a", "b"})
    fleet.from(name, control::Heartbeat{.target = second,
                                        .staged = {first, second},
                                        .replicas = Fleet::hello(name).replicas});
  fleet.rounds.clear();
  fleet.hold_stores = true;
  fleet.step(RollbackRequested{.request = 3, .to = first});
  fleet.answer_store("no space");
  ASSERT_EQ(fleet.rollbacks.size(), 1U);
  EXPECT_FALSE(fleet.rollbacks[0].reply.ok);
  EXPECT_EQ(fleet.coordinator.target(), second);
  EXPECT_TRUE(fleet.rounds.empty());
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kSwitching);
  EXPECT_EQ(fleet.coordinator.record().kind, control::DecisionKind::kSwitchInTurns);
}

TEST_F(InTurns, ARollbackIsNotInTurns) {
  publish();
  for (const char* name : {"a", "b"}) switched(name);
  const Version first = fleet.record.target;
  publish();
  for (const char* name : {"a", "b"}) switched(name);
  for (const char* name : {"a", "b"})
    fleet.from(name, control::Heartbeat{.target = fleet.record.target,
                                        .staged = {first, fleet.record.target},
                                        .replicas = Fleet::hello(name).replicas});
  fleet.step(RollbackRequested{.request = 3});
  EXPECT_EQ(fleet.record.kind, control::DecisionKind::kRollback);
}

TEST_F(InTurns, ARestartedCoordinatorContinuesThem) {
  publish();
  waits("a");
  waits("b");
  Fleet next({.record = fleet.record, .min_sidecars = 2, .max_paused = 1});
  const auto turn_of = [](const std::string& name) {
    return name == "a" ? control::ReplicaTurn::kHeld : control::ReplicaTurn::kWaiting;
  };
  const auto hello_of = [&](const std::string& name) {
    control::Hello hello = Fleet::hello(name, {fleet.record.target});
    hello.decision = {.fence = fleet.record.fence, .number = fleet.record.number};
    hello.target = fleet.record.target;
    hello.replicas[0].turn = turn_of(name);
    return hello;
  };
  for (const char* name : {"a", "b"}) next.from_fence(name, fleet.record.fence, hello_of(name));
  for (const char* name : {"a", "b"}) next.from(name, hello_of(name));
  EXPECT_EQ(next.record.target, fleet.record.target);
  EXPECT_EQ(next.record.kind, control::DecisionKind::kSwitchInTurns);
  for (const char* name : {"a", "b"}) {
    next.from(name, control::Decided{.number = next.record.number});
    control::Heartbeat heartbeat{.target = next.record.target,
                                 .staged = {next.record.target},
                                 .replicas = Fleet::hello(name).replicas};
    heartbeat.replicas[0].turn = turn_of(name);
    next.from(name, heartbeat);
  }
  EXPECT_EQ(next.count<control::Turns>("b"), 0U) << "a replica of a still switches";
  next.from("a", control::Heartbeat{.target = next.record.target,
                                    .staged = {next.record.target},
                                    .replicas = Fleet::hello("a").replicas});
  ASSERT_EQ(next.count<control::Turns>("b"), 1U);
  EXPECT_EQ(next.last<control::Turns>("b")->second.turns, 1U);
}

}  // namespace
}  // namespace wsync::coordinator
