// A sidecar that holds a version as what changes from another one: when it is made complete, what
// is kept for it, and what becomes of it if that fails.
#include <gtest/gtest.h>

#include "tests/unit/staging/sidecar_fixture.h"

namespace wsync::staging {
namespace {

class SidecarChangesTest : public SidecarTest {
 protected:
  SidecarChangesTest() { as_changes = true; }
  void completed(bool in_place = true) {
    const auto* change = command<CompleteVersion>();
    ASSERT_NE(change, nullptr);
    step(VersionCompleted{.version = change->version, .failure = {}, .in_place = in_place});
  }
  // Serves 1.1 with all its bytes, and is to switch to 1.2, which has come as what changes.
  void decide_changes() {
    serve(kV1);
    stage(2, kV2);
    decide(2, kV2);
    persisted();
  }
  // The outcome of the replica, if it was reported.
  [[nodiscard]] const control::ReplicaOutcome* outcome() const {
    const auto* switched = replied<control::Switched>();
    return switched == nullptr ? nullptr : &switched->outcomes.front();
  }
};

TEST_F(SidecarChangesTest, TheTargetIsTheBaseAndIsKeptMeanwhile) {
  serve(kV1);
  announce(2, kV2);
  step(LayoutChecked{.round = 2});
  message(kNow, 2, control::Stage{.version = kV2, .source = "a"});
  ASSERT_NE(command<StartStaging>(), nullptr);
  EXPECT_EQ(command<StartStaging>()->base, kV1);
  step(StagingDone{
      .attempt = command<StartStaging>()->attempt, .content_digest = content_of(kV2), .base = kV1});
  ASSERT_NE(replied<control::Staged>(), nullptr);
  EXPECT_TRUE(replied<control::Staged>()->failure.empty());
  EXPECT_EQ(command<CompleteVersion>(), nullptr) << "it is not decided";
  EXPECT_EQ(sidecar.held().complete_versions(), std::vector{kV1});
  EXPECT_EQ(sidecar.heartbeat(now).staged, (std::vector{kV1, kV2})) << "it can be decided";
}

TEST_F(SidecarChangesTest, ItIsCompletedAfterTheDecisionIsStoredAndBeforeAnyPause) {
  serve(kV1);
  stage(2, kV2);
  decide(2, kV2);
  EXPECT_EQ(command<CompleteVersion>(), nullptr) << "the decision is not stored yet";
  persisted();
  ASSERT_NE(command<CompleteVersion>(), nullptr);
  EXPECT_EQ(command<CompleteVersion>()->version, kV2);
  EXPECT_EQ(command<CompleteVersion>()->base, kV1);
  EXPECT_TRUE(command<CompleteVersion>()->in_place);
  EXPECT_EQ(to_replica<reload::SendPause>(), nullptr);
  EXPECT_EQ(outcome(), nullptr) << "the replica is not behind: its version comes";
  EXPECT_TRUE(sidecar.held().complete_versions().empty()) << "nobody loads the base either";
  EXPECT_EQ(sidecar.status(now).activity, "changing the copy of 1.1 to 1.2");
  completed();
  EXPECT_EQ(sidecar.held().complete_versions(), std::vector{kV2});
  ASSERT_NE(to_replica<reload::SendPause>(), nullptr);
  run_switch();
  ASSERT_NE(outcome(), nullptr);
  EXPECT_EQ(outcome()->outcome, control::SwitchOutcome::kCommitted);
  EXPECT_EQ(sidecar.held().versions(), (std::vector{kV1, kV2}));
}

TEST_F(SidecarChangesTest, ARollbackLeadsBackInTheSameMemory) {
  decide_changes();
  completed();
  run_switch();
  EXPECT_EQ(sidecar.status(now).rollback_target, kV1);
  decide(3, kV1, {kV2});
  persisted();
  ASSERT_NE(command<CompleteVersion>(), nullptr);
  EXPECT_EQ(command<CompleteVersion>()->version, kV1);
  EXPECT_EQ(command<CompleteVersion>()->base, kV2);
  completed();
  run_switch();
  EXPECT_EQ(sidecar.report(sidecar.replicas().at("r"), now).version, kV1);
}

TEST_F(SidecarChangesTest, ADecisionDuringACompletionWaitsForItsEnd) {
  decide_changes();
  const CompleteVersion first = *command<CompleteVersion>();
  decide(3, kV1, {kV2});
  persisted();
  EXPECT_EQ(command<CompleteVersion>(), nullptr) << "one at a time";
  EXPECT_EQ(to_replica<reload::BeginLoad>(), nullptr);
  ASSERT_NE(outcome(), nullptr) << "it has served 1.1 all the time";
  EXPECT_EQ(outcome()->outcome, control::SwitchOutcome::kCommitted);
  step(VersionCompleted{.version = first.version, .failure = {}, .in_place = true});
  ASSERT_NE(command<CompleteVersion>(), nullptr);
  EXPECT_EQ(command<CompleteVersion>()->version, kV1);
  completed();
  EXPECT_EQ(sidecar.held().complete_versions(), std::vector{kV1});
}

TEST_F(SidecarChangesTest, SeveralVersionsAreLedBackOneAfterTheOther) {
  sidecar = Sidecar({.name = "s", .versions_held = 3});
  decide_changes();
  completed();
  run_switch();
  stage(3, kV3);
  decide(3, kV3);
  persisted();
  completed();
  run_switch();
  EXPECT_EQ(sidecar.held().versions(), (std::vector{kV1, kV2, kV3}));
  decide(4, kV1, {kV2, kV3});
  persisted();
  ASSERT_NE(command<CompleteVersion>(), nullptr);
  EXPECT_EQ(command<CompleteVersion>()->version, kV2) << "on the way to 1.1";
  completed();
  ASSERT_NE(command<CompleteVersion>(), nullptr);
  EXPECT_EQ(command<CompleteVersion>()->version, kV1);
  completed();
  run_switch();
  EXPECT_EQ(sidecar.report(sidecar.replicas().at("r"), now).version, kV1);
}

TEST_F(SidecarChangesTest, OtherMemoryLeavesTheBaseComplete) {
  decide_changes();
  completed(false);
  EXPECT_EQ(sidecar.held().complete_versions(), (std::vector{kV1, kV2}));
  run_switch();
  EXPECT_EQ(sidecar.report(sidecar.replicas().at("r"), now).version, kV2);
}

TEST_F(SidecarChangesTest, ACanaryGetsOtherMemoryBecauseTheOthersServeTheBase) {
  serve(kV1);
  stage(2, kV2);
  message(kNow, 7,
          control::Decide{.number = 2,
                          .kind = control::DecisionKind::kSwitchCanary,
                          .target = kV2,
                          .content_digest = content_of(kV2),
                          .canary = "r"});
  persisted();
  ASSERT_NE(command<CompleteVersion>(), nullptr);
  EXPECT_FALSE(command<CompleteVersion>()->in_place);
  EXPECT_EQ(sidecar.held().complete_versions(), std::vector{kV1});
}

TEST_F(SidecarChangesTest, ALostBaseIsRequestedAgainWithItsVersion) {
  decide_changes();
  step(VersionCompleted{
      .version = kV2, .failure = "a block differs", .in_place = true, .base_lost = true});
  EXPECT_TRUE(sidecar.held().empty());
  ASSERT_NE(outcome(), nullptr);
  EXPECT_EQ(outcome()->outcome, control::SwitchOutcome::kBehind);
  ASSERT_NE(replied<control::Hello>(), nullptr) << "the coordinator sends the target again";
  EXPECT_TRUE(replied<control::Hello>()->staged.empty());
  answer_hello(kNow);
  as_changes = false;
  stage(3, kV2);
  EXPECT_EQ(command<CompleteVersion>(), nullptr);
  run_switch();
  EXPECT_EQ(sidecar.report(sidecar.replicas().at("r"), now).version, kV2);
}

TEST_F(SidecarChangesTest, WithoutMemoryTheVersionIsLostAndTheBaseStays) {
  decide_changes();
  step(VersionCompleted{.version = kV2, .failure = "no memory"});
  EXPECT_EQ(sidecar.held().versions(), std::vector{kV1});
  EXPECT_EQ(sidecar.held().complete_versions(), std::vector{kV1});
}

TEST_F(SidecarChangesTest, ASuspectBaseIsNotChangedBeforeItWasChecked) {
  as_changes = false;
  const std::uint64_t check = fail_to_load_v2();
  as_changes = true;
  stage(3, kV3, true);
  decide(3, kV3);
  persisted();
  EXPECT_EQ(command<CompleteVersion>(), nullptr) << "1.2 is being checked";
  step(CopyChecked{.check = check, .intact = true});
  ASSERT_NE(command<CompleteVersion>(), nullptr);
  EXPECT_EQ(command<CompleteVersion>()->version, kV3);
  EXPECT_TRUE(command<CompleteVersion>()->in_place);
}

TEST_F(SidecarChangesTest, ABaseThatDoesNotFitIsChecked) {
  decide_changes();
  step(VersionCompleted{.version = kV2, .failure = "a bucket differs", .base_suspect = true});
  ASSERT_NE(command<CheckCopy>(), nullptr);
  EXPECT_EQ(command<CheckCopy>()->version, kV1);
  step(CopyChecked{.check = command<CheckCopy>()->check, .intact = false});
  EXPECT_TRUE(sidecar.held().empty());
}

TEST_F(SidecarChangesTest, ACancelledVersionIsReleasedAndItsBaseStays) {
  serve(kV1);
  stage(2, kV2);
  message(kNow, 2, control::Abort{.version = kV2, .reason = "it was cancelled"});
  ASSERT_NE(command<ReleaseVersion>(), nullptr);
  EXPECT_EQ(command<ReleaseVersion>()->version, kV2);
  EXPECT_EQ(sidecar.held().complete_versions(), std::vector{kV1});
}

TEST_F(SidecarChangesTest, ADamagedBaseTakesAlongWhatLeadsFromIt) {
  const std::uint64_t check = [this] {
    as_changes = false;
    return fail_to_load_v2();
  }();
  as_changes = true;
  // 1.3 comes as what changes from 1.2, whose copy is being checked.
  stage(3, kV3, true);
  ASSERT_NE(sidecar.held().find(kV3), nullptr);
  step(CopyChecked{.check = check, .intact = false});
  EXPECT_EQ(sidecar.held().find(kV2), nullptr);
  EXPECT_EQ(sidecar.held().find(kV3), nullptr);
}

// Every version that is held is one to go back to, or the target.
TEST_F(SidecarChangesTest, AWithdrawnVersionIsLetGoBeforeOneToGoBackTo) {
  decide_changes();
  completed();
  run_switch();
  decide(3, kV1, {kV2});
  persisted();
  completed();
  run_switch();
  stage(3, kV3, true);
  message(kNow, 7,
          control::Decide{.number = 4,
                          .kind = control::DecisionKind::kSwitch,
                          .target = kV3,
                          .withdrawn = {kV2},
                          .content_digest = content_of(kV3)});
  persisted();
  completed();
  run_switch();
  EXPECT_EQ(sidecar.held().versions(), (std::vector{kV1, kV3}));
  EXPECT_EQ(sidecar.status(now).rollback_target, kV1);
}

// For a canary the base keeps its memory, so its check goes on beside the completion that reads it.
TEST_F(SidecarChangesTest, ABaseThatIsFoundDamagedDuringACompletionIsLostAtItsEnd) {
  as_changes = false;
  const std::uint64_t check = fail_to_load_v2();
  as_changes = true;
  stage(3, kV3, true);
  message(kNow, 7,
          control::Decide{.number = 3,
                          .kind = control::DecisionKind::kSwitchCanary,
                          .target = kV3,
                          .content_digest = content_of(kV3),
                          .canary = "r"});
  persisted();
  ASSERT_NE(command<CompleteVersion>(), nullptr);
  EXPECT_FALSE(command<CompleteVersion>()->in_place);
  step(CopyChecked{.check = check, .intact = false});
  EXPECT_EQ(command<ReleaseVersion>(), nullptr) << "it is being read";
  EXPECT_EQ(sidecar.held().complete_versions(), std::vector<Version>{kV1}) << "it is not loaded";
  step(VersionCompleted{.version = kV3});
  EXPECT_EQ(sidecar.held().find(kV2), nullptr);
  EXPECT_TRUE(sidecar.held().is_complete(kV3)) << "every byte of it was compared";
}

TEST_F(SidecarChangesTest, AVersionThatCameFromAReleasedBaseIsRefused) {
  serve(kV1);
  announce(2, kV2);
  step(LayoutChecked{.round = 2});
  message(kNow, 2, control::Stage{.version = kV2, .source = "a"});
  step(StagingDone{
      .attempt = command<StartStaging>()->attempt, .content_digest = content_of(kV2), .base = kV3});
  ASSERT_NE(replied<control::Staged>(), nullptr);
  EXPECT_EQ(replied<control::Staged>()->failure,
            "it has come as what changes from 1.3, which has been released meanwhile");
  EXPECT_EQ(sidecar.held().versions(), std::vector{kV1});
}

TEST_F(SidecarChangesTest, TheNextVersionWaitsForTheTargetSoThatItMayComeAsWhatChanges) {
  decide_changes();
  const CompleteVersion first = *command<CompleteVersion>();
  announce(3, kV3);
  step(LayoutChecked{.round = 3, .fits_beside = true});
  message(kNow, 3, control::Stage{.version = kV3, .source = "a"});
  EXPECT_EQ(command<StartStaging>(), nullptr);
  step(VersionCompleted{.version = first.version, .failure = {}, .in_place = true});
  ASSERT_NE(command<StartStaging>(), nullptr);
  EXPECT_EQ(command<StartStaging>()->base, kV2);
}

// 1.1 leads from 1.2, and that from 1.3, when 1.1 becomes the target again.
TEST_F(SidecarChangesTest, WhatLeadsToTheTargetIsNotReleasedForTheNextVersion) {
  sidecar = Sidecar({.name = "s", .versions_held = 3});
  decide_changes();
  completed();
  run_switch();
  stage(3, kV3, true);
  decide(3, kV3);
  persisted();
  const CompleteVersion last_one = *command<CompleteVersion>();
  const Version next{.epoch = 1, .step = 4};
  announce(4, next);
  step(LayoutChecked{.round = 4});
  message(kNow, 4, control::Stage{.version = next, .source = "a"});
  decide(4, kV1, {kV2, kV3});
  persisted();
  step(VersionCompleted{.version = last_one.version, .failure = {}, .in_place = true});
  EXPECT_NE(sidecar.held().find(kV1), nullptr) << "the target was released";
  ASSERT_NE(command<CompleteVersion>(), nullptr);
  EXPECT_EQ(command<CompleteVersion>()->version, kV2);
}

// The replica cannot load 1.2, whose bytes are where those of 1.1 were.
class FailedLoadTest : public SidecarChangesTest {
 protected:
  FailedLoadTest() {
    decide_changes();
    completed();
    const auto* pause = to_replica<reload::SendPause>();
    step(ReplicaEvent{.replica = "r",
                      .what = reload::RankPaused{.rank = 0, .request = pause->request}});
    for (int i = 0; i < 2; ++i) {
      const auto* load = to_replica<reload::BeginLoad>();
      EXPECT_EQ(load->version, kV2);
      step(ReplicaEvent{
          .replica = "r",
          .what = reload::RankLoaded{.rank = 0, .request = load->request, .failure = "no memory"}});
    }
  }
};

TEST_F(FailedLoadTest, TheVersionBeforeIsMadeCompleteBesideTheTargetForIt) {
  EXPECT_EQ(to_replica<reload::BeginLoad>(), nullptr) << "1.1 is not complete";
  ASSERT_NE(command<CompleteVersion>(), nullptr);
  EXPECT_EQ(command<CompleteVersion>()->version, kV1);
  EXPECT_FALSE(command<CompleteVersion>()->in_place) << "others may load the target";
  completed(false);
  ASSERT_NE(to_replica<reload::BeginLoad>(), nullptr);
  EXPECT_EQ(to_replica<reload::BeginLoad>()->version, kV1);
  run_switch();
  ASSERT_NE(outcome(), nullptr);
  EXPECT_EQ(outcome()->outcome, control::SwitchOutcome::kRolledBack);
  EXPECT_EQ(sidecar.report(sidecar.replicas().at("r"), now).version, kV1);
  EXPECT_EQ(sidecar.held().complete_versions(), (std::vector{kV1, kV2}));
}

TEST_F(FailedLoadTest, WithoutMemoryTheReplicaIsToldSo) {
  step(VersionCompleted{.version = kV1, .failure = "no memory"});
  ASSERT_NE(outcome(), nullptr);
  EXPECT_EQ(outcome()->outcome, control::SwitchOutcome::kTainted);
  EXPECT_EQ(outcome()->reason,
            "version 1.1 could not be loaded: the copy of 1.1 could not be made complete");
  EXPECT_EQ(sidecar.held().versions(), std::vector{kV2});
}

TEST_F(FailedLoadTest, WithoutMemoryTheVersionBeforeIsStillOneToGoBackTo) {
  ASSERT_NE(command<CheckCopy>(), nullptr);
  const std::uint64_t check = command<CheckCopy>()->check;
  step(VersionCompleted{.version = kV1, .failure = "no memory", .no_memory = true});
  ASSERT_NE(outcome(), nullptr);
  EXPECT_EQ(outcome()->outcome, control::SwitchOutcome::kTainted);
  EXPECT_EQ(outcome()->reason,
            "version 1.1 could not be loaded: the copy of 1.1 has no memory beside the others");
  EXPECT_EQ(command<ReleaseVersion>(), nullptr);
  EXPECT_EQ(command<CompleteVersion>(), nullptr) << "not again at once";
  EXPECT_EQ(sidecar.status(now).rollback_target, kV1);
  decide(3, kV1, {kV2});
  persisted();
  EXPECT_EQ(command<CompleteVersion>(), nullptr) << "the copy of 1.2 is being checked";
  step(CopyChecked{.check = check, .intact = true});
  ASSERT_NE(command<CompleteVersion>(), nullptr);
  EXPECT_TRUE(command<CompleteVersion>()->in_place);
  // As the target it is fetched again, because nothing else would bring it.
  step(VersionCompleted{.version = kV1, .failure = "no memory", .no_memory = true});
  EXPECT_EQ(sidecar.held().find(kV1), nullptr);
}

TEST_F(FailedLoadTest, ADamagedTargetIsReleasedWhenNothingIsMadeOfItAnyMore) {
  const auto* check = command<CheckCopy>();
  ASSERT_NE(check, nullptr);
  step(CopyChecked{.check = check->check, .intact = false});
  EXPECT_EQ(command<ReleaseVersion>(), nullptr);
  step(VersionCompleted{.version = kV1});
  ASSERT_NE(command<ReleaseVersion>(), nullptr);
  EXPECT_EQ(command<ReleaseVersion>()->version, kV2);
  EXPECT_EQ(sidecar.held().versions(), std::vector{kV1});
}

TEST_F(FailedLoadTest, ALoadThatEndsBeforeItHasBegunIsNotGivenAnyMore) {
  step(ReplicaEvent{.replica = "r", .what = reload::RankDetached{.rank = 0}});
  EXPECT_EQ(to_replica<reload::CancelLoad>(), nullptr) << "it has not begun";
  step(VersionCompleted{.version = kV1});
  EXPECT_EQ(to_replica<reload::BeginLoad>(), nullptr);
}

TEST_F(SidecarChangesTest, ALoadOfABaseThatIsTakenAwayGoesOnWithTheTarget) {
  serve(kV1);
  stage(2, kV2);
  engine({});  // another process of the replica, which loads 1.1
  const auto* pause = to_replica<reload::SendPause>();
  if (pause != nullptr)
    step(ReplicaEvent{.replica = "r",
                      .what = reload::RankPaused{.rank = 0, .request = pause->request}});
  ASSERT_NE(to_replica<reload::BeginLoad>(), nullptr);
  const reload::BeginLoad load = *to_replica<reload::BeginLoad>();
  EXPECT_EQ(load.version, kV1);
  decide(2, kV2);
  persisted();
  const CompleteVersion change = *command<CompleteVersion>();
  // Its agent ends the load, because the version is no longer to be read.
  step(ReplicaEvent{
      .replica = "r",
      .what = reload::RankLoaded{.rank = 0, .request = load.request, .failure = "released"}});
  EXPECT_EQ(to_replica<reload::BeginLoad>(), nullptr);
  step(VersionCompleted{.version = change.version, .failure = {}, .in_place = true});
  ASSERT_NE(to_replica<reload::BeginLoad>(), nullptr);
  EXPECT_EQ(to_replica<reload::BeginLoad>()->version, kV2);
}

TEST_F(SidecarChangesTest, WhatIsNotBeingCompletedIsDropped) {
  serve(kV1);
  const std::uint64_t dropped = sidecar.dropped();
  step(VersionCompleted{.version = kV1});
  step(VersionCompleted{});
  EXPECT_EQ(sidecar.dropped(), dropped + 2);
}

TEST_F(SidecarChangesTest, OnlyWhatIsHereAsAWholeIsPassedOn) {
  serve(kV1);
  message(kNow, 0, control::RelayVersion{.version = kV1, .with_layout = true});
  ASSERT_NE(command<RelayHeld>(), nullptr);
  EXPECT_EQ(command<RelayHeld>()->version, kV1);
  EXPECT_TRUE(command<RelayHeld>()->with_layout);
  const auto is_refused = [&](const Version& version) {
    message(kNow, 0, control::RelayVersion{.version = version});
    const auto* ready = replied<control::RelayReady>();
    return command<RelayHeld>() == nullptr && ready != nullptr && ready->version == version &&
           !ready->failure.empty();
  };
  EXPECT_TRUE(is_refused(kV3)) << "it is not held";
  stage(2, kV2);
  EXPECT_TRUE(is_refused(kV2)) << "only what changes is here";
  decide(2, kV2);
  persisted();
  ASSERT_NE(command<CompleteVersion>(), nullptr);
  EXPECT_TRUE(is_refused(kV1)) << "its memory is being changed";
  step(VersionCompleted{.version = kV2, .failure = {}, .in_place = true});
  message(kNow, 0, control::RelayVersion{.version = kV2});
  EXPECT_NE(command<RelayHeld>(), nullptr);
}

TEST_F(SidecarChangesTest, UnderALowerFenceNothingIsPassedOn) {
  serve(kV1);
  message(kOld, 0, control::RelayVersion{.version = kV1});
  EXPECT_EQ(command<RelayHeld>(), nullptr);
}

}  // namespace
}  // namespace wsync::staging
