// Which rank serves which bytes, if ranks are on several hosts; and the snapshot that rank 0 takes
// of what it has itself.
#include "trainer_side/plugin/part_arrangement.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/stream_copy.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/content_digest.h"
#include "trainer_side/publish/snapshot.h"

namespace wsync::plugin {
namespace {

using publish::RankTensor;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t kStep = 7;
constexpr std::uint64_t kBucketBytes = 1 << 20U;

// A model of U8 tensors with rows of `columns` bytes, and what each rank has of it.
class Model {
 public:
  explicit Model(std::uint64_t seed) : random_(seed) {}
  // Cut by rows: rank i has rows [cuts[i], cuts[i + 1]).
  void add(const std::string& name, std::uint64_t columns, const std::vector<std::uint64_t>& cuts) {
    const TensorInfo info{.name = name, .dtype = DType::kU8, .shape = {cuts.back(), columns}};
    std::vector<std::byte>& bytes = whole_[name];
    bytes.resize(cuts.back() * columns);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    for (std::uint32_t rank = 0; rank + 1 < cuts.size(); ++rank) {
      if (cuts[rank] == cuts[rank + 1]) continue;
      RankTensor shard{.info = info};
      shard.range =
          publish::ShardRange{.dim = 0, .begin = cuts[rank], .length = cuts[rank + 1] - cuts[rank]};
      shard.bytes = std::span<const std::byte>(bytes).subspan(
          cuts[rank] * columns, (cuts[rank + 1] - cuts[rank]) * columns);
      ranks_[rank].push_back(shard);
    }
  }
  [[nodiscard]] const std::vector<RankTensor>& of(std::uint32_t rank) { return ranks_[rank]; }
  // With the bytes of these ranks left out.
  [[nodiscard]] publish::GatheredSource source(const std::set<std::uint32_t>& remote) {
    std::vector<std::vector<RankTensor>> ranks;
    for (auto& [rank, shards] : ranks_) {
      ranks.push_back(shards);
      if (remote.contains(rank))
        for (RankTensor& shard : ranks.back()) shard.bytes = publish::RemoteBytes();
    }
    return publish::GatheredSource::create(std::move(ranks)).value();
  }
  [[nodiscard]] PartArrangement::Described described(const std::set<std::uint32_t>& remote) {
    PartArrangement::Described found;
    for (const std::uint32_t rank : remote) found[rank] = &ranks_[rank];
    return found;
  }
  // What a rank answers.
  [[nodiscard]] control::PartSummed answer(std::uint32_t rank, const control::PartWanted& wanted) {
    control::PartSummed summed{
        .question = wanted.question, .step = wanted.step, .failure = {}, .sums = {}, .carried = {}};
    const std::vector<RankTensor>& shards = ranks_[rank];
    const auto bytes_of = [&](std::uint32_t tensor) {
      return std::get<std::span<const std::byte>>(shards[tensor].bytes);
    };
    for (const control::PartWindow& window : wanted.windows)
      for (std::uint64_t done = 0; done < window.bytes;) {
        const std::uint64_t position = window.position + done;
        const std::uint64_t n =
            std::min(limits::kLeafBytes - position % limits::kLeafBytes, window.bytes - done);
        summed.sums.push_back(
            word_sum(bytes_of(window.tensor).subspan(window.offset + done, n),
                     {.seed = seed_of(shards[window.tensor].info.name), .position = position}));
        done += n;
      }
    for (const std::uint32_t tensor : wanted.carried)
      summed.carried.push_back(
          {.tensor = tensor, .bytes = {bytes_of(tensor).begin(), bytes_of(tensor).end()}});
    return summed;
  }

 private:
  std::mt19937_64 random_;
  std::map<std::uint32_t, std::vector<RankTensor>> ranks_;
  std::map<std::string, std::vector<std::byte>> whole_;
};

// The source with what the arrangement has of others, as rank 0 reads it.
class PartedSource final : public publish::WeightSource {
 public:
  PartedSource(publish::GatheredSource source, const PartArrangement& arrangement)
      : source_(std::move(source)),
        parted_(std::make_shared<const publish::PartedVersion>(arrangement.content(), [] {})) {
    arrangement.apply(source_);
  }
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const override {
    return source_.manifest();
  }
  [[nodiscard]] Result<> read(std::uint32_t tensor, std::uint64_t offset,
                              std::span<std::byte> into) override {
    return source_.read(tensor, offset, into);
  }
  [[nodiscard]] Result<WordSum> read_sum(std::uint32_t tensor, const SumPlace& place,
                                         std::span<std::byte> into) override {
    return source_.read_sum(tensor, place, into);
  }
  [[nodiscard]] std::shared_ptr<const publish::PartedVersion> parted() const override {
    return parted_;
  }

 private:
  publish::GatheredSource source_;
  std::shared_ptr<const publish::PartedVersion> parted_;
};

publish::SnapshotRequest request() {
  return {.version = {.epoch = 1, .step = kStep},
          .bucket_bytes = kBucketBytes,
          .deadline = now() + std::chrono::seconds(30)};
}

TEST(PartArrangement, TheSnapshotOfRankZeroHasTheDigestOfTheWholeModelAndTheBytesOfItsPart) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    Model model(seed);
    for (int i = 0; i < 5; ++i) {
      // Columns of odd sizes are carried where a cut lies inside a word.
      const std::uint64_t columns = std::array<std::uint64_t, 4>{8, 64, 4096, 31}[random() % 4];
      const std::uint64_t rows = 4 + random() % (3 * limits::kMiB / columns);
      std::vector<std::uint64_t> cuts{0, random() % rows, random() % rows, random() % rows, rows};
      std::ranges::sort(cuts);
      model.add("t" + std::to_string(i), columns, cuts);
    }
    const std::set<std::uint32_t> remote{1, 3};
    publish::GatheredSource all = model.source({});
    publish::Snapshotter whole({.name = "whole", .arenas = 1});
    const auto expected = whole.take(all, request()).value();

    publish::GatheredSource source = model.source(remote);
    auto arrangement =
        PartArrangement::make(source, model.described(remote), kStep, kBucketBytes).value();
    for (const auto& [rank, order] : arrangement.orders())
      ASSERT_TRUE(arrangement.take(rank, model.answer(rank, order)).has_value());
    PartedSource parted(std::move(source), arrangement);
    publish::Snapshotter snapshotter({.name = "part", .arenas = 1});
    const auto snapshot = snapshotter.take(parted, request()).value();
    EXPECT_EQ(snapshot->identity().content, expected->identity().content);
    EXPECT_EQ(snapshot->digests(), expected->digests());
    ASSERT_NE(snapshot->parted(), nullptr);
    const BucketPlan& plan = *snapshot->parted()->plan();
    std::uint64_t others = 0;
    for (std::size_t i = 0; i < plan.bucket_count(); ++i) {
      if (plan.bucket_part(i) != 0) {
        others += plan.bucket_size(i);
        continue;
      }
      for (const Piece& piece : plan.bucket(i))
        EXPECT_TRUE(
            std::ranges::equal(snapshot->data().subspan(plan.arena_offset(piece), piece.bytes),
                               expected->data().subspan(plan.arena_offset(piece), piece.bytes)));
    }
    std::uint64_t own = 0;
    for (const auto& [offset, bytes] : snapshot->parted()->own_ranges()) own += bytes;
    EXPECT_LE(own + others, plan.arena_bytes());
  }
}

TEST(PartArrangement, OneBucketHasOneSource) {
  Model model(1);
  model.add("w", 1024, {0, 1000, 2000, 3000});
  const publish::GatheredSource source = model.source({1, 2});
  const auto arrangement =
      PartArrangement::make(source, model.described({1, 2}), kStep, kBucketBytes).value();
  EXPECT_THAT(arrangement.part_ranks(), ElementsAre(1, 2));
  ASSERT_EQ(arrangement.orders().size(), 2U);
  const control::PartWanted& wanted = arrangement.orders().at(2);
  EXPECT_EQ(wanted.step, kStep);
  EXPECT_EQ(wanted.windows.front().position, 2000U * 1024);
  EXPECT_EQ(wanted.windows.front().offset, 0U);
  std::uint64_t bytes = 0;
  for (const control::PartWindow& window : wanted.windows) bytes += window.bytes;
  EXPECT_EQ(bytes, 1000U * 1024);
  EXPECT_TRUE(wanted.carried.empty());
}

TEST(PartArrangement, SmallTensorsAndCutWordsAreCarried) {
  Model model(2);
  model.add("small", 8, {0, 10, 20});
  model.add("odd", 31, {0, 3001, 6002});
  model.add("large", 64, {0, 2000, 4000});
  const publish::GatheredSource source = model.source({1});
  const auto arrangement =
      PartArrangement::make(source, model.described({1}), kStep, kBucketBytes).value();
  // The order of the model: large, odd, small. That of the rank: small, odd, large.
  EXPECT_THAT(arrangement.orders().at(1).carried, ElementsAre(1, 0));
  EXPECT_EQ(arrangement.orders().at(1).windows.front().tensor, 2U);
}

TEST(PartArrangement, WhatARankHasWithoutAnyoneNeedingItIsNotAskedFor) {
  Model model(3);
  model.add("w", 64, {0, 4000});
  std::vector<std::vector<RankTensor>> ranks{model.of(0), model.of(0)};
  for (RankTensor& shard : ranks[1]) shard.bytes = publish::RemoteBytes();
  const std::vector<RankTensor> replica = model.of(0);
  const auto source = publish::GatheredSource::create(std::move(ranks)).value();
  const auto arrangement =
      PartArrangement::make(source, {{1, &replica}}, kStep, kBucketBytes).value();
  EXPECT_TRUE(arrangement.orders().empty());
  EXPECT_TRUE(arrangement.content().parts.empty());
}

// Columns of a tensor are not one range of its bytes.
TEST(PartArrangement, ShardsAlongAnotherDimensionAreCarried) {
  constexpr std::uint64_t kRowBytes = 512;
  std::mt19937_64 random(9);
  std::vector<std::byte> whole(64 * 2 * kRowBytes);
  for (std::byte& byte : whole) byte = static_cast<std::byte>(random());
  std::array<std::vector<std::byte>, 2> halves;
  for (std::uint64_t row = 0; row < 64; ++row)
    for (std::uint64_t rank = 0; rank < 2; ++rank) {
      const auto from = whole.begin() + static_cast<std::ptrdiff_t>((2 * row + rank) * kRowBytes);
      halves[rank].insert(halves[rank].end(), from, from + kRowBytes);
    }
  std::vector<std::vector<RankTensor>> ranks(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    RankTensor shard{.info = {.name = "w", .dtype = DType::kU8, .shape = {64, 2 * kRowBytes}}};
    shard.range = publish::ShardRange{.dim = 1, .begin = rank * kRowBytes, .length = kRowBytes};
    shard.bytes = rank == 0 ? publish::TensorBytes(std::span<const std::byte>(halves[0]))
                            : publish::TensorBytes(publish::RemoteBytes());
    ranks[rank].push_back(shard);
  }
  const std::vector<RankTensor> of_one = ranks[1];
  auto source = publish::GatheredSource::create(std::move(ranks)).value();
  auto arrangement = PartArrangement::make(source, {{1, &of_one}}, kStep, kBucketBytes).value();
  EXPECT_THAT(arrangement.orders().at(1).carried, ElementsAre(0));
  EXPECT_TRUE(arrangement.orders().at(1).windows.empty());
  ASSERT_TRUE(arrangement
                  .take(1, {.question = 0,
                            .step = kStep,
                            .failure = {},
                            .sums = {},
                            .carried = {{.tensor = 0, .bytes = halves[1]}}})
                  .has_value());
  PartedSource parted(std::move(source), arrangement);
  publish::Snapshotter snapshotter({.name = "columns", .arenas = 1});
  const auto snapshot = snapshotter.take(parted, request()).value();
  EXPECT_EQ(snapshot->digests().tensors[0], tensor_digest("w", whole));
}

TEST(PartArrangement, TooMuchToCarryIsRefusedWithTheTensor) {
  Model model(4);
  model.add("odd", 33, {0, 1, 2 + limits::kCarriedBytes / 33});
  const publish::GatheredSource source = model.source({1});
  const auto arrangement = PartArrangement::make(source, model.described({1}), kStep, kBucketBytes);
  ASSERT_FALSE(arrangement.has_value());
  EXPECT_THAT(arrangement.error().message(), HasSubstr("rank 1 would send more than 64 MiB"));
  EXPECT_THAT(arrangement.error().message(), HasSubstr("odd"));
}

TEST(PartArrangement, AnAnswerMustBeThatOfTheQuestion) {
  Model model(5);
  model.add("small", 8, {0, 10, 20});
  model.add("large", 64, {0, 2000, 4000});
  const publish::GatheredSource source = model.source({1});
  auto arrangement =
      PartArrangement::make(source, model.described({1}), kStep, kBucketBytes).value();
  const auto refusal = [&](const std::function<void(control::PartSummed&)>& damage) {
    control::PartSummed answer = model.answer(1, arrangement.orders().at(1));
    damage(answer);
    const Result<> taken = arrangement.take(1, std::move(answer));
    return taken ? "taken" : taken.error().message();
  };
  EXPECT_THAT(refusal([](auto& answer) { answer.sums.pop_back(); }), HasSubstr("sums, expected"));
  EXPECT_THAT(refusal([](auto& answer) { answer.carried.clear(); }), HasSubstr("carries 0 shards"));
  EXPECT_THAT(refusal([](auto& answer) { answer.carried[0].tensor = 1; }), HasSubstr("carries 1"));
  EXPECT_THAT(refusal([](auto& answer) { answer.carried[0].bytes.pop_back(); }),
              HasSubstr("carries 79 bytes of a shard, expected 80"));
  EXPECT_THAT(refusal([](auto& answer) { answer.failure = "its disc is full"; }),
              HasSubstr("rank 1: its disc is full"));
  EXPECT_EQ(refusal([](auto&) {}), "taken");
}

}  // namespace
}  // namespace wsync::plugin
