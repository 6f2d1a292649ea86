#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "shared/process_group/collectives.h"
#include "tests/contract/process_group/process_group_suite.h"
#include "tests/support/bytes.h"

namespace wsync::collective {
namespace {

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return same_bytes(std::as_bytes(a), std::as_bytes(b));
}

// The kernel's word for a thread of this process; 0 is none yet.
bool asleep(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  if (thread == 0 || !std::getline(file, text)) return false;
  return text.substr(text.rfind(')') + 1, 2) == " S";
}

TEST_P(ProcessGroupContract, MessagesOfAllSizesPassBothWaysAtOnce) {
  make(3);
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{4097}, std::size_t{1'000'001}}) {
    all_succeed([&](ProcessGroup& group) -> Result<> {
      const Bytes own = message_of(group.rank(), bytes, bytes);
      std::vector<Bytes> received(group.size(), Bytes(bytes));
      std::vector<Send> sends;
      std::vector<Receive> receives;
      for (std::uint32_t peer = 0; peer < group.size(); ++peer) {
        if (peer == group.rank()) continue;
        sends.push_back({.to = peer, .bytes = own});
        receives.push_back({.from = peer, .bytes = received[peer]});
      }
      WSYNC_TRY(group.exchange(sends, receives, far_off()));
      for (const Receive& receive : receives)
        EXPECT_TRUE(received[receive.from] == message_of(receive.from, bytes, bytes)) << bytes;
      return {};
    });
  }
}

TEST_P(ProcessGroupContract, MessagesOfAPairArriveInTheirOrderHoweverTheyAreGrouped) {
  make(2);
  constexpr std::uint64_t kCount = 60;
  const auto bytes_of = [](std::uint64_t i) { return (i * 7919) % 300; };
  all_succeed([&](ProcessGroup& group) -> Result<> {
    if (group.rank() == 0) {  // all in one call
      std::vector<Bytes> messages;
      std::vector<Send> sends;
      for (std::uint64_t i = 0; i < kCount; ++i) messages.push_back(message_of(0, i, bytes_of(i)));
      for (const Bytes& message : messages) sends.push_back({.to = 1, .bytes = message});
      return group.exchange(sends, {}, far_off());
    }
    for (std::uint64_t i = 0; i < kCount; i += 3) {  // three by three
      std::vector<Bytes> messages;
      for (std::uint64_t k = i; k < i + 3; ++k) messages.emplace_back(bytes_of(k));
      const std::vector<Receive> receives{{.from = 0, .bytes = messages[0]},
                                          {.from = 0, .bytes = messages[1]},
                                          {.from = 0, .bytes = messages[2]}};
      WSYNC_TRY(group.exchange({}, receives, far_off()));
      for (std::uint64_t k = 0; k < 3; ++k)
        EXPECT_TRUE(messages[k] == message_of(0, i + k, bytes_of(i + k))) << i + k;
    }
    return {};
  });
}

// Rounds of messages with random sizes between random ranks, each rank's in an order of its own.
TEST_P(ProcessGroupContract, RandomTrafficArrivesWhole) {
  make(5);
  constexpr std::uint64_t kRounds = 6;
  for (int seed = 0; seed < GetParam().seeds; ++seed) {
    // bytes[round][from][to]: of the messages, in order.
    std::mt19937 plan(static_cast<unsigned>(seed));
    std::vector<std::vector<std::vector<std::vector<std::size_t>>>> bytes(
        kRounds, {5, std::vector<std::vector<std::size_t>>(5)});
    for (auto& round : bytes)
      for (auto& from : round)
        for (auto& to : from)
          for (unsigned n = plan() % 4; n > 0; --n)
            to.push_back(plan() % 8 ? plan() % 600 : 70'000);
    all_succeed([&](ProcessGroup& group) -> Result<> {
      const std::uint32_t own = group.rank();
      std::mt19937 order(static_cast<unsigned>(seed) * 100 + own);
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        std::vector<std::pair<std::uint32_t, Bytes>> out;
        std::vector<std::pair<std::uint32_t, Bytes>> in;
        std::vector<std::uint32_t> peers{0, 1, 2, 3, 4};
        std::erase(peers, own);
        std::shuffle(peers.begin(), peers.end(), order);
        for (const std::uint32_t peer : peers) {
          std::uint64_t number = round * 100;
          for (const std::size_t size : bytes[round][own][peer])
            out.emplace_back(peer, message_of(own * 10 + peer, number++, size));
          for (const std::size_t size : bytes[round][peer][own]) in.emplace_back(peer, Bytes(size));
        }
        std::vector<Send> sends;
        std::vector<Receive> receives;
        for (auto& [peer, message] : out) sends.push_back({.to = peer, .bytes = message});
        for (auto& [peer, message] : in) receives.push_back({.from = peer, .bytes = message});
        WSYNC_TRY(group.exchange(sends, receives, far_off()));
        std::vector<std::uint64_t> number(5, round * 100);
        for (auto& [peer, message] : in)
          EXPECT_TRUE(message == message_of(peer * 10 + own, number[peer]++, message.size()))
              << "seed " << seed;
      }
      return {};
    });
  }
}

TEST_P(ProcessGroupContract, SizesThatDifferNameBothRanksAndBothSizes) {
  for (const std::size_t expected : {12U, 20U, 0U}) {
    make(3);
    Bytes sent(16);
    Bytes received(expected);
    const auto results = on_each([&](ProcessGroup& group) -> Result<> {
      if (group.rank() == 0)
        return group.exchange(std::vector<Send>{{.to = 2, .bytes = sent}}, {}, far_off());
      if (group.rank() == 1) return {};
      return group.exchange({}, std::vector<Receive>{{.from = 0, .bytes = received}}, far_off());
    });
    const std::string sentence =
        "rank 0 has sent 16 bytes to rank 2, which receives " + std::to_string(expected) + " bytes";
    ASSERT_FALSE(results[2].has_value());
    EXPECT_EQ(results[2].error().code(), ErrorCode::kInvalidInput);
    EXPECT_EQ(results[2].error().message(), sentence);
    all_are_broken(ErrorCode::kInvalidInput, sentence);
  }
}

TEST_P(ProcessGroupContract, TheDeadlineNamesWhoIsMissing) {
  make(4);
  const auto results = on_each([&](ProcessGroup& group) -> Result<> {
    if (group.rank() == 1)
      return group.exchange(std::vector<Send>{{.to = 0, .bytes = {}}, {.to = 0, .bytes = {}}}, {},
                            far_off());
    if (group.rank() != 0) return {};
    WSYNC_TRY(group.exchange({}, std::vector<Receive>{{.from = 1, .bytes = {}}}, far_off()));
    const std::vector<Receive> receives{
        {.from = 1, .bytes = {}}, {.from = 2, .bytes = {}}, {.from = 3, .bytes = {}}};
    return group.exchange({}, receives, in(std::chrono::milliseconds(200)));
  });
  EXPECT_TRUE(results[1].has_value());
  ASSERT_FALSE(results[0].has_value());
  EXPECT_EQ(results[0].error().code(), ErrorCode::kDeadline);
  const std::string sentence =
      "rank 0 has waited until its deadline; some messages have not arrived from ranks 2 and 3";
  EXPECT_EQ(results[0].error().message(), sentence);
  all_are_broken(ErrorCode::kDeadline, sentence);
}

TEST_P(ProcessGroupContract, ASendThatNobodyTakesEndsAtItsDeadline) {
  make(2);
  const Bytes large(5'000'000);
  const auto result = groups_[1]->exchange(std::vector<Send>{{.to = 0, .bytes = large}}, {},
                                           in(std::chrono::milliseconds(50)));
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), ErrorCode::kDeadline);
  EXPECT_EQ(result.error().message(),
            "rank 1 has waited until its deadline; some messages were not received by rank 0");
}

TEST_P(ProcessGroupContract, AnAbortWakesWhoWaitsAndTheFirstReasonCounts) {
  make(3);
  std::array<std::atomic<pid_t>, 3> threads{};
  const auto results = on_each([&](ProcessGroup& group) -> Result<> {
    if (group.rank() != 1) {
      threads[group.rank()] = ::gettid();
      return group.exchange({}, std::vector<Receive>{{.from = 1, .bytes = {}}}, far_off());
    }
    for (const std::size_t rank : {0U, 2U})
      while (!asleep(threads[rank])) std::this_thread::yield();
    group.abort({ErrorCode::kCancelled, "the loss is not a number"});
    group.abort({ErrorCode::kInternal, "a second reason"});
    return group.health();
  });
  EXPECT_EQ(results[1].error().message(), "the loss is not a number");
  for (const std::size_t rank : {0U, 2U}) EXPECT_FALSE(results[rank].has_value());
  if (GetParam().tells_reason) {
    EXPECT_EQ(results[0].error().code(), ErrorCode::kCancelled);
  } else {
    EXPECT_EQ(results[0].error().code(), ErrorCode::kPeerLost);
  }
  all_are_broken(ErrorCode::kCancelled, "the loss is not a number");
}

TEST_P(ProcessGroupContract, ARankThatHasLeftIsNotWaitedFor) {
  make(2);
  std::atomic<bool> there = false;
  const auto results = on_each([&](ProcessGroup& group) -> Result<> {
    if (group.rank() == 1) {
      while (!there) std::this_thread::yield();
      groups_[1].reset();
      return {};
    }
    there = true;
    return group.exchange({}, std::vector<Receive>{{.from = 1, .bytes = {}}}, far_off());
  });
  ASSERT_FALSE(results[0].has_value());
  EXPECT_EQ(results[0].error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(results[0].error().message(), ::testing::HasSubstr("rank 1"));
}

TEST_P(ProcessGroupContract, RanksEndWithABarrier) {
  for (int round = 0; round < 5; ++round) {
    make(4);
    all_succeed([&](ProcessGroup& group) -> Result<> {
      const std::uint32_t rank = group.rank();
      auto met = barrier(Team(&group, {0, 1, 2, 3}), far_off());
      groups_[rank].reset();
      return met;
    });
  }
}

TEST_P(ProcessGroupContract, APeerThatIsNoneIsRefused) {
  for (const std::uint32_t peer : {0U, 2U}) {
    make(2);
    const auto sent =
        groups_[0]->exchange(std::vector<Send>{{.to = peer, .bytes = {}}}, {}, far_off());
    ASSERT_FALSE(sent.has_value());
    EXPECT_EQ(sent.error().code(), ErrorCode::kInvalidInput);
    EXPECT_EQ(sent.error().message(), "rank 0 sends to rank " + std::to_string(peer) +
                                          ", expected another rank of a group of 2");
  }
}

TEST_P(ProcessGroupContract, NobodyPassesABarrierBeforeAllHaveCome) {
  make(8);
  constexpr int kRounds = 20;
  std::atomic<int> come = 0;
  all_succeed([&](ProcessGroup& group) -> Result<> {
    const Team team(&group, {0, 1, 2, 3, 4, 5, 6, 7});
    for (int round = 1; round <= kRounds; ++round) {
      ++come;
      WSYNC_TRY(barrier(team, far_off()));
      EXPECT_GE(come.load(), 8 * round);
    }
    return {};
  });
}

// Two teams in one group, their members in an order of their own. Parts are empty, or larger than
// what is on the way at once.
TEST_P(ProcessGroupContract, TeamsExchangeAndGatherUnevenParts) {
  make(5);
  const std::vector<std::vector<std::uint32_t>> teams{{4, 0, 2}, {1, 3}};
  const auto bytes_of = [](std::uint32_t from, std::uint32_t to) {
    return (from + to) % 3 == 0 ? std::size_t{0} : std::size_t{150'000} * from + to;
  };
  all_succeed([&](ProcessGroup& group) -> Result<> {
    const std::uint32_t own = group.rank();
    const Team team(&group, own % 2 == 0 ? teams[0] : teams[1]);
    EXPECT_EQ(team.rank_of(team.index()), own);
    std::vector<Bytes> out;
    std::vector<Bytes> in;
    std::vector<Bytes> gathered;
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    std::vector<std::span<std::byte>> parts;
    for (std::uint32_t member = 0; member < team.size(); ++member) {
      const std::uint32_t peer = team.rank_of(member);
      out.push_back(message_of(own, peer, bytes_of(own, peer)));
      in.emplace_back(bytes_of(peer, own));
      gathered.push_back(peer == own ? message_of(own, 9, bytes_of(own, 1))
                                     : Bytes(bytes_of(peer, 1)));
    }
    for (std::uint32_t member = 0; member < team.size(); ++member) {
      send.emplace_back(out[member]);
      receive.emplace_back(in[member]);
      parts.emplace_back(gathered[member]);
    }
    WSYNC_TRY(all_to_all(team, send, receive, far_off()));
    WSYNC_TRY(all_gather(team, parts, far_off()));
    for (std::uint32_t member = 0; member < team.size(); ++member) {
      const std::uint32_t peer = team.rank_of(member);
      EXPECT_TRUE(in[member] == message_of(peer, own, bytes_of(peer, own)));
      EXPECT_TRUE(gathered[member] == message_of(peer, 9, bytes_of(peer, 1)));
    }
    return {};
  });
}

TEST_P(ProcessGroupContract, SumsAreTakenInTheOrderOfTheMembersWhateverTheRanks) {
  make(4);
  const std::vector<std::uint32_t> members{2, 0, 3, 1};
  constexpr std::size_t kElements = 30'000;
  const std::vector<std::size_t> cuts{0, 1, 1, 20'000, kElements};
  // arrays[rank]: two arrays; sums of such values depend on their order.
  std::vector<std::vector<std::vector<float>>> arrays(4);
  std::mt19937 random(7);
  for (auto& of_rank : arrays)
    for (int a = 0; a < 2; ++a) {
      auto& array = of_rank.emplace_back();
      for (std::size_t k = 0; k < kElements; ++k)
        array.push_back(std::vector<float>{1e8F, 1.0F, -1e8F, 0.3F}[random() % 4]);
    }
  const auto sum = [&](std::vector<std::uint32_t> order) {
    std::vector<float> total;
    for (const std::uint32_t rank : order)
      for (const auto& array : arrays[rank])
        if (total.empty())
          total = array;
        else
          for (std::size_t k = 0; k < kElements; ++k) total[k] += array[k];
    return total;
  };
  const std::vector<float> expected = sum(members);
  ASSERT_FALSE(same_bits(expected, sum({0, 1, 2, 3})));
  all_succeed([&](ProcessGroup& group) -> Result<> {
    const Team team(&group, members);
    const auto& own = arrays[group.rank()];
    const std::size_t begin = cuts[team.index()];
    std::vector<float> out(cuts[team.index() + 1] - begin);
    const std::vector<std::span<const float>> spans{own[0], own[1]};
    for (int again = 0; again < 3; ++again) {
      WSYNC_TRY(reduce_scatter(team, spans, cuts, out, far_off()));
      EXPECT_TRUE(same_bits(out, std::span(expected).subspan(begin, out.size()))) << again;
    }
    return {};
  });
}

// Teams of two and of more, values that go whole and values that go in parts.
TEST_P(ProcessGroupContract, SumsForAllAreTakenInTheOrderOfTheMembers) {
  make(4);
  constexpr std::size_t kWhole = kAllReduceWholeBytes / sizeof(float);
  std::mt19937 random(11);
  for (const std::vector<std::uint32_t>& members :
       {std::vector<std::uint32_t>{2, 0, 3, 1}, std::vector<std::uint32_t>{3, 1}})
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{3}, kWhole, kWhole + 3}) {
      std::vector<std::vector<float>> values(4);
      for (auto& of_rank : values)
        for (std::size_t k = 0; k < count; ++k)
          of_rank.push_back(std::vector<float>{1e8F, 1.0F, -1e8F, 0.3F}[random() % 4]);
      std::vector<float> expected = values[members.front()];
      for (std::size_t m = 1; m < members.size(); ++m)
        for (std::size_t k = 0; k < count; ++k) expected[k] += values[members[m]][k];
      all_succeed([&](ProcessGroup& group) -> Result<> {
        if (std::ranges::find(members, group.rank()) == members.end()) return {};
        const Team team(&group, members);
        for (int again = 0; again < 2; ++again) {
          std::vector<float> own = values[group.rank()];
          WSYNC_TRY(all_reduce(team, own, far_off()));
          EXPECT_TRUE(same_bits(own, expected)) << "not the sum in the order of the members";
        }
        return {};
      });
    }
}

TEST_P(ProcessGroupContract, SumsForAllOfDifferentLengthsAreFound) {
  make(2);
  const auto results = on_each([&](ProcessGroup& group) -> Result<> {
    std::vector<float> own(4 + group.rank());
    return all_reduce(Team(&group, {0, 1}), own, far_off());
  });
  for (const Result<>& result : results) ASSERT_FALSE(result.has_value());
  const auto& found =
      results[0].error().code() == ErrorCode::kInvalidInput ? results[0] : results[1];
  EXPECT_EQ(found.error().code(), ErrorCode::kInvalidInput);
}

TEST_P(ProcessGroupContract, TheFirstMemberGathersUnevenParts) {
  make(4);
  const std::vector<std::uint32_t> members{2, 3, 0};
  const auto bytes_of = [](std::uint32_t rank) { return std::size_t{100'000} * rank + 7; };
  all_succeed([&](ProcessGroup& group) -> Result<> {
    if (group.rank() == 1) return {};
    const Team team(&group, members);
    for (std::uint64_t again = 0; again < 2; ++again) {
      const Bytes own = message_of(group.rank(), again, bytes_of(group.rank()));
      std::vector<Bytes> all;
      std::vector<std::span<std::byte>> parts;
      if (team.index() == 0) {
        for (const std::uint32_t member : members) all.emplace_back(bytes_of(member));
        for (Bytes& part : all) parts.emplace_back(part);
      }
      WSYNC_TRY(gather(team, own, parts, far_off()));
      for (std::size_t i = 0; i < all.size(); ++i)
        EXPECT_TRUE(all[i] == message_of(members[i], again, bytes_of(members[i]))) << members[i];
    }
    return {};
  });
}

TEST_P(ProcessGroupContract, AnotherNumberOfArraysIsFound) {
  make(2);
  const std::vector<float> array(8, 1.0F);
  const auto results = on_each([&](ProcessGroup& group) -> Result<> {
    const Team team(&group, {0, 1});
    std::vector<float> out(4);
    const std::vector<std::span<const float>> spans(1 + group.rank(), array);
    return reduce_scatter(team, spans, std::vector<std::size_t>{0, 4, 8}, out, far_off());
  });
  ASSERT_FALSE(results[0].has_value());
  ASSERT_FALSE(results[1].has_value());
  EXPECT_EQ(results[0].error().code(), ErrorCode::kInvalidInput);
  EXPECT_EQ(results[0].error().message(), "rank 0 sums 1 array, rank 1 2");
}

}  // namespace
}  // namespace wsync::collective
