#include "shared/process_group/memory/memory_group.h"

#include <array>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/process_group/collectives.h"
#include "shared/process_group/memory/host_segment.h"
#include "shared/process_group/memory/layout.h"
#include "tests/contract/process_group/process_group_suite.h"

namespace wsync::collective {
namespace {

using memory::HostSegment;
using memory::MemoryGroup;
using memory::RankPhase;

// All ranks in one mapping, so that the thread sanitizer sees what they share.
Groups in_one_mapping(std::uint32_t size) {
  const auto segment = HostSegment::create({.size = size});
  Groups groups;
  for (std::uint32_t rank = 0; rank < size; ++rank)
    groups.push_back(std::move(*segment->attach(rank)));
  return groups;
}

// Each rank in a mapping of its own, and no message but an empty one in one piece.
Groups in_small_channels(std::uint32_t size) {
  const auto segment = HostSegment::create({.size = size, .channel_bytes = 64});
  Groups groups;
  for (std::uint32_t rank = 0; rank < size; ++rank)
    groups.push_back(std::move(*memory::attach(segment->descriptor(), rank)));
  return groups;
}

INSTANTIATE_TEST_SUITE_P(
    Memory, ProcessGroupContract,
    ::testing::Values(GroupBackend{.name = "OneMapping", .make = in_one_mapping},
                      GroupBackend{.name = "SmallChannels", .make = in_small_channels, .seeds = 3}),
    backend_name);

// Processes of the ranks of a segment; killed when the test ends.
class RankProcesses : public ::testing::Test {
 protected:
  ~RankProcesses() override {
    for (const pid_t pid : pids_) {
      if (pid == 0) continue;  // it has ended
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  // Forks every rank; each attaches and does its part, whose return is the exit status.
  void start(std::uint32_t size, const std::function<int(MemoryGroup&)>& part) {
    segment_.emplace(std::move(*HostSegment::create({.size = size})));
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        auto group = memory::attach(segment_->descriptor(), rank);
        const int status = group ? part(**group) : 99;
        if (group) group->reset();
        ::_exit(status);
      }
      pids_.push_back(pid);
    }
  }
  // Waits until it holds, for a minute at most.
  static void until(const std::function<bool()>& holds) {
    const TimePoint end = far_off();
    while (!holds() && now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_TRUE(holds());
  }
  int exit_status(std::uint32_t rank) {
    int status = 0;
    EXPECT_EQ(::waitpid(pids_[rank], &status, 0), pids_[rank]);
    pids_[rank] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  std::optional<HostSegment> segment_;
  std::vector<pid_t> pids_;
};

TEST_F(RankProcesses, AKilledRankIsToldToTheOthersByTheLauncher) {
  start(4, [](MemoryGroup& group) {
    const Team team(&group, {0, 1, 2, 3});
    for (;;) {
      const auto met = barrier(team, far_off());
      if (met) continue;
      return met.error().code() == ErrorCode::kPeerLost &&
                     met.error().message().ends_with("was killed by signal 9")
                 ? 7
                 : 1;
    }
  });
  until([&] {
    const auto signs = segment_->ranks();
    return std::all_of(signs.begin(), signs.end(),
                       [](const auto& sign) { return sign.phase == RankPhase::kThere; });
  });
  const int killed = segment_->ranks()[2].pid;
  EXPECT_EQ(killed, pids_[2]);
  ::kill(killed, SIGKILL);
  EXPECT_EQ(exit_status(2), 1000 + SIGKILL);
  segment_->abort(
      {ErrorCode::kPeerLost, "rank 2 (pid " + std::to_string(killed) + ") was killed by signal 9"});
  for (const std::uint32_t rank : {0U, 1U, 3U}) EXPECT_EQ(exit_status(rank), 7) << rank;
  EXPECT_EQ(segment_->ranks()[2].phase, RankPhase::kThere) << "it did not leave in order";
  EXPECT_EQ(segment_->ranks()[3].phase, RankPhase::kLeft);
}

TEST_F(RankProcesses, AStoppedRanksLastBeatGrowsOldUntilItGoesOn) {
  start(2, [](MemoryGroup& group) {
    const memory::Heartbeat heartbeat(group, std::chrono::milliseconds(1));
    (void)barrier(Team(&group, {0, 1}), far_off());
    for (;;) ::pause();
    return 0;
  });
  const auto beat = [&](std::uint32_t rank) { return segment_->ranks()[rank].last_beat; };
  for (const std::uint32_t rank : {0U, 1U}) {
    until([&] { return segment_->ranks()[rank].phase == RankPhase::kThere; });
    const TimePoint first = beat(rank);
    until([&] { return beat(rank) > first; });
  }
  ::kill(pids_[1], SIGSTOP);
  int status = 0;
  ASSERT_EQ(::waitpid(pids_[1], &status, WUNTRACED), pids_[1]);
  ASSERT_TRUE(WIFSTOPPED(status));
  const TimePoint last = beat(1);
  until([&] { return now() - beat(1) > std::chrono::milliseconds(100); });
  EXPECT_EQ(beat(1), last);
  EXPECT_GT(beat(0), last);
  ::kill(pids_[1], SIGCONT);
  until([&] { return beat(1) > last; });
}

TEST_F(RankProcesses, WhatARankTellsIsSeenByTheLauncherAndByOthers) {
  start(2, [](MemoryGroup& group) {
    if (group.told(1) != 0) return 1;
    (void)barrier(Team(&group, {0, 1}), far_off());
    if (group.rank() == 1) {
      group.notify(77);
      group.notify(78);
    }
    (void)barrier(Team(&group, {0, 1}), far_off());
    return group.told(1) == 78 && group.told(0) == 0 ? 0 : 2;
  });
  for (const std::uint32_t rank : {0U, 1U}) EXPECT_EQ(exit_status(rank), 0) << rank;
  EXPECT_EQ(segment_->ranks()[0].word, 0U);
  EXPECT_EQ(segment_->ranks()[1].word, 78U) << "also of a rank that is gone";
}

TEST_F(RankProcesses, MessagesPassBetweenProcesses) {
  start(3, [](MemoryGroup& group) {
    const std::uint32_t next = (group.rank() + 1) % 3;
    const std::uint32_t previous = (group.rank() + 2) % 3;
    for (std::uint64_t round = 0; round < 20; ++round) {
      const Bytes own = message_of(group.rank(), round, 400'000);
      Bytes received(own.size());
      if (!group.exchange(std::vector<Send>{{.to = next, .bytes = own}},
                          std::vector<Receive>{{.from = previous, .bytes = received}}, far_off()))
        return 1;
      if (received != message_of(previous, round, received.size())) return 2;
    }
    return 0;
  });
  for (const std::uint32_t rank : {0U, 1U, 2U}) EXPECT_EQ(exit_status(rank), 0) << rank;
}

TEST(MemoryGroup, WhatARankHasSentBeforeItLeftArrives) {
  Groups groups = in_one_mapping(2);
  const Bytes last = message_of(1, 1, 100);
  ASSERT_TRUE(groups[1]->exchange(std::vector<Send>{{.to = 0, .bytes = last}}, {}, far_off()));
  groups[1].reset();
  Bytes received(100);
  const std::vector<Receive> receives{{.from = 1, .bytes = received}};
  ASSERT_TRUE(groups[0]->exchange({}, receives, far_off()));
  EXPECT_TRUE(received == last);
  const auto more = groups[0]->exchange({}, receives, far_off());
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(more.error().message(), "rank 1 has left the group, but rank 0 still receives from it");
}

TEST(MemoryGroup, ARankIsTakenOnceAndABrokenGroupNotJoined) {
  const auto segment = HostSegment::create({.size = 2});
  const auto first = memory::attach(segment->descriptor(), 1);
  ASSERT_TRUE(first.has_value());
  const auto again = segment->attach(1);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code(), ErrorCode::kRefused);
  EXPECT_EQ(again.error().message(), "rank 1 is taken by process " + std::to_string(::getpid()));
  EXPECT_EQ(segment->attach(2).error().message(), "rank 2 in a group of 2 ranks");
  EXPECT_EQ(segment->ranks()[0].phase, RankPhase::kAway);
  EXPECT_EQ(segment->ranks()[0].pid, 0);
  ASSERT_TRUE(segment->health().has_value());
  segment->abort({ErrorCode::kCancelled, "the run was stopped"});
  EXPECT_EQ(segment->attach(0).error().message(), "the run was stopped");
  EXPECT_EQ((*first)->health().error().code(), ErrorCode::kCancelled);
}

TEST(MemoryGroup, ALongReasonIsCutAtACharacter) {
  const auto segment = HostSegment::create({.size = 1});
  std::string reason(511, 'a');
  segment->abort({ErrorCode::kInternal, reason + "\u00e9 and more"});
  EXPECT_EQ(segment->health().error().message(), reason);
}

TEST(HostSegment, OptionsOutOfRangeAreRefused) {
  EXPECT_EQ(HostSegment::create({.size = 0}).error().message(),
            "a group of 0 ranks on a host, expected 1 to 256");
  EXPECT_EQ(HostSegment::create({.size = 257}).error().code(), ErrorCode::kInvalidInput);
  for (const std::uint64_t bytes : {0ULL, 32ULL, 1000ULL, 1ULL << 30U}) {
    const auto segment = HostSegment::create({.size = 2, .channel_bytes = bytes});
    ASSERT_FALSE(segment.has_value()) << bytes;
    EXPECT_EQ(segment.error().message(), "channels of " + std::to_string(bytes) +
                                             " bytes, expected a power of two from 64 to 67108864");
  }
  const auto huge = HostSegment::create({.size = 256, .channel_bytes = 64ULL << 20U});
  ASSERT_FALSE(huge.has_value());
  EXPECT_EQ(huge.error().code(), ErrorCode::kResourceExhausted);
}

// A memfd of this content, its size sealed or not.
UniqueFd file_of(std::span<const std::byte> content, bool sealed = true) {
  UniqueFd fd(::memfd_create("wsync-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::write(fd.get(), content.data(), content.size()),
            static_cast<ssize_t>(content.size()));
  const int seals = sealed ? F_SEAL_SHRINK | F_SEAL_GROW : 0;
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}
std::string refusal(int fd) {
  const auto group = memory::attach(fd, 0);
  EXPECT_FALSE(group.has_value());
  if (group) return "";
  EXPECT_EQ(group.error().code(), ErrorCode::kInvalidInput);
  return group.error().message();
}

TEST(MemoryGroup, ADescriptorThatIsNoSegmentIsRefused) {
  using ::testing::HasSubstr;
  EXPECT_EQ(refusal(-1),
            "descriptor -1 is not a segment of ranks: Bad file descriptor; pass the descriptor "
            "that the launcher has created");
  const UniqueFd device(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(refusal(device.get()), HasSubstr("it is not a memfd of sealed size"));
  EXPECT_THAT(refusal(file_of(Bytes(8192), false).get()), HasSubstr("not a memfd of sealed size"));
  EXPECT_THAT(refusal(file_of({}).get()),
              HasSubstr("it has 0 bytes, but its header alone needs 64"));
  EXPECT_THAT(refusal(file_of(message_of(1, 1, 8192)).get()), HasSubstr("it begins with"));
}

TEST(MemoryGroup, ASegmentWhoseHeaderDoesNotHoldIsRefused) {
  using ::testing::HasSubstr;
  const auto segment = HostSegment::create({.size = 2, .channel_bytes = 64});
  const memory::Layout layout{.size = 2, .channel_bytes = 64};
  Bytes good(layout.segment_bytes());
  ASSERT_EQ(::pread(segment->descriptor(), good.data(), good.size(), 0),
            static_cast<ssize_t>(good.size()));
  EXPECT_TRUE(memory::attach(file_of(good).get(), 0).has_value());
  const auto with = [&](std::size_t offset, auto value) {
    Bytes bad = good;
    std::memcpy(bad.data() + offset, &value, sizeof value);
    return refusal(file_of(bad).get());
  };
  EXPECT_THAT(with(8, std::uint32_t{3}),
              HasSubstr("it has format 3, but this program supports format 2"));
  EXPECT_THAT(with(12, std::uint32_t{0}), HasSubstr("a group of 0 ranks"));
  EXPECT_THAT(with(12, std::uint32_t{3}), HasSubstr("for 3 ranks with channels of 64 bytes"));
  EXPECT_THAT(with(16, std::uint64_t{100}), HasSubstr("channels of 100 bytes"));
  EXPECT_THAT(with(24, std::uint64_t{100}),
              HasSubstr("and its header says 100; a segment for 2 ranks"));
  Bytes cut = good;
  cut.pop_back();
  EXPECT_THAT(refusal(file_of(cut).get()), HasSubstr("; a segment for 2 ranks"));
}

}  // namespace
}  // namespace wsync::collective
