#include "inference_side/engine_link/rank_machine.h"

#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/switch_deadlines.h"
#include "tests/unit/engine_link/driven_rank.h"

namespace wsync::engine::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- frames ----

TEST(RankMachine, AnOldFenceAnotherRankAndAStrangeMessageAreRefused) {
  Rank rank(Rank::copying());
  rank.send(control::Pause{});
  EXPECT_THAT(rank.texts(), ElementsAre("refuse #1: a command came before the welcome"));
  rank.welcome();
  rank.envelope.rank = 5;
  rank.send(control::Pause{});
  rank.envelope.rank = 0;
  rank.send(control::Push{});
  rank.envelope.fence.epoch = 2;
  rank.send(control::Pause{});
  EXPECT_THAT(rank.texts(),
              ElementsAre("welcome",
                          "refuse #3: the message is for r0 rank 5, but this engine is r0 rank 0",
                          "refuse #4: an engine does not accept the message Push",
                          "refuse #5: the fence of epoch 2 is older than epoch 3"));
  EXPECT_EQ(rank.machine.answer_to(rank.envelope).fence.epoch, 3U) << "the highest one seen";
  rank.envelope.fence.epoch = 4;
  rank.send(control::Pause{});
  EXPECT_THAT(rank.texts(), ElementsAre("Paused #6"));
  EXPECT_EQ(rank.machine.answer_to(rank.envelope).fence.epoch, 4U);
}

TEST(RankMachine, AnAnswerHasTheRoundAndTheRequestOfItsQuestionAndThisRank) {
  const RankMachine machine({.replica = "r0", .rank = 2});
  const auto answer = machine.answer_to({.round = 8, .request = 9, .replica = "r9", .rank = 1});
  EXPECT_EQ(answer.round, 8U);
  EXPECT_EQ(answer.request, 9U);
  EXPECT_EQ(answer.replica, "r0");
  EXPECT_EQ(answer.rank, 2U);
}

TEST(RankMachine, AFollowerIsNeitherPausedNorResumed) {
  Rank rank({.replica = "r0", .leader = false, .serving = true});
  rank.welcome();
  rank.forget();
  rank.send(control::Pause{});
  rank.send(control::Resume{});
  EXPECT_THAT(rank.texts(), ElementsAre("refuse #2: only the leader of a replica can begin a pause",
                                        "refuse #3: only the leader of a replica can be resumed"));
  rank.report(RankReport::What::kPaused, 31);
  rank.send(control::Pause{});  // of a rank that does not serve
  EXPECT_THAT(rank.texts(), ElementsAre("Paused #0", "Paused #4"));
  EXPECT_EQ(rank.machine.step(), 31U);
}

// ---- versions ----

TEST(RankMachine, AVersionIsLoadedWhenItIsPrepared) {
  Rank rank(Rank::copying());
  rank.welcome();
  rank.prepare(kFirst, kFailed);
  rank.send(control::Load{.version = kFirst});
  EXPECT_THAT(rank.texts(),
              ElementsAre("welcome", "prepare 1.1", "note: no room", "Prepared #2: no room",
                          "note: version 1.1 has not been prepared",
                          "Loaded #3: version 1.1 has not been prepared"));
  rank.prepare(kFirst);
  EXPECT_THAT(rank.texts(), ElementsAre("prepare 1.1", "prepared 1.1", "Prepared #4"));
  for (const control::Message& gone : {control::Message(control::Release{.version = kFirst}),
                                       control::Message(control::Abort{.version = kFirst})}) {
    rank.send(gone);
    rank.send(control::Load{.version = kFirst});
    const auto texts = rank.texts();
    EXPECT_EQ(texts.front(), "forget 1.1");
    EXPECT_THAT(texts.back(), HasSubstr("has not been prepared"));
    rank.prepare(kFirst);
    rank.forget();
  }
}

TEST(RankMachine, FreedArenasTakeNoPreparedVersionAway) {
  Rank rank(Rank::copying());
  rank.welcome();
  rank.prepare(kFirst);
  rank.forget();
  rank.send(control::UnmapArenas{});
  EXPECT_THAT(rank.texts(), ElementsAre("forget arenas"));
  rank.load(kFirst);
  EXPECT_THAT(rank.texts(), testing::Not(testing::Contains(HasSubstr("has not been prepared"))));
}

TEST(RankMachine, TheOldestPreparedVersionIsForgottenWhenThereAreTooMany) {
  Rank rank(Rank::copying());
  rank.welcome();
  for (std::uint64_t step = 1; step <= limits::kStagedCount; ++step)
    rank.prepare({.epoch = 1, .step = step});
  EXPECT_THAT(rank.texts(), testing::Not(testing::Contains(HasSubstr("forget"))));
  rank.prepare({.epoch = 2, .step = 1});
  EXPECT_THAT(rank.texts(), ElementsAre("prepare 2.1", "forget 1.1", "prepared 2.1",
                                        fmt::format("Prepared #{}", limits::kStagedCount + 2)));
}

TEST(RankMachine, BuffersThatCannotBeMappedLeaveTheWeightsAndTheLoadAsTheyAre) {
  Rank rank(Rank::copying());
  rank.bring(RankState::kPaused);
  rank.load(control::Load{.version = kSecond}, kFailed);
  EXPECT_THAT(rank.texts(), ElementsAre("map", "note: no room", "Loaded #6: no room"));
  EXPECT_EQ(rank.machine.state(), RankState::kPaused);
  rank.load(kSecond);
  rank.load(control::Load{.version = kFirst}, kFailed);
  EXPECT_EQ(rank.machine.loading(), kSecond);
}

// Whatever a patch does not name is only right in a rank that holds all of its base.
TEST(RankMachine, APatchIsOnlyForAPausedRankThatHoldsItsBase) {
  const control::Load by_patch{
      .version = kSecond, .patch_base = {.epoch = 1, .step = 1}, .patch_bytes = 9};
  for (const RankState state :
       {RankState::kLoading, RankState::kServing, RankState::kLoaded, RankState::kTainted}) {
    Rank rank(Rank::copying());
    rank.bring(state);
    rank.prepare(kSecond);
    rank.forget();
    rank.send(by_patch);
    const auto texts = rank.texts();
    ASSERT_FALSE(texts.empty());
    EXPECT_THAT(texts.back(), HasSubstr("Loaded #")) << rank_state_name(state);
    EXPECT_THAT(texts.back(),
                HasSubstr(std::string("the rank is ") + std::string(rank_state_name(state))));
    EXPECT_EQ(rank.machine.state(), state);
  }
  Rank rank(Rank::copying());
  rank.bring(RankState::kPaused);
  rank.prepare(kSecond);
  rank.forget();
  control::Load other = by_patch;
  other.patch_base = {.epoch = 1, .step = 7};
  rank.send(other);
  EXPECT_THAT(rank.texts().back(), HasSubstr("the patch begins at 1.7, but the rank is paused"));
  rank.send(by_patch);
  EXPECT_THAT(rank.texts(), ElementsAre("map"));
}

// It is never answered: the load for which it comes says what is wrong.
TEST(RankMachine, APatchIsReadAheadOnlyWhereItsLoadCanFollow) {
  const control::PatchAhead ahead{
      .version = kSecond, .patch_base = {.epoch = 1, .step = 1}, .patch_bytes = 9};
  for (const RankState state : {RankState::kLoading, RankState::kServing, RankState::kPaused,
                                RankState::kLoaded, RankState::kTainted}) {
    Rank rank(Rank::copying());
    rank.bring(state);
    rank.prepare(kSecond);
    rank.forget();
    control::PatchAhead other = ahead;
    other.version = {.epoch = 1, .step = 9};
    rank.send(other);
    EXPECT_THAT(rank.texts(), IsEmpty()) << "it is not prepared";
    other = ahead;
    other.patch_base = {.epoch = 1, .step = 7};
    rank.send(other);
    other.patch_base = {};
    rank.send(other);
    EXPECT_THAT(rank.texts(), IsEmpty());
    rank.send(ahead);
    if (state == RankState::kServing || state == RankState::kPaused)
      EXPECT_THAT(rank.texts(), ElementsAre("read patch to 1.2"));
    else
      EXPECT_THAT(rank.texts(), IsEmpty()) << rank_state_name(state);
  }
}

TEST(RankMachine, ALoadEndsUnderItsOwnRequestAndByItsDeadline) {
  Rank rank(Rank::copying());
  rank.bring(RankState::kLoading);
  const auto started = [&](const control::Load& load) {
    rank.send(load);
    const auto actions = rank.machine.handle_buffers_mapped(rank.envelope, load, {}, kNow);
    return std::get<StartLoad>(actions.front());
  };
  EXPECT_EQ(started({.version = kFirst}).deadline,
            kNow + std::chrono::milliseconds(limits::kLoadDeadlineMs));
  const auto second = started({.version = kSecond, .deadline_ms = 250, .copy_threads = 3});
  EXPECT_EQ(second.deadline, kNow + std::chrono::milliseconds(250));
  EXPECT_EQ(second.copy_threads, 3U);
  rank.send(control::BucketReady{.bucket = 2});
  rank.note(RankMachine::handle_bucket_taken(rank.envelope, 2, kFailed));
  rank.end_load(kFailed);
  EXPECT_THAT(rank.texts(), ElementsAre("map", "map", "take 2 of 0", "BucketAck #6: no room",
                                        "note: no room", "Loaded #5: no room"));
}

TEST(RankMachine, AnAbortCancelsALoadOfItsVersion) {
  for (const std::size_t buffers : {0U, 2U}) {
    Rank rank(Rank::copying());
    rank.bring(RankState::kLoading);
    control::Load load{.version = kFirst};
    load.buffers.resize(buffers);
    rank.load(load);
    rank.forget();
    rank.send(control::Abort{.version = kSecond});
    EXPECT_THAT(rank.texts(), ElementsAre("forget 1.2")) << "another version's";
    rank.send(control::Abort{.version = kFirst});
    EXPECT_THAT(rank.texts(), ElementsAre("forget 1.1", "cancel"));
    rank.end_load(kFailed);
    rank.forget();
    rank.send(control::Abort{.version = kFirst});
    EXPECT_THAT(rank.texts(), ElementsAre("forget 1.1")) << "it has ended";
  }
}

// ---- pauses ----

TEST(RankMachine, APauseIsAnsweredWhenTheEngineHasStoppedForIt) {
  Rank rank(Rank::copying());
  rank.bring(RankState::kServing);
  rank.send(control::Pause{});
  rank.report(RankReport::What::kStopped, 8);  // its group broke; the pause is still to come
  EXPECT_THAT(rank.texts(), ElementsAre("pause", "Paused #0"));
  rank.report(RankReport::What::kPaused, 9);
  rank.report(RankReport::What::kPaused, 9);
  EXPECT_THAT(rank.texts(), ElementsAre("Paused #7", "Paused #0"));
  EXPECT_EQ(rank.machine.step(), 9U);
}

TEST(RankMachine, APauseThatTheEngineRefusesIsOver) {
  Rank rank(Rank::copying());
  rank.bring(RankState::kServing);
  rank.send(control::Pause{});
  rank.note(rank.machine.handle_pause_failed(rank.envelope, kFailed.error()));
  EXPECT_THAT(rank.texts(), ElementsAre("pause", "refuse #7: the engine could not pause: no room"));
  rank.send(control::Resume{});
  EXPECT_THAT(rank.texts(), ElementsAre("Resumed #8")) << "there is no pause to withdraw";
}

TEST(RankMachine, AResumeOvertakesAPauseAndAnswersItFirstWhenItHasEnded) {
  Rank rank(Rank::copying());
  rank.bring(RankState::kServing);
  rank.send(control::Pause{});
  rank.resume({}, 12);
  EXPECT_THAT(rank.texts(), ElementsAre("pause", "resume over pause", "Paused #7", "Resumed #8"));
  EXPECT_EQ(rank.machine.step(), 12U);
  EXPECT_EQ(rank.machine.state(), RankState::kServing);
  rank.send(control::Pause{});
  rank.resume();
  EXPECT_THAT(rank.texts(), ElementsAre("pause", "resume over pause", "Resumed #10"))
      << "withdrawn, it gets no answer";
  rank.send(control::Pause{});
  rank.resume(kFailed);
  EXPECT_THAT(rank.texts(), ElementsAre("pause", "resume over pause",
                                        "refuse #12: the engine could not resume: no room"));
}

// ---- loss ----

TEST(RankMachine, AScrubIsBegunInEveryStateAndNotBeforeTheWelcome) {
  for (const RankState state : {RankState::kLoading, RankState::kServing, RankState::kPaused,
                                RankState::kLoaded, RankState::kTainted}) {
    Rank rank(Rank::copying());
    rank.bring(state);
    rank.send(control::Scrub{.pass = 3, .share_ppm = 1});
    EXPECT_THAT(rank.texts(), ElementsAre("scrub 3"));
    EXPECT_EQ(rank.machine.state(), state);
  }
  Rank rank(Rank::copying());
  rank.send(control::Scrub{.pass = 3, .share_ppm = 1});
  EXPECT_THAT(rank.texts(), ElementsAre(HasSubstr("a command came before the welcome")));
}

TEST(RankMachine, ARankIsAskedToPauseUntilItHasAnswered) {
  Rank rank(Rank::copying());
  rank.bring(RankState::kServing);
  EXPECT_FALSE(rank.machine.is_asked_to_pause());
  rank.send(control::Pause{});
  EXPECT_TRUE(rank.machine.is_asked_to_pause());
  rank.report(RankReport::What::kPaused);
  EXPECT_FALSE(rank.machine.is_asked_to_pause());
}

TEST(RankMachine, APingIsAnsweredInEveryState) {
  for (const RankState state : {RankState::kLoading, RankState::kTainted, RankState::kLoaded,
                                RankState::kPaused, RankState::kServing}) {
    Rank rank(Rank::copying());
    rank.bring(state);
    rank.forget();
    const std::uint64_t request = rank.envelope.request + 1;
    rank.send(control::Ping{});
    EXPECT_THAT(rank.texts(), ElementsAre(fmt::format("Pong #{}", request)));
    EXPECT_EQ(rank.machine.state(), state);
  }
}

TEST(RankMachine, ALossKeepsTheStateAndEndsWhatTheSidecarHadInProgress) {
  for (const RankState state : {RankState::kLoading, RankState::kTainted, RankState::kLoaded,
                                RankState::kPaused, RankState::kServing}) {
    Rank rank(Rank::copying());
    rank.bring(state);
    if (state == RankState::kServing) rank.send(control::Pause{});
    rank.forget();
    rank.lose("it ended");
    EXPECT_THAT(rank.texts(),
                ElementsAre("note: the connection to the sidecar is lost (it ended)"));
    EXPECT_EQ(rank.machine.state(), state) << "nothing resumes by itself";
    EXPECT_FALSE(rank.machine.welcomed());
    EXPECT_FALSE(rank.machine.loading());
    rank.welcome();
    rank.report(RankReport::What::kPaused);
    rank.send(control::Load{.version = kFirst});
    EXPECT_THAT(rank.texts(),
                ElementsAre("welcome", "Paused #0", "note: version 1.1 has not been prepared",
                            HasSubstr("has not been prepared")));
  }
}

TEST(RankMachine, ASidecarThatRefusesSaysWhyOnce) {
  Rank rank(Rank::copying());
  rank.send(control::Refuse{.reason = "no", .problems = {{.tensor = "a", .detail = "is missing"}}});
  rank.lose("the other side has closed");
  rank.lose("nobody listens");
  EXPECT_THAT(rank.texts(),
              ElementsAre("refused: the sidecar refuses this engine: no; a: is missing",
                          "note: nobody listens"));
}

TEST(RankMachine, ARefusalNamesATensorOnce) {
  Rank rank(Rank::copying());
  rank.send(control::Refuse{.reason = "it does not fit: a (is missing); it may attach later",
                            .problems = {{.tensor = "a", .detail = "is missing"},
                                         {.tensor = "b", .detail = "is missing"},
                                         {.detail = "and 5 more problems"}}});
  rank.lose("the other side has closed");
  EXPECT_THAT(rank.texts(),
              ElementsAre("refused: the sidecar refuses this engine: it does not fit: a (is "
                          "missing); it may attach later; b: is missing; and 5 more "
                          "problems"));
}

TEST(RankMachine, AVersionThatTheEngineRefusesIsAnsweredAndIsNoFailureOfTheLink) {
  Rank rank(Rank::copying());
  rank.welcome();
  const Result<> refused = fail(ErrorCode::kRefused, "there is no place for a");
  const RankActions actions = rank.machine.handle_prepared({}, kFirst, refused, true);
  ASSERT_EQ(actions.size(), 1U);
  const auto& reply = std::get<control::Prepared>(std::get<SendReply>(actions[0]).message);
  EXPECT_TRUE(reply.is_refused);
  EXPECT_EQ(reply.failure, "there is no place for a");
  EXPECT_EQ(rank.machine.handle_prepared({}, kFirst, refused, false).size(), 2U)
      << "otherwise it is noted as well";
}

TEST(RankMachine, ARefusalAfterTheWelcomeIsNoLoss) {
  Rank rank(Rank::copying());
  rank.welcome();
  rank.send(control::Refuse{.reason = "it does not take 1.1"});
  rank.lose("the other side has closed");
  EXPECT_THAT(rank.texts().back(),
              HasSubstr("refused: the sidecar refuses this engine: it does not take 1.1"));
  rank.welcome();
  rank.lose("the other side has closed");
  EXPECT_THAT(rank.texts().back(), HasSubstr("note: the connection to the sidecar is lost"));
}

TEST(RankMachine, ARankWithWeightsOfItsOwnServesNoVersion) {
  Rank rank({.replica = "r0", .serving = true});
  EXPECT_EQ(rank.machine.state(), RankState::kServing);
  EXPECT_TRUE(rank.machine.active().none());
  rank.welcome();
  rank.send(control::Commit{});
  EXPECT_THAT(rank.texts().back(), HasSubstr("is not loaded: the rank is serving"));
}

}  // namespace
}  // namespace wsync::engine::test
