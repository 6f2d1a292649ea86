// What the ranks of a replica hold and do.
#include "inference_side/reload/rank_table.h"

#include <gtest/gtest.h>

#include "tests/support/versions.h"

namespace wsync::reload {
namespace {

using control::RankState;

RankTable serving(std::uint32_t world_size) {
  RankTable ranks(world_size);
  for (std::uint32_t rank = 0; rank < world_size; ++rank)
    ranks.attach({.rank = rank, .leader = rank == 1, .state = RankState::kServing, .active = kV1});
  return ranks;
}

TEST(RankTable, IsCompleteWhenEveryRankIsAttached) {
  RankTable ranks(2);
  EXPECT_EQ(ranks.missing(), "ranks 0 and 1 are not attached");
  ranks.attach({.rank = 0, .state = RankState::kLoading, .active = {}});
  EXPECT_EQ(ranks.attached(), 1U);
  EXPECT_FALSE(ranks.complete());
  EXPECT_EQ(ranks.missing(), "rank 1 is not attached");
  EXPECT_FALSE(ranks.is_attached(1));
  EXPECT_FALSE(ranks.is_attached(9));
  ranks.attach({.rank = 1, .leader = true, .state = RankState::kLoading, .active = {}});
  EXPECT_TRUE(ranks.complete());
  EXPECT_EQ(ranks.leader(), 1U);
  EXPECT_TRUE(ranks.is_leader(1));
  ranks.detach(1);
  EXPECT_FALSE(ranks.is_leader(1));
  EXPECT_EQ(ranks.leader(), 0U);
  EXPECT_TRUE(ranks.invariants().has_value());
}

TEST(RankTable, NamesEveryRankThatIsMissingOrHasNotAnswered) {
  RankTable ranks(8);
  EXPECT_EQ(ranks.missing(), "ranks 0 to 7 are not attached");
  EXPECT_EQ(ranks.unanswered(), "no rank");
  for (const std::uint32_t rank : {1U, 3U, 7U})
    ranks.attach({.rank = rank, .leader = rank == 1, .state = RankState::kPaused, .active = kV1});
  EXPECT_EQ(ranks.missing(), "ranks 0, 2 and 4 to 6 are not attached");
  ranks.expect_answers();
  EXPECT_EQ(ranks.unanswered(), "ranks 1, 3 and 7");
  ranks.set_answered(1);
  ranks.set_answered(7);
  EXPECT_EQ(ranks.unanswered(), "rank 3");
}

TEST(RankTable, AHelloSaysWhatTheRankHolds) {
  struct Case {
    RankState state;
    Version active;
    std::optional<Version> whole;
    bool written;
  };
  for (const Case& one :
       {Case{RankState::kServing, kV1, kV1, false}, Case{RankState::kPaused, kV1, kV1, false},
        Case{RankState::kPaused, {}, std::nullopt, false},
        Case{RankState::kLoading, kV1, std::nullopt, false},
        Case{RankState::kLoaded, kV1, std::nullopt, true},
        Case{RankState::kTainted, kV1, std::nullopt, true}}) {
    RankTable ranks(1);
    ranks.attach({.rank = 0, .state = one.state, .active = one.active});
    EXPECT_EQ(ranks.uniform(), one.whole);
    EXPECT_EQ(ranks.any_written(), one.written);
    EXPECT_TRUE(ranks.invariants().has_value());
  }
}

TEST(RankTable, ALoadWritesEveryRankUntilItCommits) {
  RankTable ranks = serving(2);
  EXPECT_EQ(ranks.uniform(), kV1);
  ranks.begin_load();
  EXPECT_FALSE(ranks.uniform());
  EXPECT_TRUE(ranks.any_written());
  EXPECT_TRUE(ranks.awaits(0));
  ranks.set_answered(0);
  EXPECT_FALSE(ranks.awaits(0));
  EXPECT_FALSE(ranks.all_answered());
  ranks.set_answered(1);
  EXPECT_TRUE(ranks.all_answered());
  ranks.expect_answers();
  ranks.commit(0, kV2);
  EXPECT_FALSE(ranks.uniform());
  ranks.commit(1, kV2);
  EXPECT_EQ(ranks.uniform(), kV2);
  EXPECT_TRUE(ranks.all_answered());
}

TEST(RankTable, ALoadThatCouldNotBeginChangesNothing) {
  RankTable ranks(3);
  ranks.attach({.rank = 0, .leader = true, .state = RankState::kPaused, .active = kV1});
  ranks.attach({.rank = 1, .state = RankState::kLoading, .active = {}});
  ranks.attach({.rank = 2, .state = RankState::kTainted, .active = {}});
  ranks.begin_load();
  ranks.revert_load();
  EXPECT_TRUE(ranks.any_written());
  ranks.detach(2);
  EXPECT_FALSE(ranks.any_written()) << "only rank 2 was";
}

TEST(RankTable, WhileTheLeaderServesEveryWholeRankMay) {
  RankTable ranks = serving(2);
  ranks.set_serving(0, false);
  EXPECT_FALSE(ranks.quiesced());
  EXPECT_TRUE(ranks.leader_serves());
  ranks.assume_serving();
  ranks.set_serving(1, false);
  EXPECT_FALSE(ranks.quiesced()) << "rank 0 may be inside a step";
  ranks.set_serving(0, false);
  EXPECT_TRUE(ranks.quiesced());
}

TEST(RankTable, DamageIsKnownUntilItIsMendedOrItsRankIsGone) {
  RankTable table(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    table.attach({.rank = rank, .state = control::RankState::kServing, .active = kV1});
  EXPECT_FALSE(table.damaged());
  table.set_damaged(1, "tensor w");
  EXPECT_EQ(table.damaged(), "tensor w");
  EXPECT_EQ(table.uniform(), kV1) << "by their own account";
  EXPECT_TRUE(table.invariants());
  table.detach(0);
  EXPECT_TRUE(table.damaged());
  table.detach(1);
  EXPECT_FALSE(table.damaged());
  table.set_damaged(1, "of nobody");
  EXPECT_EQ(table.invariants().error().message(), "a rank that is not attached is damaged");
  table.set_mended();
  EXPECT_TRUE(table.invariants());
}

TEST(RankTableDeathTest, AMoveWithoutARowAborts) {
  RankTable ranks = serving(1);
  EXPECT_DEATH(ranks.commit(0, kV2), "a rank cannot go from whole to whole");
}

}  // namespace
}  // namespace wsync::reload
