// Ranks of a tensor-parallel replica, each a thread, against the model in one piece.
#include <functional>
#include <gmock/gmock.h>
#include <memory>
#include <thread>

#include "shared/process_group/memory/host_segment.h"
#include "tests/unit/reference_engine/generation/small_model.h"

namespace wsync::engine::generation {
namespace {

using collective::Team;
using ::testing::HasSubstr;

TimePoint far_off() { return now() + std::chrono::minutes(1); }

moe::ModelSpec shared_spec() {
  moe::ModelSpec spec = small_spec();
  spec.key_value_heads = 4;
  spec.heads = 8;
  spec.experts = 8;
  return spec;
}

// A replica whose ranks are threads, one step at a time.
class ReplicaOfThreads {
 public:
  ReplicaOfThreads(const SmallModel& model, std::uint32_t world_size)
      : segment_(collective::memory::HostSegment::create({.size = world_size}).value()) {
    std::vector<std::uint32_t> members(world_size);
    std::iota(members.begin(), members.end(), 0U);
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      groups_.push_back(segment_.attach(rank).value());
      teams_.emplace_back(groups_.back().get(), members);
      ShardOptions options = options_of(model.spec);
      options.rank = rank;
      options.world_size = world_size;
      shards_.push_back(make_shard(options, model.manifest));
      weights_.push_back(std::make_unique<HeldWeights>(model, rank, world_size));
    }
  }
  // What each rank gives.
  std::vector<Result<std::vector<float>>> forward(const Batch& batch) {
    std::vector<Result<std::vector<float>>> results(shards_.size());
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < shards_.size(); ++rank)
      threads.emplace_back([&, rank] { results[rank] = step(rank, batch, far_off()); });
    threads.clear();
    return results;
  }
  Result<std::vector<float>> step(std::size_t rank, const Batch& batch, TimePoint deadline) {
    return step(rank, batch, deadline, *weights_[rank]);
  }
  Result<std::vector<float>> step(std::size_t rank, const Batch& batch, TimePoint deadline,
                                  WeightView& weights) {
    return shards_[rank]->forward(batch, weights, teams_[rank], deadline);
  }
  [[nodiscard]] collective::ProcessGroup& group(std::size_t rank) { return *groups_[rank]; }
  void leave(std::size_t rank) { groups_[rank].reset(); }
  [[nodiscard]] HeldWeights& weights(std::size_t rank) { return *weights_[rank]; }
  [[nodiscard]] std::uint64_t cache_bytes() const { return shards_.front()->cache_bytes(); }

 private:
  collective::memory::HostSegment segment_;
  std::vector<std::unique_ptr<collective::ProcessGroup>> groups_;
  std::vector<Team> teams_;
  std::vector<std::unique_ptr<ModelShard>> shards_;
  std::vector<std::unique_ptr<HeldWeights>> weights_;
};

class Ranks : public ::testing::TestWithParam<std::tuple<std::uint32_t, bool, moe::ExpertForm>> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Ranks,
                         ::testing::Combine(::testing::Values(2U, 4U), ::testing::Bool(),
                                            ::testing::Values(moe::ExpertForm::kSeparate,
                                                              moe::ExpertForm::kFused)),
                         [](const auto& test) {
                           return "of_" + std::to_string(std::get<0>(test.param)) +
                                  (std::get<1>(test.param) ? "_tied" : "_untied") +
                                  (std::get<2>(test.param) == moe::ExpertForm::kFused ? "_fused"
                                                                                      : "");
                         });

// Two prompts, then both decode. What rank i computes in one step is read in all later ones: its
// heads of the keys and values, its columns of the experts (or its experts, if they are fused), its
// tokens of the vocabulary.
TEST_P(Ranks, GiveTheLogitsOfTheModelInOnePiece) {
  const auto [world_size, tied, form] = GetParam();
  moe::ModelSpec spec = shared_spec();
  spec.tied_embeddings = tied;
  const SmallModel model(spec, 1, form);
  ReplicaOfThreads replica(model, world_size);
  const auto alone = make_shard(options_of(spec), model.manifest);
  HeldWeights whole(model);
  EXPECT_EQ(replica.cache_bytes() * world_size, alone->cache_bytes());
  FreeBlocks free(3);
  std::vector<Sequence> sequences;
  for (const unsigned seed : {1U, 2U})
    sequences.push_back({.tokens = model.tokens(14 + seed, seed), .blocks = free.take(20, 4)});
  const training::Buffer first = model.logits(sequences[0].tokens);
  for (std::size_t step = 0; step < 10; ++step) {
    Batch batch{.slices = {sequences[0].next(step == 0 ? 6 : 1),
                           sequences[1].next(step == 0 ? 7 : 1, step % 2 == 0)}};
    const auto results = replica.forward(batch);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      ASSERT_TRUE(results[rank].has_value()) << results[rank].error().message();
      EXPECT_EQ(results[rank]->empty(), rank > 0);
    }
    const std::string what = "step " + std::to_string(step);
    expect_near(*results[0], forward_alone(*alone, batch, whole), what + ", one piece");
    expect_near(std::span(*results[0]).first(spec.vocabulary),
                first.matrix().row(sequences[0].computed - 1), what + ", plain loops");
  }
}

// More than is sent whole, so that the sums are taken in parts.
TEST(Replica, ALongPromptOfFourRanksIsTheSame) {
  moe::ModelSpec spec = shared_spec();
  spec.hidden = 96;
  spec.max_positions = 220;
  const SmallModel model(spec);
  ReplicaOfThreads replica(model, 4);
  ASSERT_GT(200 * spec.hidden * sizeof(float), collective::kAllReduceWholeBytes);
  FreeBlocks free(3);
  Sequence sequence{.tokens = model.tokens(200), .blocks = free.take(200, 4)};
  const Batch batch{.slices = {sequence.next(200)}};
  const auto results = replica.forward(batch);
  ASSERT_TRUE(results[0].has_value()) << results[0].error().message();
  const auto alone = make_shard(options_of(spec), model.manifest);
  HeldWeights whole(model);
  expect_near(*results[0], forward_alone(*alone, batch, whole), "200 tokens");
}

TEST(Replica, AnEmptyBatchNeedsNoOtherRank) {
  const SmallModel model(shared_spec());
  ReplicaOfThreads replica(model, 2);
  const auto result = replica.step(1, {}, now());
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_TRUE(result->empty());
  EXPECT_EQ(replica.weights(1).visits.size(), model.manifest.layer_count());
}

TEST(Replica, AStepWithoutAnotherRankFailsAndLeavesItsLayer) {
  const SmallModel model(shared_spec());
  Sequence sequence{.tokens = model.tokens(6), .blocks = {1, 2}};
  const Batch batch{.slices = {sequence.next(6)}};
  {
    ReplicaOfThreads replica(model, 2);
    replica.leave(1);
    const auto result = replica.step(0, batch, far_off());
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), ErrorCode::kPeerLost);
    EXPECT_THAT(result.error().message(), HasSubstr("rank 1"));
    EXPECT_TRUE(replica.weights(0).between_layers());
  }
  ReplicaOfThreads replica(model, 2);
  const auto result = replica.step(0, batch, now() + std::chrono::milliseconds(30));
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), ErrorCode::kDeadline);
}

// Breaks the group when layer 2 is about to be read.
class Breaking final : public WeightView {
 public:
  Breaking(HeldWeights& weights, collective::ProcessGroup& group)
      : weights_(weights), group_(group) {}
  [[nodiscard]] std::span<const std::byte> tensor(std::uint32_t t) const override {
    return weights_.tensor(t);
  }
  void begin_layer(std::uint32_t layer) override {
    weights_.begin_layer(layer);
    if (layer == 2) group_.abort({ErrorCode::kCancelled, "the engine ends"});
  }
  void end_layer(std::uint32_t layer) override { weights_.end_layer(layer); }

 private:
  HeldWeights& weights_;
  collective::ProcessGroup& group_;
};

TEST(Replica, AStepThatIsBrokenInsideFailsOnEveryRank) {
  const SmallModel model(shared_spec());
  ReplicaOfThreads replica(model, 2);
  Sequence sequence{.tokens = model.tokens(6), .blocks = {1, 2}};
  const Batch batch{.slices = {sequence.next(6)}};
  Breaking breaking(replica.weights(0), replica.group(0));
  Result<std::vector<float>> first, second;
  {
    const std::jthread other([&] { second = replica.step(1, batch, far_off()); });
    first = replica.step(0, batch, far_off(), breaking);
  }
  for (const auto* result : {&first, &second}) {
    ASSERT_FALSE(result->has_value());
    EXPECT_EQ(result->error().code(), ErrorCode::kCancelled);
    EXPECT_EQ(result->error().message(), "the engine ends");
  }
  EXPECT_EQ(replica.weights(0).visits.back(), 2U);
  for (const std::size_t rank : {0U, 1U}) EXPECT_TRUE(replica.weights(rank).between_layers());
}

TEST(ReplicaDeathTest, ATeamThatIsNotTheReplicaAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const SmallModel model(shared_spec());
  ShardOptions options = options_of(model.spec);
  options.world_size = 2;
  const auto shard = make_shard(options, model.manifest);
  HeldWeights weights(model, 0, 2);
  EXPECT_DEATH(static_cast<void>(shard->forward({}, weights, {}, now())),
               "the team has the ranks of the replica in their order");
}

}  // namespace
}  // namespace wsync::engine::generation
