// What every collective backend promises; a backend instantiates the suite with the device kind
// that selects it.
#pragma once

#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include "shared/base/limits.h"
#include "shared/collective/communicator.h"
#include "tests/contract/device/helpers.h"

namespace wsync::collective {

using device::DeviceIndex;
using device::DeviceKind;
using device::far_deadline;
using device::whole;

class CommunicatorContract : public ::testing::TestWithParam<DeviceKind> {
 protected:
  struct Member {
    std::unique_ptr<device::Device> device;
    std::unique_ptr<device::Memory> source;
    std::unique_ptr<device::Memory> destination;
    std::unique_ptr<device::Event> done;
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<device::Stream> stream;  // destroyed first
  };

  void make_members(std::uint32_t size, std::uint64_t bytes) {
    std::vector<device::Device*> devices;
    for (std::uint32_t d = 0; d < size; ++d) {
      Member member;
      member.device =
          std::move(*device::make_device({.kind = GetParam(), .index = DeviceIndex{d}}));
      member.source = std::move(*member.device->allocate(bytes));
      member.destination = std::move(*member.device->allocate(bytes));
      member.done = std::move(*member.device->create_event());
      member.stream = std::move(*member.device->create_stream(device::StreamRole::kBroadcast));
      devices.push_back(member.device.get());
      members_.push_back(std::move(member));
    }
    auto joined = join_all(GroupKind::kLocal, devices, far_deadline());
    ASSERT_TRUE(joined.has_value()) << joined.error().message();
    for (std::uint32_t d = 0; d < size; ++d) members_[d].communicator = std::move((*joined)[d]);
  }
  [[nodiscard]] Broadcast part(const Member& member, std::uint32_t root, std::uint64_t bytes,
                               TimePoint deadline = far_deadline()) const {
    return {.source = {.memory = member.source.get(), .offset = 0, .bytes = bytes},
            .destination = {.memory = member.destination.get(), .offset = 0, .bytes = bytes},
            .root = Rank{root},
            .deadline = deadline};
  }
  static void begin(Member& member, const Broadcast& broadcast) {
    ASSERT_TRUE(member.communicator->broadcast(broadcast, *member.stream));
    ASSERT_TRUE(member.stream->record(*member.done));
  }
  void fill_source(std::uint32_t rank, const Bytes& data) {
    ASSERT_TRUE(members_[rank].stream->copy_to_device(
        {.memory = members_[rank].source.get(), .bytes = data.size()}, data));
  }
  Bytes destination(std::uint32_t rank, std::size_t bytes) {
    Bytes back(bytes);
    EXPECT_TRUE(members_[rank].stream->copy_to_host(
        back, {.memory = members_[rank].destination.get(), .bytes = bytes}));
    EXPECT_TRUE(members_[rank].stream->record(*members_[rank].done));
    EXPECT_TRUE(members_[rank].done->wait(far_deadline()));
    return back;
  }

  std::vector<Member> members_;
};

TEST_P(CommunicatorContract, EveryRankGetsTheRootsBytesWhateverTheRoot) {
  constexpr std::uint64_t kBytes = 5 * limits::kMiB + 77;
  make_members(4, kBytes);
  for (std::uint32_t root = 0; root < 4; ++root) {
    const auto data = device::pattern(kBytes, root + 10);
    fill_source(root, data);
    for (Member& member : members_) begin(member, part(member, root, kBytes));
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      EXPECT_EQ(destination(rank, kBytes), data) << "root " << root << " rank " << rank;
  }
}

TEST_P(CommunicatorContract, KnowsItsPlace) {
  make_members(3, 4096);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(members_[rank].communicator->rank(), Rank{rank});
    EXPECT_EQ(members_[rank].communicator->size(), 3U);
    EXPECT_TRUE(members_[rank].communicator->health());
  }
}

TEST_P(CommunicatorContract, AGroupOfOneBroadcastsToItself) {
  make_members(1, 4096);
  const auto data = device::pattern(4096, 3);
  fill_source(0, data);
  begin(members_[0], part(members_[0], 0, 4096));
  EXPECT_EQ(destination(0, 4096), data);
}

TEST_P(CommunicatorContract, TheRootMayBroadcastInPlace) {
  make_members(2, 4096);
  const auto data = device::pattern(4096, 4);
  ASSERT_TRUE(members_[0].stream->copy_to_device(whole(*members_[0].destination), data));
  auto root = part(members_[0], 0, 4096);
  root.source.memory = root.destination.memory;
  begin(members_[0], root);
  begin(members_[1], part(members_[1], 0, 4096));
  EXPECT_EQ(destination(0, 4096), data);
  EXPECT_EQ(destination(1, 4096), data);
}

TEST_P(CommunicatorContract, TheRootIsDoneOnlyAfterEveryRankHasRead) {
  make_members(3, 4096);
  const auto data = device::pattern(4096, 5);
  fill_source(0, data);
  begin(members_[0], part(members_[0], 0, 4096));
  begin(members_[1], part(members_[1], 0, 4096));
  ASSERT_TRUE(members_[1].done->wait(far_deadline()));
  EXPECT_EQ(members_[0].done->query(), false) << "rank 2 has not read yet";
  begin(members_[2], part(members_[2], 0, 4096));
  EXPECT_TRUE(members_[0].done->wait(far_deadline()));
}

TEST_P(CommunicatorContract, AMissingRankEndsTheOthersAtTheDeadline) {
  make_members(3, 4096);
  const TimePoint passed = now();
  begin(members_[0], part(members_[0], 0, 4096, passed));
  begin(members_[1], part(members_[1], 0, 4096, passed));
  const auto root = members_[0].done->wait(far_deadline());
  ASSERT_FALSE(root);
  EXPECT_EQ(root.error().code(), ErrorCode::kDeadline);
  for (const Member& member : members_) EXPECT_FALSE(member.communicator->health());
  EXPECT_FALSE(members_[0].stream->status());
}

TEST_P(CommunicatorContract, AnAbortEndsPendingAndLaterBroadcastsOfEveryRank) {
  make_members(3, 4096);
  begin(members_[0], part(members_[0], 0, 4096));
  begin(members_[1], part(members_[1], 0, 4096));
  members_[2].communicator->abort({ErrorCode::kPeerLost, "engine 7 died"});
  begin(members_[2], part(members_[2], 0, 4096));
  for (const std::uint32_t rank : {0U, 2U}) {
    const auto ended = members_[rank].done->wait(far_deadline());
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code(), ErrorCode::kPeerLost);
    EXPECT_NE(ended.error().message().find("engine 7 died"), std::string::npos);
  }
  members_[0].communicator->abort({ErrorCode::kInternal, "a later reason"});
  EXPECT_EQ(members_[1].communicator->health().error().code(), ErrorCode::kPeerLost);
}

TEST_P(CommunicatorContract, LeavingEndsWhatIsPending) {
  make_members(2, 4096);
  begin(members_[0], part(members_[0], 0, 4096));
  members_[1].communicator.reset();
  const auto ended = members_[0].done->wait(far_deadline());
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), ErrorCode::kPeerLost);
}

TEST_P(CommunicatorContract, RanksThatDisagreeBreakTheGroup) {
  make_members(2, 4096);
  begin(members_[0], part(members_[0], 0, 4096));
  begin(members_[1], part(members_[1], 0, 2048));
  for (const Member& member : members_) EXPECT_FALSE(member.done->wait(far_deadline()));
  const auto health = members_[0].communicator->health();
  ASSERT_FALSE(health);
  EXPECT_EQ(health.error().code(), ErrorCode::kInvalidInput);
}

TEST_P(CommunicatorContract, ABrokenGroupIsMadeAnewWithTheSameBuffers) {
  make_members(2, 4096);
  begin(members_[0], part(members_[0], 0, 4096));
  members_[0].communicator->abort({ErrorCode::kCancelled, "stop"});
  EXPECT_FALSE(members_[0].done->wait(far_deadline()));
  std::vector<device::Device*> devices;
  for (Member& member : members_) {
    member.stream = std::move(*member.device->create_stream(device::StreamRole::kBroadcast));
    devices.push_back(member.device.get());
  }
  auto joined = join_all(GroupKind::kLocal, devices, far_deadline());
  ASSERT_TRUE(joined.has_value());
  for (std::size_t d = 0; d < 2; ++d) members_[d].communicator = std::move((*joined)[d]);
  const auto data = device::pattern(4096, 6);
  fill_source(1, data);
  for (Member& member : members_) begin(member, part(member, 1, 4096));
  EXPECT_EQ(destination(0, 4096), data);
}

TEST_P(CommunicatorContract, BroadcastsThatCannotBeAreRefusedAndBreakNothing) {
  make_members(2, 4096);
  Member& member = members_[0];
  EXPECT_FALSE(member.communicator->broadcast(part(member, 9, 4096), *member.stream));
  EXPECT_FALSE(member.communicator->broadcast(part(member, 0, 8192), *member.stream));
  auto unequal = part(member, 0, 4096);
  unequal.source.bytes = 1;
  EXPECT_FALSE(member.communicator->broadcast(unequal, *member.stream));
  EXPECT_TRUE(member.communicator->health());
}

TEST_P(CommunicatorContract, JoiningIsOncePerRankAndWaitsForAllToADeadline) {
  auto first = device::make_device({.kind = GetParam(), .index = DeviceIndex{0}});
  auto group = make_group(GroupKind::kLocal, 2);
  ASSERT_TRUE(group.has_value());
  auto joined = (*group)->join(Rank{0}, **first);
  ASSERT_TRUE(joined.has_value());
  EXPECT_EQ((*group)->join(Rank{0}, **first).error().code(), ErrorCode::kRefused);
  EXPECT_EQ((*group)->join(Rank{2}, **first).error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ((*joined)->wait_joined(now()).error().code(), ErrorCode::kDeadline);
  auto second = (*group)->join(Rank{1}, **first);
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE((*joined)->wait_joined(far_deadline()));
}

}  // namespace wsync::collective
