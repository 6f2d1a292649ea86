#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/limits.h"
#include "shared/base/weight_limits.h"
#include "tests/unit/coordinator/coordinator_fleet.h"
#include "trainer_side/coordinator/coordinator.h"

namespace wsync::coordinator {
namespace {

TEST(Coordinator, ClaimsAboveEveryFenceThatItHearsOf) {
  Fleet fleet(
      {.record = CoordinatorRecord{.fence = {.epoch = 3, .fleet = kFleetId}}, .min_sidecars = 2});
  fleet.from_fence("a", {.epoch = 8}, Fleet::hello("a"));
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kGathering);
  fleet.from_fence("b", {.epoch = 5}, Fleet::hello("b"));
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kClaiming);
  EXPECT_EQ(fleet.coordinator.fence().epoch, 9U);
  EXPECT_EQ(fleet.record.fence.epoch, 9U);
  EXPECT_EQ(fleet.count<control::Welcome>("a"), 1U);
  EXPECT_FALSE(fleet.coordinator.next_version().has_value());
}

TEST(Coordinator, HellosBeforeTheFenceWasStoredChooseNothing) {
  Fleet fleet;
  auto old = Fleet::hello("a", {{1, 4}});
  old.decision = {.fence = {.epoch = 2}, .number = 3};
  old.target = {1, 4};
  fleet.from_fence("a", {.epoch = 2}, old);
  auto fresh = Fleet::hello("a", {{1, 3}});
  fresh.decision = {.fence = {.epoch = 2}, .number = 4};
  fresh.target = {1, 3};
  fresh.withdrawn = {{1, 4}};
  fleet.from("a", fresh);
  EXPECT_EQ(fleet.coordinator.target(), (Version{1, 3}));
  EXPECT_EQ(fleet.recovered, (Version{1, 3}));
  const auto decide = fleet.last<control::Decide>("a");
  ASSERT_TRUE(decide.has_value());
  EXPECT_EQ(decide->second.withdrawn, (std::vector<Version>{{1, 4}}));
}

TEST(Coordinator, TheNewestDecisionIsTheTarget) {
  Fleet fleet({.min_sidecars = 2});
  auto a = Fleet::hello("a", {{1, 1}, {1, 2}});
  a.decision = {.fence = {.epoch = 1}, .number = 2};
  a.target = {1, 2};
  auto b = Fleet::hello("b", {{1, 1}, {1, 2}});
  b.decision = {.fence = {.epoch = 1}, .number = 1};
  b.target = {1, 1};
  fleet.from_fence("a", {.epoch = 1}, a);
  fleet.from_fence("b", {.epoch = 1}, b);
  fleet.from("a", a);
  fleet.from("b", b);
  EXPECT_EQ(fleet.coordinator.target(), (Version{1, 2}));
  EXPECT_TRUE(fleet.last<control::Decide>("b").has_value());
  EXPECT_EQ(fleet.coordinator.next_version()->step, 3U);
}

TEST(Coordinator, ARoundAnnouncesStagesDecidesAndReports) {
  Fleet fleet({.min_sidecars = 2});
  fleet.from_fence("a", kNoFence, Fleet::hello("a"));
  fleet.from_fence("b", kNoFence, Fleet::hello("b"));
  fleet.from("a", Fleet::hello("a"));
  fleet.from("b", Fleet::hello("b"));
  fleet.publish();
  fleet.accept("a");
  EXPECT_EQ(fleet.count<control::Stage>("a"), 0U) << "nothing moves before all accept";
  fleet.accept("b");
  ASSERT_EQ(fleet.count<control::Stage>("a"), 1U);
  EXPECT_EQ(fleet.last<control::Stage>("a")->second.source, "/run/host.sock");
  fleet.staged("a");
  EXPECT_EQ(fleet.count<control::Decide>("a"), 0U) << "commit: all waits for every live sidecar";
  fleet.staged("b");
  ASSERT_EQ(fleet.count<control::Decide>("b"), 1U);
  fleet.switched("a");
  EXPECT_TRUE(fleet.rounds.empty());
  fleet.switched("b");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
  EXPECT_EQ(fleet.rounds[0].reply.outcomes.size(), 2U);
  EXPECT_EQ(fleet.coordinator.target(), fleet.rounds[0].reply.version);
}

TEST(Coordinator, TheLayoutTravelsOnce) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  EXPECT_FALSE(fleet.last<control::Announce>("a")->second.layout.empty());
  fleet.publish();
  EXPECT_TRUE(fleet.last<control::Announce>("a")->second.layout.empty());
  const auto announce = fleet.last<control::Announce>("a");
  fleet.from("a", control::Refuse{.version = announce->second.version, .layout_unknown = true},
             announce->first.round);
  EXPECT_FALSE(fleet.last<control::Announce>("a")->second.layout.empty());
}

TEST(Coordinator, ARefusalFailsTheRoundBeforeAnythingMoved) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  const Version before = fleet.coordinator.target();
  fleet.publish();
  const auto announce = fleet.last<control::Announce>("a");
  fleet.from("a",
             control::Refuse{.version = announce->second.version,
                             .reason = "shapes differ",
                             .problems = {{.kind = control::ProblemKind::kShape, .tensor = "w"}}},
             announce->first.round);
  ASSERT_EQ(fleet.rounds.size(), 2U);
  EXPECT_FALSE(fleet.rounds[1].reply.ok);
  EXPECT_EQ(fleet.rounds[1].reply.problems.size(), 1U);
  EXPECT_EQ(fleet.count<control::Stage>("a"), 1U);
  EXPECT_EQ(fleet.count<control::Abort>("a"), 1U);
  EXPECT_EQ(fleet.coordinator.target(), before);
  EXPECT_EQ(fleet.dropped, (std::vector<Version>{announce->second.version}));
}

TEST(Coordinator, OtherBytesUnderTheSameNameFailTheRound) {
  Fleet fleet;
  fleet.join("a");
  fleet.publish();
  fleet.accept("a");
  const auto announce = fleet.last<control::Announce>("a");
  fleet.from("a", control::Staged{.version = announce->second.version, .content_digest = {9, 9}},
             announce->first.round);
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_FALSE(fleet.rounds[0].reply.ok);
  EXPECT_EQ(fleet.count<control::Decide>("a"), 0U);
}

TEST(Coordinator, AnswersOfAnotherRoundAreDropped) {
  Fleet fleet;
  fleet.join("a");
  fleet.publish();
  const auto announce = fleet.last<control::Announce>("a");
  fleet.from("a", control::Accept{announce->second.version}, announce->first.round + 1);
  EXPECT_EQ(fleet.count<control::Stage>("a"), 0U);
  EXPECT_EQ(fleet.coordinator.dropped(), 1U);
}

TEST(Coordinator, MessagesUnderALowerFenceChangeNothing) {
  Fleet fleet;
  fleet.join("a");
  fleet.publish();
  const auto announce = fleet.last<control::Announce>("a");
  fleet.from_fence("a", kNoFence, control::Accept{announce->second.version}, announce->first.round);
  EXPECT_EQ(fleet.count<control::Stage>("a"), 0U);
}

TEST(Coordinator, StepsEndAndAreNeverNamedTwice) {
  Fleet fleet;
  fleet.join("a", Fleet::hello("a", {{1, limits::kStepMax}}));
  const auto code = [&](std::uint64_t step) {
    const auto version = fleet.coordinator.next_version(step);
    return version ? std::nullopt : std::optional(version.error().code());
  };
  EXPECT_EQ(code(0), ErrorCode::kInvalidInput);  // there is none above
  EXPECT_EQ(code(limits::kStepMax + 1), ErrorCode::kInvalidInput);
  EXPECT_EQ(code(limits::kStepMax), std::nullopt);  // of another epoch than what is staged
  EXPECT_EQ(code(7), std::nullopt);
}

TEST(Coordinator, PublishesGoOnAboveTheHighestStepThatACallerMayGive) {
  Fleet fleet;
  fleet.join("a", Fleet::hello("a", {{1, kGivenStepMax + 5}}));
  fleet.publish();
  const auto announce = fleet.last<control::Announce>("a");
  ASSERT_TRUE(announce.has_value());
  EXPECT_EQ(announce->second.version,
            (Version{fleet.coordinator.next_version()->epoch, kGivenStepMax + 6}));
  EXPECT_TRUE(fleet.rounds.empty());
}

TEST(Coordinator, AHigherFenceStopsIt) {
  Fleet fleet;
  fleet.join("a");
  fleet.publish();
  fleet.from_fence("a", {.epoch = 50}, control::Heartbeat{});
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kStopped);
  EXPECT_NE(fleet.stop_reason.find("--take-over"), std::string::npos);
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_FALSE(fleet.rounds[0].reply.ok);
}

TEST(Coordinator, OneThatWasReplacedStopsAndFailsWhatItHad) {
  Fleet fleet({.take_over = true});  // it does not fight for what was taken from it
  fleet.join("a");
  fleet.publish();
  const auto next = fleet.coordinator.next_version();  // of a snapshot that is being written
  ASSERT_TRUE(next.has_value());
  fleet.step(Replaced{.by = "process 7"});
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kStopped);
  EXPECT_NE(fleet.stop_reason.find("process 7"), std::string::npos);
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_FALSE(fleet.rounds[0].reply.ok);
  const std::size_t sent = fleet.sends.size();
  fleet.step(PublishRequested{.request = 2, .version = *next});
  fleet.from("a", Fleet::hello("a"));
  EXPECT_EQ(fleet.sends.size(), sent);
  ASSERT_EQ(fleet.rounds.size(), 2U);
  EXPECT_FALSE(fleet.rounds[1].reply.ok);
}

TEST(Coordinator, TakeOverClaimsAboveTheHigherFence) {
  Fleet fleet({.take_over = true});
  fleet.join("a");
  fleet.from_fence("a", {.epoch = 50}, control::Heartbeat{});
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kClaiming);
  EXPECT_EQ(fleet.coordinator.fence().epoch, 51U);
  fleet.from("a", Fleet::hello("a"));
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady);
}

// Only who reads from the trainer is told of the ranks that serve parts.
TEST(Coordinator, TheHeadOfAChainFetchesThePartsAndTheOthersFetchFromIt) {
  Fleet fleet({.min_sidecars = 2});
  for (const char* name : {"1", "2"}) fleet.from_fence(name, kNoFence, Fleet::hello(name));
  for (const char* name : {"1", "2"}) fleet.from(name, Fleet::hello(name));
  PublishRequested publish = Fleet::snapshot(1, fleet.coordinator.next_version().value());
  publish.parts = Bytes(8);
  publish.owners = {{.name = "rank 1 on b",
                     .transports = {{"tcp", "tcp://127.0.0.1:77"}},
                     .secret = {},
                     .boot_id = "boot"}};
  fleet.step(std::move(publish));
  EXPECT_EQ(fleet.last<control::Announce>("2")->second.parts, SharedBytes(Bytes(8)));
  for (const char* name : {"1", "2"}) fleet.accept(name);
  const control::Stage head = fleet.last<control::Stage>("1")->second;
  EXPECT_EQ(head.transport, "tcp") << "nobody has all of it in an arena";
  ASSERT_EQ(head.parts.size(), 1U);
  EXPECT_EQ(head.parts[0].source, "tcp://127.0.0.1:77");
  const control::Stage next = fleet.last<control::Stage>("2")->second;
  EXPECT_EQ(next.source, "tcp://127.0.0.1:" + std::to_string(10 + '1'));
  EXPECT_TRUE(next.parts.empty());
  // The head is lost: the next one fetches the parts itself.
  fleet.step(PeerLost{.peer = "1"});
  EXPECT_EQ(fleet.last<control::Stage>("2")->second.parts.size(), 1U);
  fleet.staged("2");
  fleet.switched("2");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
}

TEST(Coordinator, AnOlderSidecarRefusesAVersionWithPartsInWords) {
  Fleet fleet({.min_sidecars = 1});
  auto hello = Fleet::hello("1");
  hello.capabilities &= ~control::bits(control::Capability::kParts);
  fleet.join("1", hello);
  PublishRequested publish = Fleet::snapshot(1, fleet.coordinator.next_version().value());
  publish.parts = Bytes(8);
  publish.owners = {{.name = "rank 1 on b", .transports = {{"tcp", "tcp://127.0.0.1:77"}}}};
  fleet.step(std::move(publish));
  fleet.accept("1");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_FALSE(fleet.rounds[0].reply.ok);
  EXPECT_THAT(fleet.rounds[0].reply.reason, testing::HasSubstr("upgrade it"));
}

TEST(Coordinator, SidecarsOnOtherHostsFormAChainAndALostLinkIsBridged) {
  Fleet fleet({.min_sidecars = 3});
  auto remote = [](const std::string& name) {
    auto hello = Fleet::hello(name);
    hello.boot_id = "other";
    hello.transports = {{"memfd", ""}, {"tcp", "tcp://127.0.0.1:" + name}};
    return hello;
  };
  for (const char* name : {"1", "2", "3"}) fleet.from_fence(name, kNoFence, remote(name));
  for (const char* name : {"1", "2", "3"}) fleet.from(name, remote(name));
  fleet.publish();
  for (const char* name : {"1", "2", "3"}) fleet.accept(name);
  EXPECT_EQ(fleet.last<control::Stage>("1")->second.source, "tcp://127.0.0.1:1");  // the trainer
  EXPECT_EQ(fleet.last<control::Stage>("2")->second.source, "tcp://127.0.0.1:1");  // sidecar 1
  EXPECT_EQ(fleet.last<control::Stage>("3")->second.source, "tcp://127.0.0.1:2");
  fleet.step(PeerLost{.peer = "2"});
  EXPECT_EQ(fleet.count<control::Stage>("3"), 2U);
  EXPECT_EQ(fleet.last<control::Stage>("3")->second.source, "tcp://127.0.0.1:1");
  EXPECT_EQ(fleet.count<control::Stage>("1"), 1U) << "only the successor is attached again";
  fleet.staged("1");
  fleet.staged("3");
  fleet.switched("1");
  fleet.switched("3");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok);
}

TEST(Coordinator, QuorumGoesOnWithoutTheSlowOneWhichFollowsLater) {
  Fleet fleet({.min_sidecars = 2, .commit = {.rule = CommitRule::kQuorum, .quorum = 1}});
  for (const char* name : {"a", "b"}) fleet.from_fence(name, kNoFence, Fleet::hello(name));
  for (const char* name : {"a", "b"}) fleet.from(name, Fleet::hello(name));
  fleet.publish();
  fleet.accept("a");
  fleet.accept("b");
  fleet.staged("a");
  EXPECT_EQ(fleet.count<control::Decide>("a"), 1U);
  EXPECT_EQ(fleet.count<control::Decide>("b"), 0U);
  fleet.switched("a");
  fleet.staged("b");
  EXPECT_EQ(fleet.count<control::Decide>("b"), 1U);
  fleet.switched("b");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok);
}

TEST(Coordinator, ANewerPublishReplacesTheWaitingOne) {
  Fleet fleet;
  fleet.join("a");
  fleet.publish(1);
  fleet.publish(2);
  fleet.publish(3);
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_EQ(fleet.rounds[0].request, 2U);
  EXPECT_TRUE(fleet.rounds[0].superseded);
  fleet.accept("a");
  fleet.staged("a");
  fleet.switched("a");
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kAnnouncing) << "the waiting one begins";
}

TEST(Coordinator, TheWaitingPublishIsReplacedBeforeTheNewerOneIsComplete) {
  Fleet fleet;
  fleet.join("a");
  fleet.publish(1);
  fleet.publish(2);
  fleet.step(WaitingReplaced{.version = {.epoch = 1, .step = 9}, .by = {.epoch = 1, .step = 10}});
  EXPECT_TRUE(fleet.rounds.empty()) << "that version does not wait";
  fleet.step(WaitingReplaced{.version = {.epoch = 1, .step = 1}, .by = {.epoch = 1, .step = 3}});
  EXPECT_TRUE(fleet.rounds.empty()) << "a round that runs goes on";
  fleet.step(WaitingReplaced{.version = {.epoch = 1, .step = 2}, .by = {.epoch = 1, .step = 3}});
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_EQ(fleet.rounds[0].request, 2U);
  EXPECT_TRUE(fleet.rounds[0].superseded);
  EXPECT_EQ(fleet.rounds[0].reply.reason, "1.3 replaces it before its round");
  fleet.accept("a");
  fleet.staged("a");
  fleet.switched("a");
  EXPECT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kReady) << "none waits";
}

TEST(Coordinator, RollbackWithdrawsTheNewerVersionAndNeedsEverybody) {
  Fleet fleet({.min_sidecars = 2});
  for (const char* name : {"a", "b"}) fleet.from_fence(name, kNoFence, Fleet::hello(name));
  for (const char* name : {"a", "b"}) fleet.from(name, Fleet::hello(name));
  fleet.full_round({"a", "b"});
  const Version first = fleet.coordinator.target();
  fleet.full_round({"a", "b"});
  const Version second = fleet.coordinator.target();
  EXPECT_TRUE(fleet.coordinator.status().can_roll_back);
  fleet.step(RollbackRequested{.request = 5});
  EXPECT_EQ(fleet.last<control::Decide>("a")->second.kind, control::DecisionKind::kRollback);
  EXPECT_EQ(fleet.last<control::Decide>("a")->second.withdrawn, (std::vector<Version>{second}));
  fleet.switched("a");
  fleet.step(PeerLost{.peer = "b"});
  ASSERT_EQ(fleet.rollbacks.size(), 1U);
  EXPECT_TRUE(fleet.rollbacks[0].reply.partial);
  EXPECT_NE(fleet.rollbacks[0].reply.reason.find("'b'"), std::string::npos);
  EXPECT_EQ(fleet.coordinator.target(), first);
}

TEST(Coordinator, RollbackToAVersionThatWasNeverDecidedIsRefused) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  const Version first = fleet.coordinator.target();
  const Version newer{first.epoch, first.step + 1};
  fleet.step(RollbackRequested{.request = 9, .to = newer});
  ASSERT_EQ(fleet.rollbacks.size(), 1U);
  EXPECT_FALSE(fleet.rollbacks[0].reply.ok);
  EXPECT_THAT(fleet.rollbacks[0].reply.reason, testing::HasSubstr("was never decided"));
  EXPECT_EQ(fleet.coordinator.target(), first);
}

// A sidecar releases the copies that were never decided with the first decision that it stores. A
// copy of an older heartbeat, which still names them, may arrive later.
TEST(Coordinator, NoLateHeartbeatMakesAnUndecidedVersionOneToGoBackTo) {
  Fleet fleet;
  const Version undecided{0, 1};
  fleet.join("a", Fleet::hello("a", {undecided}));
  const auto beat = [&fleet](std::uint64_t number, Version target, std::vector<Version> staged) {
    fleet.from("a", control::Heartbeat{.sequence = number,
                                       .target = target,
                                       .staged = std::move(staged),
                                       .replicas = Fleet::hello("a").replicas});
  };
  // A refusal ends it at once.
  const auto is_refused = [&fleet](std::uint64_t request) {
    fleet.step(RollbackRequested{.request = request});
    return !fleet.rollbacks.empty() && fleet.rollbacks.back().request == request &&
           !fleet.rollbacks.back().reply.ok;
  };
  beat(1, {}, {undecided});
  fleet.full_round({"a"});
  const Version target = fleet.coordinator.target();
  beat(2, {}, {undecided});
  EXPECT_TRUE(is_refused(5)) << "it was made before the decision was stored";
  beat(4, target, {target});
  beat(3, target, {undecided, target});
  EXPECT_TRUE(is_refused(6)) << "the newest one says what it holds";
  EXPECT_EQ(fleet.coordinator.target(), target);
}

TEST(Coordinator, RollbackIsRefusedWhenALiveSidecarNoLongerHoldsTheVersion) {
  Fleet fleet;
  fleet.join("a");
  fleet.step(RollbackRequested{.request = 1});
  fleet.full_round({"a"});
  const Version first = fleet.coordinator.target();
  fleet.full_round({"a"});
  fleet.from("a", control::Heartbeat{.staged = {fleet.coordinator.target()}});
  fleet.step(RollbackRequested{.request = 2});
  fleet.step(RollbackRequested{.request = 3, .to = first});
  ASSERT_EQ(fleet.rollbacks.size(), 3U);
  for (const auto& done : fleet.rollbacks) EXPECT_FALSE(done.reply.ok);
  EXPECT_NE(fleet.rollbacks[2].reply.reason.find("'a'"), std::string::npos);
}

// Every (phase, event) pair, many times in random order: no crash, invariants hold (step() checks
// them), and every publish that was asked for is answered once time passes.
TEST(Coordinator, SurvivesEveryEventInEveryPhase) {
  std::array<std::array<int, 16>, 7> seen{};
  std::size_t cancelled = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    Fleet fleet({.take_over = seed % 2 == 0,
                 .min_sidecars = 1 + seed % 2,
                 .commit = {.rule = static_cast<CommitRule>(seed % 3), .quorum = 1}});
    std::uint64_t asked = 0;
    const std::array<std::string, 3> peers{"a", "b", "c"};
    for (int i = 0; i < 120; ++i) {
      const std::string& peer = peers[random() % peers.size()];
      const auto announce = fleet.last<control::Announce>(peer);
      const auto decide = fleet.last<control::Decide>(peer);
      const std::uint64_t round =
          announce && random() % 8 != 0 ? announce->first.round : random() % 4;
      const Version version = announce ? announce->second.version : Version{1, 1};
      const auto kind = random() % 15;
      ++seen[static_cast<std::size_t>(fleet.coordinator.phase())][kind];
      fleet.now = fleet.now + std::chrono::milliseconds(random() % 50);
      switch (kind) {
        case 0:
          fleet.from_fence(peer, kNoFence, Fleet::hello(peer));
          break;
        case 1:
        case 2:
          fleet.from(peer, Fleet::hello(peer, {version}));
          break;
        case 3:
          fleet.from(peer, control::Accept{version}, round);
          break;
        case 4:
          fleet.from(peer, control::Refuse{.version = version, .layout_unknown = random() % 2 == 0},
                     round);
          break;
        case 5:
          fleet.from(peer,
                     control::Staged{
                         .version = version,
                         .content_digest = announce ? announce->second.content_digest : Digest{}},
                     round);
          break;
        case 6:
          fleet.from(
              peer,
              control::Staged{.version = version, .failure = "x", .source_lost = random() % 2 == 0},
              round);
          break;
        case 7:
          fleet.from(peer, control::Decided{.number = decide ? decide->second.number : 0,
                                            .refused = random() % 4 == 0});
          break;
        case 8:
          if (decide) fleet.switched(peer);
          break;
        case 9:
          fleet.from(peer, control::Heartbeat{.staged = {version}});
          break;
        case 10:
          fleet.step(PeerLost{.peer = peer});
          break;
        case 11: {
          const auto next = fleet.coordinator.next_version();
          fleet.step(PublishRequested{.request = ++asked, .version = next.value_or(Version{1, 1})});
          break;
        }
        case 12:
          fleet.step(RollbackRequested{.request = 1});
          break;
        case 13:
          if (fleet.coordinator.next_wake() && random() % 2 == 0)
            fleet.wake();
          else
            fleet.step(CoordinatorTick{});
          break;
        case 14:
          fleet.cancel(random() % 2 == 0 ? version : Version{});
          break;
        default:
          break;
      }
    }
    for (int i = 0; i < 200 && fleet.rounds.size() < asked; ++i) fleet.wake();
    EXPECT_EQ(fleet.rounds.size(), asked) << "seed " << seed;
    const auto told = std::ranges::count_if(fleet.rounds, &RoundDone::cancelled);
    EXPECT_EQ(std::ranges::count_if(fleet.cancels, [](const auto& c) { return c.reply.ok; }), told)
        << "seed " << seed;
    cancelled += static_cast<std::size_t>(told);
  }
  for (std::size_t phase = 0; phase < 6; ++phase)
    for (std::size_t kind = 0; kind < 15; ++kind)
      EXPECT_GT(seen[phase][kind], 0) << "phase " << phase << " never saw event " << kind;
  EXPECT_GT(cancelled, 20U);
}

// What the version before the target contains was told to the coordinator that published it.
TEST(Coordinator, ARecoveredTargetKeepsItsContentAndSoDoesTheRollbackToIt) {
  Fleet fleet;
  control::Hello first = Fleet::hello("a", {{1, 1}});
  first.target = {1, 1};
  first.target_content = {7, 7};
  first.decision = {.fence = {.epoch = 1, .run_id = {5, 5}}, .number = 1};
  fleet.from_fence("a", first.decision.fence, first);
  fleet.from("a", first);
  EXPECT_EQ(fleet.last<control::Decide>("a")->second.content_digest, (Digest{7, 7}))
      << "another sidecar may hold other bytes under this name";
  fleet.full_round({"a"});
  const Version second = fleet.coordinator.target();
  EXPECT_EQ(fleet.last<control::Decide>("a")->second.content_digest, (Digest{2, second.step}));
  control::Heartbeat heartbeat{
      .target = second, .staged = {{1, 1}, second}, .replicas = first.replicas};
  fleet.from("a", heartbeat);
  fleet.step(RollbackRequested{.request = 5});
  const auto back = fleet.last<control::Decide>("a");
  EXPECT_EQ(back->second.target, (Version{1, 1}));
  EXPECT_EQ(back->second.content_digest, (Digest{7, 7}));
}

TEST(Coordinator, ARollbackToAVersionWhoseContentNobodyToldNamesNone) {
  Fleet fleet;
  fleet.join("a", Fleet::hello("a", {{1, 1}}));
  fleet.full_round({"a"});
  control::Heartbeat heartbeat{.target = fleet.coordinator.target(),
                               .staged = {{1, 1}, fleet.coordinator.target()},
                               .replicas = Fleet::hello("a").replicas};
  fleet.from("a", heartbeat);
  fleet.step(RollbackRequested{.request = 5, .to = Version{1, 1}});
  const auto back = fleet.last<control::Decide>("a");
  EXPECT_EQ(back->second.target, (Version{1, 1}));
  EXPECT_EQ(back->second.content_digest, Digest{});
}

// It has stored the fence: nothing but an answer tells it that its Hello has come.
TEST(Coordinator, ASidecarThatComesBackUnderTheFenceIsWelcomedOnce) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  fleet.step(PeerLost{.peer = "a", .reason = "hung up"});
  control::Envelope envelope;
  envelope.fence = fleet.coordinator.fence();
  envelope.request = 5;
  fleet.step(PeerMessage{.peer = "a2", .envelope = envelope, .message = Fleet::hello("a")});
  ASSERT_EQ(fleet.count<control::Welcome>("a2"), 1U);
  EXPECT_EQ(fleet.last<control::Welcome>("a2")->first.request, 5U);
}

TEST(Coordinator, WithdrawnVersionsAreBoundedAndTheTargetsOfTheFleetStay) {
  Fleet fleet;
  control::Hello liar = Fleet::hello("liar", {{1, 1}});
  liar.withdrawn = {{1, 1}};
  fleet.join("a", liar);
  for (std::uint32_t epoch = 2; epoch <= 3; ++epoch) {
    liar.withdrawn.clear();
    for (std::uint64_t step = 1; step <= limits::kWithdrawnCount; ++step)
      liar.withdrawn.push_back({.epoch = epoch, .step = step});
    fleet.from("a", liar);
  }
  fleet.full_round({"a"});
  const auto decide = fleet.last<control::Decide>("a");
  ASSERT_TRUE(decide.has_value());
  EXPECT_EQ(decide->second.withdrawn.size(), limits::kWithdrawnCount);
  EXPECT_NE(std::ranges::find(decide->second.withdrawn, Version{1, 1}),
            decide->second.withdrawn.end())
      << "a sidecar still holds it";
}

}  // namespace
}  // namespace wsync::coordinator
