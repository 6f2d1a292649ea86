#include "trainer_side/plugin/rank_gather.h"

#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/limits.h"
#include "shared/base/stream_copy.h"
#include "shared/weights/content_digest.h"
#include "trainer_side/publish/snapshot.h"

namespace wsync::plugin {
namespace {

using publish::RankTensor;
using testing::HasSubstr;

TimePoint soon() { return now() + std::chrono::seconds(20); }

// Two ranks with halves of `w` along its columns; `own` is whole on rank 0 alone.
constexpr std::uint64_t kRows = 6;
constexpr std::uint64_t kColumns = 10;

RankTensor half(std::uint32_t rank) {
  return {.info = {.name = "w", .dtype = DType::kU8, .shape = {kRows, kColumns}},
          .range = publish::ShardRange{.dim = 1, .begin = rank * 4ULL, .length = 4 + 2ULL * rank}};
}

// A rank that copies its tensors as a process of its own would.
struct OtherRank {
  std::uint32_t rank = 1;
  std::uint32_t incarnation = 0;
  std::uint32_t world_size = 2;
  std::vector<RankTensor> tensors{half(1)};
  std::vector<std::byte> bytes = std::vector<std::byte>(kRows * 6, std::byte{7});
  publish::Snapshotter snapshotter{{.name = "wsync-test", .arenas = 2}};
  std::vector<std::shared_ptr<const publish::Snapshot>> kept;

  [[nodiscard]] control::RankHello hello() const {
    return {.rank = rank,
            .world_size = world_size,
            .pid = 1000 + rank + 100 * incarnation,
            .incarnation = incarnation};
  }
  [[nodiscard]] RankProcess process() const { return {.rank = rank, .incarnation = incarnation}; }
  [[nodiscard]] control::RankShards shards() const {
    control::RankShards shards;
    for (const RankTensor& tensor : tensors) shards.tensors.push_back(to_message(tensor));
    return shards;
  }
  void join(RankGather& gather) const {
    ASSERT_TRUE(gather.join(hello()).has_value());
    ASSERT_TRUE(gather.describe(process(), shards()).has_value());
  }
  Result<> report(RankGather& gather, std::uint64_t step) {
    std::vector<publish::MemoryTensor> memory;
    for (const RankTensor& tensor : tensors)
      memory.push_back(
          {.info = shard_info(tensor).value(), .bytes = std::span<const std::byte>(bytes)});
    auto source = publish::MemorySource::create(std::move(memory)).value();
    auto taken =
        snapshotter.take(source, {.version = {.epoch = 0, .step = step}, .deadline = soon()});
    if (!taken) return fail(taken.error());
    kept.push_back(*taken);
    return gather.report(process(), {.step = step, .content_digest = (*taken)->identity().content},
                         (*taken)->share().value());
  }
};

struct Lead {
  std::vector<std::byte> bytes = std::vector<std::byte>(kRows * 4, std::byte{3});
  [[nodiscard]] std::vector<RankTensor> tensors() const {
    RankTensor tensor = half(0);
    tensor.bytes = std::span<const std::byte>(bytes);
    return {tensor};
  }
};

std::string refusal(const Result<std::unique_ptr<publish::WeightSource>>& collected) {
  return collected ? "accepted" : collected.error().message();
}

TEST(RankGather, ShardsOfAllRanksAreOneModel) {
  RankGather gather(2);
  OtherRank other;
  Lead lead;
  other.join(gather);
  auto collected =
      std::async(std::launch::async, [&] { return gather.collect(4, lead.tensors(), soon()); });
  ASSERT_TRUE(other.report(gather, 4).has_value());
  const auto source = collected.get();
  ASSERT_TRUE(source.has_value()) << source.error().message();
  std::vector<std::byte> row(kColumns);
  for (std::uint64_t r = 0; r < kRows; ++r) {
    ASSERT_TRUE((*source)->read(0, r * kColumns, row).has_value());
    EXPECT_EQ(std::ranges::count(row, std::byte{3}), 4);
    EXPECT_EQ(row[3], std::byte{3});
    EXPECT_EQ(row[4], std::byte{7});
  }
}

TEST(RankGather, TheArenasOfTheRanksAreLeasedAsLongAsTheyAreRead) {
  RankGather gather(2);
  OtherRank other;
  Lead lead;
  other.join(gather);
  ASSERT_TRUE(other.report(gather, 1).has_value());
  auto first = gather.collect(1, lead.tensors(), soon());
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(other.report(gather, 2).has_value());
  other.kept.clear();  // as a rank does when it has heard of its step; the kernel keeps the rest
  auto source = publish::MemorySource::create({{.info = shard_info(half(1)).value(),
                                                .bytes = std::span<const std::byte>(other.bytes)}})
                    .value();
  const auto blocked = other.snapshotter.take(source, {.version = {.step = 3}, .deadline = now()});
  EXPECT_TRUE(blocked.has_value());  // step 2 is only reported, nobody reads its arena
  other.kept.push_back(*blocked);
  const auto busy = other.snapshotter.take(source, {.version = {.step = 4}, .deadline = now()});
  EXPECT_EQ(busy.error().code(), ErrorCode::kBusy);
  // Its bytes were overwritten after the report, so step 2 must not come into being.
  const auto second = gather.collect(2, lead.tensors(), soon());
  EXPECT_THAT(refusal(second), HasSubstr("the shards of rank 1"));
  EXPECT_THAT(refusal(second), HasSubstr("the arena's version is 0.3, expected 0.2"));
}

TEST(RankGather, WhoIsMissingIsNamedAtTheDeadline) {
  RankGather gather(3);
  Lead lead;
  OtherRank other;
  ASSERT_TRUE(gather.join({.rank = 2, .world_size = 3, .pid = 77}).has_value());
  const auto collected = gather.collect(1, lead.tensors(), now());
  EXPECT_EQ(collected.error().code(), ErrorCode::kDeadline);
  EXPECT_THAT(refusal(collected),
              HasSubstr("rank 1 is not connected, rank 2 (process 77) has not snapshotted step 1"));
}

TEST(RankGather, ARankThatGoesAwayEndsTheWait) {
  RankGather gather(2);
  Lead lead;
  OtherRank other;
  other.join(gather);
  auto collected =
      std::async(std::launch::async, [&] { return gather.collect(1, lead.tensors(), soon()); });
  // Whichever comes first: gone before the wait begins, it may still come back; so it goes again.
  while (collected.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    gather.leave(other.process());
    ASSERT_TRUE(gather.join(other.hello()).has_value());
  }
  const auto lost = collected.get();
  EXPECT_EQ(lost.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(refusal(lost),
              HasSubstr("rank 1 (process 1001) disconnected before it had snapshotted"));
}

TEST(RankGather, AReportStaysGoodWhenItsRankGoesAndWhenAnotherProcessComes) {
  RankGather gather(2);
  Lead lead;
  {
    OtherRank lost;
    lost.join(gather);
    ASSERT_TRUE(lost.report(gather, 1).has_value());
    gather.leave(lost.process());
    EXPECT_EQ(refusal(gather.collect(1, lead.tensors(), now())), "accepted");
    lost.join(gather);
    lost.kept.clear();
    ASSERT_TRUE(lost.report(gather, 2).has_value());
    gather.leave(lost.process());
  }
  OtherRank next{.incarnation = 1};
  next.join(gather);
  EXPECT_EQ(refusal(gather.collect(2, lead.tensors(), now())), "accepted");
}

TEST(RankGather, StepsOnlyGrow) {
  RankGather gather(2);
  Lead lead;
  OtherRank other;
  other.join(gather);
  ASSERT_TRUE(other.report(gather, 8).has_value());
  EXPECT_THAT(refusal(gather.collect(7, lead.tensors(), soon())),
              HasSubstr("rank 1 has snapshotted step 8, rank 0 publishes step 7"));
  EXPECT_EQ(refusal(gather.collect(8, lead.tensors(), soon())), "accepted");
  other.kept.clear();
  EXPECT_THAT(other.report(gather, 8).error().message(), HasSubstr("rank 0 has finished step 8"));
  other.kept.clear();
  EXPECT_THAT(other.report(gather, 5).error().message(),
              HasSubstr("rank 0 has moved on to step 8"));
  other.kept.clear();
  gather.give_up(9, "no sidecar has joined");
  EXPECT_THAT(other.report(gather, 9).error().message(), HasSubstr("no sidecar has joined"));
  // A step that failed may be tried again.
  auto again =
      std::async(std::launch::async, [&] { return gather.collect(9, lead.tensors(), soon()); });
  while (!other.report(gather, 9)) other.kept.clear();
  EXPECT_EQ(refusal(again.get()), "accepted");
}

TEST(RankGather, AReportThatFailedNamesItsRank) {
  RankGather gather(2);
  Lead lead;
  OtherRank other;
  other.join(gather);
  ASSERT_TRUE(
      gather.report({.rank = 1}, {.step = 1, .failure = "w: device gone"}, UniqueFd()).has_value());
  EXPECT_THAT(refusal(gather.collect(1, lead.tensors(), soon())),
              HasSubstr("rank 1: w: device gone"));
}

TEST(RankGather, DescriptionsThatDisagreeAreRefusedWithRankAndTensor) {
  const auto with = [](const RankTensor& tensor) {
    RankGather gather(2);
    Lead lead;
    OtherRank other;
    other.tensors = {tensor};
    other.bytes.resize(*shard_info(tensor)->byte_size());
    other.join(gather);
    EXPECT_TRUE(other.report(gather, 1).has_value());
    return refusal(gather.collect(1, lead.tensors(), soon()));
  };
  RankTensor other_dtype = half(1);
  other_dtype.info.dtype = DType::kI8;
  EXPECT_THAT(with(other_dtype), HasSubstr("tensor w I8 [6, 10], rank 1: rank 0 describes it"));
  RankTensor gap = half(1);
  gap.range->begin = 5, gap.range->length = 5;
  EXPECT_THAT(with(gap), HasSubstr("tensor w U8 [6, 10]: no rank gives [4, 5) of dimension 1"));
  RankTensor short_end = half(1);
  short_end.range->length = 3;
  EXPECT_THAT(with(short_end), HasSubstr("no rank gives [7, 10) of dimension 1"));
  RankTensor other_dim = half(1);
  other_dim.range = publish::ShardRange{.dim = 0, .begin = 3, .length = 3};
  EXPECT_THAT(with(other_dim),
              HasSubstr("it is cut along dimension 0, but another rank cuts along 1"));
}

TEST(RankGather, RanksThatDoNotBelongHereAreRefused) {
  RankGather gather(2);
  OtherRank other;
  const auto joined = [&](std::uint32_t rank, std::uint32_t world_size) {
    const auto result = gather.join({.rank = rank, .world_size = world_size, .pid = 5});
    return result ? "accepted" : result.error().message();
  };
  EXPECT_THAT(joined(1, 3), HasSubstr("reports 3 ranks, but rank 0 was created for 2"));
  EXPECT_THAT(joined(0, 2), HasSubstr("rank 0 is not one of 1 to 1"));
  EXPECT_THAT(joined(2, 2), HasSubstr("rank 2 is not one of 1 to 1"));
  EXPECT_EQ(gather.report({.rank = 1}, {.step = 1, .failure = "x"}, UniqueFd()).error().code(),
            ErrorCode::kInvalidInput);
  other.join(gather);
  EXPECT_THAT(joined(1, 2), HasSubstr("process 1001 is rank 1 already; process 5 is refused"));
  EXPECT_THAT(gather.report({.rank = 1}, {.step = 1}, UniqueFd()).error().message(),
              HasSubstr("without its arena"));
  control::RankShards shards = other.shards();
  shards.tensors[0].ranges[0].begin = 9;
  EXPECT_THAT(gather.describe({.rank = 1}, shards).error().message(),
              HasSubstr("rank 1: tensor w U8 [6, 10]: range [9, +6) is outside of dimension 1"));
}

TEST(RankGather, ReportsThatWaitAreLimited) {
  RankGather gather(2);
  OtherRank other;
  other.join(gather);
  const auto failed = [&](std::uint64_t step) {
    return gather.report({.rank = 1}, {.step = step, .failure = "x"}, UniqueFd());
  };
  for (std::uint64_t step = 2; step < limits::kRankReportCount + 2; ++step)
    EXPECT_TRUE(failed(step).has_value());
  EXPECT_EQ(failed(limits::kRankReportCount + 2).error().code(), ErrorCode::kBusy);
  EXPECT_EQ(failed(1).error().code(), ErrorCode::kRefused);
}

// ---- ranks that are replaced ----

TEST(RankGather, AStepThatIsSaidAgainIsTakenOnceIfItIsTheSame) {
  RankGather gather(2);
  Lead lead;
  OtherRank next{.incarnation = 1};
  {
    OtherRank lost;
    lost.join(gather);
    ASSERT_TRUE(lost.report(gather, 4).has_value());
    ASSERT_TRUE(lost.report(gather, 5).has_value());
    gather.leave(lost.process());
  }
  next.join(gather);
  ASSERT_TRUE(next.report(gather, 4).has_value());
  EXPECT_EQ(refusal(gather.collect(4, lead.tensors(), now())), "accepted");
  EXPECT_THAT(next.report(gather, 4).error().message(), HasSubstr("rank 0 has finished step 4"));
  next.kept.clear();
  // One that could not take it loses nothing; nor is anything said twice.
  ASSERT_TRUE(gather.report(next.process(), {.step = 5, .failure = "x"}, UniqueFd()).has_value());
  ASSERT_TRUE(next.report(gather, 5).has_value());
  EXPECT_EQ(refusal(gather.collect(5, lead.tensors(), now())), "accepted");
  next.kept.clear();
  ASSERT_TRUE(gather.report(next.process(), {.step = 6, .failure = "x"}, UniqueFd()).has_value());
  ASSERT_TRUE(next.report(gather, 6).has_value());
  EXPECT_EQ(refusal(gather.collect(6, lead.tensors(), now())), "accepted");
}

TEST(RankGather, AStepThatIsSaidAgainAsAnotherIsRefusedOnAllRanks) {
  const auto again = [](const OtherRank& as) {
    RankGather gather(2);
    Lead lead;
    OtherRank lost;
    OtherRank next{.incarnation = 1, .tensors = as.tensors, .bytes = as.bytes};
    lost.join(gather);
    EXPECT_TRUE(lost.report(gather, 4).has_value());
    next.join(gather);
    const Result<> refused = next.report(gather, 4);
    EXPECT_EQ(refused.error().code(), ErrorCode::kRefused);
    EXPECT_THAT(refused.error().message(), HasSubstr("rank 1: two contents of step 4"));
    for (const OtherRank* rank : {&lost, &next})
      EXPECT_THAT(refused.error().message(),
                  HasSubstr(rank->kept[0]->identity().content.to_string()));
    // Whoever agrees with one of them now does not make it a version.
    EXPECT_THAT(next.report(gather, 4).error().message(), HasSubstr("two contents of step 4"));
    EXPECT_EQ(refusal(gather.collect(4, lead.tensors(), now())), refused.error().message());
    next.kept.clear();
    EXPECT_THAT(next.report(gather, 4).error().message(),
                HasSubstr("rank 0 has finished step 4: rank 1: two contents"));
    return refused.error().message();
  };
  OtherRank bytes;
  bytes.bytes[9] = std::byte{8};
  EXPECT_THAT(again(bytes), testing::Not(HasSubstr("of other tensors")));
  OtherRank layout;
  layout.tensors[0].range->begin = 3;
  EXPECT_THAT(again(layout), HasSubstr("process 1101 reports"));
  EXPECT_THAT(again(layout), HasSubstr(" of other tensors"));
}

TEST(RankGather, AStepThatWasLostWithARankMayBeCollectedAgain) {
  RankGather gather(3);
  Lead lead;
  OtherRank whole{.world_size = 3};
  OtherRank copy{.rank = 2, .world_size = 3};
  whole.join(gather);
  copy.join(gather);
  gather.give_up(4, "no sidecar has joined");
  auto collected =
      std::async(std::launch::async, [&] { return gather.collect(4, lead.tensors(), soon()); });
  while (!whole.report(gather, 4)) whole.kept.clear();  // refused before the collecting begins
  gather.no_more(4);
  const auto lost = collected.get();
  ASSERT_EQ(lost.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(refusal(lost), HasSubstr("rank 2 (process 1002) has not snapshotted step 4"));
  // Now and later; while what comes for the next try is taken.
  EXPECT_EQ(gather.collect(4, lead.tensors(), soon()).error().code(), ErrorCode::kPeerLost);
  gather.leave(copy.process());
  OtherRank next{.rank = 2, .incarnation = 1, .world_size = 3};
  next.join(gather);
  ASSERT_TRUE(next.report(gather, 4).has_value());
  gather.expect(4);
  EXPECT_EQ(refusal(gather.collect(4, lead.tensors(), now())), "accepted");
}

TEST(RankGather, AStepThatFailedIsTakenAgainWhenItIsExpected) {
  RankGather gather(2);
  Lead lead;
  OtherRank other;
  other.join(gather);
  EXPECT_EQ(gather.collect(4, lead.tensors(), now()).error().code(), ErrorCode::kDeadline);
  EXPECT_EQ(other.report(gather, 4).error().code(), ErrorCode::kRefused);
  other.kept.clear();
  gather.expect(4);
  ASSERT_TRUE(other.report(gather, 4).has_value());
  EXPECT_EQ(refusal(gather.collect(4, lead.tensors(), now())), "accepted");
}

// Rank 0 was quicker than the process that has the lost one's place.
TEST(RankGather, AStepThatWasGatheredIsSaidAgainByTheNextProcess) {
  RankGather gather(2);
  Lead lead;
  OtherRank lost;
  lost.join(gather);
  ASSERT_TRUE(lost.report(gather, 4).has_value());
  gather.leave(lost.process());
  EXPECT_EQ(refusal(gather.collect(4, lead.tensors(), now())), "accepted");
  OtherRank next{.incarnation = 1};
  next.join(gather);
  control::Snapshotted other{.step = 4};
  other.content_digest.low = 1;
  EXPECT_THAT(gather.report(next.process(), other, UniqueFd()).error().message(),
              HasSubstr("rank 0 has finished step 4"));
  EXPECT_TRUE(next.report(gather, 4).has_value()) << "the same content";
}

TEST(RankGather, AHigherIncarnationIsTheRankAndALowerOneIsFenced) {
  RankGather gather(2);
  Lead lead;
  OtherRank old;
  OtherRank next{.incarnation = 2};
  old.join(gather);
  ASSERT_TRUE(old.report(gather, 1).has_value());
  next.join(gather);  // while the old one is connected
  const auto fenced = [](const Result<>& result) {
    EXPECT_FALSE(result.has_value()) << "a process that was replaced is heard";
    if (result) return;
    EXPECT_EQ(result.error().code(), ErrorCode::kFenced);
    EXPECT_THAT(result.error().message(),
                HasSubstr("rank 1 was replaced: incarnation 2 (process 1201) is that rank now, and "
                          "messages of incarnation 0 are refused"));
  };
  fenced(gather.join(old.hello()));
  fenced(gather.describe(old.process(), old.shards()));
  fenced(old.report(gather, 2));
  EXPECT_EQ(gather.join(next.hello()).error().code(), ErrorCode::kBusy);
  gather.leave(old.process());  // its connection ends; the rank is there
  EXPECT_EQ(gather.join(next.hello()).error().code(), ErrorCode::kBusy);
  EXPECT_EQ(refusal(gather.collect(1, lead.tensors(), now())), "accepted");
  gather.leave(next.process());
  fenced(gather.join(old.hello()));
  next.join(gather);  // the same process, back again
  ASSERT_TRUE(next.report(gather, 2).has_value());
  EXPECT_EQ(refusal(gather.collect(2, lead.tensors(), now())), "accepted");
}

TEST(RankGather, ARankThatIsReplacedEndsTheWait) {
  RankGather gather(2);
  Lead lead;
  OtherRank other;
  auto collected =
      std::async(std::launch::async, [&] { return gather.collect(1, lead.tensors(), soon()); });
  for (other.join(gather);
       collected.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready;
       ++other.incarnation, other.join(gather)) {
  }
  const auto lost = collected.get();
  EXPECT_EQ(lost.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(refusal(lost), HasSubstr("was replaced before it had snapshotted step 1"));
}

TEST(RankGather, WhatALostProcessReportedAheadWaitsForItsTurn) {
  RankGather gather(2);
  Lead lead;
  OtherRank next{.incarnation = 1};
  {
    OtherRank lost;
    lost.join(gather);
    ASSERT_TRUE(lost.report(gather, 8).has_value());
  }
  next.join(gather);
  EXPECT_THAT(refusal(gather.collect(6, lead.tensors(), now())),
              HasSubstr("rank 1 (process 1101) has not snapshotted step 6"));
  ASSERT_TRUE(next.report(gather, 7).has_value());
  EXPECT_EQ(refusal(gather.collect(7, lead.tensors(), now())), "accepted");
  EXPECT_EQ(refusal(gather.collect(8, lead.tensors(), now())), "accepted");
}

TEST(RankGather, CancelEndsTheWait) {
  RankGather gather(2);
  Lead lead;
  auto collected =
      std::async(std::launch::async, [&] { return gather.collect(1, lead.tensors(), soon()); });
  gather.cancel();
  EXPECT_EQ(collected.get().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(gather.collect(2, lead.tensors(), soon()).error().code(), ErrorCode::kCancelled);
}

// ---- ranks on other hosts ----

// Rank 0 has the first 1000 rows of `w`, rank 1 on another host the others.
constexpr std::uint64_t kRowBytes = 128;
struct TwoHosts {
  std::vector<std::byte> own = std::vector<std::byte>(1000 * kRowBytes, std::byte{3});
  std::vector<std::byte> other = std::vector<std::byte>(1000 * kRowBytes, std::byte{5});
  RankGather gather{2};
  std::vector<std::uint64_t> released;
  std::uint64_t asked = 0;
  std::promise<control::PartWanted> wanted;

  TwoHosts() {
    gather.observe(
        {.on_parts_wanted =
             [this](std::uint64_t number, const RankGather::Orders& orders) {
               control::PartWanted order = orders.at(1);
               order.question = asked = number;
               wanted.set_value(order);
             },
         .on_parts_released = [this](std::uint64_t number) { released.push_back(number); }});
  }
  [[nodiscard]] static RankTensor rows(std::uint32_t rank) {
    return {.info = {.name = "w", .dtype = DType::kU8, .shape = {2000, kRowBytes}},
            .range = publish::ShardRange{.dim = 0, .begin = rank * 1000ULL, .length = 1000}};
  }
  [[nodiscard]] std::vector<RankTensor> lead() const {
    RankTensor tensor = rows(0);
    tensor.bytes = std::span<const std::byte>(own);
    return {tensor};
  }
  [[nodiscard]] static control::RankServes serves() {
    return {.host = "host7",
            .boot_id = "b",
            .transports = {{.kind = "tcp", .address = "tcp://127.0.0.1:1"}},
            .secret = Bytes(32, std::byte{1})};
  }
  void join() {
    ASSERT_TRUE(gather.join({.rank = 1, .world_size = 2, .pid = 9}).has_value());
    ASSERT_TRUE(gather.serve({.rank = 1}, serves()).has_value());
    ASSERT_TRUE(gather.describe({.rank = 1}, {.tensors = {to_message(rows(1))}}).has_value());
  }
  [[nodiscard]] Result<> report(std::uint64_t step) {
    return gather.report({.rank = 1}, {.step = step, .content_digest = {}, .failure = {}}, {});
  }
  // Rank 0 collects a step in a thread of its own.
  [[nodiscard]] auto collect(std::uint64_t step) {
    return std::async(std::launch::async, [this, step] {
      const auto shards = lead();
      return gather.collect(step, shards, soon());
    });
  }
  [[nodiscard]] control::PartSummed answer(const control::PartWanted& question) const {
    control::PartSummed summed{.question = question.question,
                               .step = question.step,
                               .failure = {},
                               .sums = {},
                               .carried = {}};
    for (const control::PartWindow& window : question.windows)
      summed.sums.push_back(word_sum(std::span(other).subspan(window.offset, window.bytes),
                                     {.seed = seed_of("w"), .position = window.position}));
    return summed;
  }
};

TEST(RankGatherOfTwoHosts, TheOtherHostsBytesStayThereAndTheirSumsCome) {
  TwoHosts hosts;
  hosts.join();
  ASSERT_TRUE(hosts.report(4).has_value());
  auto collected = hosts.collect(4);
  const control::PartWanted wanted = hosts.wanted.get_future().get();
  EXPECT_EQ(wanted.step, 4U);
  // An answer to another question is dropped.
  ASSERT_TRUE(hosts.gather.part_summed({.rank = 1}, {.question = 77, .step = 4}).has_value());
  ASSERT_TRUE(hosts.gather.part_summed({.rank = 1}, hosts.answer(wanted)).has_value());
  auto source = collected.get();
  ASSERT_TRUE(source.has_value()) << source.error().message();
  const auto parted = (*source)->parted();
  ASSERT_NE(parted, nullptr);
  EXPECT_EQ(parted->step(), 4U);
  ASSERT_EQ(parted->owners().size(), 1U);
  EXPECT_EQ(parted->owners()[0].name, "rank 1 on host7");
  EXPECT_TRUE(parted->owners()[0].secret.has_value());
  publish::Snapshotter snapshotter({.name = "wsync-test", .arenas = 1});
  const auto snapshot =
      snapshotter.take(**source, {.version = {.epoch = 1, .step = 4}, .deadline = soon()});
  ASSERT_TRUE(snapshot.has_value()) << snapshot.error().message();
  std::vector<std::byte> whole = hosts.own;
  whole.insert(whole.end(), hosts.other.begin(), hosts.other.end());
  EXPECT_EQ((*snapshot)->digests().tensors[0], tensor_digest("w", whole));
  EXPECT_TRUE(hosts.released.empty());
}

TEST(RankGatherOfTwoHosts, AVersionOfWhichAllHasComeToRankZeroHasNoParts) {
  TwoHosts hosts;
  const auto rows = [](std::uint32_t rank) {
    RankTensor tensor = TwoHosts::rows(rank);
    tensor.info.shape = {20, kRowBytes};
    tensor.range = publish::ShardRange{.dim = 0, .begin = rank * 10ULL, .length = 10};
    return tensor;
  };
  RankTensor own = rows(0);
  own.bytes = std::span<const std::byte>(hosts.own).first(10 * kRowBytes);
  ASSERT_TRUE(hosts.gather.join({.rank = 1, .world_size = 2, .pid = 9}).has_value());
  ASSERT_TRUE(hosts.gather.serve({.rank = 1}, TwoHosts::serves()).has_value());
  ASSERT_TRUE(hosts.gather.describe({.rank = 1}, {.tensors = {to_message(rows(1))}}).has_value());
  ASSERT_TRUE(hosts.report(4).has_value());
  auto collected =
      std::async(std::launch::async, [&] { return hosts.gather.collect(4, {own}, soon()); });
  const control::PartWanted wanted = hosts.wanted.get_future().get();
  EXPECT_TRUE(wanted.windows.empty());
  control::PartSummed answer = hosts.answer(wanted);
  answer.carried = {{.tensor = 0, .bytes = Bytes(10 * kRowBytes, std::byte{5})}};
  ASSERT_TRUE(hosts.gather.part_summed({.rank = 1}, std::move(answer)).has_value());
  const auto source = collected.get();
  ASSERT_TRUE(source.has_value()) << source.error().message();
  EXPECT_EQ((*source)->parted(), nullptr) << "it can be mapped";
  EXPECT_EQ(hosts.released, std::vector{hosts.asked}) << "the rank need not keep it";
}

TEST(RankGatherOfTwoHosts, ThePartsAreReleasedWithTheLastThatNeedsThem) {
  TwoHosts hosts;
  hosts.join();
  ASSERT_TRUE(hosts.report(4).has_value());
  auto collected = hosts.collect(4);
  const control::PartWanted wanted = hosts.wanted.get_future().get();
  ASSERT_TRUE(hosts.gather.part_summed({.rank = 1}, hosts.answer(wanted)).has_value());
  auto source = collected.get().value();
  auto parted = source->parted();
  source.reset();
  EXPECT_TRUE(hosts.released.empty());
  parted.reset();
  EXPECT_EQ(hosts.released, std::vector{hosts.asked});
}

TEST(RankGatherOfTwoHosts, ARankThatIsLostBeforeItHasSummedFailsTheStepAsLost) {
  TwoHosts hosts;
  hosts.join();
  ASSERT_TRUE(hosts.report(4).has_value());
  auto collected = hosts.collect(4);
  (void)hosts.wanted.get_future().get();
  hosts.gather.leave({.rank = 1});
  const auto source = collected.get();
  ASSERT_FALSE(source.has_value());
  EXPECT_EQ(source.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(source.error().message(), HasSubstr("rank 1 (process 9) disconnected before it had "
                                                  "summed its part of step 4"));
  EXPECT_EQ(hosts.released, std::vector{hosts.asked});
  // The step may be published again, by the same rank or the next process of it.
  hosts.join();
  EXPECT_TRUE(hosts.report(4).has_value());
}

TEST(RankGatherOfTwoHosts, AReportEndsWithTheConnectionOfItsRank) {
  TwoHosts hosts;
  hosts.join();
  ASSERT_TRUE(hosts.report(4).has_value());
  hosts.gather.leave({.rank = 1});
  hosts.gather.no_more(4);
  const auto lead = hosts.lead();
  EXPECT_THAT(refusal(hosts.gather.collect(4, lead, soon())), HasSubstr("rank 1 is not connected"));
}

// The loss of a rank on another host may be noticed when its next process is about to connect.
TEST(RankGatherOfTwoHosts, TheNextProcessOfALostRankMayStillReport) {
  TwoHosts hosts;
  hosts.join();
  auto collected = hosts.collect(4);
  hosts.gather.leave({.rank = 1});
  hosts.join();
  ASSERT_TRUE(hosts.report(4).has_value());
  const control::PartWanted wanted = hosts.wanted.get_future().get();
  ASSERT_TRUE(hosts.gather.part_summed({.rank = 1}, hosts.answer(wanted)).has_value());
  const auto source = collected.get();
  EXPECT_TRUE(source.has_value()) << source.error().message();
}

TEST(RankGatherOfTwoHosts, ARankThatCannotServeItsPartFailsTheStep) {
  TwoHosts hosts;
  hosts.join();
  ASSERT_TRUE(hosts.report(4).has_value());
  auto collected = hosts.collect(4);
  const control::PartWanted wanted = hosts.wanted.get_future().get();
  ASSERT_TRUE(hosts.gather.part_summed(
      {.rank = 1}, {.question = wanted.question, .step = 4, .failure = "it has no snapshot"}));
  EXPECT_THAT(refusal(collected.get()), HasSubstr("rank 1: it has no snapshot"));
}

TEST(RankGatherOfTwoHosts, ARankThatDoesNotAnswerIsNamedAtTheDeadline) {
  TwoHosts hosts;
  hosts.join();
  ASSERT_TRUE(hosts.report(4).has_value());
  const auto lead = hosts.lead();
  const auto source = hosts.gather.collect(4, lead, now() + std::chrono::milliseconds(50));
  ASSERT_FALSE(source.has_value());
  EXPECT_EQ(source.error().code(), ErrorCode::kDeadline);
  EXPECT_THAT(source.error().message(), HasSubstr("rank 1 (process 9) has not summed its part"));
}

TEST(RankGatherOfTwoHosts, ADescriptionThatIsOfNoUseIsRefused) {
  TwoHosts hosts;
  ASSERT_TRUE(hosts.gather.join({.rank = 1, .world_size = 2, .pid = 9}).has_value());
  control::RankServes serves = TwoHosts::serves();
  serves.secret.pop_back();
  EXPECT_THAT(hosts.gather.serve({.rank = 1}, serves).error().message(),
              HasSubstr("a secret of 31 bytes, expected 32"));
  serves = TwoHosts::serves();
  serves.transports.clear();
  EXPECT_THAT(hosts.gather.serve({.rank = 1}, serves).error().message(),
              HasSubstr("rank 1 on host7 names no address"));
}

}  // namespace
}  // namespace wsync::plugin
