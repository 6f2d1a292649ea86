// The coordinator's page and its facts, of fleets that are made up.
#include "trainer_side/coordinator/page/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/format.h"
#include "shared/observe/status/status_report.h"

namespace wsync::page {
namespace {

using control::ProgressPhase;
using control::ReplicaState;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr TimePoint kStart{5'000'000'000};
constexpr std::string_view kHostile = "<script>alert(1)</script>\" onload=\"x\" & '\x01";
constexpr std::string_view kHarmless =
    "&lt;script&gt;alert(1)&lt;/script&gt;&quot; onload=&quot;x&quot; &amp; ' ";

std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size()))
    ++count;
  return count;
}

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

TEST(StatusPage, ShowsAnUpdateThatRunsWithItsPhaseShareAndTimeLeft) {
  PageFacts facts = facts_of({{.name = "s0", .connected = true, .replicas = {replica("a")}}});
  EXPECT_THAT(status_html(facts, "wsync 1"),
              AllOf(HasSubstr("No update runs."), Not(HasSubstr("<progress"))));
  facts.status.running = {.version = {0, 5},
                          .phase = ProgressPhase::kStage,
                          .done_bytes = 1'000'000'000,
                          .total_bytes = 4'000'000'000,
                          .bytes_per_s = 2'000'000'000,
                          .remaining_known = true,
                          .remaining_ns = 1'500'000'000};
  const std::string html = status_html(facts, "wsync 1");
  EXPECT_THAT(html, AllOf(HasSubstr("update 0.5: staging, 25 %"), HasSubstr("2.00 GB/s"),
                          HasSubstr("about 1.5 s left"), HasSubstr("value=\"25\""),
                          HasSubstr("<li class=\"now\" aria-current=\"step\">stage <span>now<"),
                          HasSubstr("announce <span>done<"), HasSubstr("switch <span>to come<")));
  facts.status.running.rollback = true;
  EXPECT_THAT(status_html(facts, "wsync 1"), Not(HasSubstr("aria-current")));
}

TEST(StatusPage, EscapesWhateverComesFromTheNetwork) {
  const std::string hostile(kHostile);
  RoundRecord round{.version = {0, 4}, .result = "failed", .reason = hostile};
  round.lanes = {{.sidecar = hostile, .stages = {{.name = "stage"}}}};
  round.outcomes = {{.replica = hostile, .reason = hostile}};
  PageFacts facts = facts_of({{.name = hostile, .connected = true, .replicas = {replica(hostile)}},
                              {.name = hostile, .connected = false}});
  facts.status.sidecars[0].replicas[0].reason = hostile;
  facts.status.activity = hostile;
  facts.status.incidents = {{.ago_ns = 1, .text = hostile}};
  facts.status.last = {.version = {0, 4}, .reason = hostile};
  facts.rounds = {std::make_shared<const RoundRecord>(round)};
  facts.ready = false;
  facts.not_ready = hostile;
  const std::string html = status_html(facts, "wsync 1");
  EXPECT_EQ(count_of(html, "<script"), 1U);  // our own
  EXPECT_THAT(
      html, AllOf(Not(HasSubstr("<script>")), Not(HasSubstr("\" onload")), Not(HasSubstr("\x01"))));
  // 3 in rows of replicas, 2 names of rows, reason, activity, incident, last, not_ready, round's
  // reason, outcome and its reason, lane in the picture (its title) and in the table.
  EXPECT_GE(count_of(html, kHarmless), 14U);
  EXPECT_THAT(trouble_html(hostile, "wsync 1"),
              AllOf(HasSubstr(kHarmless), HasSubstr("No answer.")));
  EXPECT_EQ(status_json(facts).at("sidecars").at(0).at("name"), hostile);
}

TEST(StatusPage, CutsLongSentencesBetweenCharacters) {
  PageFacts facts = facts_of({});
  facts.ready = false;
  for (std::size_t before = 590; before < 602; ++before) {
    facts.not_ready = std::string(before, 'x') + std::string(400, '\xc3');
    for (std::size_t i = before + 1; i < facts.not_ready.size(); i += 2)
      facts.not_ready[i] = '\xa4';
    const std::string html = status_html(facts, "wsync 1");
    const std::size_t end = html.find("\u2026</p>");
    ASSERT_NE(end, std::string::npos);
    EXPECT_NE(html[end - 1], '\xc3') << before;
    EXPECT_LT(html.size(), 8000U);
  }
}

TEST(StatusPage, ShowsTheFirstReplicasOfAGreatFleetAndThoseInTroubleBeforeThem) {
  control::SidecarReport sidecar{.name = "s0", .connected = true};
  for (int i = 0; i < 4000; ++i) sidecar.replicas.push_back(replica(fmt::format("r{}", i)));
  sidecar.replicas[3990] = replica("broken", ReplicaState::kTainted);
  const PageFacts facts = facts_of({sidecar});
  const std::string html = status_html(facts, "wsync 1");
  EXPECT_EQ(count_of(html, "<tr class=\"unwell\""), 1U);
  EXPECT_EQ(count_of(html, "<tr class=\"well\""), kReplicasShown - 1);
  EXPECT_LT(html.find("broken"), html.find("<bdi>r0<"));
  EXPECT_THAT(html, AllOf(HasSubstr("200 of 4000 rows"), HasSubstr("3800 more are left out"),
                          HasSubstr("3999 of 4000 replicas"), Not(HasSubstr("<bdi>r199<"))));
  EXPECT_LT(html.size(), 100'000U);
  EXPECT_EQ(status_json(facts).at("sidecars").at(0).at("replicas").size(), 4000U);
}

TEST(StatusPage, SaysWhichRowsAreOfSidecarsAlone) {
  EXPECT_THAT(status_html(facts_of({}), "wsync 1"), HasSubstr("No sidecar has connected."));
  EXPECT_THAT(status_html(facts_of({{.name = "s0", .connected = true}, {.name = "s1"}}), "wsync 1"),
              AllOf(HasSubstr("no engine is attached to this sidecar"),
                    HasSubstr("this sidecar is not connected")));
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

TEST(RoundPicture, DrawsEachStageInItsPlaceAndSurvivesOddTimes) {
  RoundRecord round{.version = {0, 4}, .began = kStart, .ended = kStart + milliseconds(100)};
  round.phases = {{.name = "snapshot", .begin = kStart, .end = kStart + milliseconds(50)},
                  {.name = "switch", .begin = kStart + milliseconds(50), .end = round.ended}};
  round.lanes = {
      {.sidecar = std::string(40, 'n'), .stages = {{.name = "switch", .begin = kStart}}}};
  const std::string svg = round_svg(round, "title");
  EXPECT_EQ(count_of(svg, "<rect"), 3U);
  EXPECT_THAT(svg, AllOf(HasSubstr("class=\"snapshot\" x=\"150.0\""),
                         HasSubstr("class=\"switch\" x=\"489.0\""), HasSubstr("snapshot 50.0 ms"),
                         HasSubstr(std::string(18, 'n') + "\u2026<"), Not(HasSubstr("width=\"-"))));
  round.ended = round.began;
  EXPECT_THAT(round_svg(round, "t"), AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

}  // namespace
}  // namespace wsync::page
