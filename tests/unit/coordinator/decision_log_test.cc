// The decision log alone: its states, what comes into force when, and which decision is followed.
#include "trainer_side/coordinator/decision_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr control::Fence kOwn{.epoch = 3, .run_id = {7, 7}, .fleet = {.high = 1, .low = 1}};

// The last record that was given to the store.
const Store& last_store(const CoordinatorContext& context) {
  return std::get<Store>(context.commands.back());
}

class DecisionLogTest : public testing::Test {
 protected:
  void claim() {
    log_.store_claim(context_, kOwn);
    const StoreOutcome outcome = answer();
    ASSERT_EQ(outcome.ended, StoreOutcome::Ended::kClaim);
  }
  StoreOutcome answer() {
    const Store store = last_store(context_);
    return log_.handle(context_, {.token = store.token, .record = store.record});
  }
  StoreOutcome answer(ErrorCode code, const std::string& why) {
    return log_.handle(context_, {.token = last_store(context_).token, .record = fail(code, why)});
  }
  Member& join(const std::string& name, std::vector<Version> staged = {}) {
    Member& member = context_.roster.add(name);
    member.joined = true;
    member.report.staged = std::move(staged);
    return member;
  }

  CoordinatorContext context_;
  DecisionLog log_{std::nullopt};
};

TEST_F(DecisionLogTest, AClaimAndADecisionComeIntoForceWhenTheyAreStored) {
  log_.store_claim(context_, kOwn);
  EXPECT_EQ(log_.state(), DecisionLogState::kStoringClaim);
  EXPECT_EQ(log_.record().fence.epoch, 0U);
  EXPECT_EQ(context_.fence.epoch, 0U) << "nothing may be sent under it yet";
  EXPECT_EQ(answer().ended, StoreOutcome::Ended::kClaim);
  EXPECT_EQ(context_.fence, kOwn);

  log_.decide(context_, {.target = {3, 1}, .content = {9, 9}}, nullptr);
  EXPECT_EQ(log_.state(), DecisionLogState::kStoringDecision);
  EXPECT_TRUE(log_.record().target.none());
  ASSERT_NE(log_.pending(), nullptr);
  EXPECT_EQ(log_.pending()->number, 1U);
  EXPECT_EQ(answer().ended, StoreOutcome::Ended::kDecision);
  EXPECT_EQ(log_.state(), DecisionLogState::kIdle);
  EXPECT_EQ(log_.record().target, (Version{3, 1}));
  EXPECT_EQ(log_.record().origin, (control::Decision{kOwn, 1})) << "a new one is its own origin";
  EXPECT_TRUE(log_.invariants().has_value());
}

// A sidecar that could not store the decisions since still holds a copy of 3.2.
TEST_F(DecisionLogTest, NoRollbackGoesToAVersionThatWasOnlyOffered) {
  claim();
  for (const std::uint32_t step : {1U, 2U, 3U}) {
    log_.note_offered({3, step});
    if (step == 2) continue;  // its publish has failed
    log_.decide(context_, {.target = {3, step}}, nullptr);
    ASSERT_EQ(answer().ended, StoreOutcome::Ended::kDecision);
  }
  join("a", {{3, 1}, {3, 2}, {3, 3}}).released_undecided = true;
  EXPECT_EQ(log_.rollback_target(context_.roster), (Version{3, 1}));
  EXPECT_EQ(log_.choose_rollback(context_.roster, {}).value(), (Version{3, 1}));
  const auto named = log_.choose_rollback(context_.roster, {3, 2});
  ASSERT_FALSE(named.has_value());
  EXPECT_THAT(named.error().message(), HasSubstr("3.2 was offered, but"));
}

// What another coordinator has offered is not known here. A sidecar releases it with the first
// decision that it stores.
TEST_F(DecisionLogTest, AnOlderCoordinatorsVersionIsOneToGoBackToOnceADecisionIsStored) {
  claim();
  log_.decide(context_, {.target = {3, 1}}, nullptr);
  ASSERT_EQ(answer().ended, StoreOutcome::Ended::kDecision);
  Member& member = join("a", {{2, 9}, {3, 1}});
  EXPECT_FALSE(log_.rollback_target(context_.roster).has_value());
  EXPECT_FALSE(log_.choose_rollback(context_.roster, {2, 9}).has_value());
  member.target_at_hello = {2, 10};
  EXPECT_EQ(log_.rollback_target(context_.roster), (Version{2, 9})) << "it had to be decided";
  member.target_at_hello = {2, 8};
  EXPECT_FALSE(log_.rollback_target(context_.roster).has_value());
  member.released_undecided = true;
  EXPECT_EQ(log_.rollback_target(context_.roster), (Version{2, 9}));
  EXPECT_EQ(log_.choose_rollback(context_.roster, {2, 9}).value(), (Version{2, 9}));
}

TEST_F(DecisionLogTest, AFailedWriteLeavesTheRecordBeforeItInForce) {
  claim();
  log_.decide(context_, {.target = {3, 1}}, nullptr);
  const StoreOutcome full = answer(ErrorCode::kResourceExhausted, "No space left on device");
  ASSERT_TRUE(full.failure.has_value());
  EXPECT_EQ(full.failure->code(), ErrorCode::kIo);
  EXPECT_THAT(full.failure->message(), HasSubstr("it was not sent"));
  EXPECT_TRUE(log_.record().target.none());
  EXPECT_EQ(log_.state(), DecisionLogState::kIdle);
}

TEST_F(DecisionLogTest, AStoreThatIsOfAnotherCoordinatorIsFencedWithBothCodes) {
  for (const ErrorCode code : {ErrorCode::kFenced, ErrorCode::kRefused}) {
    claim();
    log_.decide(context_, {.target = {3, 1}}, nullptr);
    const StoreOutcome outcome = answer(code, "another coordinator");
    ASSERT_TRUE(outcome.failure.has_value());
    EXPECT_EQ(outcome.failure->code(), ErrorCode::kFenced);
    EXPECT_THAT(outcome.failure->message(), HasSubstr("--take-over"));
  }
}

TEST_F(DecisionLogTest, AnAnswerToAnotherWriteIsDropped) {
  log_.store_claim(context_, kOwn);
  const StoreOutcome outcome = log_.handle(context_, {.token = 99, .record = {}});
  EXPECT_EQ(outcome.ended, StoreOutcome::Ended::kNothing);
  EXPECT_EQ(context_.dropped, 1U);
  EXPECT_EQ(log_.state(), DecisionLogState::kStoringClaim);
}

TEST_F(DecisionLogTest, AStoreThatDoesNotAnswerIsGivenUp) {
  log_.store_claim(context_, kOwn);
  ASSERT_TRUE(log_.next_wake().has_value());
  EXPECT_TRUE(log_.check_deadline(context_.now).has_value());
  const Result<> late = log_.check_deadline(*log_.next_wake());
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code(), ErrorCode::kIo);
  log_.abandon();
  EXPECT_EQ(log_.state(), DecisionLogState::kIdle);
  EXPECT_EQ(log_.pending(), nullptr);
}

TEST_F(DecisionLogTest, MembersAreWrittenBehindWhatGoesOnAndAgainAfterAFailure) {
  claim();
  join("a");
  log_.add_member(context_.roster, "a");
  log_.store_members(context_);
  EXPECT_EQ(log_.state(), DecisionLogState::kIdle) << "nothing waits for this write";
  EXPECT_THAT(last_store(context_).record.members, ElementsAre("a"));
  const std::size_t commands = context_.commands.size();
  log_.add_member(context_.roster, "b");
  log_.store_members(context_);
  EXPECT_EQ(context_.commands.size(), commands) << "one write at a time";
  EXPECT_FALSE(answer(ErrorCode::kIo, "No space left on device").failure.has_value());
  log_.store_members(context_);
  EXPECT_EQ(context_.commands.size(), commands);
  ASSERT_TRUE(log_.next_wake().has_value());
  context_.now = *log_.next_wake();
  log_.store_members(context_);
  EXPECT_THAT(last_store(context_).record.members, ElementsAre("a", "b"));
}

TEST_F(DecisionLogTest, MembersThatNeverConnectedAreRemovedUnlessAVersionWasWithdrawn) {
  CoordinatorRecord stored;
  stored.members = {"a", "b"};
  DecisionLog log(stored);
  join("a");
  EXPECT_THAT(log.remove_absent(context_.roster), ElementsAre("b"));
  EXPECT_THAT(log.record().members, ElementsAre("a"));
  log.store_members(context_);
  EXPECT_THAT(last_store(context_).record.members, ElementsAre("a"));
  stored.withdrawn = {{1, 1}};
  DecisionLog rolled_back(stored);
  EXPECT_THAT(rolled_back.remove_absent(context_.roster), IsEmpty());
  EXPECT_THAT(rolled_back.record().members, ElementsAre("a", "b"));
}

TEST_F(DecisionLogTest, TheNewestOriginIsFollowedUnlessItsTargetIsWithdrawn) {
  claim();
  log_.decide(context_, {.target = {3, 1}}, nullptr);
  (void)answer();
  EXPECT_FALSE(log_.newest(context_).has_value()) << "the fleet follows it";
  Member& newer = join("a");
  newer.origin = {.fence = {.epoch = 4, .run_id = {1, 1}, .fleet = kOwn.fleet}, .number = 1};
  newer.report.target = {4, 2};
  newer.target_content = {5, 5};
  const auto choice = log_.newest(context_);
  ASSERT_TRUE(choice.has_value());
  EXPECT_EQ(choice->target, (Version{4, 2}));
  EXPECT_EQ(choice->origin, newer.origin) << "a new origin would override what comes later";
  EXPECT_EQ(choice->content, (Digest{5, 5}));
  log_.learn_withdrawn(context_.roster, {{4, 2}});
  const auto repeated = log_.newest(context_);
  ASSERT_TRUE(repeated.has_value()) << "everybody has to be told what is withdrawn";
  EXPECT_EQ(repeated->target, (Version{3, 1}));
}

TEST_F(DecisionLogTest, WithNothingLeftToServeTheTargetBecomesNone) {
  claim();
  log_.decide(context_, {.target = {3, 1}}, nullptr);
  (void)answer();
  log_.learn_withdrawn(context_.roster, {{3, 1}});
  const auto choice = log_.newest(context_);
  ASSERT_TRUE(choice.has_value());
  EXPECT_TRUE(choice->target.none());
  EXPECT_EQ(choice->kind, control::DecisionKind::kRollback);
  EXPECT_TRUE(std::holds_alternative<Incident>(context_.commands.back()));
}

TEST_F(DecisionLogTest, ARollbackWithdrawsWhatItLeaves) {
  claim();
  for (const Version& version : {Version{3, 1}, Version{3, 2}}) {
    log_.decide(context_, {.target = version}, nullptr);
    (void)answer();
  }
  join("a", {{3, 1}, {3, 2}});
  const Result<Version> to = log_.choose_rollback(context_.roster, {});
  ASSERT_TRUE(to.has_value()) << to.error().message();
  EXPECT_EQ(*to, (Version{3, 1}));
  log_.decide(context_, {.kind = control::DecisionKind::kRollback, .target = *to}, nullptr,
              RollbackRequested{.request = 5});
  ASSERT_NE(log_.pending_rollback(), nullptr);
  EXPECT_THAT(log_.record().withdrawn, IsEmpty()) << "not before it is stored";
  const StoreOutcome outcome = answer();
  ASSERT_TRUE(outcome.rollback.has_value());
  EXPECT_EQ(outcome.rollback->request, 5U);
  EXPECT_THAT(log_.record().withdrawn, ElementsAre(Version{3, 2}));
  EXPECT_EQ(log_.rollback_from(), (Version{3, 2}));
  EXPECT_EQ(log_.previous_target(), (Version{3, 2}));
}

TEST_F(DecisionLogTest, ADecisionThatNoRoundWaitsForIsTriedAgain) {
  claim();
  EXPECT_FALSE(log_.take_follow_due(context_.now));
  log_.follow_later(context_.now);
  EXPECT_TRUE(log_.leaves_target());
  EXPECT_FALSE(log_.take_follow_due(context_.now));
  ASSERT_TRUE(log_.next_wake().has_value());
  const TimePoint due = *log_.next_wake();
  EXPECT_TRUE(log_.take_follow_due(due));
  EXPECT_FALSE(log_.take_follow_due(due)) << "once";
}

}  // namespace
}  // namespace wsync::coordinator
