// A round alone: its states, its deadlines and what it asks for. (update_round_test.cc drives
// whole rounds through the Coordinator.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/limits.h"
#include "shared/control/codec.h"
#include "trainer_side/coordinator/update_round.h"

namespace wsync::coordinator {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

const control::TransportAddress kTrainer{.kind = "tcp", .address = "tcp://trainer:1"};

class RoundTest : public testing::Test {
 protected:
  RoundTest() {
    context_.now = TimePoint{1'000'000'000};
    context_.options.transports = {kTrainer};
    for (const char* name : {"a", "b"}) {
      Member& member = context_.roster.add(name);
      member.joined = true;
      member.peer = name;
      member.transports = {{"tcp", std::string("tcp://") + name + ":1"}};
      member.report.replicas = {{.replica = "r", .world_size = 1, .ranks_attached = 1}};
    }
    (void)context_.roster.add("lost");
  }
  UpdateRound begin(std::optional<TimePoint> deadline = std::nullopt) {
    return UpdateRound::begin_publish(
        context_, {.request = 4, .version = {1, 2}, .arena_bytes = 100, .deadline = deadline});
  }
  Delivery& of(const std::string& name) { return context_.roster.add(name).delivery; }
  void announce_all() {
    for (const char* name : {"a", "b"})
      (void)of(name).announce({.version = {1, 2}}, true, ++context_.last_round, context_.now);
  }
  void stage(const std::string& name) {
    of(name).accept();
    (void)of(name).stage(kTrainer, {}, context_.now);
  }
  void stage_all(UpdateRound& round) {
    announce_all();
    round.begin_staging(context_);
    stage("a");
    stage("b");
  }

  CoordinatorContext context_;
};

TEST_F(RoundTest, APublishGoesThroughItsStates) {
  UpdateRound round = begin();
  EXPECT_THAT(round.members(), ElementsAre("a", "b")) << "those that have joined";
  announce_all();
  of("a").accept();
  EXPECT_EQ(round.advance(context_, 0), RoundStep::kWait);
  of("b").accept();
  EXPECT_EQ(round.advance(context_, 0), RoundStep::kStage);
  round.begin_staging(context_);
  for (const char* name : {"a", "b"}) {
    EXPECT_EQ(round.advance(context_, 0), RoundStep::kWait);
    (void)of(name).stage(kTrainer, {}, context_.now);
    of(name).complete();
  }
  EXPECT_EQ(round.advance(context_, 0), RoundStep::kDecide);
  EXPECT_TRUE(round.check_cancel(nullptr).has_value());
  round.begin_deciding();
  EXPECT_EQ(round.advance(context_, 0), RoundStep::kWait);
  EXPECT_EQ(round.activity(), "staging");
  EXPECT_FALSE(round.check_cancel(nullptr).has_value()) << "it may be on disc already";
  round.begin_switching(context_);
  EXPECT_EQ(round.advance(context_, 1), RoundStep::kWait);
  context_.roster.add("a").switched = 1;
  context_.roster.add("b").refused = "its disc is full";
  EXPECT_EQ(round.advance(context_, 1), RoundStep::kFinish);
  const RoundDone done = round.finish_publish(context_, 1);
  EXPECT_EQ(round.state(), RoundState::kFinished);
  EXPECT_EQ(done.request, 4U);
  EXPECT_EQ(done.reply.reason,
            "sidecar 'b': it refused the decision: its disc is full; 1.2 stays the target, and the "
            "sidecars go on trying: `wsync status` shows when every replica serves it, `wsync "
            "rollback` takes it back");
  EXPECT_EQ(control::failure_code(done.reply), ErrorCode::kPartial);
}

TEST_F(RoundTest, OnlyADecidedVersionIsPartial) {
  UpdateRound before = begin();
  stage_all(before);
  EXPECT_EQ(control::failure_code(before.abort(context_.now, "it is full", false).reply),
            ErrorCode::kRefused);
  UpdateRound after = begin();
  stage_all(after);
  after.begin_deciding();
  after.begin_switching(context_);
  // The coordinator stops in the nanosecond of its decision.
  EXPECT_EQ(control::failure_code(after.abort(context_.now, "another is newer", false).reply),
            ErrorCode::kPartial);
}

TEST_F(RoundTest, EachDeadlineIsThatOfItsStateAndNeverAfterThatOfThePublish) {
  UpdateRound round = begin();
  EXPECT_EQ(round.deadline(), context_.now + context_.options.announce);
  round.begin_staging(context_);
  EXPECT_EQ(round.deadline(), context_.now + context_.options.stage);
  const TimePoint soon = context_.now + milliseconds(1);
  UpdateRound bounded = begin(soon);
  EXPECT_EQ(bounded.deadline(), soon);
  bounded.begin_staging(context_);
  EXPECT_EQ(bounded.deadline(), soon);
  context_.now = soon;
  const auto over = bounded.why_over(context_);
  ASSERT_TRUE(over.has_value());
  EXPECT_THAT(*over, HasSubstr("deadlines.publish"));
}

TEST_F(RoundTest, OnlyThoseThatOweAnAnswerAreLate) {
  UpdateRound round = begin();
  announce_all();
  of("a").accept();
  EXPECT_FALSE(round.why_over(context_).has_value());
  EXPECT_FALSE(round.is_late(context_.roster.add("a")));
  EXPECT_TRUE(round.is_late(context_.roster.add("b")));
  EXPECT_FALSE(round.is_late(context_.roster.add("lost"))) << "it is no member";
}

TEST_F(RoundTest, ReplicasThatLackAreWaitedForOnce) {
  context_.options.min_replicas = 3;
  UpdateRound round = begin();
  stage_all(round);
  of("a").complete();
  of("b").complete();
  EXPECT_EQ(round.advance(context_, 0), RoundStep::kWait);
  const TimePoint until = context_.now + context_.options.attach;
  EXPECT_EQ(round.deadline(), until);
  context_.now = context_.now + milliseconds(1);
  EXPECT_EQ(round.advance(context_, 0), RoundStep::kWait);
  EXPECT_EQ(round.deadline(), until) << "a heartbeat does not prolong it";
  EXPECT_THAT(round.why_over(context_).value_or(""),
              StartsWith("2 whole replicas have staged 1.2; the round needs 3"));
  context_.roster.add("a").report.replicas.push_back(
      {.replica = "s", .world_size = 1, .ranks_attached = 1});
  EXPECT_EQ(round.advance(context_, 0), RoundStep::kDecide);
}

// Nobody can act on "no engine is attached" if it stands for several causes.
TEST_F(RoundTest, EachCauseOfAMissingReplicaHasItsSentence) {
  context_.roster.add("a").report.replicas.clear();
  context_.roster.add("b").report.replicas = {
      {.replica = "tp", .world_size = 2, .ranks_attached = 1, .reason = "rank 1 is not attached"},
      {.replica = "bad", .reason = "rank 0 was refused: lm_head: expected BF16, found F32"}};
  UpdateRound round = begin();
  stage_all(round);
  of("a").complete();
  of("b").complete();
  ASSERT_EQ(round.advance(context_, 0), RoundStep::kWait);
  const std::string causes =
      "no engine has attached to sidecar 'a' yet (an engine attaches when its memory is "
      "allocated); replica 'tp' has 1 of 2 ranks (rank 1 is not attached); replica 'bad' has 0 of "
      "1 ranks (rank 0 was refused: lm_head: expected BF16, found F32)";
  EXPECT_EQ(round.why_over(context_).value_or(""), "1.2 is staged, and no replica can load it: " +
                                                       causes + "; publish again when one can");
  context_.options.min_replicas = 2;
  context_.roster.add("b").report.replicas.push_back(
      {.replica = "whole", .world_size = 1, .ranks_attached = 1});
  EXPECT_THAT(round.why_over(context_).value_or(""), HasSubstr("`min_replicas` (" + causes + ")"));
}

TEST_F(RoundTest, AQuorumAndEachNeedNotWaitForAll) {
  for (const CommitRule rule : {CommitRule::kAll, CommitRule::kQuorum, CommitRule::kEach}) {
    context_.options.commit = {.rule = rule, .quorum = 1};
    UpdateRound round = begin();
    stage_all(round);
    of("b").complete();
    EXPECT_EQ(round.advance(context_, 0),
              rule == CommitRule::kAll ? RoundStep::kWait : RoundStep::kDecide);
  }
}

TEST_F(RoundTest, WithoutMembersItEnds) {
  UpdateRound round = begin();
  round.leave(context_.roster.add("a"), "was lost: no message for 5 s", true);
  round.leave(context_.roster.add("b"), "could not take it: no memory", false);
  EXPECT_EQ(round.advance(context_, 0), RoundStep::kAbort);
  EXPECT_EQ(round.why_empty(),
            "no sidecar is left in the round of 1.2: sidecar 'a' was lost: no message for 5 s; "
            "sidecar 'b' could not take it: no memory");
  EXPECT_FALSE(round.may_be_lost()) << "one has failed, and would fail again";
  const RoundDone done = round.abort(context_.now, round.why_empty(), false);
  EXPECT_FALSE(done.reply.ok);
  EXPECT_EQ(round.state(), RoundState::kFinished);
}

TEST_F(RoundTest, AMemberReadsFromTheNearestOneBeforeItThatRelays) {
  UpdateRound round = begin();
  stage_all(round);
  const auto source = [&](const char* name, const control::TransportAddress& served) {
    return round.chain_source(context_, context_.roster.add(name), served).address;
  };
  EXPECT_EQ(source("a", kTrainer), "tcp://trainer:1");
  EXPECT_EQ(source("b", kTrainer), "tcp://a:1");
  EXPECT_EQ(source("b", {"memfd", "/run/host.sock"}), "/run/host.sock") << "a does not serve by it";
  context_.roster.add("a").joined = false;
  EXPECT_EQ(source("b", kTrainer), "tcp://trainer:1");
}

TEST_F(RoundTest, MovedBytesAreThoseOfMembersThenOfReplicas) {
  UpdateRound round = begin();
  announce_all();
  EXPECT_EQ(round.moved(context_).total, 0U) << "nothing moves yet";
  stage_all(round);
  context_.roster.add("a").staged_bytes = 30;
  of("b").complete();
  EXPECT_EQ(round.moved(context_).done, 130U);
  EXPECT_EQ(round.moved(context_).total, 200U);
}

TEST_F(RoundTest, ARollbackBeginsDecidedAndCannotBeCancelled) {
  UpdateRound round = UpdateRound::begin_rollback(context_, 6, {1, 2}, {1, 1});
  EXPECT_EQ(round.state(), RoundState::kSwitching);
  EXPECT_FALSE(round.check_cancel(nullptr).has_value());
  EXPECT_TRUE(round.invariants().has_value());
  CoordinatorRecord record;
  record.number = 3;
  record.target = {1, 1};
  record.members = {"a", "b", "never"};
  context_.roster.add("a").switched = 3;
  const RollbackDone done = round.finish_rollback(context_, record);
  EXPECT_EQ(done.request, 6U);
  EXPECT_TRUE(done.reply.partial);
  EXPECT_THAT(done.reply.reason,
              StartsWith("1.2 is withdrawn, but these have not switched back yet"));
  EXPECT_THAT(done.reply.reason, HasSubstr("'never' (it has not connected to this coordinator)"));
}

// A round in its switch, in which `a` and `b` have reported these outcomes.
void switch_with(CoordinatorContext& context, UpdateRound& round,
                 std::vector<control::ReplicaOutcome> of_a,
                 std::vector<control::ReplicaOutcome> of_b) {
  round.begin_deciding();
  round.begin_switching(context);
  context.roster.add("a").outcomes = std::move(of_a);
  context.roster.add("b").outcomes = std::move(of_b);
  for (const char* name : {"a", "b"}) context.roster.add(name).switched = 1;
}

std::vector<control::ReplicaOutcome> outcomes_of(std::size_t count) {
  return std::vector<control::ReplicaOutcome>(
      count, {.replica = "r", .outcome = control::SwitchOutcome::kCommitted, .version = {1, 2}});
}

TEST_F(RoundTest, AReplyOfTenThousandReplicasNamesAllOfThem) {
  UpdateRound round = begin();
  stage_all(round);
  switch_with(context_, round, outcomes_of(8'000), outcomes_of(2'000));
  const RoundDone done = round.finish_publish(context_, 1);
  EXPECT_TRUE(done.reply.ok);
  EXPECT_EQ(done.reply.reason, "");
  EXPECT_EQ(done.reply.outcomes.size(), 10'000U);
  EXPECT_TRUE(control::encode({}, done.reply).has_value());
}

TEST_F(RoundTest, AReplySaysThatNothingHasChanged) {
  UpdateRound round = begin();
  stage_all(round);
  switch_with(context_, round, outcomes_of(1), outcomes_of(1));
  const RoundDone done = round.finish_publish(context_, 1, {1, 1});
  EXPECT_TRUE(done.reply.ok);
  EXPECT_EQ(done.reply.reason,
            "it has the content of 1.1, so engines that held that loaded nothing");
}

TEST_F(RoundTest, AReplyThatDoesNotFitItsMessageIsCutWithCounts) {
  UpdateRound round = begin();
  stage_all(round);
  switch_with(context_, round, outcomes_of(limits::kReplicaCount), outcomes_of(100));
  const RoundDone done = round.finish_publish(context_, 1);
  EXPECT_TRUE(done.reply.ok) << "the publish itself has succeeded";
  EXPECT_EQ(done.reply.reason,
            "the list of replicas leaves out 100 of 16484, of which 100 have switched");
  EXPECT_EQ(done.reply.outcomes.size(), limits::kReplicaCount);
  EXPECT_TRUE(control::encode({}, done.reply).has_value());
}

TEST_F(RoundTest, AReplyThatIsCutNamesTheFailuresFirst) {
  UpdateRound round = begin();
  stage_all(round);
  std::vector<control::ReplicaOutcome> failed = outcomes_of(1);
  failed.front().outcome = control::SwitchOutcome::kFailed;
  failed.front().reason = "out of memory";
  switch_with(context_, round, outcomes_of(limits::kReplicaCount), failed);
  const RoundDone done = round.finish_publish(context_, 1);
  EXPECT_FALSE(done.reply.ok);
  EXPECT_EQ(
      done.reply.reason,
      "replica 'r': out of memory; 1.2 stays the target, and the sidecars go on trying: `wsync "
      "status` shows when every replica serves it (now 16384 of 16385 replicas), "
      "`wsync rollback` takes it back; the list of replicas leaves out 1 of 16385, of which 1 have "
      "switched");
  EXPECT_EQ(done.reply.outcomes.front().reason, "out of memory");
}

TEST_F(RoundTest, APartialUpdateSaysWhatIsServed) {
  UpdateRound round = begin();
  stage_all(round);
  switch_with(context_, round, outcomes_of(1),
              {{.replica = "b",
                .outcome = control::SwitchOutcome::kBehind,
                .version = {1, 1},
                .reason = "rank 0 did not pause within 500 ms"}});
  EXPECT_EQ(round.finish_publish(context_, 1).reply.reason,
            "replica 'b': rank 0 did not pause within 500 ms; it still serves 1.1; 1.2 stays the "
            "target, and the sidecars go on trying: `wsync status` shows when every replica serves "
            "it (now 1 of 2 replicas), `wsync rollback` takes it back");
}

// They were there when the version was staged, and gone before the decision came to their sidecar.
TEST_F(RoundTest, APublishThatNobodySwitchesToSaysWhereTheEnginesAre) {
  UpdateRound round = begin();
  stage_all(round);
  for (const char* name : {"a", "b"})
    context_.roster.add(name).report.replicas = {
        {.replica = std::string("r-") + name,
         .world_size = 1,
         .reason = "rank 0 is suspended (process 7): it loads the target when it resumes"}};
  switch_with(context_, round, {}, {});
  EXPECT_THAT(
      round.finish_publish(context_, 1).reply.reason,
      StartsWith("no replica has switched: replica 'r-a' has 0 of 1 ranks (rank 0 is suspended "
                 "(process 7): it loads the target when it resumes); replica 'r-b' has 0 of 1 "
                 "ranks (rank 0 is suspended (process 7): it loads the target when it resumes); "
                 "1.2 stays the target, "));
}

TEST_F(RoundTest, AFailedLoadIsNamedBeforeTheVersionThatStays) {
  UpdateRound round = begin();
  stage_all(round);
  switch_with(context_, round, outcomes_of(1),
              {{.replica = "b",
                .outcome = control::SwitchOutcome::kRolledBack,
                .version = {1, 1},
                .reason = "version 1.2 could not be loaded and committed: rank 3: no memory"}});
  EXPECT_THAT(round.finish_publish(context_, 1).reply.reason,
              StartsWith("replica 'b': version 1.2 could not be loaded and committed: rank 3: no "
                         "memory; it still serves 1.1; 1.2 stays the target, "));
}

}  // namespace
}  // namespace wsync::coordinator
