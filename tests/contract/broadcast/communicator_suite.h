// What every collective backend promises; a backend instantiates the suite with itself and the
// kind of devices that it works on.
#pragma once

#include <cstdlib>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "shared/base/units.h"
#include "shared/broadcast/communicator.h"
#include "shared/broadcast/nccl_library.h"
#include "shared/device/cuda_library.h"
#include "tests/contract/device/helpers.h"

namespace wsync::collective {

using device::DeviceIndex;
using device::far_deadline;
using device::whole;

struct CommunicatorBackend {
  DeviceKind devices{};
  GroupKind group{};
};
// Name of an instantiation: "cuda_nccl".
inline std::string backend_name(const ::testing::TestParamInfo<CommunicatorBackend>& info) {
  return std::string(device::device_kind_name(info.param.devices)) + "_" +
         std::string(group_kind_name(info.param.group));
}

// GPUs that this process sees.
inline std::uint32_t visible_gpus() {
  const auto backend = device::cuda_backend();
  const auto facts =
      backend ? (*backend)->facts() : Result<device::CudaFacts>(fail(backend.error()));
  return facts ? static_cast<std::uint32_t>(facts->gpus.size()) : 0;
}

// Ranks of one NCCL group may use the same GPU.
inline bool ranks_share_gpus() {
  const auto backend = nccl_backend();
  const auto facts = backend ? (*backend)->facts() : Result<NcclFacts>(fail(backend.error()));
  return facts && facts->ranks_share_gpus;
}

// On a real machine (WSYNC_TEST_GPU): why a group of this kind cannot be tested there. Empty where
// it can, and on emulated GPUs, where it must.
inline std::string no_nccl_for_tests(GroupKind group) {
  if (group != GroupKind::kNccl || std::getenv("WSYNC_TEST_GPU") == nullptr) return {};
  const auto backend = nccl_backend();
  if (!backend) return "no NCCL for the tests: " + backend.error().message();
  const auto facts = (*backend)->facts();
  return facts ? std::string() : "no NCCL for the tests: " + facts.error().message();
}

class CommunicatorContract : public ::testing::TestWithParam<CommunicatorBackend> {
 protected:
  // GPUs: the local group may share them, an NCCL group has one for each rank, unless a newer NCCL
  // was told to share them.
  void SetUp() override {
    if (GetParam().devices != DeviceKind::kCuda) return;
    if (const auto why = device::no_gpu_for_tests(); !why.empty()) GTEST_SKIP() << why;
    if (const auto why = no_nccl_for_tests(GetParam().group); !why.empty()) GTEST_SKIP() << why;
    gpus_ = visible_gpus();
  }
  // No buffer goes before the streams of all ranks: another rank may be reading it.
  void TearDown() override {
    for (Member& member : members_) member.stream.reset();
    members_.clear();
  }
  // A real machine (WSYNC_TEST_GPU) may have too few GPUs for a test, the emulated one has not.
  void need_devices(std::uint32_t size) {
    if (GetParam().devices != DeviceKind::kCuda) return;
    const bool one_each = GetParam().group == GroupKind::kNccl && !ranks_share_gpus();
    const std::uint32_t needed = one_each ? size : 1;
    if (gpus_ >= needed) return;
    if (std::getenv("WSYNC_TEST_GPU") != nullptr)
      GTEST_SKIP() << "too few GPUs: " << needed << " are needed, this machine shows " << gpus_;
    FAIL() << needed << " GPUs are needed, " << gpus_ << " are there";
  }
  [[nodiscard]] bool stopped() const { return IsSkipped() || HasFatalFailure(); }
  [[nodiscard]] std::unique_ptr<device::Device> make_device(std::uint32_t index) const {
    return std::move(*device::make_device({.kind = GetParam().devices,
                                           .index = DeviceIndex{index},
                                           .gpu = gpus_ == 0 ? 0 : index % gpus_}));
  }
  struct Member {
    std::unique_ptr<device::Device> device;
    std::unique_ptr<device::Memory> source;
    std::unique_ptr<device::Memory> destination;
    std::unique_ptr<device::Event> done;
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<device::Stream> stream;  // destroyed first
  };

  void make_members(std::uint32_t size, std::uint64_t bytes) {
    need_devices(size);
    if (stopped()) return;
    std::vector<device::Device*> devices;
    for (std::uint32_t d = 0; d < size; ++d) {
      Member member;
      member.device = make_device(d);
      member.source = std::move(*member.device->allocate(bytes));
      member.destination = std::move(*member.device->allocate(bytes));
      member.done = std::move(*member.device->create_event());
      member.stream = std::move(*member.device->create_stream(device::StreamRole::kBroadcast));
      devices.push_back(member.device.get());
      members_.push_back(std::move(member));
    }
    auto joined = join_all(GetParam().group, devices, far_deadline());
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

  std::uint32_t gpus_ = 0;
  std::vector<Member> members_;
};

TEST_P(CommunicatorContract, EveryRankGetsTheRootsBytesWhateverTheRoot) {
  constexpr std::uint64_t kBytes = 5 * limits::kMiB + 77;
  make_members(4, kBytes);
  if (stopped()) return;
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
  if (stopped()) return;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(members_[rank].communicator->rank(), Rank{rank});
    EXPECT_EQ(members_[rank].communicator->size(), 3U);
    EXPECT_TRUE(members_[rank].communicator->health());
  }
}

TEST_P(CommunicatorContract, AGroupOfOneBroadcastsToItself) {
  make_members(1, 4096);
  if (stopped()) return;
  const auto data = device::pattern(4096, 3);
  fill_source(0, data);
  begin(members_[0], part(members_[0], 0, 4096));
  EXPECT_EQ(destination(0, 4096), data);
}

TEST_P(CommunicatorContract, TheRootMayBroadcastInPlace) {
  make_members(2, 4096);
  if (stopped()) return;
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
  if (stopped()) return;
  const auto data = device::pattern(4096, 5);
  fill_source(0, data);
  begin(members_[0], part(members_[0], 0, 4096));
  begin(members_[1], part(members_[1], 0, 4096));
  // NCCL's ranks pass the bytes on to each other, and may all wait for the last one.
  if (GetParam().group == GroupKind::kLocal) {
    ASSERT_TRUE(members_[1].done->wait(far_deadline()));
  }
  EXPECT_EQ(members_[0].done->query(), false) << "rank 2 has not read yet";
  begin(members_[2], part(members_[2], 0, 4096));
  EXPECT_TRUE(members_[0].done->wait(far_deadline()));
}

TEST_P(CommunicatorContract, AMissingRankEndsTheOthersAtTheDeadline) {
  make_members(3, 4096);
  if (stopped()) return;
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
  if (stopped()) return;
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
  if (stopped()) return;
  begin(members_[0], part(members_[0], 0, 4096));
  members_[1].communicator.reset();
  const auto ended = members_[0].done->wait(far_deadline());
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), ErrorCode::kPeerLost);
}

TEST_P(CommunicatorContract, RanksThatDisagreeBreakTheGroup) {
  make_members(2, 4096);
  if (stopped()) return;
  begin(members_[0], part(members_[0], 0, 4096));
  begin(members_[1], part(members_[1], 0, 2048));
  for (const Member& member : members_) EXPECT_FALSE(member.done->wait(far_deadline()));
  const auto health = members_[0].communicator->health();
  ASSERT_FALSE(health);
  EXPECT_EQ(health.error().code(), ErrorCode::kInvalidInput);
}

TEST_P(CommunicatorContract, ABrokenGroupIsMadeAnewWithTheSameBuffers) {
  make_members(2, 4096);
  if (stopped()) return;
  begin(members_[0], part(members_[0], 0, 4096));
  members_[0].communicator->abort({ErrorCode::kCancelled, "stop"});
  EXPECT_FALSE(members_[0].done->wait(far_deadline()));
  std::vector<device::Device*> devices;
  for (Member& member : members_) {
    member.stream = std::move(*member.device->create_stream(device::StreamRole::kBroadcast));
    devices.push_back(member.device.get());
  }
  auto joined = join_all(GetParam().group, devices, far_deadline());
  ASSERT_TRUE(joined.has_value());
  for (std::size_t d = 0; d < 2; ++d) members_[d].communicator = std::move((*joined)[d]);
  const auto data = device::pattern(4096, 6);
  fill_source(1, data);
  for (Member& member : members_) begin(member, part(member, 1, 4096));
  EXPECT_EQ(destination(0, 4096), data);
}

TEST_P(CommunicatorContract, BroadcastsThatCannotBeAreRefusedAndBreakNothing) {
  make_members(2, 4096);
  if (stopped()) return;
  Member& member = members_[0];
  EXPECT_FALSE(member.communicator->broadcast(part(member, 9, 4096), *member.stream));
  EXPECT_FALSE(member.communicator->broadcast(part(member, 0, 8192), *member.stream));
  auto unequal = part(member, 0, 4096);
  unequal.source.bytes = 1;
  EXPECT_FALSE(member.communicator->broadcast(unequal, *member.stream));
  EXPECT_TRUE(member.communicator->health());
}

TEST_P(CommunicatorContract, JoiningIsOncePerRankAndWaitsForAllToADeadline) {
  need_devices(2);
  if (stopped()) return;
  const auto first = make_device(0);
  const auto other = make_device(1);
  auto group = make_group(GetParam().group, 2);
  ASSERT_TRUE(group.has_value());
  auto joined = (*group)->join(Rank{0}, *first);
  ASSERT_TRUE(joined.has_value());
  EXPECT_EQ((*group)->join(Rank{0}, *first).error().code(), ErrorCode::kRefused);
  EXPECT_EQ((*group)->join(Rank{2}, *other).error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ((*joined)->wait_joined(now()).error().code(), ErrorCode::kDeadline);
  auto second = (*group)->join(Rank{1}, *other);
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE((*joined)->wait_joined(far_deadline()));
}

}  // namespace wsync::collective
