// The facts of the coordinator's page, and the updates that it remembers.
#include "trainer_side/coordinator/page/status_page.h"

#include <gtest/gtest.h>

#include "shared/base/format.h"
#include "trainer_side/coordinator/page/page_assets.h"

namespace wsync::page {
namespace {

using control::ProgressPhase;
using control::ReplicaState;
using std::chrono::milliseconds;

constexpr TimePoint kStart{5'000'000'000};
constexpr std::string_view kHostile = "<script>alert(1)</script>\" onload=\"x\" & '\x01";

control::ReplicaReport replica(std::string name, ReplicaState state = ReplicaState::kServing) {
  return {.replica = std::move(name),
          .ranks_attached = 1,
          .state = state,
          .ready = state == ReplicaState::kServing,
          .version = {0, 4}};
}

PageFacts facts_of(std::vector<control::SidecarReport> sidecars) {
  PageFacts facts;
  facts.status.role = "coordinator";
  facts.status.activity = "idle";
  facts.status.target = {0, 4};
  facts.status.sidecars = std::move(sidecars);
  facts.ready = true;
  facts.at = kStart + std::chrono::seconds(10);
  return facts;
}

// The page makes text of it (tests/scenario/page_browser_test.py).
TEST(StatusJson, HasNamesAndSentencesAsTheyCame) {
  const std::string hostile(kHostile);
  RoundRecord round{.version = {0, 4}, .result = "failed", .reason = hostile};
  round.lanes = {{.sidecar = hostile, .stages = {{.name = "stage"}}}};
  round.outcomes = {{.replica = hostile, .reason = hostile}};
  PageFacts facts = facts_of({{.name = hostile, .connected = true, .replicas = {replica(hostile)}},
                              {.name = hostile, .connected = false}});
  facts.status.incidents = {{.ago_ns = 1, .text = hostile}};
  facts.rounds = {std::make_shared<const RoundRecord>(round)};
  facts.ready = false;
  facts.not_ready = hostile;
  const nlohmann::json json = status_json(facts);
  EXPECT_EQ(json.at("sidecars").at(0).at("name"), hostile);
  EXPECT_EQ(json.at("sidecars").at(0).at("replicas").at(0).at("replica"), hostile);
  EXPECT_EQ(json.at("incidents").at(0).at("text"), hostile);
  EXPECT_EQ(json.at("not_ready"), hostile);
  EXPECT_EQ(json.at("ready"), false);
  const nlohmann::json& shown = json.at("rounds").at(0);
  EXPECT_EQ(shown.at("reason"), hostile);
  EXPECT_EQ(shown.at("sidecars").at(0).at("name"), hostile);
  EXPECT_EQ(shown.at("replicas").at(0).at("reason"), hostile);
}

TEST(StatusJson, HasEveryReplicaOfAGreatFleet) {
  control::SidecarReport sidecar{.name = "s0", .connected = true};
  for (int i = 0; i < 4000; ++i) sidecar.replicas.push_back(replica(fmt::format("r{}", i)));
  EXPECT_EQ(status_json(facts_of({sidecar})).at("sidecars").at(0).at("replicas").size(), 4000U);
}

TEST(StatusJson, TellsTimesOfARoundFromItsBegin) {
  RoundRecord round{.version = {0, 4}, .began = kStart, .ended = kStart + milliseconds(100)};
  round.phases = {{.name = "switch", .begin = kStart + milliseconds(50), .end = round.ended}};
  PageFacts facts = facts_of({});
  facts.rounds = {std::make_shared<const RoundRecord>(round)};
  const nlohmann::json shown = status_json(facts).at("rounds").at(0);
  EXPECT_EQ(shown.at("result"), nullptr) << "it runs";
  EXPECT_EQ(shown.at("began_ago_ns"), 10'000'000'000);
  EXPECT_EQ(shown.at("duration_ns"), 100'000'000);
  EXPECT_EQ(
      shown.at("phases").at(0),
      (nlohmann::json{{"name", "switch"}, {"begin_ns", 50'000'000}, {"end_ns", 100'000'000}}));
}

TEST(PageAssets, AreWhole) {
  EXPECT_TRUE(page_html().starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(page_html().ends_with("</html>\n"));
  EXPECT_EQ(page_html().find('@'), std::string_view::npos) << "the version is filled in";
  EXPECT_TRUE(page_css().ends_with("}\n"));
  EXPECT_TRUE(page_js().ends_with("})();\n"));
}

// ---- the history ----

TEST(RoundHistory, KeepsTheStagesOfAnUpdateAndHowItEnded) {
  RoundHistory history;
  EXPECT_TRUE(history.rounds(kStart).empty());
  history.began(7, {0, 4}, kStart);
  history.snapshot_taken(7, {0, 5}, kStart + milliseconds(10));
  history.entered(7, ProgressPhase::kAnnounce, kStart + milliseconds(12));
  history.entered(7, ProgressPhase::kStage, kStart + milliseconds(15));
  history.answered("s1", {0, 5}, "announce", kStart + milliseconds(12), kStart + milliseconds(14));
  history.answered("s0", {0, 5}, "announce", kStart + milliseconds(12), kStart + milliseconds(15));
  history.answered("s0", {0, 4}, "stage", kStart, kStart + milliseconds(15));  // of no update here
  const auto running = history.rounds(kStart + milliseconds(20));
  ASSERT_EQ(running.size(), 1U);
  EXPECT_EQ(running[0]->result, "");
  EXPECT_EQ(running[0]->version, (Version{0, 5}));
  ASSERT_EQ(running[0]->phases.size(), 3U);
  EXPECT_EQ(running[0]->phases[2].name, "stage");
  EXPECT_EQ(running[0]->phases[2].end, kStart + milliseconds(20)) << "until now";
  ASSERT_EQ(running[0]->lanes.size(), 2U);
  EXPECT_EQ(running[0]->lanes[0].sidecar, "s0");
  EXPECT_EQ(running[0]->lanes[0].stages.size(), 1U);

  history.ended(7, "served", "", {{.replica = "a"}}, kStart + milliseconds(40));
  history.ended(7, "failed", "twice", {}, kStart + milliseconds(50));
  history.entered(7, ProgressPhase::kSwitch, kStart + milliseconds(60));
  history.rollback_began(8, {0, 4}, kStart + milliseconds(70));
  const auto rounds = history.rounds(kStart + milliseconds(80));
  ASSERT_EQ(rounds.size(), 2U);
  EXPECT_TRUE(rounds[0]->rollback);
  EXPECT_EQ(rounds[0]->phases.at(0).name, "switch");
  EXPECT_EQ(rounds[1]->result, "served");
  EXPECT_EQ(rounds[1]->ended, kStart + milliseconds(40));
  EXPECT_EQ(rounds[1]->outcomes.size(), 1U);
}

// The phases of a round that begins with its snapshot lie beside it.
TEST(RoundHistory, ASnapshotMayEndAfterItsRoundHasBegun) {
  RoundHistory history;
  history.began(7, {0, 4}, kStart);
  history.entered(7, ProgressPhase::kAnnounce, kStart + milliseconds(2));
  history.entered(7, ProgressPhase::kStage, kStart + milliseconds(3));
  const auto running = history.rounds(kStart + milliseconds(5));
  ASSERT_EQ(running[0]->phases.size(), 3U);
  EXPECT_EQ(running[0]->phases[0].name, "snapshot");
  EXPECT_EQ(running[0]->phases[0].end, kStart + milliseconds(5)) << "until now";
  history.snapshot_taken(7, {0, 4}, kStart + milliseconds(20));
  history.entered(7, ProgressPhase::kSwitch, kStart + milliseconds(30));
  history.ended(7, "served", "", {}, kStart + milliseconds(40));
  const auto& phases = history.rounds(kStart + milliseconds(50))[0]->phases;
  ASSERT_EQ(phases.size(), 4U);
  EXPECT_EQ(phases[0].name, "snapshot");
  EXPECT_EQ(phases[0].end, kStart + milliseconds(20));
  EXPECT_EQ(phases[2].name, "stage");
  EXPECT_EQ(phases[2].begin, kStart + milliseconds(3));
  EXPECT_EQ(phases[2].end, kStart + milliseconds(30));

  history.began(8, {0, 5}, kStart);
  history.entered(8, ProgressPhase::kAnnounce, kStart + milliseconds(2));
  history.ended(8, "cancelled", "", {}, kStart + milliseconds(9));
  const auto& ended = history.rounds(kStart + milliseconds(50))[0]->phases;
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[0].name, "snapshot");
  EXPECT_EQ(ended[0].end, kStart + milliseconds(9));
}

TEST(RoundHistory, IsBoundedWhateverTheFleet) {
  RoundHistory history;
  for (std::uint64_t request = 1; request <= 100; ++request) {
    const Version version{0, request};
    history.began(request, version, kStart);
    for (std::size_t i = 0; i < 3 * kStagesOfLane; ++i) {
      history.entered(request, ProgressPhase::kStage, kStart);
      for (int sidecar = 0; sidecar < 40; ++sidecar)
        history.answered(fmt::format("s{}", sidecar), version, "stage", kStart, kStart);
    }
    history.ended(request, "served", "", std::vector<control::ReplicaOutcome>(1000), kStart);
  }
  for (std::uint64_t request = 101; request <= 200; ++request)
    history.began(request, {0, request}, kStart);
  const auto rounds = history.rounds(kStart);
  ASSERT_EQ(rounds.size(), kRoundsRunning + kRoundsKept);
  const RoundRecord& last = *rounds[kRoundsRunning];
  EXPECT_EQ(last.version, (Version{0, 100}));
  EXPECT_EQ(last.lanes.size(), kLanesOfRound);
  EXPECT_EQ(last.lanes_left_out, 8 * 3 * kStagesOfLane);
  EXPECT_EQ(last.lanes[0].stages.size(), kStagesOfLane);
  EXPECT_EQ(last.phases.size(), kStagesOfLane);
  EXPECT_EQ(last.outcomes.size(), kOutcomesOfRound);
  EXPECT_EQ(last.outcomes_left_out, 1000 - kOutcomesOfRound);
}

}  // namespace
}  // namespace wsync::page
