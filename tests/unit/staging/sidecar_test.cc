// The core of a sidecar: what it stores before it acts, what it refuses, and what it brings to its
// replicas.
#include "inference_side/staging/sidecar.h"

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>

#include "shared/base/limits.h"
#include "tests/support/versions.h"
#include "tests/unit/staging/sidecar_fixture.h"

namespace wsync::staging {
namespace {

TEST_F(SidecarTest, StoresAHigherFenceBeforeItAnswersAndSaysHelloAgain) {
  step(LinkUp{});
  ASSERT_NE(replied<control::Hello>(), nullptr);
  message(kNow, 0, control::Welcome{});
  ASSERT_NE(command<Persist>(), nullptr);
  EXPECT_EQ(command<Persist>()->record.fence, kNow);
  EXPECT_EQ(replied<control::Hello>(), nullptr);
  EXPECT_EQ(sidecar.fence(), Fence{});
  persisted();
  EXPECT_EQ(sidecar.fence(), kNow);
  ASSERT_NE(replied<control::Hello>(), nullptr);
  EXPECT_NE(command<Welcomed>(), nullptr);
}

TEST_F(SidecarTest, AHelloUnderTheCoordinatorsFenceIsSaidOnceWhenItIsAnswered) {
  welcome(kNow);
  step(CoordinatorLost{});
  step(LinkUp{});
  EXPECT_FALSE(sidecar.welcomed());
  const auto* said = command<Reply>();
  ASSERT_NE(said, nullptr);
  ASSERT_NE(replied<control::Hello>(), nullptr);
  const CoordinatorMessage answer{.envelope = {.fence = kNow, .request = said->envelope.request},
                                  .message = control::Welcome{}};
  step(answer);
  EXPECT_TRUE(sidecar.welcomed());
  EXPECT_NE(command<Welcomed>(), nullptr);
  EXPECT_EQ(replied<control::Hello>(), nullptr) << "it would throw us out of the round";
  for (int i = 0; i < 3; ++i) {
    now = now + std::chrono::seconds(10);
    step(reload::Tick{});
    EXPECT_EQ(replied<control::Hello>(), nullptr);
  }
  // One that answers nothing asks for a Hello.
  message(kNow, 0, control::Welcome{});
  EXPECT_NE(replied<control::Hello>(), nullptr);
}

// What it sends may have the fields that its coordinator has named, and no others.
TEST_F(SidecarTest, SendsTheFieldsThatTheCoordinatorOfThisConnectionHasNamed) {
  const auto greeted = [&](control::Capabilities named) {
    step(CoordinatorLost{});
    step(LinkUp{});
    const auto* said = command<Reply>();
    ASSERT_NE(said, nullptr);
    EXPECT_EQ(said->envelope.capabilities, 0U) << "nothing is known of this coordinator";
    EXPECT_EQ(std::get<control::Hello>(said->message).capabilities, control::kCapabilities);
    step(CoordinatorMessage{.envelope = {.fence = kNow, .request = said->envelope.request},
                            .message = control::Welcome{.capabilities = named}});
  };
  welcome(kNow);
  greeted(~control::Capabilities{0});
  EXPECT_EQ(sidecar.envelope().capabilities, control::kCapabilities) << "those of both";
  announce(7, {1, 1});
  step(LayoutChecked{.round = 7});
  ASSERT_NE(replied<control::Accept>(), nullptr);
  EXPECT_EQ(command<Reply>()->envelope.capabilities, control::kCapabilities);
  greeted(0);
  EXPECT_EQ(sidecar.envelope().capabilities, 0U) << "an older release";
  message(kNow, 1, control::Welcome{.capabilities = control::kCapabilities});
  EXPECT_EQ(sidecar.envelope().capabilities, 0U) << "it answers a Hello of an earlier connection";
}

// The Hello or its answer was lost on a connection that stays open.
TEST_F(SidecarTest, AHelloUnderANewFenceIsRepeatedUntilItIsAnswered) {
  step(LinkUp{});
  ask_for_hello(kNow);
  ASSERT_NE(replied<control::Hello>(), nullptr);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(sidecar.next_wake());
    now = *sidecar.next_wake();
    step(reload::Tick{});
    ASSERT_NE(replied<control::Hello>(), nullptr);
  }
  answer_hello(kNow);
  EXPECT_FALSE(sidecar.next_wake());
}

// It would take the sidecar out of the round whose outcomes it owes.
TEST_F(SidecarTest, AHelloIsNotRepeatedWhileASwitchRuns) {
  ask_for_hello(kNow);  // and does not answer it
  engine(kV2);
  stage(1, kV1);
  decide(1, kV1);
  persisted();
  ASSERT_NE(to_replica<reload::SendPause>(), nullptr);
  const std::vector<SidecarCommand> decided = last;
  now = now + std::chrono::seconds(1);
  step(reload::Tick{});
  EXPECT_EQ(replied<control::Hello>(), nullptr);
  ASSERT_TRUE(sidecar.next_wake());
  EXPECT_GT(*sidecar.next_wake(), now);
  last = decided;
  run_switch();
  EXPECT_NE(replied<control::Switched>(), nullptr);
  EXPECT_NE(replied<control::Hello>(), nullptr);
}

TEST_F(SidecarTest, ALowerFenceChangesNothingAndIsTold) {
  serve(kV1);
  const SidecarRecord before = sidecar.record();
  const control::Message messages[] = {
      control::Welcome{}, control::Announce{.version = kV2}, control::Stage{.version = kV2},
      control::Abort{.version = kV1}, control::Decide{.number = 99, .target = kV2}};
  for (const control::Message& m : messages) {
    message(kOld, 50, m);
    EXPECT_EQ(sidecar.record(), before);
    ASSERT_EQ(last.size(), 1U);
    const auto* error = replied<control::ErrorReply>();
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->code, ErrorCode::kFenced);
    EXPECT_EQ(std::get<Reply>(last[0]).envelope.fence, kNow);
  }
}

TEST_F(SidecarTest, OffersChecksAcceptsStagesAndReports) {
  welcome(kNow);
  announce(1, kV1);
  ASSERT_NE(command<CheckLayout>(), nullptr);
  EXPECT_EQ(replied<control::Accept>(), nullptr);
  message(kNow, 1, control::Stage{.version = kV1});
  EXPECT_EQ(command<StartStaging>(), nullptr) << "not accepted yet";
  step(LayoutChecked{.round = 1});
  ASSERT_NE(replied<control::Accept>(), nullptr);
  message(kNow, 1, control::Stage{.version = kV1, .source = "a"});
  const auto* start = command<StartStaging>();
  ASSERT_NE(start, nullptr);
  EXPECT_FALSE(start->resume);
  step(StagingDone{
      .attempt = start->attempt, .content_digest = content_of(kV1), .bytes = 5, .staging_ns = 6});
  const auto* staged = replied<control::Staged>();
  ASSERT_NE(staged, nullptr);
  EXPECT_EQ(staged->content_digest, content_of(kV1));
  EXPECT_TRUE(staged->failure.empty());
  message(kNow, 1, control::Stage{.version = kV1, .source = "a"});
  EXPECT_NE(replied<control::Staged>(), nullptr) << "idempotent";
}

TEST_F(SidecarTest, RefusesWhatDoesNotFitAndADecisionForIt) {
  welcome(kNow);
  announce(1, kV1);
  step(LayoutChecked{.round = 1, .problems = {{.tensor = "w"}}});
  ASSERT_NE(replied<control::Refuse>(), nullptr);
  EXPECT_EQ(replied<control::Refuse>()->problems.size(), 1U);
  // A decision is an obligation all the same: the engines then are behind, and told of as such.
  decide(1, kV1);
  ASSERT_NE(command<Persist>(), nullptr);
  persisted();
  ASSERT_NE(replied<control::Decided>(), nullptr);
  EXPECT_FALSE(replied<control::Decided>()->refused);
  EXPECT_EQ(sidecar.record().target, kV1);
}

TEST_F(SidecarTest, ALostSourceIsGoneOnFromAndWrongBytesAreRefused) {
  welcome(kNow);
  announce(1, kV1);
  step(LayoutChecked{.round = 1});
  message(kNow, 1, control::Stage{.version = kV1, .source = "a"});
  const std::uint64_t first = command<StartStaging>()->attempt;
  step(StagingFailed{.attempt = first, .reason = "gone", .source_lost = true});
  ASSERT_NE(replied<control::Staged>(), nullptr);
  EXPECT_TRUE(replied<control::Staged>()->source_lost);
  message(kNow, 1, control::Stage{.version = kV1, .source = "b"});
  ASSERT_NE(command<StartStaging>(), nullptr);
  EXPECT_TRUE(command<StartStaging>()->resume);
  step(StagingDone{.attempt = first, .content_digest = content_of(kV1)});
  EXPECT_TRUE(last.empty()) << "of the attempt that was given up";
  step(StagingDone{.attempt = first + 1, .content_digest = content_of(kV2)});
  ASSERT_NE(replied<control::Staged>(), nullptr);
  EXPECT_FALSE(replied<control::Staged>()->failure.empty());
  EXPECT_NE(command<ReleaseVersion>(), nullptr);
  EXPECT_TRUE(sidecar.held().empty());
}

TEST_F(SidecarTest, AVersionThatIsNotDecidedDoesNotCostTheOneToRollBackTo) {
  serve(kV1);
  stage(2, kV2, true);
  decide(2, kV2);
  persisted();
  run_switch();
  EXPECT_EQ(sidecar.held().versions(), (std::vector{kV1, kV2}));
  stage(3, kV3, true);
  EXPECT_EQ(sidecar.held().versions(), (std::vector{kV1, kV2, kV3}));
  EXPECT_EQ(sidecar.status(now).rollback_target, kV1);
  message(kNow, 3, control::Abort{.version = kV3, .reason = "it was cancelled"});
  EXPECT_EQ(sidecar.held().versions(), (std::vector{kV1, kV2}));
  EXPECT_TRUE(sidecar.status(now).can_roll_back);

  stage(4, kV3, true);
  decide(3, kV3);
  EXPECT_EQ(sidecar.held().size(), 3U) << "the decision is not stored yet";
  persisted();
  run_switch();
  EXPECT_EQ(sidecar.held().versions(), (std::vector{kV2, kV3})) << "the oldest one is let go";
  EXPECT_EQ(sidecar.status(now).rollback_target, kV2);
}

TEST_F(SidecarTest, ADecisionIsStoredBeforeItIsActedOn) {
  welcome(kNow);
  engine(kV1);
  stage(1, kV2);
  decide(1, kV2);
  ASSERT_NE(command<Persist>(), nullptr);
  EXPECT_EQ(command<Persist>()->record.target, kV2);
  EXPECT_EQ(to_replica<reload::SendPause>(), nullptr);
  EXPECT_EQ(replied<control::Decided>(), nullptr);
  persisted();
  ASSERT_NE(replied<control::Decided>(), nullptr);
  ASSERT_NE(to_replica<reload::SendPause>(), nullptr);
  run_switch();
  const auto* switched = replied<control::Switched>();
  ASSERT_NE(switched, nullptr);
  ASSERT_EQ(switched->outcomes.size(), 1U);
  EXPECT_EQ(switched->outcomes[0].outcome, control::SwitchOutcome::kCommitted);
  decide(1, kV2);
  EXPECT_NE(replied<control::Decided>(), nullptr);
  EXPECT_NE(replied<control::Switched>(), nullptr) << "the answers once more";
  EXPECT_EQ(command<Persist>(), nullptr);
}

// Both coordinators count from 1. The new one would take the outcomes for an acknowledgement of its
// own decision, which this sidecar has not stored.
TEST_F(SidecarTest, OutcomesOfADecisionUnderALowerFenceAreNotReportedUnderAHigherOne) {
  welcome(kNow);
  engine(kV1);
  stage(1, kV2);
  decide(1, kV2);
  persisted();
  const std::vector<SidecarCommand> begun = last;
  welcome(kNext);
  last = begun;  // the engine answers what it was asked before
  run_switch();
  EXPECT_EQ(sidecar.heartbeat(now).replicas.at(0).version, kV2);
  EXPECT_EQ(replied<control::Switched>(), nullptr) << "under the fence of the new coordinator";
  message(kNext, 8, control::Decide{.number = 1, .target = kV2, .content_digest = content_of(kV2)});
  persisted();
  EXPECT_NE(replied<control::Decided>(), nullptr);
  EXPECT_NE(replied<control::Switched>(), nullptr) << "its own outcomes";
}

// It may not be acted on, but what it withdraws must not be routed to meanwhile.
TEST_F(SidecarTest, AReplicaWhoseRollbackCouldNotBeStoredIsNotReadyUntilItIs) {
  serve(kV1);
  stage(2, kV2);
  decide(2, kV2);
  persisted();
  run_switch();
  ASSERT_TRUE(sidecar.heartbeat(now).replicas.at(0).ready);
  decide(3, kV1, {kV2});
  persisted("no space left on device");
  const control::ReplicaReport owes = sidecar.heartbeat(now).replicas.at(0);
  EXPECT_EQ(owes.version, kV2) << "nothing was acted on";
  EXPECT_FALSE(owes.ready);
  EXPECT_NE(owes.reason.find("no space left on device"), std::string::npos) << owes.reason;
  EXPECT_FALSE(sidecar.status(now).sidecars.at(0).replicas.at(0).ready);
  decide(3, kV1, {kV2});  // sent again
  persisted();
  run_switch();
  EXPECT_TRUE(sidecar.heartbeat(now).replicas.at(0).ready);
  EXPECT_EQ(sidecar.heartbeat(now).replicas.at(0).version, kV1);
}

// Nobody knows a version that may be served: what is withdrawn is stored and told all the same.
TEST_F(SidecarTest, ADecisionWithoutATargetWithdrawsAndKeepsTheTarget) {
  serve(kV1);
  message(
      kNow, 7,
      control::Decide{.number = 2, .kind = control::DecisionKind::kRollback, .withdrawn = {kV1}});
  persisted();
  ASSERT_NE(replied<control::Decided>(), nullptr);
  EXPECT_FALSE(replied<control::Decided>()->refused);
  EXPECT_EQ(sidecar.record().target, kV1);
  EXPECT_EQ(sidecar.record().decision.number, 2U);
  const control::ReplicaReport report = sidecar.heartbeat(now).replicas.at(0);
  EXPECT_EQ(report.version, kV1);
  EXPECT_FALSE(report.ready);
  EXPECT_NE(report.reason.find("was withdrawn"), std::string::npos) << report.reason;
  // It stays so over a restart, and ends with the next version.
  sidecar = Sidecar({.name = "s"}, sidecar.record());
  welcome(kNow);
  engine(kV1);
  EXPECT_FALSE(sidecar.heartbeat(now).replicas.at(0).ready);
  stage(9, kV2);
  decide(3, kV2, {kV1});
  persisted();
  run_switch();
  EXPECT_TRUE(sidecar.heartbeat(now).replicas.at(0).ready);
}

TEST_F(SidecarTest, WhatARefusedDecisionWithdrawsIsStored) {
  serve(kV1);
  stage(2, kV2);
  decide(2, kV2);
  persisted();
  run_switch();
  message(kNow, 7,
          control::Decide{.number = 3,
                          .kind = control::DecisionKind::kRollback,
                          .target = kV1,
                          .withdrawn = {kV2},
                          .content_digest = content_of(kV3)});  // other bytes than are held
  persisted();
  ASSERT_NE(replied<control::Decided>(), nullptr);
  EXPECT_TRUE(replied<control::Decided>()->refused);
  EXPECT_EQ(sidecar.record().target, kV2);
  EXPECT_EQ(sidecar.record().withdrawn, std::vector<Version>{kV2});
  EXPECT_FALSE(sidecar.heartbeat(now).replicas.at(0).ready);
}

// It has repeated its Hello while the fence was being stored, and both are answered.
TEST_F(SidecarTest, TheAnswerToAnEarlierHelloAsksForNoOther) {
  step(LinkUp{});
  ASSERT_NE(replied<control::Hello>(), nullptr);
  message(kNow, 0, control::Welcome{});  // asks for one under its fence
  const auto* persist = command<Persist>();
  ASSERT_NE(persist, nullptr);
  const std::uint64_t token = persist->token;
  now = now + std::chrono::seconds(5);
  step(reload::Tick{});
  ASSERT_NE(replied<control::Hello>(), nullptr) << "nobody has welcomed it yet";
  Envelope second;
  second.fence = kNow;
  second.request = 2;
  step(CoordinatorMessage{.envelope = second, .message = control::Welcome{}});  // waits as well
  step(Persisted{.token = token});
  const auto said = std::count_if(last.begin(), last.end(), [](const SidecarCommand& c) {
    const auto* reply = std::get_if<Reply>(&c);
    return reply != nullptr && std::holds_alternative<control::Hello>(reply->message);
  });
  EXPECT_EQ(said, 1);
}

// A message can name any digest: that is refused, and aborts nobody.
TEST_F(SidecarTest, ADecisionWithOtherBytesThanWereAnnouncedIsRefused) {
  welcome(kNow);
  announce(1, kV1);
  step(LayoutChecked{.round = 1});
  message(kNow, 1, control::Stage{.version = kV1, .source = "a"});
  const std::uint64_t attempt = command<StartStaging>()->attempt;
  message(kNow, 1, control::Decide{.number = 1, .target = kV1, .content_digest = content_of(kV2)});
  ASSERT_NE(replied<control::Decided>(), nullptr);
  EXPECT_TRUE(replied<control::Decided>()->refused);
  EXPECT_NE(replied<control::Decided>()->reason.find("announced with different bytes"),
            std::string::npos);
  step(StagingDone{.attempt = attempt, .content_digest = content_of(kV1)});
  EXPECT_EQ(sidecar.held().size(), 1U);
}

TEST_F(SidecarTest, ADecisionWithoutANumberOrOlderThanItsOriginIsRefused) {
  welcome(kNow);
  for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{4}}) {
    message(
        kNow, 1,
        control::Decide{.number = number, .target = kV1, .origin = {.fence = kNow, .number = 5}});
    ASSERT_NE(replied<control::Decided>(), nullptr);
    EXPECT_TRUE(replied<control::Decided>()->refused);
    EXPECT_EQ(command<Persist>(), nullptr);
  }
}

// A coordinator that has not heard of this sidecar's decision repeats an older one.
TEST_F(SidecarTest, AnOlderDecisionIsRepeatedInVainUnlessTheNewerOneWasWithdrawn) {
  serve(kV1);
  stage(2, kV2);
  decide(2, kV2);
  persisted();
  EXPECT_EQ(sidecar.record().origin, (control::Decision{.fence = kNow, .number = 2}));
  welcome(kNext);
  control::Decide older{.number = 1,
                        .target = kV1,
                        .content_digest = content_of(kV1),
                        .origin = {.fence = kNow, .number = 1}};
  message(kNext, 1, older);
  ASSERT_NE(replied<control::Decided>(), nullptr);
  EXPECT_TRUE(replied<control::Decided>()->refused);
  EXPECT_EQ(command<Persist>(), nullptr);
  older.number = 2;
  older.withdrawn = {kV2};
  message(kNext, 1, older);
  persisted();
  EXPECT_EQ(sidecar.record().target, kV1);
  EXPECT_EQ(sidecar.record().origin, (control::Decision{.fence = kNow, .number = 1}));
}

TEST_F(SidecarTest, ACoordinatorOfAnotherFleetChangesNothing) {
  const Fence ours{.epoch = 2, .run_id = {}, .fleet = {.high = 1, .low = 1}};
  const Fence theirs{.epoch = 900, .run_id = {}, .fleet = {.high = 2, .low = 2}};
  welcome({.epoch = 7, .run_id = {}, .fleet = {.high = 3, .low = 3}});
  welcome(ours);  // it has decided nothing yet: the fleet is the one that welcomes it
  EXPECT_EQ(sidecar.record().fence, ours);
  message(ours, 1, control::Decide{.number = 1, .target = kV1, .content_digest = content_of(kV1)});
  persisted();
  const SidecarRecord before = sidecar.record();
  for (const Fence& fence : {theirs, Fence{.epoch = 900}})
    for (const control::Message& said :
         {control::Message(control::Welcome{}),
          control::Message(control::Decide{.number = 1, .target = kV3}),
          control::Message(control::Announce{.version = kV3})}) {
      message(fence, 50, said);
      EXPECT_EQ(command<Persist>(), nullptr);
      ASSERT_NE(replied<control::ErrorReply>(), nullptr);
      EXPECT_NE(replied<control::ErrorReply>()->message.find("belongs to fleet"),
                std::string::npos);
      EXPECT_EQ(sidecar.record(), before);
    }
  message(theirs, 50, control::ErrorReply{});
  EXPECT_TRUE(last.empty()) << "errors are not answered with errors";
}

TEST_F(SidecarTest, AWriteThatFailsRefusesTheDecision) {
  serve(kV1);
  stage(2, kV2);
  decide(2, kV2);
  persisted("no space left on device");
  ASSERT_NE(replied<control::Decided>(), nullptr);
  EXPECT_TRUE(replied<control::Decided>()->refused);
  EXPECT_EQ(sidecar.record().target, kV1);
  EXPECT_EQ(to_replica<reload::SendPause>(), nullptr);
}

TEST_F(SidecarTest, AWithdrawnVersionIsRefusedUnderAnyFence) {
  serve(kV1);
  stage(2, kV2);
  decide(2, kV2);
  persisted();
  run_switch();
  decide(3, kV1, {kV2});
  persisted();
  run_switch();
  EXPECT_EQ(sidecar.replicas().at("r").report(now).version, kV1);
  welcome(kNext);
  message(kNext, 1, control::Decide{.number = 1, .target = kV2});
  ASSERT_NE(replied<control::Decided>(), nullptr);
  EXPECT_TRUE(replied<control::Decided>()->refused);
  message(kNext, 2, control::Announce{.version = kV2, .content_digest = content_of(kV2)});
  EXPECT_NE(replied<control::Refuse>(), nullptr);
}

TEST_F(SidecarTest, OlderDecisionsAndOlderRoundsAreDropped) {
  serve(kV1);
  stage(5, kV2);
  decide(5, kV2);
  persisted();
  run_switch();
  const std::uint64_t before = sidecar.dropped();
  decide(4, kV1);
  EXPECT_TRUE(last.empty());
  announce(3, kV3);
  EXPECT_TRUE(last.empty());
  message(kNow, 3, control::Abort{.version = kV2});
  EXPECT_TRUE(last.empty());
  EXPECT_EQ(sidecar.dropped(), before + 3);
  EXPECT_EQ(sidecar.record().target, kV2);
}

TEST_F(SidecarTest, AVersionNeverNamesOtherBytes) {
  serve(kV1);
  message(kNow, 9, control::Announce{.version = kV1, .content_digest = content_of(kV3)});
  EXPECT_NE(replied<control::Refuse>(), nullptr);
  message(kNow, 9, control::Decide{.number = 9, .target = kV1, .content_digest = content_of(kV3)});
  ASSERT_NE(replied<control::Decided>(), nullptr);
  EXPECT_TRUE(replied<control::Decided>()->refused);
}

TEST_F(SidecarTest, TheTargetStaysAndTheOldestGoesWhenRoomIsNeeded) {
  serve(kV1);
  stage(2, kV2);
  EXPECT_EQ(sidecar.held().size(), 2U);
  stage(3, kV3);  // replaces V2, which was never decided
  ASSERT_EQ(sidecar.held().size(), 2U);
  EXPECT_EQ(sidecar.held().oldest_first()[0], kV1);
  EXPECT_EQ(sidecar.held().oldest_first()[1], kV3);
  message(kNow, 3, control::Abort{.version = kV3});
  ASSERT_NE(command<ReleaseVersion>(), nullptr);
  EXPECT_EQ(sidecar.held().size(), 1U);
  EXPECT_EQ(sidecar.replicas().at("r").report(now).version, kV1);
}

// A rollback may be asked for right after a push: what went to make room must not be chosen.
// ---- turns ----

TEST_F(SidecarTest, ItsTurnsAreOfOneDecisionUnderOneFenceAndOneRegistration) {
  serve(kV1);
  stage(2, kV2);
  message(kNow, 7,
          control::Decide{.number = 2,
                          .kind = control::DecisionKind::kSwitchInTurns,
                          .target = kV2,
                          .content_digest = content_of(kV2)});
  persisted();
  EXPECT_EQ(to_replica<reload::SendPause>(), nullptr);
  EXPECT_NE(command<BeatNow>(), nullptr) << "the coordinator learns at once that it waits";
  message(kNow, 7, control::Turns{.number = 1, .turns = 1});
  EXPECT_EQ(to_replica<reload::SendPause>(), nullptr) << "of the decision before";
  EXPECT_EQ(sidecar.heartbeat(now).turns, 0U);
  step(ReplicaEvent{.replica = "r", .what = reload::RankSilent{.rank = 0, .why = "it hangs"}});
  message(kNow, 7, control::Turns{.number = 2, .turns = 1});
  EXPECT_EQ(sidecar.heartbeat(now).turns, 1U);
  EXPECT_EQ(to_replica<reload::SendPause>(), nullptr) << "a silent replica does not begin";
  step(CoordinatorLost{});
  EXPECT_EQ(sidecar.heartbeat(now).turns, 0U);
  step(ReplicaEvent{.replica = "r", .what = reload::RankHeard{.rank = 0}});
  EXPECT_EQ(to_replica<reload::SendPause>(), nullptr) << "another one may have its turn now";
  EXPECT_TRUE(sidecar.reports(now).at(0).ready);
  message(kNow, 7, control::Turns{.number = 2, .turns = 1});
  EXPECT_NE(to_replica<reload::SendPause>(), nullptr);
  step(LinkUp{});
  EXPECT_EQ(sidecar.heartbeat(now).turns, 0U) << "its Hello begins without turns";
  message(kNow, 7, control::Turns{.number = 2, .turns = 1});
  EXPECT_EQ(sidecar.heartbeat(now).turns, 1U);
  welcome(kNext);
  EXPECT_EQ(sidecar.heartbeat(now).turns, 0U);
}

TEST_F(SidecarTest, WhatIsLetGoIsToldAtOnce) {
  serve(kV1);
  stage(2, kV2);
  announce(3, kV3);  // replaces V2, which was never decided
  ASSERT_NE(command<ReleaseVersion>(), nullptr);
  EXPECT_EQ(command<ReleaseVersion>()->version, kV2);
  EXPECT_NE(command<BeatNow>(), nullptr);
  EXPECT_EQ(sidecar.heartbeat(now).staged, std::vector{kV1});
  step(reload::Tick{});
  EXPECT_EQ(command<BeatNow>(), nullptr) << "once";
}

// The coordinator counts replicas when it decides, and must not wait for the next heartbeat.
TEST_F(SidecarTest, AnEngineThatComesOrGoesIsToldAtOnce) {
  engine({});
  EXPECT_EQ(command<BeatNow>(), nullptr) << "nobody has welcomed this sidecar";
  welcome(kNow);
  step(ReplicaEvent{.replica = "r", .what = reload::RankDetached{.rank = 0}});
  EXPECT_NE(command<BeatNow>(), nullptr);
  step(reload::Tick{});
  EXPECT_EQ(command<BeatNow>(), nullptr) << "once";
  engine({});
  EXPECT_NE(command<BeatNow>(), nullptr);
  EXPECT_EQ(sidecar.heartbeat(now).replicas.size(), 1U);
}

TEST_F(SidecarTest, AnEngineThatCameTooLateForAPublishIsToldSo) {
  welcome(kNow);
  stage(1, kV1);
  message(kNow, 1, control::Abort{.version = kV1});  // nobody could load it
  engine({});
  const control::ReplicaReport late = sidecar.heartbeat(now).replicas.at(0);
  EXPECT_FALSE(late.ready);
  EXPECT_NE(late.reason.find("no version has been decided since: publish one"), std::string::npos)
      << late.reason;
}

TEST_F(SidecarTest, NothingIsReleasedThatASwitchMayGoBackTo) {
  serve(kV1);
  stage(2, kV2);
  decide(2, kV2);
  persisted();  // the switch is pausing: V1 is where it may go back to
  announce(3, kV3);
  step(LayoutChecked{.round = 3});
  message(kNow, 3, control::Stage{.version = kV3, .source = "a"});
  EXPECT_EQ(command<StartStaging>(), nullptr) << "it waits for room";
  EXPECT_EQ(command<ReleaseVersion>(), nullptr);
  EXPECT_EQ(sidecar.held().size(), 2U);
}

TEST_F(SidecarTest, AnEngineThatRestartsCatchesUpWithoutACoordinator) {
  serve(kV1);
  step(CoordinatorLost{});
  step(ReplicaEvent{.replica = "r", .what = reload::RankDetached{.rank = 0}});
  engine({});
  run_switch();
  EXPECT_TRUE(sidecar.replicas().at("r").report(now).ready);
  EXPECT_EQ(sidecar.replicas().at("r").report(now).version, kV1);
}

TEST_F(SidecarTest, WithdrawnVersionsAreBoundedAndThoseInUseAreNotForgotten) {
  serve(kV1);
  stage(2, kV2);
  std::vector<Version> many{kV1};
  for (std::uint64_t i = 1; i < limits::kWithdrawnCount; ++i)
    many.push_back({.epoch = 2, .step = i});
  decide(2, kV2, many);
  persisted();
  EXPECT_EQ(sidecar.record().withdrawn.size(), limits::kWithdrawnCount);
  std::vector<Version> more;
  for (std::uint64_t i = 1; i < 100; ++i) more.push_back({.epoch = 3, .step = i});
  decide(3, kV2, more);
  persisted();
  const Result<SidecarRecord> read = decode_record(encode(sidecar.record()));
  ASSERT_TRUE(read.has_value()) << read.error().message();
  const auto has = [&](const Version& version) {
    return std::ranges::find(read->withdrawn, version) != read->withdrawn.end();
  };
  EXPECT_TRUE(has(kV1)) << "it is held here: it could be loaded again";
  EXPECT_TRUE(has(more.back()) && has(many.back()));
  EXPECT_FALSE(has(many[1]));
}

TEST_F(SidecarTest, DeadlinesOfTheDecisionRuleAndItsOwnAreForCatchingUp) {
  sidecar = Sidecar({.name = "s", .pause = std::chrono::milliseconds(11)});
  serve(kV1);
  stage(2, kV2);
  message(kNow, 7, control::Decide{.number = 2, .target = kV2, .pause_deadline_ms = 22});
  persisted();
  ASSERT_NE(to_replica<reload::SendPause>(), nullptr);
  EXPECT_EQ(to_replica<reload::SendPause>()->deadline_ms, 22U);
  sidecar = Sidecar({.name = "s", .pause = std::chrono::milliseconds(11)}, sidecar.record());
  engine(kV1);
  message(kNow, 0, control::Welcome{});
  stage(3, kV2);
  ASSERT_NE(to_replica<reload::SendPause>(), nullptr);
  EXPECT_EQ(to_replica<reload::SendPause>()->deadline_ms, 11U);
}

TEST_F(SidecarTest, ACopyThatHasChangedIsLetGoAndAskedForAgain) {
  const std::uint64_t check = fail_to_load_v2();
  run_switch();  // back to V1
  step(CopyChecked{.check = check, .intact = false});
  ASSERT_NE(command<ReleaseVersion>(), nullptr);
  EXPECT_EQ(command<ReleaseVersion>()->version, kV2);
  ASSERT_NE(replied<control::Hello>(), nullptr);
  EXPECT_EQ(replied<control::Hello>()->staged, std::vector<Version>{kV1});
  EXPECT_EQ(sidecar.replicas().at("r").report(now).version, kV1);
  stage(3, kV2);
  run_switch();
  EXPECT_EQ(sidecar.replicas().at("r").report(now).version, kV2);
}

TEST_F(SidecarTest, ACopyThatIsGoodStaysWhateverAnEngineSays) {
  const std::uint64_t check = fail_to_load_v2();
  run_switch();  // back to V1
  step(CopyChecked{.check = check, .intact = true});
  EXPECT_TRUE(last.empty());
  EXPECT_EQ(sidecar.held().size(), 2U);
  now = *sidecar.next_wake();
  step(reload::Tick{});
  ASSERT_NE(to_replica<reload::SendPause>(), nullptr) << "it is tried again";
  run_switch();
  EXPECT_EQ(sidecar.replicas().at("r").report(now).version, kV2);
  step(CopyChecked{.check = check, .intact = false});
  EXPECT_TRUE(last.empty()) << "that check is over";
  EXPECT_EQ(sidecar.held().size(), 2U);
}

TEST_F(SidecarTest, ACheckOfACopyThatWasReleasedIsVoid) {
  const std::uint64_t check = fail_to_load_v2();
  run_switch();
  decide(3, kV1, {kV2});
  persisted();
  stage(3, kV3);  // takes its place
  ASSERT_EQ(sidecar.held().size(), 2U);
  step(CopyChecked{.check = check, .intact = false});
  EXPECT_TRUE(last.empty());
}

TEST_F(SidecarTest, ARestartedSidecarKeepsItsRecordAndReportsWhatItsEnginesServe) {
  serve(kV1);
  const Result<SidecarRecord> read = decode_record(encode(sidecar.record()));
  ASSERT_TRUE(read.has_value());
  sidecar = Sidecar({.name = "s"}, *read);
  engine(kV1);
  EXPECT_TRUE(last.empty());
  EXPECT_TRUE(sidecar.heartbeat(now).replicas.at(0).ready);
  step(LinkUp{});
  ASSERT_NE(replied<control::Hello>(), nullptr);
  EXPECT_EQ(replied<control::Hello>()->target, kV1);
  EXPECT_TRUE(replied<control::Hello>()->staged.empty());
}

// Every event in every state: no invariant breaks (step() aborts if one does).
TEST_F(SidecarTest, EveryEventInEveryState) {
  const std::vector<std::function<void()>> states = {
      [&] {},
      [&] { message(kNow, 0, control::Welcome{}); },  // writing
      [&] { welcome(kNow); },
      [&] {
        welcome(kNow);
        announce(1, kV1);
      },
      [&] {
        welcome(kNow);
        announce(1, kV1);
        step(LayoutChecked{.round = 1});
      },
      [&] {
        welcome(kNow);
        announce(1, kV1);
        step(LayoutChecked{.round = 1});
        message(kNow, 1, control::Stage{.version = kV1, .source = "a"});
      },
      [&] {
        welcome(kNow);
        announce(1, kV1);
        step(LayoutChecked{.round = 1});
        message(kNow, 1, control::Stage{.version = kV1, .source = "a"});
        step(StagingFailed{.attempt = 1, .source_lost = true});
      },
      [&] {
        welcome(kNow);
        stage(1, kV1);
      },
      [&] {
        welcome(kNow);
        stage(1, kV1);
        decide(1, kV1);  // being written
      },
      [&] { serve(kV1); },
      [&] {
        serve(kV1);
        stage(2, kV2);
        decide(2, kV2);
        persisted();
      },
      [&] { fail_to_load_v2(); }};
  for (std::size_t s = 0; s < states.size(); ++s) {
    for (std::size_t e = 0;; ++e) {
      sidecar = Sidecar({.name = "s"});
      states[s]();
      std::vector<decltype(SidecarEvent::what)> events = {
          LinkUp{},
          CoordinatorLost{},
          Persisted{.token = 1},
          Persisted{.token = 2, .failure = "disc"},
          Persisted{.token = 99},
          LayoutChecked{.round = 1},
          LayoutChecked{.round = 1, .layout_unknown = true},
          LayoutChecked{.round = 1, .reason = "memory"},
          LayoutChecked{.round = 99},
          StagingDone{.attempt = 1, .content_digest = content_of(kV1)},
          StagingDone{.attempt = 1, .content_digest = content_of(kV2)},
          StagingDone{.attempt = 99},
          StagingFailed{.attempt = 1},
          StagingFailed{.attempt = 1, .source_lost = true},
          CopyChecked{.check = 1},
          CopyChecked{.check = 1, .intact = true},
          ReplicaEvent{.replica = "r", .what = reload::RankDetached{.rank = 0}},
          ReplicaEvent{.replica = "unknown", .what = reload::RankPaused{.rank = 0}},
          ReplicaEvent{.replica = "r", .world_size = 2, .what = reload::RankAttached{.rank = 1}},
          ReplicaEvent{.replica = "new", .what = reload::RankAttached{.rank = 0, .leader = true}},
          reload::Tick{}};
      const control::Message messages[] = {
          control::Welcome{},
          control::Announce{.version = kV1, .content_digest = content_of(kV1)},
          control::Announce{.version = kV2, .content_digest = content_of(kV2)},
          control::Announce{.version = kV1, .content_digest = content_of(kV3)},
          control::Stage{.version = kV1, .source = "a"},
          control::Stage{.version = kV1, .source = "b"},
          control::Stage{.version = kV3},
          control::Abort{.version = kV1},
          control::Abort{.version = kV2},
          control::Decide{.number = 1, .target = kV1},
          control::Decide{.number = 9, .target = kV2},
          control::Decide{.number = 9, .target = kV1, .withdrawn = {kV2}},
          control::Decide{.number = 9, .target = kV1, .withdrawn = {kV1}},
          control::Decide{.number = 9},
          control::Heartbeat{},
          control::Leave{},
          control::Hello{},
          control::Push{}};
      for (const control::Message& m : messages)
        for (const Fence& fence : {kOld, kNow, kNext})
          for (const std::uint64_t round : {std::uint64_t{1}, std::uint64_t{99}}) {
            Envelope envelope;
            envelope.fence = fence;
            envelope.round = round;
            events.emplace_back(CoordinatorMessage{.envelope = envelope, .message = m});
          }
      if (e == events.size()) break;
      last = sidecar.step({.now = now, .what = events[e]});
      EXPECT_TRUE(sidecar.invariants().has_value()) << s << " " << e;
      if (command<Persist>() != nullptr) persisted();
    }
  }
}

// ---- versions whose content digest follows ----

class StreamedVersion : public SidecarTest {
 protected:
  // Begins to stage V1, whose snapshot is being taken.
  void begin() {
    welcome(kNow);
    message(kNow, 1, control::Announce{.version = kV1, .layout_digest = {.low = 1}});
    step(LayoutChecked{.round = 1});
    stage_from("a");
    ASSERT_NE(command<StartStaging>(), nullptr);
    attempt_ = command<StartStaging>()->attempt;
  }
  void stage_from(const std::string& source, const Digest& content = {}) {
    message(kNow, 1, control::Stage{.version = kV1, .source = source, .content_digest = content});
  }
  void arrive() { step(StagingDone{.attempt = attempt_, .content_digest = content_of(kV1)}); }

  std::uint64_t attempt_ = 0;
};

TEST_F(StreamedVersion, IsStagedWhenItsDigestHasCome) {
  begin();
  EXPECT_EQ(command<StartStaging>()->announce.content_digest, Digest{});
  EXPECT_EQ(sidecar.status(now).activity,
            "staging " + kV1.to_string() + ", whose snapshot is under way");
  stage_from("a", content_of(kV1));
  const auto* expect = command<ExpectContent>();
  ASSERT_NE(expect, nullptr);
  EXPECT_EQ(expect->version, kV1);
  EXPECT_EQ(expect->content_digest, content_of(kV1));
  EXPECT_EQ(command<StartStaging>(), nullptr) << "it comes from there already";
  EXPECT_EQ(sidecar.status(now).activity, "staging " + kV1.to_string());
  stage_from("a", content_of(kV1));
  EXPECT_EQ(command<ExpectContent>(), nullptr) << "it is known";
  stage_from("a");
  EXPECT_EQ(command<ExpectContent>(), nullptr) << "a late message takes nothing back";
  arrive();
  ASSERT_NE(replied<control::Staged>(), nullptr);
  EXPECT_TRUE(replied<control::Staged>()->failure.empty());
  EXPECT_EQ(replied<control::Staged>()->content_digest, content_of(kV1));
}

// The store waits for the digest. A store that does not, or that computed none, has gone wrong.
TEST_F(StreamedVersion, IsNotStagedWithoutItsDigest) {
  std::uint64_t round = 1;
  for (const Digest& computed : {content_of(kV1), Digest{}}) {
    if (round == 1) welcome(kNow);
    message(kNow, round, control::Announce{.version = kV1, .layout_digest = {.low = 1}});
    step(LayoutChecked{.round = round});
    message(kNow, round++, control::Stage{.version = kV1, .source = "a"});
    ASSERT_NE(command<StartStaging>(), nullptr);
    step(StagingDone{.attempt = command<StartStaging>()->attempt, .content_digest = computed});
    ASSERT_NE(replied<control::Staged>(), nullptr);
    EXPECT_NE(replied<control::Staged>()->failure.find("not known yet"), std::string::npos);
    EXPECT_NE(command<ReleaseVersion>(), nullptr);
    EXPECT_TRUE(sidecar.held().versions().empty());
  }
}

TEST_F(StreamedVersion, AnotherSourceBringsTheDigestAsWell) {
  begin();
  stage_from("b", content_of(kV1));
  ASSERT_NE(command<StartStaging>(), nullptr);
  EXPECT_TRUE(command<StartStaging>()->resume);
  EXPECT_EQ(command<StartStaging>()->announce.content_digest, content_of(kV1));
}

TEST_F(StreamedVersion, TheDigestMayComeWhileItsSourceIsLostOrItsLayoutIsChecked) {
  begin();
  step(StagingFailed{.attempt = attempt_, .source_lost = true});
  stage_from("a", content_of(kV1));
  ASSERT_NE(command<StartStaging>(), nullptr);
  EXPECT_EQ(command<StartStaging>()->announce.content_digest, content_of(kV1));

  message(kNow, 2, control::Announce{.version = kV2, .layout_digest = {.low = 1}});
  message(kNow, 2,
          control::Stage{.version = kV2, .source = "a", .content_digest = content_of(kV2)});
  EXPECT_EQ(command<StartStaging>(), nullptr);
  step(LayoutChecked{.round = 2});
  message(kNow, 2,
          control::Stage{.version = kV2, .source = "a", .content_digest = content_of(kV2)});
  ASSERT_NE(command<StartStaging>(), nullptr);
  EXPECT_EQ(command<StartStaging>()->announce.content_digest, content_of(kV2));
}

TEST_F(StreamedVersion, AnotherDigestThanTheKnownOneChangesNothing) {
  begin();
  stage_from("a", content_of(kV1));
  const std::uint64_t dropped = sidecar.dropped();
  stage_from("b", content_of(kV2));
  EXPECT_EQ(sidecar.dropped(), dropped + 1);
  EXPECT_TRUE(last.empty());
}

TEST_F(StreamedVersion, ADecisionBringsTheDigestOfWhatStillArrives) {
  begin();
  decide(1, kV1);  // a quorum has staged it
  persisted();
  const auto* expect = command<ExpectContent>();
  ASSERT_NE(expect, nullptr);
  EXPECT_EQ(expect->content_digest, content_of(kV1));
  EXPECT_FALSE(replied<control::Decided>()->refused);
  arrive();
  ASSERT_NE(replied<control::Staged>(), nullptr);
  EXPECT_TRUE(replied<control::Staged>()->failure.empty());
}

TEST_F(StreamedVersion, IsDroppedWithItsRound) {
  begin();
  message(kNow, 1, control::Abort{.version = kV1, .reason = "the source cannot be read"});
  ASSERT_NE(command<CancelStaging>(), nullptr);
  EXPECT_EQ(command<CancelStaging>()->version, kV1);
  stage_from("a", content_of(kV1));
  EXPECT_TRUE(last.empty()) << "its round has ended";
}

TEST_F(StreamedVersion, AHeldVersionIsNotOfferedWithoutItsDigest) {
  serve(kV1);
  message(kNow, 9, control::Announce{.version = kV1});
  ASSERT_NE(replied<control::Refuse>(), nullptr);
  EXPECT_NE(replied<control::Refuse>()->reason.find("names different bytes"), std::string::npos);
}

// ---- replicas that are gone ----

TEST_F(SidecarTest, AReplicaWithoutEnginesIsForgottenAndTheCoordinatorIsInformedAtOnce) {
  SidecarOptions options{.name = "s"};
  options.forget_after = std::chrono::minutes(10);
  sidecar = Sidecar(options);
  serve(kV1);
  step(ReplicaEvent{.replica = "r", .what = reload::RankDetached{.rank = 0}});
  ASSERT_TRUE(sidecar.next_wake().has_value());
  now = now + std::chrono::minutes(9);
  step(reload::Tick{});
  EXPECT_EQ(sidecar.reports(now).size(), 1U);
  now = now + std::chrono::minutes(1);
  step(reload::Tick{});
  ASSERT_NE(command<ReplicaForgotten>(), nullptr);
  EXPECT_EQ(command<ReplicaForgotten>()->replica, "r");
  EXPECT_NE(command<BeatNow>(), nullptr);
  EXPECT_TRUE(sidecar.reports(now).empty());
  EXPECT_FALSE(sidecar.next_wake().has_value());
  engine(kV1);
  EXPECT_TRUE(sidecar.reports(now).at(0).ready) << "its engine has returned";
}

TEST_F(SidecarTest, AReplicaIsForgottenOnRequestUnlessAnEngineIsAttached) {
  serve(kV1);
  EXPECT_FALSE(sidecar.check_forget("r").has_value());
  const std::uint64_t dropped = sidecar.dropped();
  step(ForgetReplica{"r"});
  EXPECT_EQ(sidecar.dropped(), dropped + 1);
  step(ReplicaEvent{.replica = "r", .what = reload::RankDetached{.rank = 0}});
  EXPECT_TRUE(sidecar.check_forget("r").has_value());
  step(ForgetReplica{"r"});
  EXPECT_NE(command<ReplicaForgotten>(), nullptr);
  EXPECT_TRUE(sidecar.replicas().empty());
}

}  // namespace
}  // namespace wsync::staging
