#include "inference_side/sidecar/absent_engines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "inference_side/reload/rank_table.h"

namespace wsync::agent {
namespace {

constexpr TimePoint kRefusedAt{1'000'000'000};

// What a table of this many ranks says of a replica of which `attached` are there.
MissingRanks lacks(std::uint32_t world_size, const std::set<std::uint32_t>& attached) {
  MissingRanks missing{.ranks = {}, .are_all = attached.empty()};
  for (std::uint32_t rank = 0; rank < world_size; ++rank)
    if (!attached.contains(rank)) missing.ranks.push_back(rank);
  return missing;
}

MissingRanks none_known(const std::string& /*replica*/) { return {}; }

std::vector<control::ReplicaReport> reported(const AbsentEngines& refused, TimePoint at,
                                             std::vector<control::ReplicaReport> reports = {},
                                             const MissingOf& missing = none_known) {
  refused.add_to(reports, missing, at);
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
            "allocated; stop its engine first");
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
  const auto said = [&](std::uint32_t world_size, const std::set<std::uint32_t>& attached) {
    const MissingRanks missing = lacks(world_size, attached);
    return reported(refused, kRefusedAt,
                    {{.replica = "r",
                      .world_size = world_size,
                      .ranks_attached = static_cast<std::uint32_t>(attached.size()),
                      .reason = missing.ranks.empty() ? "" : reload::not_attached(missing.ranks)}},
                    [&](const std::string&) { return missing; })
        .at(0)
        .reason;
  };
  EXPECT_EQ(said(2, {0}), "rank 1 was refused: why");
  EXPECT_EQ(said(3, {0}), "rank 1 was refused: why; rank 2 is not attached");
  EXPECT_EQ(said(4, {}), "rank 1 was refused: why; ranks 0, 2 and 3 are not attached");
  EXPECT_EQ(said(2, {0, 1}), "") << "a second process of a rank is refused while the first serves";
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
            "it is starting (process 42): it attaches when its memory is allocated");
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
  const auto suspended = [&](const std::string& replica, std::uint32_t rank, std::uint32_t pid) {
    absent.starting({.id = reload::EngineId{pid},
                     .replica = replica,
                     .rank = rank,
                     .pid = pid,
                     .is_suspended = true},
                    kRefusedAt);
  };
  suspended("sleeps", 0, 42);
  suspended("tp", 0, 43);
  suspended("tp", 2, 44);
  absent.refused("refused", 1, "why", kRefusedAt);
  const auto reason = [&](const std::string& replica, const MissingRanks& missing,
                          const std::string& before = {}) {
    std::vector<control::ReplicaOutcome> outcomes = {
        {.replica = replica, .reason = before + reload::not_attached(missing.ranks)}};
    absent.explain(outcomes, [&](const std::string&) { return missing; }, "s0", kRefusedAt);
    return outcomes[0].reason;
  };
  EXPECT_EQ(reason("sleeps", lacks(1, {})),
            "rank 0 is suspended (process 42): it loads the target when it resumes");
  // What lives cannot be forgotten.
  EXPECT_EQ(reason("tp", lacks(4, {})),
            "rank 0 is suspended (process 43): it loads the target when it resumes; rank 2 is "
            "suspended (process 44): it loads the target when it resumes; ranks 1 and 3 are not "
            "attached: start their engines");
  EXPECT_EQ(reason("tp", lacks(3, {1, 2}), "the load has failed; "),
            "the load has failed; rank 0 is suspended (process 43): it loads the target when it "
            "resumes");
  EXPECT_EQ(reason("ended", lacks(1, {})),
            "rank 0 is not attached: start its engine, or forget the replica with `wsync forget "
            "s0/ended`");
  EXPECT_EQ(reason("ended", lacks(2, {})),
            "ranks 0 and 1 are not attached: start their engines, or forget the replica with "
            "`wsync forget s0/ended`");
  EXPECT_EQ(reason("refused", lacks(2, {})),
            "rank 1 was refused: why; rank 0 is not attached: start its engine, or forget the "
            "replica with `wsync forget s0/refused`");
  EXPECT_EQ(reason("half", lacks(4, {0, 1, 2})), "rank 3 is not attached: start its engine");
  std::vector<control::ReplicaOutcome> other = {{.replica = "ended", .reason = "out of memory"}};
  absent.explain(other, [](const std::string&) { return lacks(2, {}); }, "s0", kRefusedAt);
  EXPECT_EQ(other[0].reason, "out of memory");
}

TEST(AbsentEngines, AnEngineWithoutANameIsNotReported) {
  AbsentEngines refused;
  refused.refused("", 0, "EngineHello has no replica name", kRefusedAt);
  EXPECT_TRUE(reported(refused, kRefusedAt).empty());
}

}  // namespace
}  // namespace wsync::agent
