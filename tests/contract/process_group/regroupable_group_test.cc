#include "shared/process_group/regroupable_group.h"

#include <array>
#include <atomic>
#include <gtest/gtest.h>
#include <thread>

#include "shared/process_group/collectives.h"
#include "shared/process_group/memory/host_segment.h"
#include "tests/contract/process_group/process_group_suite.h"

namespace wsync::collective {
namespace {

using memory::HostSegment;

std::unique_ptr<ProcessGroup> attached(const Result<HostSegment>& segment, std::uint32_t rank) {
  return std::move(segment->attach(rank).value());
}

// The ranks of a group that was broken, with a message on its way, and replaced.
Groups regrouped(std::uint32_t size) {
  const auto first = HostSegment::create({.size = size});
  const auto second = HostSegment::create({.size = size});
  Groups groups;
  for (std::uint32_t rank = 0; rank < size; ++rank)
    groups.push_back(std::make_unique<RegroupableGroup>(attached(first, rank)));
  const Bytes lost(3);
  for (std::uint32_t to = 1; to < size; ++to)
    EXPECT_TRUE(groups[0]->exchange(std::vector<Send>{{.to = to, .bytes = lost}}, {}, far_off()));
  first->abort({ErrorCode::kPeerLost, "a rank of the first group is lost"});
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    EXPECT_FALSE(groups[rank]->health().has_value());
    auto& group = dynamic_cast<RegroupableGroup&>(*groups[rank]);
    EXPECT_TRUE(group.regroup(attached(second, rank)).has_value());
  }
  return groups;
}

INSTANTIATE_TEST_SUITE_P(Regroupable, ProcessGroupContract,
                         ::testing::Values(GroupBackend{
                             .name = "Regrouped", .make = regrouped, .seeds = 3}),
                         backend_name);

std::string why_not(const Result<>& result) {
  EXPECT_FALSE(result.has_value());
  if (result) return "";
  EXPECT_EQ(result.error().code(), ErrorCode::kInvalidInput);
  return result.error().message();
}

TEST(RegroupableGroup, IsReplacedByTheSameRanksOnly) {
  const auto pair = HostSegment::create({.size = 2});
  const auto again = HostSegment::create({.size = 2});
  const auto three = HostSegment::create({.size = 3});
  RegroupableGroup first(attached(pair, 0));
  RegroupableGroup second(attached(pair, 1));
  EXPECT_EQ(why_not(first.regroup(nullptr)), "rank 0 of 2 cannot continue without a group");
  EXPECT_EQ(why_not(first.regroup(attached(again, 1))),
            "rank 0 of 2 cannot continue as rank 1 of 2: the new group must have the same ranks as "
            "the old one");
  EXPECT_EQ(why_not(first.regroup(attached(three, 0))),
            "rank 0 of 2 cannot continue as rank 0 of 3: the new group must have the same ranks as "
            "the old one");
  // And is still the group that it was.
  Bytes received(1);
  const Bytes sent = message_of(1, 0, 1);
  ASSERT_TRUE(second.exchange(std::vector<Send>{{.to = 0, .bytes = sent}}, {}, far_off()));
  ASSERT_TRUE(first.exchange({}, std::vector<Receive>{{.from = 1, .bytes = received}}, far_off()));
  EXPECT_TRUE(received == sent);
}

TEST(RegroupableGroup, OneThatStaysBehindReachesNobodyAndIsToldThatTheOthersHaveLeft) {
  const auto before = HostSegment::create({.size = 2});
  const auto after = HostSegment::create({.size = 2});
  RegroupableGroup survivor(attached(before, 0));
  const auto zombie = attached(before, 1);
  ASSERT_TRUE(survivor.regroup(attached(after, 0)));
  const auto replacement = attached(after, 1);
  const Bytes stale = message_of(9, 9, 4);
  const Bytes fresh = message_of(1, 1, 4);
  ASSERT_TRUE(zombie->exchange(std::vector<Send>{{.to = 0, .bytes = stale}}, {}, far_off()));
  zombie->abort({ErrorCode::kInternal, "a zombie's reason"});
  ASSERT_TRUE(replacement->exchange(std::vector<Send>{{.to = 0, .bytes = fresh}}, {}, far_off()));
  Bytes received(4);
  ASSERT_TRUE(
      survivor.exchange({}, std::vector<Receive>{{.from = 1, .bytes = received}}, far_off()));
  EXPECT_TRUE(received == fresh);
  EXPECT_TRUE(survivor.health().has_value());
  EXPECT_EQ(before->ranks()[0].phase, memory::RankPhase::kLeft);
}

// The group before is left, and not before its last call is over.
TEST(RegroupableGroup, IsAskedByOtherThreadsWhileItIsReplaced) {
  constexpr int kTimes = 50;
  const auto first = HostSegment::create({.size = 1});
  RegroupableGroup group(attached(first, 0));
  std::atomic<bool> over = false;
  std::atomic<int> asked = 0;
  std::array<std::jthread, 2> watchers;
  for (auto& watcher : watchers)
    watcher = std::jthread([&] {
      while (!over) {
        EXPECT_TRUE(group.health().has_value());
        ++asked;
      }
    });
  for (int i = 0; i < kTimes; ++i) {
    const int before = asked;
    while (asked == before) std::this_thread::yield();
    const auto next = HostSegment::create({.size = 1});
    ASSERT_TRUE(group.regroup(attached(next, 0)));
  }
  over = true;
  for (auto& watcher : watchers) watcher.join();
  group.abort({ErrorCode::kCancelled, "the last one"});
  EXPECT_EQ(group.health().error().message(), "the last one");
}

TEST(RegroupableGroupDeathTest, BeginsWithAGroup) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(RegroupableGroup(nullptr), "is created with a group");
}

}  // namespace
}  // namespace wsync::collective
