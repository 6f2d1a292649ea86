// Pure parts of the NCCL backend: refusals before a rendezvous, the states of a communicator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/broadcast/nccl/handle.h"
#include "shared/broadcast/nccl/members.h"

namespace wsync::collective::nccl {
namespace {

using ::testing::HasSubstr;

Member member_of(const std::string& host, std::uint32_t rank, const std::string& gpu) {
  return {.host = host, .rank = Rank{rank}, .gpu = gpu, .driver_cuda = 13000, .build_cuda = 13000};
}
Member maker() { return {.host = "A", .driver_cuda = 13000, .build_cuda = 13000}; }

void expect_refused(const std::vector<Member>& members, const std::string& words) {
  const auto checked = check_members(members);
  ASSERT_FALSE(checked) << words;
  EXPECT_EQ(checked.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(checked.error().message(), HasSubstr(words));
}

TEST(NcclMembers, ThoseThatFitAreAccepted) {
  EXPECT_TRUE(check_members({}));
  auto newer = member_of("B", 2, "GPU-2");
  newer.driver_cuda = 13020;
  EXPECT_TRUE(check_members(
      std::vector{maker(), maker(), member_of("A", 0, "GPU-0"), member_of("A", 1, "GPU-1"), newer}))
      << "drivers need not be equal";
  auto minor = member_of("A", 0, "GPU-0");
  minor.driver_cuda = 13000;
  minor.build_cuda = 13010;
  EXPECT_TRUE(check_members(std::vector{minor})) << "one CUDA major version";
}

TEST(NcclMembers, WhatDoesNotFitIsNamedByHostAndRank) {
  expect_refused({member_of("A", 0, "GPU-7"), member_of("A", 3, "GPU-7")},
                 "rank 0 on host A and rank 3 on host A both use GPU-7");
  EXPECT_TRUE(
      check_members(std::vector{member_of("A", 0, "GPU-7"), member_of("A", 3, "GPU-7")}, true))
      << "newer libraries let ranks share a GPU";
  auto old = member_of("B", 1, "GPU-1");
  old.driver_cuda = 12080;
  expect_refused({maker(), old},
                 "rank 1 on host B: its driver supports CUDA 12.8, but wsync on that host was "
                 "built with CUDA 13.0");
}

TEST(NcclHandleState, TheTableIsWhole) {
  using enum HandleState;
  constexpr std::array kAll{kNew, kJoining, kReady, kBusy, kBroken, kGone};
  // A row for each state, a column for each that it may become.
  constexpr std::array kTable{
      ".x..xx",  // new
      "..x.xx",  // joining
      "...xxx",  // ready
      "..x.xx",  // busy
      ".....x",  // broken
      "......",  // gone
  };
  for (std::size_t from = 0; from < kAll.size(); ++from)
    for (std::size_t to = 0; to < kAll.size(); ++to)
      EXPECT_EQ(may_become(kAll[from], kAll[to]), kTable[from][to] == 'x')
          << handle_state_name(kAll[from]) << " to " << handle_state_name(kAll[to]);
}

}  // namespace
}  // namespace wsync::collective::nccl
