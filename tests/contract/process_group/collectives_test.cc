#include "shared/process_group/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/process_group/memory/host_segment.h"
#include "tests/contract/process_group/process_group_suite.h"

namespace wsync::collective {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Team, OfOneNeedsNoGroup) {
  const Team team;
  EXPECT_EQ(team.size(), 1U);
  EXPECT_EQ(team.index(), 0U);
  EXPECT_EQ(Team(nullptr, {5}).rank_of(0), 5U);
  EXPECT_TRUE(barrier(team, now()).has_value());
  Bytes own = message_of(0, 0, 10);
  Bytes received(10);
  ASSERT_TRUE(all_to_all(team, std::vector<std::span<const std::byte>>{own},
                         std::vector<std::span<std::byte>>{received}, now()));
  EXPECT_TRUE(received == own);
  ASSERT_TRUE(all_gather(team, std::vector<std::span<std::byte>>{own}, now()));
  EXPECT_TRUE(received == own);
  const std::vector<float> large{1e8F, 1.0F};
  const std::vector<float> one{1.0F, 2.0F};
  const std::vector<float> minus{-1e8F, 3.0F};
  std::vector<float> out(2);
  ASSERT_TRUE(reduce_scatter(team, std::vector<std::span<const float>>{large, one, minus},
                             std::vector<std::size_t>{0, 2}, out, now()));
  EXPECT_THAT(out, ElementsAre(0.0F, 6.0F));  // (1e8 + 1) + -1e8, and not 1
  ASSERT_TRUE(all_reduce(team, out, now()));
  EXPECT_THAT(out, ElementsAre(0.0F, 6.0F));
  Bytes gathered(10);
  ASSERT_TRUE(gather(team, own, std::vector<std::span<std::byte>>{gathered}, now()));
  EXPECT_TRUE(gathered == own);
}

TEST(TeamDeathTest, OfSeveralNeedsAGroupThatHasThem) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Team(nullptr, {0, 1}), "a team of several without a group");
  EXPECT_DEATH(Team(nullptr, {}), "a team without members");
  const auto segment = memory::HostSegment::create({.size = 3});
  const auto group = segment->attach(1);
  EXPECT_DEATH(Team(group->get(), {0, 2}), "rank 1 is not a member");
  EXPECT_DEATH(Team(group->get(), {1, 2, 2}), "members 1, 2, 2 of a group of 3");
  EXPECT_DEATH(Team(group->get(), {1, 3}), "members 1, 3 of a group of 3");
}

std::string refusal(const Result<>& result) {
  EXPECT_FALSE(result.has_value());
  if (result) return "";
  EXPECT_EQ(result.error().code(), ErrorCode::kInvalidInput);
  return result.error().message();
}

TEST(Collectives, ArgumentsThatDoNotFitAreRefused) {
  const Team team;
  Bytes two(2);
  Bytes three(3);
  const std::vector<std::span<const std::byte>> send{two};
  const std::vector<std::span<std::byte>> receive{three};
  EXPECT_EQ(refusal(all_to_all(team, {}, receive, now())),
            "0 parts to send and 1 to receive, expected 1 of each");
  EXPECT_EQ(refusal(all_to_all(team, send, receive, now())),
            "rank 0 sends 2 bytes to itself and receives 3");
  EXPECT_EQ(refusal(all_gather(team, {}, now())), "0 parts for 1 member");
  EXPECT_EQ(refusal(gather(team, two, {}, now())), "0 parts for 1 member");
  EXPECT_EQ(refusal(gather(team, two, receive, now())), "rank 0 has 2 bytes for a part of 3");

  const std::vector<float> array(4);
  std::vector<float> out(4);
  const std::vector<std::span<const float>> arrays{array};
  const auto sum = [&](const std::vector<std::size_t>& cuts, std::span<float> to) {
    return refusal(reduce_scatter(team, arrays, cuts, to, now()));
  };
  EXPECT_EQ(refusal(reduce_scatter(team, {}, std::vector<std::size_t>{0, 4}, out, now())),
            "a sum of no arrays");
  EXPECT_EQ(sum({0, 2, 4}, out), "3 cuts for 1 member, expected 2");
  EXPECT_EQ(sum({1, 4}, out), "cuts at 1, 4, expected to ascend from 0");
  EXPECT_EQ(sum({0, 5}, out),
            "an array of 4 elements, cut at 0, 5; expected the last cut at its end");
  EXPECT_EQ(sum({0, 4}, std::span(out).first(3)), "an output of 3 elements for a part of 4");
}

TEST(Collectives, AnArgumentThatDoesNotFitBreaksTheGroupForTheOthers) {
  const auto segment = memory::HostSegment::create({.size = 2});
  const auto first = segment->attach(0);
  const auto second = segment->attach(1);
  EXPECT_EQ(refusal(all_gather(Team(first->get(), {0, 1}), {}, far_off())),
            "0 parts for 2 members");
  EXPECT_EQ(refusal(barrier(Team(second->get(), {0, 1}), far_off())), "0 parts for 2 members");
}

TEST(Collectives, OnlyTheFirstMemberHasPartsToGather) {
  const auto segment = memory::HostSegment::create({.size = 2});
  const auto first = segment->attach(0);
  const auto second = segment->attach(1);
  Bytes own(2);
  const std::vector<std::span<std::byte>> parts{own, own};
  const std::string why = "2 parts to fill, expected none: rank 1 is not the first member";
  EXPECT_EQ(refusal(gather(Team(second->get(), {0, 1}), own, parts, far_off())), why);
  EXPECT_EQ(refusal(gather(Team(first->get(), {0, 1}), own, parts, far_off())), why);
}

}  // namespace
}  // namespace wsync::collective
