// What a coordinator stores before it speaks, which decision it goes on from, whom it tells again,
// and whom it does not take for a sidecar of its fleet.
#include <cstdlib>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/durable_file.h"
#include "tests/unit/coordinator/coordinator_fleet.h"
#include "trainer_side/coordinator/decision_store.h"

namespace wsync::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A Hello of a sidecar that took this decision under an earlier fence.
control::Hello took(const std::string& name, std::uint64_t number, const Version& target,
                    std::vector<Version> withdrawn = {}) {
  control::Hello hello = Fleet::hello(name, {target});
  hello.decision = {.fence = {.epoch = 1, .run_id = {1, 1}, .fleet = kFleetId}, .number = number};
  hello.target = target;
  hello.withdrawn = std::move(withdrawn);
  return hello;
}
control::Fence fence_of(std::uint64_t epoch, const control::FleetId& fleet = kFleetId) {
  return {.epoch = epoch, .run_id = {1, 1}, .fleet = fleet};
}
CoordinatorRecord record_of(std::uint64_t number, const Version& target,
                            std::vector<std::string> members) {
  return {.fence = fence_of(1),
          .number = number,
          .origin = {.fence = fence_of(1), .number = number},
          .target = target,
          .content = {2, target.step},
          .withdrawn = {},
          .members = std::move(members)};
}
const control::ReplicaReport& replica_of(const Fleet& fleet, const std::string& name) {
  return fleet.coordinator.roster().members().at(name).report.replicas.at(0);
}

// ---- stored first ----

TEST(Decisions, NothingIsSaidUnderAClaimBeforeItIsStored) {
  Fleet fleet;
  fleet.hold_stores = true;
  fleet.from_fence("a", kNoFence, Fleet::hello("a"));
  EXPECT_EQ(fleet.count<control::Welcome>("a"), 0U);
  EXPECT_EQ(fleet.coordinator.fence().epoch, 0U) << "heartbeats must not tell it";
  fleet.from_fence("a", kNoFence, Fleet::hello("a"));
  EXPECT_EQ(fleet.count<control::Welcome>("a"), 0U) << "an event that comes meanwhile waits";
  fleet.answer_store();
  EXPECT_GE(fleet.count<control::Welcome>("a"), 1U);
  EXPECT_EQ(fleet.coordinator.fence().epoch, 1U);
  EXPECT_EQ(fleet.coordinator.fence().fleet, kFleetId);
}

TEST(Decisions, NoDecideBeforeTheDecisionIsStored) {
  Fleet fleet;
  fleet.join("a");
  fleet.hold_stores = true;
  fleet.publish();
  fleet.accept("a");
  fleet.staged("a");
  EXPECT_EQ(fleet.count<control::Decide>("a"), 0U);
  EXPECT_TRUE(fleet.coordinator.target().none());
  const auto cancelled = fleet.cancel();
  EXPECT_FALSE(cancelled.ok) << "it may be on disc already";
  EXPECT_THAT(cancelled.reason, HasSubstr("has been decided"));
  while (!fleet.held_stores.empty()) fleet.answer_store();
  EXPECT_EQ(fleet.count<control::Decide>("a"), 1U);
  EXPECT_EQ(fleet.record.target, fleet.coordinator.target());
  EXPECT_THAT(fleet.record.members, ElementsAre("a"));
  fleet.switched("a");
  EXPECT_TRUE(fleet.rounds.at(0).reply.ok);
}

TEST(Decisions, ADecisionThatCannotBeStoredFailsItsPublishAndTheNextOneIsGood) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  const Version before = fleet.coordinator.target();
  fleet.hold_stores = true;
  fleet.publish();
  fleet.accept("a");
  fleet.staged("a");
  fleet.answer_store("No space left on device");
  ASSERT_EQ(fleet.rounds.size(), 2U);
  EXPECT_FALSE(fleet.rounds[1].reply.ok);
  EXPECT_THAT(fleet.rounds[1].reply.reason, HasSubstr("could not be stored"));
  EXPECT_THAT(fleet.rounds[1].reply.reason, HasSubstr("No space left on device"));
  EXPECT_EQ(fleet.coordinator.target(), before);
  EXPECT_EQ(fleet.count<control::Decide>("a"), 1U) << "only that of the first round";
  EXPECT_EQ(fleet.count<control::Abort>("a"), 1U);
  fleet.hold_stores = false;
  fleet.full_round({"a"});
  EXPECT_TRUE(fleet.rounds.at(2).reply.ok) << fleet.rounds[2].reply.reason;
}

TEST(Decisions, ARollbackThatCannotBeStoredWithdrawsNothing) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  fleet.full_round({"a"});
  const Version newest = fleet.coordinator.target();
  fleet.hold_stores = true;
  fleet.step(RollbackRequested{.request = 5});
  EXPECT_TRUE(fleet.rollbacks.empty());
  fleet.answer_store("No space left on device");
  ASSERT_EQ(fleet.rollbacks.size(), 1U);
  EXPECT_FALSE(fleet.rollbacks[0].reply.ok);
  EXPECT_EQ(fleet.coordinator.target(), newest);
  EXPECT_TRUE(fleet.coordinator.record().withdrawn.empty());
}

TEST(Decisions, AStoreThatAnotherCoordinatorHasStopsThisOne) {
  Fleet fleet;
  fleet.join("a");
  fleet.hold_stores = true;
  fleet.publish();
  fleet.accept("a");
  fleet.staged("a");
  fleet.answer_store("another coordinator with the same state has claimed fence epoch 2", true);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kStopped);
  EXPECT_THAT(fleet.stop_reason, HasSubstr("--take-over"));
  EXPECT_EQ(fleet.count<control::Decide>("a"), 0U);
  ASSERT_EQ(fleet.rounds.size(), 1U);
}

TEST(Decisions, ARollbackThatAnotherCoordinatorsStoreRefusesEndsAsWell) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  fleet.full_round({"a"});
  fleet.hold_stores = true;
  fleet.step(RollbackRequested{.request = 5});
  fleet.answer_store("another coordinator with the same state has claimed fence epoch 2", true);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kStopped);
  ASSERT_EQ(fleet.rollbacks.size(), 1U) << "whoever asked waits for ever";
  EXPECT_FALSE(fleet.rollbacks[0].reply.ok);
  EXPECT_THAT(fleet.rollbacks[0].reply.reason, HasSubstr("--take-over"));
}

TEST(Decisions, ADiscThatNeverAnswersEndsTheCoordinatorAndAllThatWaits) {
  Fleet fleet;
  fleet.join("a");
  fleet.hold_stores = true;
  fleet.publish();
  fleet.accept("a");
  fleet.staged("a");
  fleet.step(RollbackRequested{.request = 9});  // waits
  fleet.wake();
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kStopped);
  EXPECT_THAT(fleet.stop_reason, HasSubstr("could not be written within"));
  EXPECT_EQ(fleet.rounds.size(), 1U);
  EXPECT_EQ(fleet.rollbacks.size(), 1U);
  EXPECT_EQ(fleet.count<control::Abort>("a"), 0U) << "what is being stored may hold";
}

// ---- which decision is gone on from ----

// A committed version must not go back because the first Hello is from a sidecar that missed it.
TEST(Decisions, WithItsRecordACoordinatorDoesNotGoBackWhoeverComesFirst) {
  Fleet fleet({.record = record_of(2, {1, 2}, {"a", "b"})});
  const auto b = took("b", 1, {1, 1});
  fleet.from_fence("b", fence_of(1), b);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kGathering);
  EXPECT_THAT(fleet.coordinator.awaited(), ElementsAre("a"));
  EXPECT_THAT(fleet.coordinator.status().activity,
              HasSubstr("waits for sidecars of its record: a"));
  fleet.wake();  // it does not come within deadlines.gather
  fleet.from("b", b);
  EXPECT_EQ(fleet.coordinator.target(), (Version{1, 2}));
  const auto decide = fleet.last<control::Decide>("b");
  ASSERT_TRUE(decide.has_value());
  EXPECT_EQ(decide->second.target, (Version{1, 2}));
  EXPECT_EQ(decide->second.origin, (control::Decision{.fence = fence_of(1), .number = 2}));
}

TEST(Decisions, ACoordinatorWithARecordBeginsAtOnceWhenAllItsMembersHaveCome) {
  Fleet fleet({.record = record_of(2, {1, 2}, {"a", "b"})});
  fleet.from_fence("b", fence_of(1), took("b", 1, {1, 1}));
  fleet.from_fence("a", fence_of(1), took("a", 2, {1, 2}));
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kClaiming);
}

// Another host: nothing is stored there.
TEST(Decisions, WithoutARecordALateSidecarRaisesTheTargetToItsNewerDecision) {
  Fleet fleet;
  const auto b = took("b", 1, {1, 1});
  fleet.from_fence("b", fence_of(1), b);
  fleet.from("b", b);
  ASSERT_EQ(fleet.coordinator.target(), (Version{1, 1}));
  const auto a = took("a", 2, {1, 2});
  fleet.from_fence("a", fence_of(1), a);
  fleet.from("a", a);
  EXPECT_EQ(fleet.coordinator.target(), (Version{1, 2}));
  for (const SendTo& sent : fleet.sends) {
    const auto* decide = std::get_if<control::Decide>(&sent.message);
    if (decide == nullptr || sent.peer != "a") continue;
    EXPECT_EQ(decide->target, (Version{1, 2})) << "it must never be told to go back";
  }
  EXPECT_EQ(fleet.last<control::Decide>("b")->second.target, (Version{1, 2}));
}

// The same over two coordinators: that a decision was repeated does not make it newer.
TEST(Decisions, ARepeatedDecisionIsNotNewerThanTheOneThatItMissed) {
  Fleet fleet;
  auto b = took("b", 1, {1, 1});
  b.origin = b.decision;
  b.decision = {.fence = fence_of(2), .number = 1};  // 1.1 again, under the fence of the second one
  fleet.from_fence("b", fence_of(2), b);
  fleet.from("b", b);
  const auto a = took("a", 2, {1, 2});
  fleet.from("a", a);
  EXPECT_EQ(fleet.coordinator.target(), (Version{1, 2}));
}

TEST(Decisions, ANewPublishIsNewerThanAnythingThatComesLate) {
  Fleet fleet;
  fleet.join("b");
  fleet.full_round({"b"});
  const Version target = fleet.coordinator.target();
  const auto a = took("a", 9, {0, 9});
  fleet.from("a", a);
  EXPECT_EQ(fleet.coordinator.target(), target);
}

TEST(Decisions, TheNewestDecisionThatWasNotWithdrawnIsFollowed) {
  Fleet fleet({.min_sidecars = 2});
  const auto a = took("a", 2, {1, 5});
  const auto b = took("b", 1, {1, 4}, {{1, 5}});
  fleet.from_fence("a", fence_of(1), a);
  fleet.from_fence("b", fence_of(1), b);
  fleet.from("a", a);
  fleet.from("b", b);
  EXPECT_EQ(fleet.coordinator.target(), (Version{1, 4}));
  const auto decide = fleet.last<control::Decide>("a");
  ASSERT_TRUE(decide.has_value());
  EXPECT_THAT(decide->second.withdrawn, ElementsAre(Version{1, 5}));
}

TEST(Decisions, WhatOneSidecarWithdrewIsToldToAllEvenIfTheTargetStays) {
  Fleet fleet({.min_sidecars = 2});
  fleet.join_all({"a", "b"});
  fleet.full_round({"a", "b"});
  const auto before = fleet.count<control::Decide>("a");
  auto c = Fleet::hello("c");
  c.withdrawn = {{1, 7}};
  fleet.join("c", c);
  EXPECT_EQ(fleet.count<control::Decide>("a"), before + 1);
  EXPECT_THAT(fleet.last<control::Decide>("a")->second.withdrawn, ElementsAre(Version{1, 7}));
}

TEST(Decisions, WhenEverythingWasWithdrawnTheNextPublishDecides) {
  Fleet fleet({.min_sidecars = 2});
  const auto a = took("a", 2, {1, 5}, {{1, 4}});
  const auto b = took("b", 1, {1, 4}, {{1, 5}});
  fleet.from_fence("a", fence_of(1), a);
  fleet.from_fence("b", fence_of(1), b);
  fleet.from("a", a);
  fleet.from("b", b);
  EXPECT_TRUE(fleet.coordinator.target().none());
  for (const char* name : {"a", "b"}) {
    const auto decide = fleet.last<control::Decide>(name);
    ASSERT_TRUE(decide.has_value()) << "what was withdrawn goes to all";
    EXPECT_TRUE(decide->second.target.none());
    EXPECT_EQ(decide->second.withdrawn.size(), 2U);
    fleet.from(name, control::Decided{.number = decide->second.number});
  }
  fleet.full_round({"a", "b"});
  EXPECT_TRUE(fleet.rounds.back().reply.ok) << fleet.rounds.back().reply.reason;
  EXPECT_EQ(fleet.last<control::Decide>("a")->second.withdrawn.size(), 2U);
}

// ---- told again ----

TEST(Decisions, ADecisionThatWasNotStoredIsSentAgainAfterASecondThenAfterTwo) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  fleet.publish();
  fleet.accept("a");
  fleet.staged("a");
  const std::uint64_t number = fleet.last<control::Decide>("a")->second.number;
  const auto refuse = [&] {
    fleet.from("a", control::Decided{.number = number, .refused = true, .reason = "no space left"});
  };
  refuse();
  ASSERT_EQ(fleet.rounds.size(), 2U);
  EXPECT_THAT(fleet.rounds[1].reply.reason, HasSubstr("no space left"));
  std::size_t sent = fleet.count<control::Decide>("a");
  for (const int pause_s : {1, 2, 4, 8, 16, 30, 30}) {
    fleet.now = fleet.now + (std::chrono::seconds(pause_s) - std::chrono::milliseconds(1));
    fleet.step(CoordinatorTick{});
    EXPECT_EQ(fleet.count<control::Decide>("a"), sent) << "before " << pause_s << " s";
    fleet.now = fleet.now + std::chrono::milliseconds(1);
    fleet.step(CoordinatorTick{});
    EXPECT_EQ(fleet.count<control::Decide>("a"), ++sent) << "it is owed after " << pause_s << " s";
    refuse();
  }
  fleet.from("a", control::Decided{.number = number});
  const std::size_t all = fleet.count<control::Decide>("a");
  fleet.now = fleet.now + std::chrono::hours(1);
  fleet.step(CoordinatorTick{});
  EXPECT_EQ(fleet.count<control::Decide>("a"), all) << "it has said Decided";
}

TEST(Decisions, AReplicaWhoseSidecarOwesARollbackIsNotReady) {
  Fleet fleet({.min_sidecars = 2});
  fleet.join_all({"a", "b"});
  fleet.full_round({"a", "b"});
  const Version first = fleet.coordinator.target();
  fleet.full_round({"a", "b"});
  const Version second = fleet.coordinator.target();
  fleet.step(RollbackRequested{.request = 3});
  fleet.switched("b");
  const std::uint64_t number = fleet.last<control::Decide>("a")->second.number;
  fleet.from("a", control::Decided{.number = number, .refused = true, .reason = "no space left"});
  ASSERT_EQ(fleet.rollbacks.size(), 1U);
  EXPECT_TRUE(fleet.rollbacks[0].reply.partial);
  const auto beat = [&](const Version& version) {
    fleet.from("a", control::Heartbeat{.target = version,
                                       .staged = {first, second},
                                       .replicas = {{.replica = "r-a",
                                                     .ranks_attached = 1,
                                                     .state = control::ReplicaState::kServing,
                                                     .ready = true,
                                                     .version = version}}});
  };
  beat(second);
  EXPECT_FALSE(replica_of(fleet, "a").ready) << "it serves what was withdrawn";
  EXPECT_THAT(replica_of(fleet, "a").reason, HasSubstr("was withdrawn"));
  EXPECT_THAT(replica_of(fleet, "a").reason, HasSubstr("no space left"));
  EXPECT_TRUE(replica_of(fleet, "b").ready);
  // The same rollback once more goes to everybody under a new number.
  fleet.step(RollbackRequested{.request = 4, .to = first});
  EXPECT_EQ(fleet.last<control::Decide>("a")->second.number, number + 1);
  EXPECT_EQ(fleet.last<control::Decide>("a")->second.target, first);
  fleet.switched("a");
  fleet.switched("b");
  ASSERT_EQ(fleet.rollbacks.size(), 2U);
  EXPECT_TRUE(fleet.rollbacks[1].reply.ok) << fleet.rollbacks[1].reply.reason;
  EXPECT_EQ(fleet.rollbacks[1].reply.from, second);
  beat(first);
  EXPECT_TRUE(replica_of(fleet, "a").ready);
}

TEST(Decisions, ARollbackIsPartialWhileAMemberOfTheRecordHasNotCome) {
  auto record = record_of(2, {1, 2}, {"a", "b"});
  Fleet fleet({.record = record});
  auto a = took("a", 2, {1, 2});
  a.staged = {{1, 1}, {1, 2}};
  fleet.from_fence("a", fence_of(1), a);
  fleet.wake();
  fleet.from("a", a);
  fleet.step(RollbackRequested{.request = 3});
  fleet.switched("a");
  ASSERT_EQ(fleet.rollbacks.size(), 1U);
  EXPECT_TRUE(fleet.rollbacks[0].reply.partial);
  EXPECT_THAT(fleet.rollbacks[0].reply.reason, HasSubstr("sidecar 'b' (it has not connected"));
}

TEST(Decisions, WhoLeavesIsNotWaitedForByTheNextCoordinator) {
  Fleet fleet({.min_sidecars = 2});
  fleet.join_all({"a", "b"});
  fleet.from("b", control::Heartbeat{});  // its engine has ended
  fleet.from("b", control::Leave{});
  EXPECT_THAT(fleet.record.members, ElementsAre("a"));
}

TEST(Decisions, WhoLeavesWhileItsEngineServesIsExpectedBack) {
  Fleet fleet({.min_sidecars = 2});
  fleet.join_all({"a", "b"});
  fleet.full_round({"a", "b"});
  fleet.from("b", control::Leave{});
  EXPECT_THAT(fleet.record.members, ElementsAre("a", "b"));
  const Member& b = fleet.coordinator.roster().members().at("b");
  EXPECT_FALSE(b.joined);
  EXPECT_FALSE(b.has_left);
  EXPECT_FALSE(b.report.connected);
  ASSERT_EQ(b.report.replicas.size(), 1U);
  EXPECT_EQ(b.report.replicas[0].reason, "its sidecar is not connected");
  fleet.full_round({"a"});  // nobody waits for it
  fleet.join("b");
  EXPECT_TRUE(fleet.coordinator.roster().members().at("b").joined);
}

// ---- fleets, names and bytes ----

TEST(Fleets, ASidecarOfAnotherFleetIsRefusedAndChangesNothing) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  const control::FleetId other{.high = 9, .low = 9};
  auto stray = took("stray", 50, {40, 1});
  stray.decision.fence = fence_of(1'000, other);
  fleet.from_fence("stray", fence_of(1'000, other), stray);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady);
  EXPECT_EQ(fleet.coordinator.roster().members().size(), 1U);
  const auto error = fleet.last<control::ErrorReply>("stray");
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->second.message, HasSubstr(other.to_string()));
  EXPECT_THAT(error->second.message, HasSubstr(kFleetId.to_string()));
  fleet.from_fence("stray", fence_of(1'000, other), control::Heartbeat{});
  fleet.from_fence("a", fence_of(1'000, other), control::Heartbeat{});
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady);
  fleet.full_round({"a"});
  EXPECT_TRUE(fleet.rounds.back().reply.ok);
}

class UnknownFleet : public ::testing::Test {
 protected:
  static CoordinatorOptions options() { return {.new_fleet_id = {.high = 3, .low = 4}}; }
  Fleet fleet_{options()};
  const control::FleetId other_{.high = 9, .low = 9};
};

TEST_F(UnknownFleet, TakesTheIdThatASidecarNamesWithinTheWindow) {
  fleet_.from_fence("new", kNoFence, Fleet::hello("new"));
  EXPECT_EQ(fleet_.coordinator.phase(), CoordinatorPhase::kGathering) << "another may name one";
  fleet_.from_fence("a", fence_of(1), took("a", 1, {1, 1}));
  fleet_.wake();
  EXPECT_EQ(fleet_.coordinator.fence().fleet, kFleetId);
}

TEST_F(UnknownFleet, MakesANewOneWhenNobodyNamesOne) {
  fleet_.from_fence("new", kNoFence, Fleet::hello("new"));
  fleet_.wake();
  EXPECT_EQ(fleet_.coordinator.fence().fleet, options().new_fleet_id);
}

TEST_F(UnknownFleet, StopsWhenTwoAreNamed) {
  fleet_.from_fence("a", fence_of(1), took("a", 1, {1, 1}));
  auto b = took("b", 1, {1, 1});
  b.decision.fence.fleet = other_;
  fleet_.from_fence("b", fence_of(1, other_), b);
  fleet_.wake();
  EXPECT_EQ(fleet_.coordinator.phase(), CoordinatorPhase::kStopped);
  EXPECT_THAT(fleet_.stop_reason, HasSubstr("set fleet_id"));
  EXPECT_THAT(fleet_.stop_reason, HasSubstr("'a' reports " + kFleetId.to_string()));
  EXPECT_THAT(fleet_.stop_reason, HasSubstr("'b' reports " + other_.to_string()));
}

// A sidecar without a record may come sooner than the fleet that the coordinator is really for.
TEST_F(UnknownFleet, AnIdUnderWhichNothingWasDecidedGivesWayToOneThatIsNamed) {
  fleet_.from_fence("new", kNoFence, Fleet::hello("new"));
  fleet_.wake();
  fleet_.from("new", Fleet::hello("new"));
  ASSERT_EQ(fleet_.coordinator.phase(), CoordinatorPhase::kReady);
  const auto a = took("a", 3, {1, 3});
  fleet_.from_fence("a", fence_of(5), a);
  EXPECT_EQ(fleet_.coordinator.fence().fleet, kFleetId);
  EXPECT_EQ(fleet_.coordinator.fence().epoch, 6U);
  fleet_.from("a", a);
  fleet_.from("new", Fleet::hello("new"));
  EXPECT_EQ(fleet_.coordinator.target(), (Version{1, 3}));
  EXPECT_EQ(fleet_.coordinator.roster().joined_count(), 2U);
  auto b = took("b", 1, {1, 1});
  b.decision.fence.fleet = other_;
  fleet_.from_fence("b", fence_of(9, other_), b);
  EXPECT_EQ(fleet_.coordinator.fence().fleet, kFleetId) << "now it binds";
  EXPECT_TRUE(fleet_.last<control::ErrorReply>("b").has_value());
}

TEST(Fleets, ASidecarThatHasDecidedNothingMayComeFromAnotherFleet) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  fleet.from_fence("b", fence_of(50, {.high = 9, .low = 9}), Fleet::hello("b"));
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady);
  EXPECT_EQ(fleet.count<control::Welcome>("b"), 1U);
}

// What no sidecar can have stored is refused, and aborts nobody.
TEST(Hellos, ADecisionAboveTheFenceOfItsSidecarIsRefused) {
  for (const control::Fence& above : {fence_of(9), control::Fence{.epoch = 1, .run_id = {9, 9}}}) {
    Fleet fleet;
    fleet.join("a");
    auto b = Fleet::hello("b");
    b.decision = {.fence = above, .number = 1};
    b.origin = b.decision;
    b.target = {1, 1};
    fleet.from("b", b);
    ASSERT_TRUE(fleet.last<control::ErrorReply>("b").has_value());
    EXPECT_EQ(fleet.coordinator.roster().members().size(), 1U);
  }
}

TEST(Decisions, ASidecarThatKnowsOnlyWhatIsWithdrawnMayJoin) {
  Fleet fleet;
  auto a = Fleet::hello("a");
  a.decision = {.fence = fence_of(1), .number = 3};  // one without a target
  control::Envelope envelope;
  envelope.fence = fence_of(1);
  fleet.step(PeerMessage{.peer = "a", .envelope = envelope, .message = a});
  EXPECT_EQ(fleet.count<control::ErrorReply>("a"), 0U);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kClaiming);
}

TEST(Decisions, WhoLeavesWhileThatDecidesIsNotInTheRecord) {
  Fleet fleet({.min_sidecars = 2});
  fleet.join_all({"a", "b"});
  fleet.publish();
  for (const char* name : {"a", "b"}) fleet.accept(name);
  fleet.staged("a");
  fleet.from("b", control::Heartbeat{});  // its engine has ended
  fleet.from("b", control::Leave{});      // now every live sidecar has staged
  EXPECT_EQ(fleet.count<control::Decide>("a"), 1U);
  EXPECT_THAT(fleet.record.members, ElementsAre("a"));
}

TEST(Decisions, APublishThatWaitsForAStoreCanBeCancelled) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  fleet.full_round({"a"});
  fleet.hold_stores = true;
  fleet.step(RollbackRequested{.request = 3});
  fleet.publish(9);
  const auto cancelled = fleet.cancel({1, 3});
  EXPECT_TRUE(cancelled.ok) << cancelled.reason;
  EXPECT_EQ(fleet.rounds.back().request, 9U);
  EXPECT_TRUE(fleet.rounds.back().cancelled);
  fleet.answer_store();
  EXPECT_EQ(fleet.coordinator.target(), (Version{1, 1}));
}

// ---- releases of one protocol version ----

TEST(Capabilities, ASidecarGetsTheFieldsThatItsProcessHasNamed) {
  Fleet fleet;
  auto older = Fleet::hello("a");
  older.capabilities = 0;
  auto newer = Fleet::hello("b");
  newer.capabilities = ~control::Capabilities{0};
  fleet.join("a", older);
  fleet.join("b", newer);
  EXPECT_EQ(fleet.last<control::Welcome>("a")->second.capabilities, control::kCapabilities);
  EXPECT_EQ(fleet.last<control::Welcome>("a")->first.capabilities, 0U);
  EXPECT_EQ(fleet.last<control::Welcome>("b")->first.capabilities, control::kCapabilities);
  fleet.publish(5);
  EXPECT_EQ(fleet.last<control::Announce>("a")->first.capabilities, 0U);
  EXPECT_EQ(fleet.last<control::Announce>("b")->first.capabilities, control::kCapabilities);
  // It is upgraded.
  older.capabilities = control::kCapabilities;
  fleet.restarted("a2", older);
  EXPECT_EQ(fleet.last<control::Welcome>("a2")->first.capabilities, control::kCapabilities);
}

TEST(Decisions, ARollbackWaitsForNoReplicaThatIsSuspended) {
  for (const bool is_suspended : {true, false}) {
    Fleet fleet;
    fleet.join("a");
    fleet.full_round({"a"});
    const Version first = fleet.coordinator.target();
    fleet.full_round({"a"});
    fleet.step(RollbackRequested{.request = 3});
    const auto decide = fleet.last<control::Decide>("a");
    ASSERT_TRUE(decide.has_value());
    fleet.from("a", control::Decided{.number = decide->second.number});
    fleet.from("a", control::Switched{.number = decide->second.number,
                                      .target = first,
                                      .outcomes = {{.replica = "r-a",
                                                    .outcome = control::SwitchOutcome::kFailed,
                                                    .reason = "rank 0 sleeps",
                                                    .is_suspended = is_suspended}}});
    ASSERT_EQ(fleet.rollbacks.size(), 1U);
    EXPECT_EQ(fleet.rollbacks[0].reply.ok, is_suspended) << fleet.rollbacks[0].reply.reason;
    EXPECT_EQ(fleet.rollbacks[0].reply.partial, !is_suspended);
    EXPECT_EQ(fleet.rollbacks[0].reply.outcomes.size(), 1U);
  }
}

TEST(Names, ASecondSidecarOfANameIsRefusedWhileTheFirstLives) {
  Fleet fleet;
  fleet.join("a");
  auto second = Fleet::hello("a");
  second.pid = 77;
  second.host = "elsewhere";
  fleet.from("other", second);
  const auto error = fleet.last<control::ErrorReply>("other");
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->second.message, HasSubstr("process 77 on elsewhere is refused"));
  EXPECT_EQ(fleet.coordinator.roster().members().at("a").peer, "a");
  fleet.step(PeerLost{.peer = "a", .reason = "silent"});
  fleet.from("other", second);
  EXPECT_EQ(fleet.coordinator.roster().members().at("a").peer, "other");
  EXPECT_TRUE(fleet.coordinator.roster().members().at("a").joined);
}

// Else one of the two would stay connected for ever when that process has gone.
TEST(Names, AProcessHasOneName) {
  Fleet fleet;
  fleet.join("a");
  fleet.from("a", Fleet::hello("b"));
  const auto error = fleet.last<control::ErrorReply>("a");
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->second.message, HasSubstr("it is already connected as sidecar 'a'"));
  fleet.step(PeerLost{.peer = "a", .reason = "silent"});
  EXPECT_EQ(fleet.coordinator.roster().joined_count(), 0U);
}

TEST(Bytes, OtherBytesUnderTheTargetsNameAreAnIncidentAndNeverReady) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  auto b = Fleet::hello("b", {fleet.coordinator.target()});
  b.decision = {.fence = fence_of(0), .number = 1};
  b.target = fleet.coordinator.target();
  b.target_content = {99, 99};
  b.replicas[0].ready = true;
  b.replicas[0].state = control::ReplicaState::kServing;
  b.replicas[0].version = b.target;
  fleet.from_fence("b", fence_of(0), b);
  fleet.from("b", b);
  EXPECT_FALSE(replica_of(fleet, "b").ready);
  EXPECT_THAT(replica_of(fleet, "b").reason, HasSubstr("different bytes"));
  ASSERT_EQ(fleet.incidents.size(), 1U);
  EXPECT_THAT(fleet.incidents[0], HasSubstr("sidecar 'b' has different bytes under the name"));
}

TEST(Bytes, EachDamageThatAScrubFindsIsAnIncidentOnce) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  control::Heartbeat beat{.target = fleet.coordinator.target(),
                          .staged = {fleet.coordinator.target()},
                          .replicas = Fleet::hello("a").replicas};
  fleet.from("a", beat);
  EXPECT_TRUE(fleet.incidents.empty());
  beat.replicas[0].mismatches = 1;
  beat.replicas[0].last_mismatch = "rank 1: tensor w";
  fleet.from("a", beat);
  fleet.from("a", beat);
  EXPECT_THAT(fleet.incidents,
              ElementsAre(AllOf(HasSubstr("sidecar 'a', replica " + beat.replicas[0].replica),
                                HasSubstr("damaged memory: rank 1: tensor w"))));
  beat.replicas[0].mismatches = 2;
  fleet.from("a", beat);
  EXPECT_EQ(fleet.incidents.size(), 2U);
}

// ---- the rule of every store ----

TEST(CheckReplaces, AClaimMustBeAboveAndADecisionUnderTheStoredClaim) {
  CoordinatorRecord stored = record_of(4, {1, 4}, {"a"});
  CoordinatorRecord next = stored;
  EXPECT_TRUE(check_replaces(next, std::nullopt).has_value());
  EXPECT_TRUE(check_replaces(next, stored).has_value());
  next.number = 0;
  next.fence.run_id = {8, 8};
  EXPECT_EQ(check_replaces(next, stored).error().code(), ErrorCode::kFenced) << "the same epoch";
  next.fence.epoch = 2;
  EXPECT_TRUE(check_replaces(next, stored).has_value());
  next.number = 5;
  EXPECT_EQ(check_replaces(next, stored).error().code(), ErrorCode::kFenced) << "never claimed";
  next.fence.fleet = {.high = 1, .low = 1};
  EXPECT_EQ(check_replaces(next, stored).error().code(), ErrorCode::kRefused);
}

TEST(CheckReplaces, AClaimTakesOverWhatWasDecidedSinceItsRecordWasRead) {
  CoordinatorRecord next = record_of(1, {1, 1}, {"a"});
  next.withdrawn = {{1, 9}};
  const CoordinatorRecord stored = record_of(2, {1, 2}, {"b"});
  const CoordinatorRecord claim = after_claim(next, stored);
  EXPECT_EQ(claim.target, (Version{1, 2}));
  EXPECT_EQ(claim.origin, stored.origin);
  EXPECT_EQ(claim.content, stored.content);
  EXPECT_THAT(claim.withdrawn, ElementsAre(Version{1, 9}));
  EXPECT_THAT(claim.members, ElementsAre("a", "b"));
  next.withdrawn = {{1, 2}};
  EXPECT_EQ(after_claim(next, stored).target, (Version{1, 1})) << "the newer one was withdrawn";
}

class FileStore : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "wsync_store_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path directory_;
};

TEST_F(FileStore, GivesBackWhatWasWrittenAndKeepsTwoCoordinatorsApart) {
  FileDecisionStore store(directory_, Claim::kIfFree);
  ASSERT_TRUE(store.read().has_value());
  EXPECT_FALSE(store.read().value().has_value());
  CoordinatorRecord record = record_of(3, {1, 3}, {"a", "b c"});
  record.withdrawn = {{1, 2}};
  record.kind = control::DecisionKind::kRollback;
  ASSERT_TRUE(store.write(record).has_value());
  EXPECT_EQ(store.read().value(), record);

  FileDecisionStore other(directory_, Claim::kIfFree);  // of another process
  CoordinatorRecord claim = record_of(1, {1, 1}, {});
  claim.fence = fence_of(2);
  claim.number = 0;
  const auto stored = other.write(claim);
  ASSERT_TRUE(stored.has_value()) << stored.error().message();
  EXPECT_EQ(stored->target, (Version{1, 3})) << "the first one's decision is not forgotten";
  record.number = 4;
  const auto late = store.write(record);
  ASSERT_FALSE(late.has_value()) << "a coordinator that was replaced has written";
  EXPECT_EQ(late.error().code(), ErrorCode::kFenced);
  EXPECT_EQ(store.read().value(), *stored);
}

TEST_F(FileStore, ADamagedFileIsNamedAndNotReplaced) {
  FileDecisionStore store(directory_, Claim::kIfFree);
  const CoordinatorRecord record = record_of(3, {1, 3}, {"a"});
  const Bytes whole = encode(record);
  for (std::size_t i = 0; i < whole.size(); i += 7) {
    Bytes bytes = whole;
    bytes[i] ^= std::byte{1};
    ASSERT_TRUE(write_durably(store.path(), bytes).has_value());
    const auto read = store.read();
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(read.error().message(), HasSubstr("coordinator.decisions is damaged"));
    EXPECT_FALSE(store.write(record).has_value());
  }
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(decode_coordinator_record(std::span(whole).first(size)).has_value());
}

}  // namespace
}  // namespace wsync::coordinator
