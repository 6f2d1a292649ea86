// The NCCL backend with a table of functions that fails as told, on host devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <thread>

#include "tests/contract/device/helpers.h"
#include "tests/unit/broadcast/nccl/scripted_nccl.h"

namespace wsync::collective::nccl {
namespace {

using device::far_deadline;
using ::testing::HasSubstr;

constexpr std::uint64_t kBytes = 4096;

Member process_on(const std::string& host) {
  return {.host = host, .rank = {}, .gpu = {}, .driver_cuda = 13000, .build_cuda = 13000};
}

class NcclCommunicatorTest : public ::testing::Test {
 protected:
  struct Member {
    std::unique_ptr<device::Device> device;
    std::unique_ptr<device::Memory> source;
    std::unique_ptr<device::Memory> destination;
    std::unique_ptr<device::Event> done;
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<device::Stream> stream;
  };

  ~NcclCommunicatorTest() override {
    members_.clear();
    script_.let_end();
    if (script_.gpu_hangs) return;
    EXPECT_EQ(script_.live(), 0U) << "a communicator leaked";
  }

  Site site() {
    return {.nccl = &table_, .hardware = script_.hardware(), .process = process_on("A")};
  }

  static Member make_member(std::uint32_t index) {
    Member member;
    member.device = std::move(
        *device::make_device({.kind = DeviceKind::kSeparate, .index = device::DeviceIndex{index}}));
    member.source = std::move(*member.device->allocate(kBytes));
    member.destination = std::move(*member.device->allocate(kBytes));
    member.done = std::move(*member.device->create_event());
    member.stream = std::move(*member.device->create_stream(device::StreamRole::kBroadcast));
    return member;
  }
  // All ranks in this process, without waiting for them.
  void join(std::uint32_t size) { join(site(), size); }
  void join(Site where, std::uint32_t size) {
    auto group = make_nccl_group(std::move(where), size);
    ASSERT_TRUE(group.has_value()) << group.error().message();
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      members_.push_back(make_member(rank));
      auto joined = (*group)->join(Rank{rank}, *members_.back().device);
      ASSERT_TRUE(joined.has_value()) << joined.error().message();
      members_.back().communicator = std::move(*joined);
    }
  }
  void join_and_wait(std::uint32_t size) {
    join(size);
    for (const Member& member : members_)
      ASSERT_TRUE(member.communicator->wait_joined(far_deadline()));
  }
  static void begin(Member& member, std::uint32_t root, TimePoint deadline = far_deadline(),
                    std::uint64_t bytes = kBytes) {
    ASSERT_TRUE(member.communicator->broadcast(
        {.source = {.memory = member.source.get(), .offset = 0, .bytes = bytes},
         .destination = {.memory = member.destination.get(), .offset = 0, .bytes = bytes},
         .root = Rank{root},
         .deadline = deadline},
        *member.stream));
    ASSERT_TRUE(member.stream->record(*member.done));
  }
  void begin_all(std::uint32_t root, TimePoint deadline = far_deadline()) {
    for (Member& member : members_) begin(member, root, deadline);
  }
  void expect_all_end_with(ErrorCode code, const std::string& words) {
    for (const Member& member : members_) {
      const auto ended = member.done->wait(far_deadline());
      ASSERT_FALSE(ended);
      EXPECT_EQ(ended.error().code(), code) << ended.error().message();
      EXPECT_THAT(ended.error().message(), HasSubstr(words));
      EXPECT_EQ(member.communicator->health().error().code(), code);
    }
  }

  ScriptedNccl script_;
  const Nccl table_ = script_.table();
  std::vector<Member> members_;
};

TEST_F(NcclCommunicatorTest, BroadcastsAndLeavesInGoodOrder) {
  join_and_wait(2);
  begin_all(1);
  for (const Member& member : members_) EXPECT_TRUE(member.done->wait(far_deadline()));
  EXPECT_EQ(script_.transfer(1).from, members_[1].source->address());
  EXPECT_EQ(script_.transfer(1).to, members_[1].destination->address());
  EXPECT_EQ(script_.transfer(0).from, members_[0].destination->address()) << "never read";
  EXPECT_EQ(script_.transfer(0).bytes, kBytes);
  EXPECT_EQ(script_.transfer(0).root, 1U);
  for (const Member& member : members_) EXPECT_TRUE(member.communicator->health());
  members_.clear();
  EXPECT_EQ(script_.count("destroy 0"), 1U);
  EXPECT_EQ(script_.count("destroy 1"), 1U);
  EXPECT_EQ(script_.count("abort 0") + script_.count("abort 1"), 0U);
}

TEST_F(NcclCommunicatorTest, AnInitThatFailsAtOnceBreaksTheGroup) {
  script_.rank(0).joined = ncclInProgress;  // as NCCL, where it waits for rank 1
  script_.rank(1).init = ncclSystemError;
  join(2);
  for (const Member& member : members_) {
    const auto joined = member.communicator->wait_joined(far_deadline());
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().code(), ErrorCode::kIo);
    EXPECT_THAT(joined.error().message(),
                HasSubstr("rank 1 of 2: ncclCommInitRankConfig: NCCL 2.27.7: some error (its last "
                          "words)"));
  }
}

TEST_F(NcclCommunicatorTest, AnInitThatFailsLaterBreaksTheGroup) {
  script_.rank(0).joined = ncclInvalidUsage;
  script_.rank(1).joined = ncclInProgress;
  join(2);
  EXPECT_EQ(members_[0].communicator->wait_joined(far_deadline()).error().code(),
            ErrorCode::kInvalidInput);
  EXPECT_EQ(members_[1].communicator->wait_joined(far_deadline()).error().code(),
            ErrorCode::kInvalidInput);
  members_.clear();
  EXPECT_EQ(script_.count("abort 0"), 1U);
  EXPECT_EQ(script_.count("abort 1"), 1U);
}

TEST_F(NcclCommunicatorTest, AnInitThatDoesNotEndIsLeftAtTheDeadlineAndAborted) {
  script_.rank(0).joined = ncclInProgress;
  join(1);
  const auto joined = members_[0].communicator->wait_joined(now());
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code(), ErrorCode::kDeadline);
  EXPECT_TRUE(members_[0].communicator->health()) << "it may still come";
  script_.wait_for("init 0");
  members_.clear();
  EXPECT_EQ(script_.count("abort 0"), 1U);
  EXPECT_EQ(script_.count("finalize 0"), 0U);
}

TEST_F(NcclCommunicatorTest, ABroadcastWaitsForTheRendezvous) {
  script_.rank(0).joined = ncclInProgress;
  join(2);
  begin_all(0);
  script_.wait_for("init 0");
  EXPECT_EQ(script_.count("broadcast 1"), 0U);
  script_.change([&] { script_.rank(0).joined = ncclSuccess; });
  for (const Member& member : members_) EXPECT_TRUE(member.done->wait(far_deadline()));
}

TEST_F(NcclCommunicatorTest, AnAsynchronousErrorEndsTheBroadcastOnEveryRank) {
  script_.rank(0).completes = false;
  script_.rank(1).completes = false;
  script_.rank(1).running = ncclRemoteError;
  join_and_wait(2);
  begin_all(0);
  expect_all_end_with(ErrorCode::kPeerLost,
                      "rank 1 of 2: NCCL reports an error: NCCL 2.27.7: remote error");
  EXPECT_EQ(script_.count("abort 0"), 1U);
  EXPECT_EQ(script_.count("abort 1"), 1U);
}

TEST_F(NcclCommunicatorTest, AnErrorWhileEnqueuingEndsTheBroadcast) {
  script_.rank(0).enqueue = ncclUnhandledCudaError;
  script_.rank(1).completes = false;
  join_and_wait(2);
  begin_all(0);
  expect_all_end_with(ErrorCode::kIo, "rank 0 of 2");
}

TEST_F(NcclCommunicatorTest, ABroadcastThatHangsIsAbortedAtTheDeadline) {
  script_.rank(0).completes = false;
  script_.rank(1).completes = false;
  join_and_wait(2);
  begin_all(0, now() + std::chrono::milliseconds(50));
  expect_all_end_with(ErrorCode::kDeadline, "");
  EXPECT_EQ(script_.count("abort 0"), 1U) << "by its own thread, before it is destroyed";
  EXPECT_EQ(script_.count("abort 1"), 1U);
  EXPECT_FALSE(members_[0].stream->status());
}

TEST_F(NcclCommunicatorTest, EnqueuingThatDoesNotEndIsAbortedAtTheDeadline) {
  script_.rank(0).enqueue = ncclInProgress;
  join_and_wait(1);
  begin_all(0, now() + std::chrono::milliseconds(5));
  expect_all_end_with(ErrorCode::kDeadline, "NCCL to enqueue a broadcast (root 0, 4096 bytes)");
}

TEST_F(NcclCommunicatorTest, AnAbortByOneRankEndsAllBroadcasts) {
  script_.rank(0).completes = false;
  script_.rank(1).completes = false;
  script_.rank(2).completes = false;
  join_and_wait(3);
  begin_all(0);
  for (const char* call : {"broadcast 0", "broadcast 1", "broadcast 2"}) script_.wait_for(call);
  members_[2].communicator->abort({ErrorCode::kPeerLost, "engine 7 died"});
  expect_all_end_with(ErrorCode::kPeerLost, "engine 7 died");
  members_[0].communicator->abort({ErrorCode::kInternal, "a later reason"});
  EXPECT_EQ(members_[1].communicator->health().error().code(), ErrorCode::kPeerLost);
  for (const char* call : {"abort 0", "abort 1", "abort 2"}) EXPECT_EQ(script_.count(call), 1U);
}

TEST_F(NcclCommunicatorTest, AStreamThatIsClosedEndsItsBroadcastAndTheOthers) {
  script_.rank(0).completes = false;
  script_.rank(1).completes = false;
  join_and_wait(2);
  begin_all(0);
  script_.wait_for("broadcast 0");
  script_.wait_for("broadcast 1");
  members_[0].stream.reset();
  EXPECT_EQ(members_[1].done->wait(far_deadline()).error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(script_.count("abort 0"), 1U);
}

TEST_F(NcclCommunicatorTest, NobodyEntersNcclBeforeAllOfTheProcessAreThere) {
  join_and_wait(3);
  begin(members_[0], 0, now());
  EXPECT_EQ(members_[0].done->wait(far_deadline()).error().code(), ErrorCode::kDeadline);
  EXPECT_EQ(script_.count("broadcast 0"), 0U);
}

TEST_F(NcclCommunicatorTest, RanksThatDisagreeDoNotEnterNccl) {
  join_and_wait(2);
  begin(members_[0], 0);
  begin(members_[1], 0, far_deadline(), kBytes / 2);
  expect_all_end_with(ErrorCode::kInvalidInput, "takes part in a broadcast of");
  EXPECT_EQ(script_.count("broadcast 0") + script_.count("broadcast 1"), 0U);
}

TEST_F(NcclCommunicatorTest, AnEmptyBroadcastIsNoneOfNccl) {
  join_and_wait(2);
  for (Member& member : members_) begin(member, 0, far_deadline(), 0);
  for (const Member& member : members_) EXPECT_TRUE(member.done->wait(far_deadline()));
  EXPECT_EQ(script_.count("broadcast 0"), 0U);
}

TEST_F(NcclCommunicatorTest, HealthFindsAnErrorBetweenBroadcasts) {
  join_and_wait(2);
  EXPECT_TRUE(members_[0].communicator->health());
  script_.change([&] { script_.rank(1).idle_error = ncclRemoteError; });
  for (const Member& member : members_) {
    const auto health = member.communicator->health();
    ASSERT_FALSE(health);
    EXPECT_EQ(health.error().code(), ErrorCode::kPeerLost);
    EXPECT_THAT(health.error().message(), HasSubstr("rank 1 of 2"));
  }
}

// NCCL tells one rank of its failure while another one is waited for.
TEST_F(NcclCommunicatorTest, AnInitThatFailsOnOneRankEndsTheWaitOfTheOthers) {
  script_.rank(0).joined = ncclInProgress;
  script_.rank(1).joined = ncclSystemError;
  join(2);
  const auto joined = members_[0].communicator->wait_joined(far_deadline());
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code(), ErrorCode::kIo);
  EXPECT_THAT(joined.error().message(), HasSubstr("rank 1 of 2"));
}

TEST_F(NcclCommunicatorTest, ARankThatHasLeftIsMissedByTheNextBroadcast) {
  join_and_wait(2);
  members_[1].communicator.reset();
  begin(members_[0], 0);
  const auto ended = members_[0].done->wait(far_deadline());
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(ended.error().message(), HasSubstr("rank 1 has left the group"));
}

TEST_F(NcclCommunicatorTest, ALeavingThatDoesNotEndIsAborted) {
  script_.rank(0).finalize = ncclInProgress;
  Site where = site();
  where.leave_time = std::chrono::milliseconds(5);
  join(std::move(where), 1);
  ASSERT_TRUE(members_[0].communicator->wait_joined(far_deadline()));
  members_.clear();
  EXPECT_EQ(script_.count("finalize 0"), 1U);
  EXPECT_EQ(script_.count("abort 0"), 1U);
  EXPECT_EQ(script_.count("destroy 0"), 0U);
}

TEST_F(NcclCommunicatorTest, NothingIsFreedOnAGpuThatHangs) {
  join_and_wait(1);
  script_.gpu_hangs = true;
  members_.clear();
  EXPECT_EQ(script_.count("abort 0") + script_.count("finalize 0"), 0U);
}

TEST_F(NcclCommunicatorTest, TwoRanksOnOneGpuAreRefusedByName) {
  auto group = make_nccl_group(site(), 4);
  members_.push_back(make_member(5));
  auto first = (*group)->join(Rank{0}, *members_[0].device);
  ASSERT_TRUE(first.has_value());
  const auto second = (*group)->join(Rank{3}, *members_[0].device);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(second.error().message(), HasSubstr("rank 0 on host A and rank 3 on host A both use "
                                                  "GPU-5: NCCL needs one GPU for each rank"));
  EXPECT_EQ(script_.count("init 3"), 0U);
  members_.push_back(make_member(6));
  auto again = (*group)->join(Rank{3}, *members_[1].device);
  EXPECT_TRUE(again.has_value()) << "the refusal took nothing";
}

TEST_F(NcclCommunicatorTest, ADriverOlderThanTheBuildIsRefusedBeforeAnything) {
  Site where = site();
  where.process.driver_cuda = 12040;
  const auto group = make_nccl_group(std::move(where), 2);
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(group.error().message(), HasSubstr("host A: its driver supports CUDA 12.4"));
}

TEST_F(NcclCommunicatorTest, AnAbortThatDoesNotEndIsLeftAtTheDeadlineAndItsGpuIsAbandoned) {
  Site where = site();
  where.end_time = std::chrono::milliseconds(500);
  for (const std::uint32_t rank : {0U, 1U}) script_.rank(rank).completes = false;
  script_.rank(1).never_ends = true;
  join(std::move(where), 2);
  for (const Member& member : members_)
    ASSERT_TRUE(member.communicator->wait_joined(far_deadline()));
  begin_all(0, now() + std::chrono::milliseconds(5));
  expect_all_end_with(ErrorCode::kDeadline, "");
  EXPECT_EQ(script_.count("abort 1"), 1U);
  EXPECT_EQ(script_.abandoned, 1U) << "rank 0 was freed";
  EXPECT_EQ(script_.live(), 1U);
  members_[1].stream.reset();
  members_[1].communicator.reset();
  EXPECT_EQ(script_.count("abort 1"), 1U) << "it is under way, and not asked for again";
  EXPECT_EQ(script_.live(), 1U) << "nobody has waited for it";
}

TEST_F(NcclCommunicatorTest, ADestroyThatDoesNotEndIsLeftToo) {
  Site where = site();
  where.end_time = std::chrono::milliseconds(5);
  where.leave_time = std::chrono::milliseconds(500);
  script_.rank(0).never_ends = true;
  join(std::move(where), 1);
  ASSERT_TRUE(members_[0].communicator->wait_joined(far_deadline()));
  members_.clear();
  script_.wait_for("destroy 0");
  EXPECT_EQ(script_.count("abort 0"), 0U);
  EXPECT_EQ(script_.abandoned, 1U);
  EXPECT_EQ(script_.live(), 1U);
}

TEST_F(NcclCommunicatorTest, WhatEndsACommunicatorDoesSoOnAThreadWhereItsGpuIsCurrent) {
  join_and_wait(2);
  members_.clear();
  EXPECT_EQ(script_.entered, 2U);
  EXPECT_EQ(script_.abandoned, 0U);
}

}  // namespace
}  // namespace wsync::collective::nccl
