// Pure parts of the NCCL backend: refusals before a rendezvous, the id of a group, the states of a
// communicator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/limits.h"
#include "shared/collective/nccl/handle.h"
#include "shared/collective/nccl/members.h"

namespace wsync::collective::nccl {
namespace {

using ::testing::HasSubstr;

Member member_of(const std::string& host, std::uint32_t rank, const std::string& gpu) {
  return {.host = host,
          .rank = Rank{rank},
          .gpu = gpu,
          .nccl = 22707,
          .driver_cuda = 13000,
          .build_cuda = 13000};
}
Member maker() { return {.host = "A", .nccl = 22707, .driver_cuda = 13000, .build_cuda = 13000}; }

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
                 "rank 0 on host A and rank 3 on host A both have GPU-7");
  expect_refused({member_of("A", 2, "GPU-0"), member_of("B", 2, "GPU-1")},
                 "rank 2 on host A and rank 2 on host B want the same rank");
  auto other = member_of("B", 1, "GPU-1");
  other.nccl = 21805;
  expect_refused({maker(), member_of("A", 0, "GPU-0"), other},
                 "a process on host A has NCCL 2.27.7, rank 1 on host B has NCCL 2.18.5");
  auto old = member_of("B", 1, "GPU-1");
  old.driver_cuda = 12080;
  expect_refused({maker(), old},
                 "rank 1 on host B: its driver can do CUDA 12.8, and wsync there was built with "
                 "CUDA 13.0");
}

GroupId some_id() {
  GroupId id{.size = 4, .unique = {}, .members = {maker(), member_of("A", 3, "GPU-3")}};
  for (std::size_t i = 0; i < id.unique.size(); ++i) id.unique[i] = static_cast<std::byte>(i);
  return id;
}

TEST(NcclGroupId, TravelsWhole) {
  const auto decoded = decode_group_id(encode(some_id()));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message();
  EXPECT_EQ(*decoded, some_id());
}

TEST(NcclGroupId, EveryCutAndEveryAdditionIsRefused) {
  Bytes bytes = encode(some_id());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const auto decoded = decode_group_id(std::span(bytes).first(length));
    ASSERT_FALSE(decoded) << length;
    EXPECT_EQ(decoded.error().code(), ErrorCode::kInvalidInput);
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode_group_id(bytes));
}

void expect_bad(const GroupId& id, const std::string& words) {
  const auto decoded = decode_group_id(encode(id));
  ASSERT_FALSE(decoded) << words;
  EXPECT_EQ(decoded.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(decoded.error().message(), HasSubstr(words));
}

TEST(NcclGroupId, BadFieldsAreNamed) {
  Bytes bytes = encode(some_id());
  bytes[0] ^= std::byte{1};
  EXPECT_THAT(decode_group_id(bytes).error().message(), HasSubstr("magic: this is not the id"));
  bytes = encode(some_id());
  bytes[4] = std::byte{9};
  EXPECT_THAT(decode_group_id(bytes).error().message(), HasSubstr("format: 9, expected 1"));

  GroupId id = some_id();
  id.size = 0;
  expect_bad(id, "size: 0, expected 1 to 64");
  id.size = 65;
  expect_bad(id, "size: 65");
  id.size = 3;
  expect_bad(id, "member.rank: 3 in a group of 3");
  id = some_id();
  id.members.clear();
  expect_bad(id, "members: the maker is missing");
  id = some_id();
  id.members.erase(id.members.begin());
  expect_bad(id, "the first one is the maker");
  id = some_id();
  id.members[1].gpu.clear();
  expect_bad(id, "member.gpu: missing");
  id = some_id();
  id.members[0].gpu = "GPU-0";
  expect_bad(id, "given for a member without a rank");
  id = some_id();
  id.members[0].host = std::string(limits::kPeerNameBytes + 1, 'h');
  expect_bad(id, "member.host");
  id = some_id();
  id.members[1].gpu = std::string(limits::kGpuUuidBytes + 1, 'g');
  expect_bad(id, "member.gpu");
  id = some_id();
  id.members.resize(limits::kDeviceCount + 2, maker());
  expect_bad(id, "members: 66 entries, at most 65");
}

TEST(NcclHandleState, TheTableIsWhole) {
  using enum HandleState;
  constexpr std::array kAll{kNew, kJoining, kReady, kBusy, kLeaving, kBroken, kGone};
  // A row for each state, a column for each that it may become.
  constexpr std::array kTable{
      ".x...xx",  // new
      "..x..xx",  // joining
      "...xxxx",  // ready
      "..x..xx",  // busy
      ".....xx",  // leaving
      "......x",  // broken
      ".......",  // gone
  };
  for (std::size_t from = 0; from < kAll.size(); ++from)
    for (std::size_t to = 0; to < kAll.size(); ++to)
      EXPECT_EQ(may_become(kAll[from], kAll[to]), kTable[from][to] == 'x')
          << handle_state_name(kAll[from]) << " to " << handle_state_name(kAll[to]);
}

}  // namespace
}  // namespace wsync::collective::nccl
