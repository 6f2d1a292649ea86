#include "inference_side/sidecar/absent_engines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inference_side/reload/switch_events.h"

namespace wsync::agent {
namespace {

constexpr TimePoint kRefusedAt{1'000'000'000};

std::vector<control::ReplicaReport> reported(const AbsentEngines& refused, TimePoint at,
                                             std::vector<control::ReplicaReport> reports = {}) {
  refused.add_to(reports, at);
  return reports;
}

TEST(AbsentEngines, ARefusedEngineIsAnAbsentReplicaWithItsReason) {
  AbsentEngines refused;
  EXPECT_TRUE(reported(refused, kRefusedAt).empty());
  refused.refused("r", 0, "lm_head: expected BF16, found F32", kRefusedAt);
  const auto reports = reported(refused, kRefusedAt);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].replica, "r");
  EXPECT_EQ(reports[0].state, control::ReplicaState::kAbsent);
  EXPECT_EQ(reports[0].ranks_attached, 0U);
  EXPECT_FALSE(reports[0].ready);
  EXPECT_EQ(reports[0].reason, "rank 0 was refused: lm_head: expected BF16, found F32");
  ASSERT_EQ(refused.unverified(kRefusedAt).size(), 1U);
  EXPECT_THAT(refused.unverified(kRefusedAt)[0].failure, testing::HasSubstr("expected BF16"));
}

TEST(AbsentEngines, ItEndsWhenTheRankAttachesOrAfterAWhile) {
  AbsentEngines refused;
  refused.refused("r", 0, "why", kRefusedAt);
  refused.refused("r", 1, "why", kRefusedAt);
  refused.attached("r", 0);
  EXPECT_EQ(reported(refused, kRefusedAt).at(0).reason, "rank 1 was refused: why");
  const TimePoint later = kRefusedAt + AbsentEngines::kept_for() + std::chrono::milliseconds(1);
  EXPECT_TRUE(reported(refused, later).empty());
  EXPECT_TRUE(refused.unverified(later).empty());
}

TEST(AbsentEngines, ItIsReportedAsLongAsItsProcessLives) {
  AbsentEngines absent;
  absent.refused("r", 0, "why", kRefusedAt, 42);
  const TimePoint later = kRefusedAt + 3 * AbsentEngines::kept_for();
  EXPECT_EQ(reported(absent, later).size(), 1U);
  EXPECT_FALSE(absent.process_ended("r", 0, 41)) << "another one, which was refused before";
  EXPECT_FALSE(absent.process_ended("r", 1, 42));
  EXPECT_EQ(reported(absent, later).size(), 1U);
  EXPECT_TRUE(absent.process_ended("r", 0, 42));
  EXPECT_TRUE(reported(absent, later).empty());
  EXPECT_FALSE(absent.process_ended("r", 0, 42));
  // One that starts under the same name has a connection that tells its end.
  absent.refused("r", 0, "why", later, 42);
  absent.starting({.id = reload::EngineId{7}, .replica = "r", .pid = 42}, later);
  EXPECT_FALSE(absent.process_ended("r", 0, 42));
  EXPECT_EQ(reported(absent, later).size(), 1U);
}

TEST(AbsentEngines, OnlyWhatMayHaveEndedIsForgotten) {
  AbsentEngines absent;
  EXPECT_EQ(absent.check_forget("r").error().code(), ErrorCode::kNotFound);
  absent.refused("r", 0, "why", kRefusedAt);
  absent.refused("s", 0, "why", kRefusedAt);
  absent.refused("r", 1, "why", kRefusedAt, 42);
  EXPECT_EQ(absent.replicas(), (std::set<std::string>{"r", "s"}));
  EXPECT_EQ(absent.check_forget("r").error().message(),
            "replica 'r' rank 1 was refused, and its process 42 tries to attach again and again: "
            "stop that process first");
  EXPECT_TRUE(absent.process_ended("r", 1, 42));
  EXPECT_TRUE(absent.check_forget("r"));
  absent.forget("r");
  EXPECT_EQ(absent.replicas(), (std::set<std::string>{"s"}));
  absent.starting({.id = reload::EngineId{7}, .replica = "r", .pid = 43}, kRefusedAt);
  EXPECT_EQ(absent.check_forget("r").error().message(),
            "replica 'r' rank 0 is starting (process 43): it attaches when its memory is "
            "allocated: stop its engine first");
}

TEST(AbsentEngines, TheSameRefusalIsNewsOnce) {
  AbsentEngines absent;
  EXPECT_TRUE(absent.refused("r", 0, "why", kRefusedAt));
  EXPECT_FALSE(absent.refused("r", 0, "why", kRefusedAt));
  EXPECT_TRUE(absent.refused("r", 1, "why", kRefusedAt)) << "another rank";
  EXPECT_TRUE(absent.refused("r", 0, "another reason", kRefusedAt));
  // It attaches, and is refused when its version is prepared: reported all the time.
  absent.attached("r", 0, true);
  EXPECT_TRUE(absent.was_refused("r", 0));
  EXPECT_EQ(reported(absent, kRefusedAt).at(0).reason,
            "rank 0 was refused: another reason; rank 1 was refused: why");
  EXPECT_FALSE(absent.refused("r", 0, "another reason", kRefusedAt));
  absent.attached("r", 0);
  EXPECT_FALSE(absent.was_refused("r", 0));
  EXPECT_TRUE(absent.refused("r", 0, "another reason", kRefusedAt));
  const TimePoint later = kRefusedAt + AbsentEngines::kept_for() + std::chrono::milliseconds(1);
  EXPECT_TRUE(absent.refused("r", 0, "another reason", later)) << "it was forgotten";
  // One that starts is no refusal.
  absent.starting({.id = reload::EngineId{3}, .replica = "s", .rank = 0}, later);
  EXPECT_FALSE(absent.was_refused("s", 0));
  absent.attached("s", 0, true);
  EXPECT_TRUE(absent.refused("s", 0, "why", later));
}

TEST(AbsentEngines, ARankOfAReplicaThatIsThere) {
  AbsentEngines refused;
  refused.refused("r", 1, "why", kRefusedAt);
  control::ReplicaReport lacks{
      .replica = "r", .world_size = 2, .ranks_attached = 1, .reason = "rank 1 is not attached"};
  EXPECT_EQ(reported(refused, kRefusedAt, {lacks}).at(0).reason, "rank 1 was refused: why");
  lacks.ranks_attached = 2;
  lacks.reason = "";
  EXPECT_EQ(reported(refused, kRefusedAt, {lacks}).at(0).reason, "")
      << "a second process of a rank is refused while the first one serves";
}

TEST(AbsentEngines, AStartingEngineSaysSoUntilItAttachesOrEnds) {
  constexpr reload::EngineId kFirst{7};
  AbsentEngines absent;
  const StartingRank rank{.id = kFirst, .replica = "r", .rank = 1, .world_size = 2, .pid = 42};
  absent.starting(rank, kRefusedAt);
  const TimePoint later = kRefusedAt + 3 * AbsentEngines::kept_for();
  const auto reports = reported(absent, later);
  ASSERT_EQ(reports.size(), 1U) << "memory may take as long as it likes";
  EXPECT_EQ(reports[0].world_size, 2U);
  EXPECT_EQ(reports[0].ranks_attached, 0U);
  EXPECT_EQ(reports[0].reason,
            "rank 1 is starting (process 42): it attaches when its memory is allocated");
  EXPECT_EQ(absent.unverified(later).at(0).failure,
            "it is not attached: it is starting (process 42): it attaches when its memory is "
            "allocated");
  EXPECT_FALSE(absent.ended(reload::EngineId{8})) << "another connection";
  EXPECT_TRUE(absent.ended(kFirst));
  EXPECT_TRUE(reported(absent, later).empty());
  absent.starting(rank, later);
  absent.attached("r", 1);
  EXPECT_FALSE(absent.ended(kFirst)) << "its end says nothing about the rank that is attached";
}

TEST(AbsentEngines, ARefusalReplacesTheStartOfThatRank) {
  constexpr reload::EngineId kFirst{7};
  AbsentEngines absent;
  absent.starting({.id = kFirst, .replica = "r"}, kRefusedAt);
  absent.refused("r", 0, "why", kRefusedAt);
  EXPECT_FALSE(absent.ended(kFirst));
  EXPECT_EQ(reported(absent, kRefusedAt).at(0).reason, "rank 0 was refused: why");
}

TEST(AbsentEngines, AnOutcomeSaysWhereItsEnginesAreAndWhatToDo) {
  AbsentEngines absent;
  absent.starting({.id = reload::EngineId{7}, .replica = "sleeps", .pid = 42, .is_suspended = true},
                  kRefusedAt);
  absent.starting({.id = reload::EngineId{8},
                   .replica = "tp",
                   .rank = 1,
                   .world_size = 2,
                   .pid = 43,
                   .is_suspended = true},
                  kRefusedAt);
  const std::string none(reload::kNoEngineReason);
  std::vector<control::ReplicaOutcome> outcomes = {
      {.replica = "sleeps", .reason = none},
      {.replica = "tp", .reason = "rank 1 is not attached"},
      {.replica = "ended", .reason = none},
      {.replica = "half", .reason = "rank 3 is not attached"},
      {.replica = "sleeps", .reason = "out of memory"}};
  absent.explain(outcomes, "s0", kRefusedAt);
  std::vector<std::string> reasons;
  for (const auto& outcome : outcomes) reasons.push_back(outcome.reason);
  EXPECT_THAT(reasons,
              testing::ElementsAre(
                  "rank 0 is suspended (process 42): it loads the target when it resumes",
                  "rank 1 is suspended (process 43): it loads the target when it resumes",
                  "it has no engine any more: start it, or forget the replica with `wsync forget "
                  "s0/ended`",
                  "rank 3 is not attached", "out of memory"));
}

TEST(AbsentEngines, AnEngineWithoutANameIsNotReported) {
  AbsentEngines refused;
  refused.refused("", 0, "EngineHello has no replica name", kRefusedAt);
  EXPECT_TRUE(reported(refused, kRefusedAt).empty());
}

}  // namespace
}  // namespace wsync::agent
