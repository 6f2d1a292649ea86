// Sidecars that are gone: when a coordinator forgets them, by itself and on request, and when not.
#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/coordinator_fleet.h"

namespace wsync::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::chrono::minutes kForgetAfter{10};

class Forget : public ::testing::Test {
 protected:
  void lose(const std::string& name) {
    fleet.step(PeerLost{.peer = name, .reason = "silence"});
    lost_at = fleet.now;
  }
  // Lets time pass until `end`, with every tick that is due.
  void pass(TimePoint end) {
    for (int ticks = 0; ticks < 1'000; ++ticks) {
      const auto wake = fleet.coordinator.next_wake();
      if (!wake || *wake > end) break;
      fleet.wake();
      EXPECT_LT(ticks, 999) << "a timer that is always due";
    }
    fleet.now = std::max(fleet.now, end);
  }
  [[nodiscard]] bool knows(const std::string& name) const {
    return fleet.coordinator.roster().members().contains(name);
  }
  control::ForgetReply forget(const std::string& name, bool force = false) {
    fleet.step(ForgetRequested{.request = 7, .sidecar = name, .force = force});
    EXPECT_FALSE(fleet.forgets.empty());
    return fleet.forgets.back().reply;
  }
  void roll_back(const std::vector<std::string>& peers) {
    fleet.step(RollbackRequested{.request = 5});
    for (const std::string& peer : peers) fleet.switched(peer);
    EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady);
    EXPECT_FALSE(fleet.coordinator.record().withdrawn.empty());
  }
  // A sidecar that has stored what the coordinator has decided.
  [[nodiscard]] control::Hello returning(const std::string& name) const {
    control::Hello hello = Fleet::hello(name, {fleet.coordinator.target()});
    hello.decision = {fleet.coordinator.fence(), fleet.coordinator.record().number};
    hello.origin = fleet.coordinator.record().origin;
    hello.target = fleet.coordinator.target();
    hello.withdrawn = fleet.coordinator.record().withdrawn;
    return hello;
  }

  Fleet fleet{{.min_sidecars = 2, .forget_after = kForgetAfter}};
  TimePoint lost_at{};
};

TEST_F(Forget, OneThatIsGoneForItsTime) {
  fleet.join_all({"a", "b"});
  fleet.full_round({"a", "b"});
  lose("b");
  pass(lost_at + (kForgetAfter - std::chrono::milliseconds(1)));
  EXPECT_TRUE(knows("b"));
  EXPECT_THAT(fleet.record.members, ElementsAre("a", "b"));
  pass(lost_at + kForgetAfter);
  EXPECT_FALSE(knows("b"));
  EXPECT_THAT(fleet.forgotten, ElementsAre("b"));
  EXPECT_THAT(fleet.record.members, ElementsAre("a")) << "stored";
  EXPECT_EQ(fleet.coordinator.status().sidecars.size(), 1U);
  fleet.full_round({"a"});
  fleet.full_round({"a"});
  roll_back({"a"});
  EXPECT_TRUE(fleet.rollbacks.at(0).reply.ok) << fleet.rollbacks[0].reply.reason;
}

TEST_F(Forget, OneThatReturnsIsANewOneAndCatchesUp) {
  fleet.join_all({"a", "b"});
  fleet.full_round({"a", "b"});
  const control::Hello with_its_record = returning("b");
  lose("b");
  pass(lost_at + kForgetAfter);
  fleet.full_round({"a"});
  fleet.join("b", with_its_record);
  EXPECT_THAT(fleet.record.members, ElementsAre("a", "b"));
  fleet.accept("b");
  fleet.staged("b");
  fleet.switched("b");
  EXPECT_EQ(fleet.coordinator.roster().members().at("b").decided, fleet.record.number);
  pass(fleet.now + 2 * kForgetAfter);
  EXPECT_TRUE(knows("b")) << "it is connected";
}

TEST_F(Forget, OneThatReturnsInTimeIsKept) {
  fleet.join_all({"a", "b"});
  fleet.full_round({"a", "b"});
  lose("b");
  pass(lost_at + kForgetAfter / 2);
  fleet.from("b", returning("b"));
  pass(lost_at + 2 * kForgetAfter);
  EXPECT_TRUE(knows("b"));
  lose("b");
  pass(lost_at + kForgetAfter / 2);
  EXPECT_TRUE(knows("b")) << "its time has begun again";
}

TEST_F(Forget, OneThatHasMissedASwitchOnlyToo) {
  fleet.join_all({"a", "b"});
  fleet.full_round({"a", "b"});
  lose("b");
  fleet.full_round({"a"});
  pass(lost_at + kForgetAfter);
  EXPECT_FALSE(knows("b"));
}

TEST_F(Forget, NotOneThatMayNotKnowOfARollback) {
  fleet.join_all({"a", "b"});
  fleet.full_round({"a", "b"});
  fleet.full_round({"a", "b"});
  const control::Hello before = returning("b");
  lose("b");
  roll_back({"a"});
  fleet.full_round({"a"});
  pass(lost_at + 3 * kForgetAfter);
  EXPECT_TRUE(knows("b"));
  EXPECT_THAT(fleet.record.members, Contains("b"));
  const control::ForgetReply refused = forget("b");
  EXPECT_FALSE(refused.ok);
  EXPECT_THAT(refused.reason, HasSubstr("'b' has not acknowledged that 1.2 was withdrawn"));
  EXPECT_THAT(refused.reason, HasSubstr("--force"));
  EXPECT_TRUE(knows("b"));
  // Back without that decision, and gone again: it still owes. With the decision it does not.
  fleet.from("b", before);
  lose("b");
  pass(lost_at + 2 * kForgetAfter);
  EXPECT_TRUE(knows("b"));
  fleet.from("b", before);
  fleet.accept("b");
  fleet.staged("b");
  fleet.from("b", control::Decided{.number = fleet.coordinator.record().number});
  lose("b");
  pass(lost_at + kForgetAfter);
  EXPECT_FALSE(knows("b"));
}

// The decision that it acknowledges was made before.
TEST_F(Forget, NotOneThatMayNotKnowWhatAnotherSidecarKnowsToBeWithdrawn) {
  fleet.join_all({"a", "b"});
  fleet.publish();
  for (const char* name : {"a", "b"}) fleet.accept(name);
  for (const char* name : {"a", "b"}) fleet.staged(name);
  control::Hello hello = Fleet::hello("c");
  hello.withdrawn = {{1, 9}};
  fleet.join("c", hello);
  fleet.switched("b");
  lose("b");
  fleet.switched("a");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_EQ(fleet.record.number, 2U) << "it is decided again, with what is withdrawn";
  EXPECT_THAT(fleet.record.withdrawn, ElementsAre(Version{1, 9}));
  pass(lost_at + 2 * kForgetAfter);
  EXPECT_TRUE(knows("b"));
}

TEST_F(Forget, OneThatMayNotKnowOfARollbackByForce) {
  fleet.join_all({"a", "b"});
  fleet.full_round({"a", "b"});
  fleet.full_round({"a", "b"});
  const control::Hello before = returning("b");
  lose("b");
  roll_back({"a"});
  EXPECT_TRUE(forget("b", true).ok);
  EXPECT_FALSE(knows("b"));
  EXPECT_THAT(fleet.record.members, ElementsAre("a"));
  // It comes back all the same, still serving that version.
  control::Hello hello = before;
  hello.replicas.at(0) = {.replica = "r-b",
                          .ranks_attached = 1,
                          .state = control::ReplicaState::kServing,
                          .ready = true,
                          .version = before.target};
  fleet.join("b", hello);
  EXPECT_FALSE(fleet.coordinator.roster().members().at("b").report.replicas.at(0).ready);
  fleet.accept("b");
  fleet.staged("b");
  const auto decide = fleet.last<control::Decide>("b");
  ASSERT_TRUE(decide.has_value());
  EXPECT_THAT(decide->second.withdrawn, Contains(before.target));
}

TEST_F(Forget, NotUntilItsRoundHasEnded) {
  fleet.join_all({"a", "b"});
  fleet.publish();
  for (const char* name : {"a", "b"}) fleet.accept(name);
  for (const char* name : {"a", "b"}) fleet.staged(name);
  lose("b");
  const control::ForgetReply refused = forget("b");
  EXPECT_FALSE(refused.ok);
  EXPECT_THAT(refused.reason, HasSubstr("takes part in the update to 1.1, which is switching"));
  fleet.switched("a");
  ASSERT_EQ(fleet.rounds.size(), 1U) << "nothing is expected of one that is gone";
  EXPECT_TRUE(forget("b").ok);
  EXPECT_FALSE(knows("b"));
}

TEST_F(Forget, ByItselfNotUntilItsRoundHasEnded) {
  Fleet fast({.min_sidecars = 2, .forget_after = std::chrono::milliseconds(1)});
  fast.join_all({"a", "b"});
  fast.publish();
  for (const char* name : {"a", "b"}) fast.accept(name);
  for (const char* name : {"a", "b"}) fast.staged(name);
  fast.step(PeerLost{.peer = "b", .reason = "silence"});
  fast.now = fast.now + std::chrono::milliseconds(2);
  fast.step(CoordinatorTick{});
  EXPECT_THAT(fast.forgotten, IsEmpty());
  fast.switched("a");
  ASSERT_EQ(fast.rounds.size(), 1U);
  EXPECT_THAT(fast.rounds[0].reply.reason, HasSubstr("'b'"));
  fast.wake();
  EXPECT_THAT(fast.forgotten, ElementsAre("b"));
}

TEST_F(Forget, NeverWithoutATime) {
  Fleet kept({.min_sidecars = 2});
  kept.join_all({"a", "b"});
  kept.step(PeerLost{.peer = "b", .reason = "silence"});
  EXPECT_FALSE(kept.coordinator.next_wake().has_value());
}

TEST_F(Forget, OnRequestWithOneSentenceForEachRefusal) {
  fleet.from_fence("a", kNoFence, Fleet::hello("a"));
  EXPECT_THAT(forget("b").reason, HasSubstr("the coordinator is gathering"));
  fleet.from_fence("b", kNoFence, Fleet::hello("b"));
  for (const char* name : {"a", "b"}) fleet.from(name, Fleet::hello(name));
  EXPECT_EQ(forget("c").reason, "this coordinator knows no sidecar 'c'");
  EXPECT_THAT(forget("b").reason, HasSubstr("sidecar 'b' is connected (process 0 on "));
  EXPECT_THAT(forget("b", true).reason, HasSubstr("stop it first"));
  lose("b");
  EXPECT_TRUE(forget("b").ok);
  EXPECT_EQ(fleet.forgets.back().request, 7U);
  EXPECT_THAT(fleet.record.members, ElementsAre("a"));
  fleet.step(Replaced{.by = "another"});
  EXPECT_THAT(forget("a").reason, HasSubstr("this coordinator has stopped"));
}

TEST_F(Forget, NotWhileARecordIsBeingStored) {
  Fleet fast({.min_sidecars = 2, .forget_after = std::chrono::seconds(1)});
  fast.join_all({"a", "b", "c"});
  fast.full_round({"a", "b", "c"});
  for (const char* name : {"b", "c"}) fast.step(PeerLost{.peer = name, .reason = "silence"});
  fast.publish();
  fast.accept("a");
  fast.hold_stores = true;
  fast.staged("a");
  fast.step(ForgetRequested{.request = 9, .sidecar = "b"});
  fast.now = fast.now + std::chrono::seconds(2);
  fast.step(CoordinatorTick{});
  EXPECT_THAT(fast.forgets, IsEmpty());
  EXPECT_THAT(fast.forgotten, IsEmpty());
  fast.hold_stores = false;
  while (!fast.held_stores.empty()) fast.answer_store();
  ASSERT_EQ(fast.forgets.size(), 1U);
  EXPECT_TRUE(fast.forgets[0].reply.ok);
  fast.wake();
  EXPECT_THAT(fast.forgotten, ElementsAre("b", "c"));
  EXPECT_THAT(fast.record.members, ElementsAre("a")) << "the decision named them still";
}

class ForgetRecorded : public ::testing::Test {
 protected:
  // A coordinator with the record of one before it, of whose two sidecars only `a` returns.
  static CoordinatorOptions options(std::vector<Version> withdrawn) {
    CoordinatorOptions options{.forget_after = kForgetAfter};
    options.record.emplace();
    options.record->fence = {.epoch = 1, .run_id = {1, 1}, .fleet = kFleetId};
    options.record->withdrawn = std::move(withdrawn);
    options.record->members = {"a", "b"};
    return options;
  }
  static TimePoint claim(Fleet& fleet) {
    control::Hello hello = Fleet::hello("a");
    hello.withdrawn = fleet.coordinator.record().withdrawn;
    fleet.from_fence("a", kNoFence, hello);
    EXPECT_THAT(fleet.coordinator.awaited(), ElementsAre("b"));
    fleet.wake();  // the sidecars of the record have had their time
    fleet.from("a", hello);
    if (fleet.coordinator.roster().size() > 1) fleet.wake();  // nor have the others joined
    EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady);
    return fleet.now;
  }
};

TEST_F(ForgetRecorded, OneThatHasNotConnectedForItsTimeSinceTheClaim) {
  Fleet fleet(options({}));
  const TimePoint claimed = claim(fleet);
  EXPECT_EQ(fleet.coordinator.next_wake(), claimed + kForgetAfter);
  fleet.wake();
  EXPECT_THAT(fleet.forgotten, ElementsAre("b"));
  EXPECT_THAT(fleet.record.members, ElementsAre("a"));
  EXPECT_FALSE(fleet.coordinator.next_wake().has_value());
  Fleet next({.record = fleet.record});
  next.from_fence("a", kNoFence, Fleet::hello("a"));
  EXPECT_THAT(next.coordinator.awaited(), IsEmpty()) << "the next one does not wait for it";
}

TEST_F(ForgetRecorded, OnRequest) {
  Fleet fleet(options({}));
  (void)claim(fleet);
  EXPECT_TRUE(fleet.coordinator.known_sidecars().contains("b"));
  fleet.step(ForgetRequested{.request = 1, .sidecar = "b"});
  EXPECT_TRUE(fleet.forgets.at(0).reply.ok) << fleet.forgets[0].reply.reason;
  EXPECT_THAT(fleet.record.members, ElementsAre("a"));
}

TEST_F(ForgetRecorded, NotOneThatMayNotKnowOfARollback) {
  Fleet fleet(options({{1, 9}}));
  const TimePoint claimed = claim(fleet);
  fleet.now = claimed + kForgetAfter;
  fleet.step(CoordinatorTick{});
  EXPECT_THAT(fleet.coordinator.record().members, Contains("b"));
  fleet.step(ForgetRequested{.request = 1, .sidecar = "b"});
  EXPECT_THAT(fleet.forgets.at(0).reply.reason, HasSubstr("acknowledged that 1.9 was withdrawn"));
  fleet.step(ForgetRequested{.request = 2, .sidecar = "b", .force = true});
  EXPECT_TRUE(fleet.forgets.at(1).reply.ok);
  EXPECT_THAT(fleet.record.members, Not(Contains("b")));
}

TEST_F(ForgetRecorded, OneThatWasLostBeforeTheClaim) {
  Fleet fleet(options({{1, 9}}));
  control::Hello hello = Fleet::hello("c");
  hello.withdrawn = {{1, 9}};
  fleet.from_fence("c", kNoFence, hello);
  fleet.step(PeerLost{.peer = "c", .reason = "silence"});
  (void)claim(fleet);
  fleet.now = fleet.now + kForgetAfter;
  fleet.step(CoordinatorTick{});
  EXPECT_THAT(fleet.forgotten, ElementsAre("c"));
}

TEST_F(ForgetRecorded, OneThatKnowsOfARollbackByItsHelloAndLeavesIsForgotten) {
  Fleet fleet(options({{1, 9}}));
  (void)claim(fleet);
  control::Hello hello = Fleet::hello("b");
  hello.withdrawn = {{1, 9}};
  fleet.join("b", hello);
  fleet.step(PeerLost{.peer = "b", .reason = "silence"});
  fleet.now = fleet.now + kForgetAfter;
  fleet.step(CoordinatorTick{});
  EXPECT_THAT(fleet.forgotten, ElementsAre("b"));
}

}  // namespace
}  // namespace wsync::coordinator
