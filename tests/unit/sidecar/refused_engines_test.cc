#include "inference_side/sidecar/refused_engines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::agent {
namespace {

constexpr TimePoint kRefusedAt{1'000'000'000};

std::vector<control::ReplicaReport> reported(const RefusedEngines& refused, TimePoint at,
                                             std::vector<control::ReplicaReport> reports = {}) {
  refused.add_to(reports, at);
  return reports;
}

TEST(RefusedEngines, ARefusedEngineIsAnAbsentReplicaWithItsReason) {
  RefusedEngines refused;
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

TEST(RefusedEngines, ItEndsWhenTheRankAttachesOrAfterAWhile) {
  RefusedEngines refused;
  refused.refused("r", 0, "why", kRefusedAt);
  refused.refused("r", 1, "why", kRefusedAt);
  refused.attached("r", 0);
  EXPECT_EQ(reported(refused, kRefusedAt).at(0).reason, "rank 1 was refused: why");
  const TimePoint later = kRefusedAt + RefusedEngines::kept_for() + std::chrono::milliseconds(1);
  EXPECT_TRUE(reported(refused, later).empty());
  EXPECT_TRUE(refused.unverified(later).empty());
}

TEST(RefusedEngines, ARankOfAReplicaThatIsThere) {
  RefusedEngines refused;
  refused.refused("r", 1, "why", kRefusedAt);
  control::ReplicaReport lacks{
      .replica = "r", .world_size = 2, .ranks_attached = 1, .reason = "rank 1 is not attached"};
  EXPECT_EQ(reported(refused, kRefusedAt, {lacks}).at(0).reason,
            "rank 1 is not attached; rank 1 was refused: why");
  lacks.ranks_attached = 2;
  lacks.reason = "";
  EXPECT_EQ(reported(refused, kRefusedAt, {lacks}).at(0).reason, "")
      << "a second process of a rank is refused while the first one serves";
}

TEST(RefusedEngines, AnEngineWithoutANameIsNotReported) {
  RefusedEngines refused;
  refused.refused("", 0, "EngineHello has no replica name", kRefusedAt);
  EXPECT_TRUE(reported(refused, kRefusedAt).empty());
}

}  // namespace
}  // namespace wsync::agent
