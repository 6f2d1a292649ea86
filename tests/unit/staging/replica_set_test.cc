// The replicas of a sidecar: who is known, and the outcomes that a decision is owed.
#include "inference_side/staging/replica_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/versions.h"

namespace wsync::staging {
namespace {

class ReplicaSetTest : public testing::Test {
 protected:
  [[nodiscard]] static ReplicaEvent hello(const std::string& name, std::uint32_t world_size = 1) {
    return {.replica = name,
            .world_size = world_size,
            .what = reload::RankAttached{
                .rank = 0, .leader = true, .state = control::RankState::kServing, .active = kV1}};
  }
  [[nodiscard]] static ReplicaEvent lost(const std::string& name) {
    return {.replica = name, .what = reload::RankDetached{.rank = 0}};
  }
  bool handle(const ReplicaEvent& event) {
    return replicas.handle(event, record, {.versions = {kV1, kV2}}, now).has_value();
  }
  ReplicaSet::Commands decide(const Version& target, const std::string& canary = {}) {
    record.decision.number += 1;
    record.target = target;
    const control::Decide message{
        .number = record.decision.number, .kind = record.kind, .target = target, .canary = canary};
    control::Envelope envelope;
    envelope.round = 7;
    return replicas.decide(envelope, message, record, now);
  }

  // Time passes to `at`. The engines resume when they are told.
  void pass(TimePoint at) {
    now = at;
    for (const ReplicaCommand& command : replicas.tick(record, now)) {
      const auto* to = std::get_if<ForReplica>(&command);
      const auto* resume = to == nullptr ? nullptr : std::get_if<reload::SendResume>(&to->command);
      if (resume == nullptr) continue;
      EXPECT_TRUE(handle({.replica = to->replica,
                          .what = reload::RankResumed{.rank = 0, .request = resume->request}}));
    }
  }
  // The engine does not answer the pause in its turn.
  void fail_pause() {
    ASSERT_EQ(replicas.turn_counts().held, 1U);
    while (replicas.turn_counts().held > 0) pass(*replicas.next_wake());
  }

  ReplicaSet replicas{SidecarOptions{}};
  SidecarRecord record;
  TimePoint now{1};
};

TEST_F(ReplicaSetTest, ARankThatAttachesMakesItsReplicaKnown) {
  EXPECT_FALSE(handle(lost("r")));
  EXPECT_TRUE(handle(hello("r")));
  EXPECT_FALSE(handle(hello("r", 2))) << "a replica in use has one number of ranks";
  EXPECT_TRUE(handle(lost("r")));
  EXPECT_TRUE(handle(hello("r", 2)));
  EXPECT_EQ(replicas.all().at("r").world_size(), 2U);
}

TEST_F(ReplicaSetTest, ReportsOnceWhenNoReplicaOwesAnOutcome) {
  EXPECT_FALSE(replicas.take_report()) << "nothing was decided";
  ASSERT_TRUE(handle(hello("r")));
  const ReplicaSet::Commands commands = decide(kV2);
  ASSERT_EQ(commands.size(), 1U);
  const auto& pause = std::get<ForReplica>(commands[0]);
  EXPECT_EQ(pause.replica, "r");
  EXPECT_TRUE(std::holds_alternative<reload::SendPause>(pause.command));
  EXPECT_TRUE(replicas.needs(kV2));
  EXPECT_EQ(replicas.activity(), "replica 'r': pausing");
  EXPECT_EQ(replicas.outcome_state(), OutcomeState::kCollecting);
  EXPECT_FALSE(replicas.take_report());
  EXPECT_EQ(replicas.reported(record.decision), nullptr);
  while (replicas.outcome_state() == OutcomeState::kCollecting) {  // nobody answers the pause
    ASSERT_TRUE(replicas.next_wake());
    now = *replicas.next_wake();
    (void)replicas.tick(record, now);
    if (const auto report = replicas.take_report()) {
      EXPECT_EQ(report->round, 7U);
      EXPECT_EQ(report->switched.outcomes.size(), 1U);
    }
  }
  EXPECT_FALSE(replicas.take_report()) << "once";
  ASSERT_NE(replicas.reported(record.decision), nullptr);
  control::Decision other = record.decision;
  ++other.number;
  EXPECT_EQ(replicas.reported(other), nullptr);
  other = record.decision;
  ++other.fence.epoch;
  EXPECT_EQ(replicas.reported(other), nullptr) << "the same number under another fence";
}

TEST_F(ReplicaSetTest, ANewerDecisionStartsTheOutcomesAnew) {
  ASSERT_TRUE(handle(hello("r")));
  (void)decide(kV2);
  (void)decide(kV1);  // which the replica serves still
  EXPECT_TRUE(replicas.invariants(record).has_value());
  EXPECT_EQ(replicas.outcome_state(), OutcomeState::kCollecting);
}

TEST_F(ReplicaSetTest, AReplicaWithoutEnginesOwesNoOutcomeOfASwitch) {
  ASSERT_TRUE(handle(hello("r")));
  ASSERT_TRUE(handle(lost("r")));
  (void)decide(kV2);
  const auto report = replicas.take_report();
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->switched.outcomes.empty());
}

TEST_F(ReplicaSetTest, GivesAsManyTurnsAsItHasAndFirstToThoseThatHadTheFewest) {
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(handle(hello(name)));
  record.kind = control::DecisionKind::kSwitchInTurns;
  replicas.set_turns(5);
  EXPECT_TRUE(decide(kV2).empty());
  EXPECT_EQ(replicas.turns(), 0U) << "they were for the decision before";
  EXPECT_TRUE(replicas.give_turns(record, now).empty());
  EXPECT_EQ(replicas.turn_counts(), (TurnCounts{.waiting = 3, .held = 0}));
  replicas.set_turns(1);
  const auto paused = [](const ReplicaSet::Commands& commands) {
    std::vector<std::string> names;
    for (const ReplicaCommand& command : commands)
      if (const auto& to = std::get<ForReplica>(command);
          std::holds_alternative<reload::SendPause>(to.command))
        names.push_back(to.replica);
    return names;
  };
  EXPECT_EQ(paused(replicas.give_turns(record, now)), (std::vector<std::string>{"a"}));
  EXPECT_TRUE(replicas.give_turns(record, now).empty());
  EXPECT_EQ(replicas.turn_counts(), (TurnCounts{.waiting = 2, .held = 1}));
  fail_pause();
  // It is ready for another attempt, but the turn is not its own again.
  const TimePoint later = now + std::chrono::minutes(1);
  while (replicas.next_wake() && *replicas.next_wake() <= later) pass(*replicas.next_wake());
  now = later;
  EXPECT_EQ(replicas.all().at("a").turn(), control::ReplicaTurn::kWaiting);
  EXPECT_EQ(replicas.turn_of("a"), control::ReplicaTurn::kNone);
  EXPECT_EQ(replicas.turn_counts(), (TurnCounts{.waiting = 2, .held = 0}));
  EXPECT_EQ(paused(replicas.give_turns(record, now)), (std::vector<std::string>{"b"}));
  replicas.set_turns(3);
  EXPECT_EQ(paused(replicas.give_turns(record, now)), (std::vector<std::string>{"c"}));
}

TEST_F(ReplicaSetTest, UnderACanaryOnlyItOwesAnOutcomeAndGetsATurn) {
  for (const char* name : {"a", "b", "c"}) ASSERT_TRUE(handle(hello(name)));
  record.kind = control::DecisionKind::kSwitchCanary;
  EXPECT_TRUE(decide(kV2, "b").empty());
  EXPECT_EQ(replicas.turn_counts(), (TurnCounts{.waiting = 3, .held = 0}));
  EXPECT_FALSE(replicas.take_report()) << "b owes its outcome";
  replicas.set_turns(3, "b");
  const ReplicaSet::Commands commands = replicas.give_turns(record, now);
  ASSERT_EQ(commands.size(), 1U);
  EXPECT_EQ(std::get<ForReplica>(commands[0]).replica, "b");
  EXPECT_TRUE(replicas.give_turns(record, now).empty());
  (void)decide(kV2, "x");
  EXPECT_TRUE(replicas.take_report()) << "the canary is a replica of another sidecar";
}

// Otherwise they would pass one turn to each other for ever, and no other sidecar would get it.
TEST_F(ReplicaSetTest, TwoReplicasThatFailGiveTheirTurnBack) {
  for (const char* name : {"a", "b"}) ASSERT_TRUE(handle(hello(name)));
  record.kind = control::DecisionKind::kSwitchInTurns;
  EXPECT_TRUE(decide(kV2).empty());
  for (int round = 0; round < 3; ++round) {
    replicas.set_turns(1);
    EXPECT_EQ(replicas.turn_counts(), (TurnCounts{.waiting = 2, .held = 0}));
    for (int turn = 0; turn < 2; ++turn) {
      EXPECT_EQ(replicas.give_turns(record, now).size(), 1U);
      fail_pause();
    }
    const TimePoint later = now + std::chrono::minutes(2);
    while (replicas.next_wake() && *replicas.next_wake() <= later) pass(*replicas.next_wake());
    now = later;
    EXPECT_EQ(replicas.turn_counts(), (TurnCounts{})) << "it needs no turn, as it reports";
    EXPECT_TRUE(replicas.give_turns(record, now).empty());
    replicas.set_turns(0);  // the answer of the coordinator, which has given it to another sidecar
  }
}

TEST_F(ReplicaSetTest, ARollbackSaysThatAReplicaHasNoEngine) {
  ASSERT_TRUE(handle(hello("a")));
  ASSERT_TRUE(handle(lost("a")));
  (void)decide(kV2);
  EXPECT_THAT(replicas.take_report()->switched.outcomes, testing::IsEmpty());
  record.kind = control::DecisionKind::kRollback;
  (void)decide(kV1);
  const auto report = replicas.take_report();
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->switched.outcomes.size(), 1U);
  EXPECT_EQ(report->switched.outcomes[0].reason, "rank 0 is not attached");
}

class ForgottenReplicas : public ReplicaSetTest {
 protected:
  static constexpr std::chrono::minutes kForgetAfter{10};
  ForgottenReplicas() {
    SidecarOptions options;
    options.forget_after = kForgetAfter;
    replicas = ReplicaSet(options);
  }
};

TEST_F(ForgottenReplicas, OneWithoutEnginesAfterItsTime) {
  ASSERT_TRUE(handle(hello("a")));
  ASSERT_TRUE(handle(hello("b", 2)));
  ASSERT_TRUE(handle(lost("a")));
  const TimePoint due = now + kForgetAfter;
  EXPECT_EQ(replicas.next_wake(), due);
  EXPECT_TRUE(replicas.due_to_forget(now).empty());
  EXPECT_EQ(replicas.due_to_forget(due), (std::vector<std::string>{"a"}));
  replicas.forget("a");
  EXPECT_FALSE(replicas.all().contains("a"));
  EXPECT_TRUE(replicas.all().contains("b")) << "one of its ranks is attached";
  EXPECT_FALSE(replicas.next_wake().has_value());
  EXPECT_FALSE(handle(lost("a"))) << "it is unknown";
  EXPECT_TRUE(handle(hello("a", 4))) << "a new one";
}

TEST_F(ForgottenReplicas, OneThatAttachesInTimeIsKept) {
  ASSERT_TRUE(handle(hello("a")));
  ASSERT_TRUE(handle(lost("a")));
  ASSERT_TRUE(handle(hello("a")));
  EXPECT_TRUE(replicas.due_to_forget(now + 2 * kForgetAfter).empty());
  now = now + kForgetAfter / 2;
  ASSERT_TRUE(handle(lost("a")));
  ASSERT_TRUE(handle(lost("a")));
  EXPECT_TRUE(replicas.due_to_forget(now + kForgetAfter / 2).empty()) << "its time begins again";
  EXPECT_FALSE(replicas.due_to_forget(now + kForgetAfter).empty());
}

TEST_F(ForgottenReplicas, OneThatIsLostInItsSwitchOwesNothingAndIsForgotten) {
  ASSERT_TRUE(handle(hello("a")));
  ASSERT_EQ(decide(kV2).size(), 1U);
  EXPECT_FALSE(replicas.take_report().has_value());
  ASSERT_TRUE(handle(lost("a")));  // in the middle of its pause
  const auto report = replicas.take_report();
  ASSERT_TRUE(report.has_value()) << "nobody is left that could end the switch";
  ASSERT_EQ(report->switched.outcomes.size(), 1U);
  EXPECT_EQ(report->switched.outcomes[0].outcome, control::SwitchOutcome::kFailed);
  const TimePoint later = now + kForgetAfter;
  while (replicas.next_wake() && *replicas.next_wake() < later) pass(*replicas.next_wake());
  EXPECT_EQ(replicas.next_wake(), later);
  EXPECT_EQ(replicas.due_to_forget(later).size(), 1U);
}

TEST_F(ForgottenReplicas, OnRequestOnlyWithoutEngines) {
  EXPECT_EQ(replicas.check_forget("a").error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(handle(hello("a", 2)));
  EXPECT_EQ(replicas.check_forget("a").error().message(),
            "replica 'a' has 1 of 2 ranks attached: stop its engines first");
  ASSERT_TRUE(handle(lost("a")));
  EXPECT_TRUE(replicas.check_forget("a").has_value());
}

TEST_F(ReplicaSetTest, WithoutATimeNoneIsForgotten) {
  ASSERT_TRUE(handle(hello("a")));
  ASSERT_TRUE(handle(lost("a")));
  EXPECT_FALSE(replicas.next_wake().has_value());
  EXPECT_TRUE(replicas.due_to_forget(now + std::chrono::hours(100)).empty());
}

TEST_F(ReplicaSetTest, InvariantsNameAReplicaWithAnotherTarget) {
  ASSERT_TRUE(handle(hello("r")));
  record.target = kV2;
  ASSERT_FALSE(replicas.invariants(record).has_value());
  EXPECT_EQ(replicas.invariants(record).error().message(),
            "replica 'r' switches to a version that is not the target");
  record.withdrawn = {kV2};
  EXPECT_TRUE(replicas.invariants(record).has_value()) << "nothing is left to work towards";
}

}  // namespace
}  // namespace wsync::staging
