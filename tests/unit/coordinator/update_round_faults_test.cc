// The coordinator when sidecars are late, lost, restarted, or say what cannot be.
#include <chrono>
#include <gtest/gtest.h>

#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "tests/unit/coordinator/coordinator_fleet.h"

namespace wsync::coordinator {
namespace {

TEST(Coordinator, EveryWaitEndsAtItsDeadline) {
  Fleet fleet;
  fleet.join("a");
  fleet.publish();
  fleet.wake();  // no Accept
  ASSERT_EQ(fleet.rounds.size(), 1U);
  fleet.publish();
  fleet.accept("a");
  fleet.wake();  // no Staged
  ASSERT_EQ(fleet.rounds.size(), 2U);
  fleet.publish();
  fleet.accept("a");
  fleet.staged("a");
  while (fleet.rounds.size() == 2U && fleet.now < TimePoint{1'000'000'000'000})
    fleet.wake();  // no Switched: the decision is sent again until the deadline comes
  ASSERT_EQ(fleet.rounds.size(), 3U);
  for (const auto& round : fleet.rounds) EXPECT_FALSE(round.reply.ok);
}

// The deadline ends one round and the next begins within the same step: it has its own time.
TEST(Coordinator, TheDeadlineOfARoundIsNotThatOfTheNextOne) {
  for (const bool accepted : {false, true}) {
    Fleet fleet({.min_sidecars = 2});
    for (const char* name : {"a", "b"}) fleet.from_fence(name, kNoFence, Fleet::hello(name));
    for (const char* name : {"a", "b"}) fleet.from(name, Fleet::hello(name));
    fleet.publish(1);
    if (accepted)
      for (const char* name : {"a", "b"}) fleet.accept(name);
    fleet.publish(2);
    fleet.wake();  // both are late for the first one
    ASSERT_EQ(fleet.rounds.size(), 1U);
    EXPECT_EQ(fleet.rounds[0].request, 1U);
    EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kAnnouncing);
    EXPECT_EQ(fleet.count<control::Abort>("b"), 1U);
    for (const char* name : {"a", "b"}) fleet.accept(name);
    for (const char* name : {"a", "b"}) fleet.staged(name);
    for (const char* name : {"a", "b"}) fleet.switched(name);
    ASSERT_EQ(fleet.rounds.size(), 2U);
    EXPECT_TRUE(fleet.rounds[1].reply.ok) << fleet.rounds[1].reply.reason;
  }
}

TEST(Coordinator, WhoHasAcceptedInTimeIsNotLateForStaging) {
  Fleet fleet({.min_sidecars = 2, .commit = {.rule = CommitRule::kEach}});
  for (const char* name : {"a", "b"}) fleet.from_fence(name, kNoFence, Fleet::hello(name));
  for (const char* name : {"a", "b"}) fleet.from(name, Fleet::hello(name));
  fleet.publish();
  fleet.accept("b");
  fleet.wake();  // 'a' has not answered: the round goes on without it
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kStaging);
  fleet.staged("b");
  fleet.switched("b");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
}

TEST(Coordinator, ARoundWithoutSidecarsNamesEachOfThem) {
  Fleet fleet({.min_sidecars = 2});
  fleet.join_all({"a", "b"});
  fleet.publish();
  fleet.step(PeerLost{.peer = "a", .reason = "it was killed"});
  fleet.restarted("b-restarted", fleet.hello("b"));
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_EQ(fleet.rounds[0].reply.reason,
            "no sidecar is left in the round of 1.1: sidecar 'a' was lost: it was killed; sidecar "
            "'b' was lost: another process has joined under its name; publish again when a sidecar "
            "has joined");
}

TEST(Coordinator, APublishThatIsKeptOutlivesTheSidecarsOfItsRound) {
  for (const bool has_staged : {false, true}) {
    Fleet fleet;
    fleet.join("a");
    PublishRequested kept = fleet.snapshot(1, fleet.coordinator.next_version().value());
    kept.is_kept = true;
    fleet.step(kept);
    if (has_staged) fleet.accept("a");
    fleet.step(PeerLost{.peer = "a", .reason = "it was killed"});
    EXPECT_TRUE(fleet.rounds.empty());
    ASSERT_EQ(fleet.lost.size(), 1U);
    EXPECT_EQ(fleet.lost[0].request, 1U);
    EXPECT_EQ(fleet.lost[0].version, kept.version);
    EXPECT_EQ(fleet.lost[0].reason,
              "no sidecar is left in the round of 1.1: sidecar 'a' was lost: it was killed");
    EXPECT_EQ(fleet.dropped, std::vector{kept.version});
    // Without a sidecar it is lost at once.
    fleet.step(kept);
    ASSERT_EQ(fleet.lost.size(), 2U);
    EXPECT_EQ(fleet.lost[1].reason, "no sidecar is connected to this coordinator");
    fleet.join("a-restarted", fleet.hello("a"));
    // Its name stands for its content alone.
    PublishRequested other = kept;
    other.content_digest = {2, 77};
    fleet.step(other);
    ASSERT_EQ(fleet.rounds.size(), 1U);
    EXPECT_NE(fleet.rounds[0].reply.reason.find("was used"), std::string::npos);
    fleet.step(kept);
    fleet.accept("a-restarted");
    fleet.staged("a-restarted");
    fleet.switched("a-restarted");
    ASSERT_EQ(fleet.rounds.size(), 2U);
    EXPECT_TRUE(fleet.rounds[1].reply.ok) << fleet.rounds[1].reply.reason;
    EXPECT_EQ(fleet.coordinator.target(), kept.version);
  }
}

TEST(Coordinator, APublishThatIsKeptIsNotRepeatedAfterANewerOne) {
  Fleet fleet;
  fleet.join("a");
  PublishRequested kept = fleet.snapshot(1, fleet.coordinator.next_version().value());
  kept.is_kept = true;
  fleet.step(kept);
  fleet.publish(2);  // it waits
  fleet.step(PeerLost{.peer = "a", .reason = "it was killed"});
  ASSERT_EQ(fleet.rounds.size(), 2U);
  EXPECT_TRUE(fleet.lost.empty()) << "a newer publish waited";
  EXPECT_EQ(fleet.rounds[0].request, 1U);
  fleet.join("a-restarted", fleet.hello("a"));
  fleet.step(kept);
  ASSERT_EQ(fleet.rounds.size(), 3U);
  EXPECT_NE(fleet.rounds[2].reply.reason.find("step 1 was used"), std::string::npos);

  PublishRequested lost = fleet.snapshot(3, fleet.coordinator.next_version().value());
  lost.is_kept = true;
  fleet.step(lost);
  fleet.step(PeerLost{.peer = "a-restarted", .reason = "it was killed"});
  ASSERT_EQ(fleet.lost.size(), 1U);
  fleet.join("a-third", fleet.hello("a"));
  fleet.publish(4);
  ASSERT_EQ(fleet.rounds.size(), 3U);
  fleet.accept("a-third");
  fleet.staged("a-third");
  fleet.switched("a-third");
  const Version newer = fleet.coordinator.target();
  EXPECT_LT(lost.version, newer);
  fleet.step(lost);
  ASSERT_EQ(fleet.rounds.size(), 5U);
  EXPECT_FALSE(fleet.rounds[4].reply.ok) << "the target would go back";
  EXPECT_EQ(fleet.coordinator.target(), newer);
}

TEST(Coordinator, WhereTheHandOverFailsTheBytesGoByTcp) {
  for (const bool source_lost : {true, false}) {  // nobody there; or its descriptor did not pass
    Fleet fleet;
    fleet.join("a");
    fleet.publish();
    fleet.accept("a");
    const auto stage = fleet.last<control::Stage>("a");
    ASSERT_TRUE(stage.has_value());
    EXPECT_EQ(stage->second.transport, "memfd");
    fleet.from("a",
               control::Staged{.version = stage->second.version,
                               .failure = "connect to /run/host.sock: no such file",
                               .source_lost = source_lost},
               stage->first.round);
    if (!source_lost) fleet.accept("a");  // it has dropped the version, and is offered it anew
    ASSERT_EQ(fleet.count<control::Stage>("a"), 2U);
    EXPECT_EQ(fleet.last<control::Stage>("a")->second.transport, "tcp");
    EXPECT_EQ(fleet.last<control::Stage>("a")->second.source, "tcp://127.0.0.1:1");
    fleet.staged("a");
    fleet.switched("a");
    ASSERT_EQ(fleet.rounds.size(), 1U);
    EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
    fleet.publish(2);
    fleet.accept("a");
    EXPECT_EQ(fleet.last<control::Stage>("a")->second.transport, "tcp")
        << "this process is not asked again";
    const auto again = fleet.last<control::Stage>("a");
    fleet.from("a", control::Staged{.version = again->second.version, .failure = "no memory"},
               again->first.round);
    ASSERT_EQ(fleet.rounds.size(), 2U);
    EXPECT_NE(fleet.rounds[1].reply.reason.find("no memory"), std::string::npos);
    EXPECT_NE(fleet.rounds[1].reply.reason.find("no such file"), std::string::npos);
    fleet.step(PeerLost{.peer = "a", .reason = "killed"});
    fleet.from("a-restarted", Fleet::hello("a"));
    fleet.publish(3);
    fleet.accept("a-restarted");
    EXPECT_EQ(fleet.last<control::Stage>("a-restarted")->second.transport, "memfd");
  }
}

TEST(Coordinator, ASidecarThatTakesNothingByTcpIsAskedForTheHandOverAgain) {
  Fleet fleet;
  control::Hello hello = Fleet::hello("a");
  hello.transports = {{"memfd", ""}};
  fleet.join("a", hello);
  fleet.publish();
  fleet.accept("a");
  for (std::size_t attempt = 2; attempt <= 3; ++attempt) {
    const auto stage = fleet.last<control::Stage>("a");
    fleet.from("a",
               control::Staged{.version = stage->second.version,
                               .failure = "the host link is silent",
                               .source_lost = true},
               stage->first.round);
    ASSERT_EQ(fleet.count<control::Stage>("a"), attempt);
    EXPECT_EQ(fleet.last<control::Stage>("a")->second.transport, "memfd");
  }
  fleet.staged("a");
  fleet.switched("a");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
}

TEST(Coordinator, WhereMemfdIsDemandedItsFailureIsTheRounds) {
  Fleet fleet({.transports = {{"memfd", "/run/host.sock"}}, .one_transport = true});
  fleet.join("a");
  fleet.publish();
  fleet.accept("a");
  const auto stage = fleet.last<control::Stage>("a");
  fleet.from("a", control::Staged{.version = stage->second.version, .failure = "no descriptor"},
             stage->first.round);
  EXPECT_EQ(fleet.count<control::Stage>("a"), 1U);
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_NE(fleet.rounds[0].reply.reason.find("no descriptor"), std::string::npos);
}

TEST(Coordinator, ARestartedSidecarCatchesUp) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  const Version target = fleet.coordinator.target();
  fleet.step(PeerLost{.peer = "a"});
  auto again = Fleet::hello("a");
  again.decision = {.fence = fleet.coordinator.fence(), .number = 1};
  again.target = target;
  fleet.from("a2", again);
  EXPECT_EQ(fleet.last<control::Announce>("a2")->second.version, target);
  fleet.accept("a2");
  EXPECT_EQ(fleet.count<control::Stage>("a2"), 1U);
  fleet.staged("a2");
  EXPECT_EQ(fleet.last<control::Decide>("a2")->second.number, 1U);
}

// It joins during a round, and catches up with the version that is the target until the round
// decides. The round ends before it has staged that version.
TEST(Coordinator, ASidecarThatCatchesUpWithAReplacedTargetIsOfferedTheNewOne) {
  for (const bool staged_first : {true, false}) {
    Fleet fleet;
    fleet.join("a");
    fleet.full_round({"a"});
    fleet.publish();
    fleet.join("b");
    const auto offered = fleet.last<control::Announce>("b");
    ASSERT_TRUE(offered.has_value());
    EXPECT_EQ(offered->second.version.step, 1U);
    fleet.accept("b");
    if (staged_first) fleet.staged("b");
    fleet.accept("a");
    fleet.staged("a");
    fleet.switched("a");
    ASSERT_EQ(fleet.rounds.size(), 2U);
    EXPECT_TRUE(fleet.rounds[1].reply.ok) << fleet.rounds[1].reply.reason;
    if (!staged_first) fleet.staged("b");
    EXPECT_EQ(fleet.last<control::Announce>("b")->second.version.step, 2U);
    fleet.accept("b");
    fleet.staged("b");
    EXPECT_EQ(fleet.last<control::Decide>("b")->second.target.step, 2U);
  }
}

// It has stored the target, and has released its copy for a version that was offered and failed.
TEST(Coordinator, ASidecarWhoseHeartbeatLacksTheTargetIsOfferedItAgain) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  const Version target = fleet.coordinator.target();
  const std::size_t before = fleet.count<control::Announce>("a");
  fleet.from("a", control::Heartbeat{.target = target, .staged = {target}});
  EXPECT_EQ(fleet.count<control::Announce>("a"), before);
  for (int i = 0; i < 2; ++i) fleet.from("a", control::Heartbeat{.target = target});
  EXPECT_EQ(fleet.count<control::Announce>("a"), before + 1) << "it is on its way";
  EXPECT_EQ(fleet.last<control::Announce>("a")->second.version, target);
}

TEST(Coordinator, OfTheHellosThatWaitForTheStoreTheLastOneCounts) {
  Fleet fleet;
  fleet.join("a");
  fleet.publish();
  fleet.accept("a");
  fleet.hold_stores = true;
  fleet.staged("a");
  for (const std::vector<Version>& staged : {std::vector<Version>{}, {{.epoch = 1, .step = 1}}})
    fleet.from("b", Fleet::hello("b", staged));
  fleet.answer_store();
  EXPECT_EQ(fleet.count<control::Welcome>("b"), 1U);
  EXPECT_EQ(fleet.coordinator.roster().find("b")->report.staged.size(), 1U);
  EXPECT_TRUE(fleet.coordinator.roster().find("b")->joined);
}

TEST(Coordinator, ALostSourceIsNamedWhenTheSidecarHasLostItTooOften) {
  Fleet fleet({.transports = {{"memfd", "/run/host.sock"}}, .one_transport = true});
  fleet.join("a");
  fleet.publish();
  fleet.accept("a");
  for (int i = 0; i < 8; ++i) {
    const auto stage = fleet.last<control::Stage>("a");
    fleet.from("a",
               control::Staged{.version = stage->second.version,
                               .failure = "connect to /run/host.sock: no such file",
                               .source_lost = true},
               stage->first.round);
  }
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_NE(fleet.rounds[0].reply.reason.find("lost 8 times"), std::string::npos);
  EXPECT_NE(fleet.rounds[0].reply.reason.find("no such file"), std::string::npos)
      << fleet.rounds[0].reply.reason;
}

TEST(Coordinator, ASidecarWithoutACommonTransportIsAnIncidentWhenItComes) {
  Fleet fleet;
  control::Hello hello = Fleet::hello("a");
  hello.transports = {{"ucx", ""}};
  fleet.join("a", hello);
  ASSERT_EQ(fleet.incidents.size(), 1U) << "once for each process";
  EXPECT_NE(fleet.incidents[0].find("sidecar 'a': the trainer and the sidecar have no transport"),
            std::string::npos);
  EXPECT_EQ(fleet.coordinator.status().sidecars.at(0).transport, "");
  fleet.publish();
  fleet.accept("a");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_NE(fleet.rounds[0].reply.reason.find("accepts ucx;"), std::string::npos);
}

TEST(Coordinator, AnAddressOfTheTrainerInASidecarsListIsDropped) {
  Fleet fleet({.min_sidecars = 2, .commit = {.rule = CommitRule::kEach}});
  control::Hello liar = Fleet::hello("l");
  liar.transports = {{"memfd", "/run/host.sock"}, {"tcp", ""}};
  fleet.from_fence("a", kNoFence, Fleet::hello("a"));
  fleet.from_fence("l", kNoFence, liar);
  fleet.from("a", Fleet::hello("a"));
  fleet.from("l", liar);
  fleet.publish();
  fleet.accept("a");
  fleet.accept("l");
  ASSERT_EQ(fleet.count<control::Stage>("a"), 1U);
  fleet.step(PeerLost{.peer = "l", .reason = "killed"});
  EXPECT_EQ(fleet.count<control::Stage>("a"), 1U) << "its source is not the lost sidecar";
}

TEST(Coordinator, AHelloThatCannotBeTrueIsRefused) {
  Fleet fleet;
  fleet.join("a");
  const auto refused = [&](control::Fence fence, const control::Hello& hello) {
    const auto before = fleet.count<control::ErrorReply>("x");
    fleet.from_fence("x", fence, hello);
    EXPECT_EQ(fleet.coordinator.roster().members().size(), 1U);
    return fleet.count<control::ErrorReply>("x") == before + 1;
  };
  const control::Fence ours = fleet.coordinator.fence();
  control::Hello hello = Fleet::hello("x");
  hello.decision = {.fence = ours, .number = 99};
  EXPECT_TRUE(refused(ours, hello));  // a decision that was never taken
  hello.decision = {};
  EXPECT_TRUE(refused({.epoch = limits::kEpochMax + 1, .run_id = {}}, hello));
  hello.decision.fence.epoch = limits::kEpochMax + 1;
  EXPECT_TRUE(refused(ours, hello));
  hello.decision = {};
  hello.target.step = limits::kStepMax + 1;
  EXPECT_TRUE(refused(ours, hello));
  EXPECT_TRUE(refused(ours, Fleet::hello("x", {{1, limits::kStepMax + 1}})));
  fleet.full_round({"a"});
  EXPECT_TRUE(fleet.rounds.at(0).reply.ok);
}

// Replicas of a sidecar that has not staged are live, and do not count.
TEST(Coordinator, TheSentenceOfARoundThatIsTooSmallCountsWhatHasStaged) {
  Fleet fleet({.min_sidecars = 2, .min_replicas = 2, .commit = {.rule = CommitRule::kEach}});
  fleet.join_all({"a", "b"});
  fleet.publish();
  for (const char* name : {"a", "b"}) fleet.accept(name);
  fleet.staged("a");
  const auto stage = fleet.last<control::Stage>("b");
  fleet.from("b", control::Staged{.version = stage->second.version, .failure = "memfd"},
             stage->first.round);
  fleet.accept("b");
  fleet.from("b", control::Staged{.version = stage->second.version, .failure = "tcp"},
             fleet.last<control::Stage>("b")->first.round);
  while (fleet.rounds.empty()) fleet.wake();
  EXPECT_NE(fleet.rounds[0].reply.reason.find("1 whole replicas have staged"), std::string::npos)
      << fleet.rounds[0].reply.reason;
  EXPECT_NE(fleet.rounds[0].reply.reason.find("`min_replicas`"), std::string::npos);
}

TEST(Coordinator, TooFewReplicasFailTheRound) {
  Fleet fleet({.min_replicas = 2});
  fleet.join("a");
  fleet.publish();
  fleet.accept("a");
  fleet.staged("a");
  EXPECT_TRUE(fleet.rounds.empty()) << "a heartbeat may still bring one";
  fleet.wake();
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_NE(fleet.rounds[0].reply.reason.find("1 whole replicas have staged"), std::string::npos);
  EXPECT_NE(fleet.rounds[0].reply.reason.find("needs 2"), std::string::npos);
}

TEST(Coordinator, AReplicaThatAttachesAfterItsSidecarHasStagedCounts) {
  Fleet fleet({.min_replicas = 2});
  fleet.join("a");
  fleet.publish();
  fleet.accept("a");
  fleet.staged("a");
  control::Heartbeat heartbeat{.replicas = Fleet::hello("a").replicas};
  fleet.from("a", heartbeat);
  EXPECT_EQ(fleet.count<control::Decide>("a"), 0U);
  heartbeat.replicas.push_back({.replica = "late", .world_size = 1, .ranks_attached = 1});
  fleet.from("a", heartbeat);
  EXPECT_EQ(fleet.count<control::Decide>("a"), 1U);
}

// The same process, after its connection broke: it has the version, and what it said may be lost.
TEST(Coordinator, AHelloInTheSwitchIsAskedForItsOutcomesAgain) {
  Fleet fleet;
  fleet.join("a");
  fleet.publish();
  fleet.accept("a");
  fleet.staged("a");
  ASSERT_EQ(fleet.count<control::Decide>("a"), 1U);
  const Version version = fleet.coordinator.target();
  fleet.from("a", Fleet::hello("a", {version}));
  EXPECT_TRUE(fleet.rounds.empty()) << "it is there: the round goes on";
  EXPECT_EQ(fleet.count<control::Decide>("a"), 2U);
  fleet.switched("a");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
}

// Another process, which had not stored the decision: it is given the version again, then decides.
TEST(Coordinator, ASidecarThatIsRestartedInTheSwitchStagesAgainAndSwitches) {
  Fleet fleet;
  fleet.join("a");
  fleet.publish();
  fleet.accept("a");
  fleet.staged("a");
  fleet.restarted("a2", Fleet::hello("a"));  // its memory went with it
  EXPECT_TRUE(fleet.rounds.empty());
  EXPECT_EQ(fleet.count<control::Decide>("a2"), 0U);
  fleet.accept("a2");
  EXPECT_EQ(fleet.count<control::Stage>("a2"), 1U);
  fleet.staged("a2");
  ASSERT_EQ(fleet.count<control::Decide>("a2"), 1U);
  fleet.from("a2", control::Switched{.number = 1,
                                     .target = fleet.coordinator.target(),
                                     .outcomes = {{.replica = "r-a",
                                                   .outcome = control::SwitchOutcome::kCommitted,
                                                   .version = fleet.coordinator.target()}}});
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
}

// A process that finds the decision on its disc repairs its replicas and has no outcomes to tell.
TEST(Coordinator, OutcomesThatDiedWithTheirSidecarAreReadFromTheNextOnesHeartbeats) {
  Fleet fleet({.min_sidecars = 2});
  fleet.join_all({"a", "b"});
  fleet.publish();
  for (const char* name : {"a", "b"}) fleet.accept(name);
  for (const char* name : {"a", "b"}) fleet.staged(name);
  fleet.switched("b");
  const Version version = fleet.coordinator.target();
  control::Hello again = Fleet::hello("a");
  again.decision = {.fence = fleet.coordinator.fence(), .number = 1};
  again.target = version;
  again.replicas.clear();  // its engines are on their way back
  fleet.restarted("a2", again);
  fleet.accept("a2");
  fleet.staged("a2");
  fleet.from("a2", control::Decided{.number = 1});
  control::Heartbeat beat{.target = version, .staged = {version}};
  fleet.from("a2", beat);
  EXPECT_TRUE(fleet.rounds.empty()) << "its replica has not been seen";
  beat.replicas = {{.replica = "r-a",
                    .ranks_attached = 1,
                    .state = control::ReplicaState::kLoading,
                    .version = version}};
  fleet.from("a2", beat);
  EXPECT_TRUE(fleet.rounds.empty()) << "it does not serve yet";
  beat.replicas[0].state = control::ReplicaState::kServing;
  fleet.from("a2", beat);
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
  EXPECT_EQ(fleet.rounds[0].reply.outcomes.size(), 2U);
}

// What was reported stands, whoever comes back.
TEST(Coordinator, ASidecarThatHasReportedIsNotWaitedForAgain) {
  Fleet fleet({.min_sidecars = 2});
  fleet.join_all({"a", "b"});
  fleet.publish();
  for (const char* name : {"a", "b"}) fleet.accept(name);
  for (const char* name : {"a", "b"}) fleet.staged(name);
  fleet.switched("a");
  fleet.from("a2", Fleet::hello("a"));
  fleet.switched("b");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
}

TEST(Coordinator, ASidecarThatIsGoneInTheSwitchIsNotWaitedFor) {
  Fleet fleet;
  fleet.join("a");
  fleet.publish();
  fleet.accept("a");
  fleet.staged("a");
  fleet.step(PeerLost{.peer = "a"});
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_NE(fleet.rounds[0].reply.reason.find("lost during the switch"), std::string::npos);
}

TEST(Coordinator, EpochsAboveTheLimitChangeNothing) {
  const control::Fence wild{.epoch = limits::kEpochMax + 1, .run_id = {}};
  Fleet fleet({.take_over = true});
  fleet.join("a");
  const control::Fence ours = fleet.coordinator.fence();
  fleet.from_fence("a", wild, control::Heartbeat{});
  EXPECT_EQ(fleet.coordinator.fence(), ours);
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady);
  const auto error = fleet.last<control::ErrorReply>("a");
  ASSERT_TRUE(error.has_value());
  EXPECT_NE(error->second.message.find("Heartbeat"), std::string::npos) << error->second.message;
  EXPECT_NE(error->second.message.find("at most 4294967294"), std::string::npos);
  fleet.from_fence("a", wild, control::ErrorReply{});
  EXPECT_EQ(fleet.count<control::ErrorReply>("a"), 1U) << "errors are not answered with errors";
}

TEST(Coordinator, NoEpochIsClaimedAboveTheLastOne) {
  for (const bool stored : {true, false}) {
    CoordinatorOptions options;
    if (stored)
      options.record = CoordinatorRecord{.fence = {.epoch = limits::kEpochMax, .fleet = kFleetId}};
    Fleet fleet(options);
    fleet.from_fence("a", {.epoch = stored ? 0 : limits::kEpochMax, .run_id = {}},
                     Fleet::hello("a"));
    EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kStopped);
    EXPECT_EQ(fleet.record.fence.epoch, 0U);
    EXPECT_NE(fleet.stop_reason.find("4294967294 is the highest one"), std::string::npos);
  }
}

TEST(Coordinator, TheRosterHasALimitAndForgetsWhoLeaves) {
  Fleet fleet;
  fleet.check_all = false;  // would take a minute
  for (std::uint64_t i = 0; i < limits::kSidecarCount; ++i) fleet.join("s" + std::to_string(i));
  fleet.check_all = true;
  fleet.from("one-more", Fleet::hello("one-more"));
  EXPECT_EQ(fleet.coordinator.roster().members().size(), limits::kSidecarCount);
  const auto error = fleet.last<control::ErrorReply>("one-more");
  ASSERT_TRUE(error.has_value());
  EXPECT_NE(error->second.message.find("already knows 2048 sidecars"), std::string::npos);
  fleet.step(PeerLost{.peer = "s7"});  // it may come back: its place is kept
  fleet.from("one-more", Fleet::hello("one-more"));
  EXPECT_FALSE(fleet.coordinator.roster().members().contains("one-more"));
  fleet.from("s8", control::Heartbeat{});  // its engine has ended
  fleet.from("s8", control::Leave{.reason = "shut down"});
  EXPECT_FALSE(fleet.coordinator.roster().members().contains("s8"));
  fleet.from("one-more", Fleet::hello("one-more"));
  EXPECT_TRUE(fleet.coordinator.roster().members().contains("one-more"));
}

TEST(Coordinator, WhoLeavesInTheSwitchIsForgottenAfterIt) {
  Fleet fleet({.min_sidecars = 2});
  fleet.join_all({"a", "b"});
  fleet.publish();
  for (const char* name : {"a", "b"}) fleet.accept(name);
  for (const char* name : {"a", "b"}) fleet.staged(name);
  fleet.from("b", control::Heartbeat{});  // its engine has ended
  fleet.from("b", control::Leave{});
  EXPECT_TRUE(fleet.coordinator.roster().members().contains("b"));
  fleet.switched("a");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_FALSE(fleet.coordinator.roster().members().contains("b"));
}

// Whatever a publish waits for, it has ended when its own deadline comes.
TEST(Coordinator, TheDeadlineOfAPublishBoundsEveryPhase) {
  for (int phase = 0; phase < 3; ++phase) {
    Fleet fleet;
    fleet.join("a");
    const TimePoint deadline = fleet.now + std::chrono::seconds(1);  // shorter than any phase's
    fleet.publish(1, deadline);
    if (phase >= 1) fleet.accept("a");
    if (phase >= 2) fleet.staged("a");
    EXPECT_EQ(fleet.coordinator.next_wake(), deadline);
    fleet.wake();
    ASSERT_EQ(fleet.rounds.size(), 1U) << "phase " << phase;
    EXPECT_FALSE(fleet.rounds[0].reply.ok);
    EXPECT_NE(fleet.rounds[0].reply.reason.find("deadline"), std::string::npos);
    EXPECT_EQ(fleet.coordinator.target().none(), phase < 2) << "what is decided stands";
  }
}

// The disk hangs. Whether the version was decided is seen when it answers.
TEST(Coordinator, APublishThatWaitsForTheStoreEndsAtItsDeadline) {
  for (const bool stored : {true, false}) {
    Fleet fleet;
    fleet.join("a");
    fleet.hold_stores = true;
    const TimePoint deadline = fleet.now + std::chrono::seconds(1);
    fleet.publish(1, deadline);
    fleet.accept("a");
    fleet.staged("a");
    fleet.publish(2, deadline + std::chrono::seconds(1));  // waits for the store as well
    for (std::size_t ended = 1; ended <= 2; ++ended) {
      EXPECT_EQ(fleet.coordinator.next_wake(), deadline + std::chrono::seconds(ended - 1));
      fleet.wake();
      ASSERT_EQ(fleet.rounds.size(), ended);
      EXPECT_EQ(fleet.rounds.back().request, ended);
      EXPECT_FALSE(fleet.rounds.back().reply.ok);
      EXPECT_NE(fleet.rounds.back().reply.reason.find("has not stored"), std::string::npos);
    }
    EXPECT_EQ(fleet.count<control::Abort>("a"), 0U) << "it may be decided";
    EXPECT_EQ(fleet.dropped, std::vector<Version>{fleet.rounds[1].reply.version});
    const Version version = fleet.rounds[0].reply.version;
    fleet.hold_stores = false;
    fleet.answer_store(stored ? "" : "no space left");
    EXPECT_EQ(fleet.coordinator.target(), stored ? version : Version{});
    EXPECT_EQ(fleet.count<control::Decide>("a"), stored ? 1U : 0U);
    EXPECT_EQ(fleet.count<control::Abort>("a"), stored ? 0U : 1U);
    EXPECT_EQ(std::ranges::count(fleet.dropped, version), stored ? 0 : 1);
  }
}

TEST(Coordinator, APublishThatWaitsForARoundEndsAtItsOwnDeadline) {
  Fleet fleet;
  fleet.join("a");
  fleet.publish(1);
  const TimePoint deadline = fleet.now + std::chrono::seconds(1);
  fleet.publish(2, deadline);
  EXPECT_EQ(fleet.coordinator.next_wake(), deadline);
  fleet.wake();
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_EQ(fleet.rounds[0].request, 2U);
  EXPECT_FALSE(fleet.rounds[0].superseded);
  EXPECT_NE(fleet.rounds[0].reply.reason.find("announcing"), std::string::npos);
  fleet.accept("a");  // the first one goes on
  fleet.staged("a");
  fleet.switched("a");
  ASSERT_EQ(fleet.rounds.size(), 2U);
  EXPECT_TRUE(fleet.rounds[1].reply.ok);
  EXPECT_FALSE(fleet.coordinator.next_wake().has_value());
}

// Two read from a relay that is lost. That the first one cannot get another source ends the round,
// and with it the delivery of the second one.
TEST(Coordinator, ARelayIsLostForOneThatEndsTheRoundAndForAnotherOne) {
  CoordinatorOptions options;
  options.serves_other_hosts = true;
  options.security = DataSecurity::kTrustedNetwork;
  Fleet fleet(options);
  fleet.coordinator.serve_by({{"tcp", "tcp://10.0.0.9:1"}});
  const auto join = [&](const std::string& name, const std::string& host,
                        const std::string& address) {
    control::Hello hello = Fleet::hello(name);
    hello.boot_id = host;
    hello.transports = {{"memfd", ""}, {"tcp", address}};
    fleet.join(name, hello);
  };
  std::vector<std::string> names = {"p1"};
  join("p1", "host p1", "tcp://10.0.0.1:1");
  for (int i = 2; i <= 8; ++i) {  // only q reaches these
    names.push_back("p" + std::to_string(i));
    join(names.back(), "host f", "tcp://127.0.0.1:" + std::to_string(i));
  }
  join("q", "host f", "tcp://127.0.0.1:20");
  join("y", "host y", "tcp://10.0.0.7:1");
  names.insert(names.end(), {"q", "y"});
  fleet.publish();
  for (const std::string& name : names) fleet.accept(name);
  const auto source = [&](const std::string& name) {
    return fleet.last<control::Stage>(name)->second.source;
  };
  for (int i = 0; i < 7; ++i)
    fleet.from("q", control::Staged{.version = {1, 1}, .failure = "hung up", .source_lost = true},
               fleet.last<control::Announce>("q")->first.round);
  ASSERT_EQ(source("q"), "tcp://10.0.0.1:1");
  ASSERT_EQ(source("y"), "tcp://10.0.0.1:1");
  fleet.step(PeerLost{.peer = "p1", .reason = "killed"});
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_NE(fleet.rounds[0].reply.reason.find("its source was lost 8 times"), std::string::npos)
      << fleet.rounds[0].reply.reason;
}

}  // namespace
}  // namespace wsync::coordinator
