// What becomes of a group when the emulated NCCL fails as the environment says.
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <list>

#include "tests/contract/broadcast/nccl_member.h"
#include "tests/support/run_again.h"

namespace wsync::collective {
namespace {

using device::far_deadline;
using ::testing::HasSubstr;

class NcclFaults : public ::testing::Test {
 protected:
  ~NcclFaults() override { ::unsetenv("WSYNC_EMULATED_NCCL_FAULT"); }
  static void plant(const char* fault) { ::setenv("WSYNC_EMULATED_NCCL_FAULT", fault, 1); }

  // GPUs 0 to size - 1, made by the first call.
  Result<> join(std::uint32_t size) {
    while (members_.size() < size)
      members_.emplace_back(static_cast<std::uint32_t>(members_.size()));
    std::vector<device::Device*> devices;
    for (const NcclMember& member : members_) devices.push_back(member.device.get());
    auto joined = join_all(GroupKind::kNccl, devices, far_deadline());
    if (!joined) return fail(joined.error());
    std::size_t rank = 0;
    for (NcclMember& member : members_) member.communicator = std::move((*joined)[rank++]);
    return {};
  }
  void begin_all(TimePoint deadline) {
    for (NcclMember& member : members_) member.begin(0, deadline);
  }
  // The same memory, in a new group, takes a broadcast.
  void expect_a_new_group_works() {
    ::unsetenv("WSYNC_EMULATED_NCCL_FAULT");
    for (NcclMember& member : members_) member.leave();
    ASSERT_TRUE(join(static_cast<std::uint32_t>(members_.size())));
    const auto data = device::pattern(kMemberBytes, 8);
    members_.front().write(data);
    begin_all(far_deadline());
    for (NcclMember& member : members_) {
      EXPECT_TRUE(member.end());
      EXPECT_EQ(member.read(), data);
    }
  }

  std::list<NcclMember> members_;
};

TEST_F(NcclFaults, AnInitThatFailsIsTold) {
  plant("init@1");
  const auto joined = join(2);
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code(), ErrorCode::kIo);
  EXPECT_THAT(joined.error().message(), HasSubstr("rank 1 of 2"));
  EXPECT_THAT(joined.error().message(), HasSubstr("unhandled system error"));
  expect_a_new_group_works();
}

TEST_F(NcclFaults, AnAsynchronousErrorEndsTheBroadcastOfAll) {
  ASSERT_TRUE(join(3));
  plant("async:2@1");
  begin_all(far_deadline());
  for (const NcclMember& member : members_) EXPECT_TRUE(member.end());
  begin_all(far_deadline());
  for (const NcclMember& member : members_) {
    const auto ended = member.end();
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code(), ErrorCode::kPeerLost) << ended.error().message();
    EXPECT_THAT(ended.error().message(), HasSubstr("rank 1 of 3: NCCL reports an error"));
  }
  expect_a_new_group_works();
}

TEST_F(NcclFaults, ABroadcastThatHangsIsAbortedAtItsDeadline) {
  ASSERT_TRUE(join(2));
  plant("hang:1@0");
  begin_all(now() + std::chrono::milliseconds(200));
  for (const NcclMember& member : members_) {
    const auto ended = member.end();
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code(), ErrorCode::kDeadline) << ended.error().message();
  }
  expect_a_new_group_works();
}

TEST_F(NcclFaults, ABroadcastThatHangsIsAbortedByAnotherRank) {
  ASSERT_TRUE(join(2));
  plant("hang:1@1");
  begin_all(far_deadline());
  members_.back().communicator->abort({ErrorCode::kPeerLost, "engine 3 died"});
  for (const NcclMember& member : members_) {
    const auto ended = member.end();
    ASSERT_FALSE(ended);
    EXPECT_THAT(ended.error().message(), HasSubstr("engine 3 died"));
  }
  expect_a_new_group_works();
}

// Of a process of its own (the test below): an abandoned GPU stays so.
TEST_F(NcclFaults, DISABLED_AnAbortThatHangsIsLeftAndItsGpuIsNotUsedAgain) {
  ASSERT_TRUE(join(3));
  plant("abort@1");
  members_.front().begin(0);
  members_.back().communicator->abort({ErrorCode::kPeerLost, "engine 3 died"});
  EXPECT_THAT(members_.front().end().error().message(), HasSubstr("engine 3 died"));
  auto hanging = std::next(members_.begin());
  hanging->begin(0);
  EXPECT_THAT(hanging->end().error().message(), HasSubstr("engine 3 died"));
  hanging->stream.reset();
  hanging->communicator.reset();
  const auto expect_refused = [](const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRefused);
    EXPECT_THAT(error.message(), HasSubstr("is no longer used by this process, because NCCL did "
                                           "not free its communicator within 5 s"));
  };
  expect_refused(hanging->device->create_stream(device::StreamRole::kReload).error());
  expect_refused(hanging->device->allocate(kMemberBytes).error());
  expect_refused(device::make_device({.kind = DeviceKind::kCuda, .index = {}, .gpu = 1}).error());
  std::vector<device::Device*> devices = {members_.front().device.get(), hanging->device.get()};
  const auto joined = join_all(GroupKind::kNccl, devices, far_deadline());
  ASSERT_FALSE(joined);
  expect_refused(joined.error());
  members_.erase(hanging);
  expect_a_new_group_works();
}

TEST(NcclFaultsInAProcess, AnAbortThatHangsIsLeftAndItsGpuIsNotUsedAgain) {
  EXPECT_EQ(run_again("NcclFaults.DISABLED_AnAbortThatHangsIsLeftAndItsGpuIsNotUsedAgain",
                      {"WSYNC_EMULATED_CUDA_REPORT="}),
            0);
}

}  // namespace
}  // namespace wsync::collective
