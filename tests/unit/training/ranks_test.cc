// Ranks that do not go together, and ranks that fail: the others stop, and say which one it was.
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/training/rank_threads.h"
#include "trainer_side/training/reference_trainer.h"

namespace wsync::training {
namespace {

// What went wrong with each rank in its steps; options may differ.
using Run = std::function<Result<>(TrainingRank& rank, collective::ProcessGroup* group)>;
std::vector<Result<>> run_ranks(std::uint32_t ranks,
                                const std::function<TrainingOptions(std::uint32_t)>& options,
                                const Run& run = {}) {
  std::vector<Result<>> results(ranks);
  run_as_threads(ranks, [&](std::uint32_t number, auto group) {
    auto rank = TrainingRank::create(options(number), group.get());
    if (!rank) {
      results[number] = fail(rank.error());
      return;
    }
    if (run) results[number] = run(**rank, group.get());
  });
  return results;
}
std::string message_of(const Result<>& result) {
  return result ? "nothing" : result.error().message();
}
bool has(const Result<>& result, const std::string& words) {
  return message_of(result).find(words) != std::string::npos;
}

Result<> run_steps(TrainingRank& rank, const std::function<Result<>()>& before_update = {}) {
  WSYNC_TRY(set_weights(rank));
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const auto done =
        rank.run_step(step, batches_of(rank.options(), step, rank.place().replica), before_update);
    if (!done) return fail(done.error());
  }
  return {};
}

TEST(Ranks, OneWithOtherOptionsIsNamedByAll) {
  const TrainingOptions common = small_options({.pp = 2, .vpp = 1, .ep = 1, .dp = 2}, 2);
  const std::vector<std::function<void(TrainingOptions&)>> changes{
      [](TrainingOptions& o) { o.optimizer.learning_rate *= 2; },
      [](TrainingOptions& o) { o.offload = true; },
      [](TrainingOptions& o) { o.spec.rope_theta = 1000; },
      [](TrainingOptions& o) { o.schedule.delay_wgrad = true; },
      [](TrainingOptions& o) { o.sequence = 4; },
      [](TrainingOptions& o) { o.schedule.shape.microbatches = 3; },
      [](TrainingOptions& o) { o.sizes.ep = 2; },
      [](TrainingOptions& o) { o.run = "other data"; }};
  for (const auto& change : changes)
    for (const Result<>& result : run_ranks(4, [&](std::uint32_t rank) {
           TrainingOptions options = common;
           if (rank == 2) change(options);
           return options;
         })) {
      ASSERT_FALSE(result.has_value());
      EXPECT_EQ(result.error().code(), ErrorCode::kRefused);
      EXPECT_TRUE(has(result, "rank 2 and rank 0 were given different")) << message_of(result);
    }
}

TEST(Ranks, AnotherNumberOfThemIsRefused) {
  const TrainingOptions options = small_options({.pp = 2, .vpp = 1, .ep = 1, .dp = 2}, 2);
  for (const Result<>& result : run_ranks(3, [&](std::uint32_t) { return options; })) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidInput);
    EXPECT_EQ(message_of(result), "3 ranks have been started; pp 2 times dp 2 is 4");
  }
  EXPECT_EQ(TrainingRank::create(options, nullptr).error().message(),
            "1 ranks have been started; pp 2 times dp 2 is 4");
}

// The sanitizers end a process that asks for so much.
#ifndef WSYNC_SANITIZED
TEST(Ranks, ARunThatMemoryHasNoRoomForIsRefused) {
  TrainingOptions options = small_options({}, 1);
  options.sequences = 1ULL << 40U;  // activations beyond any address space
  const auto rank = TrainingRank::create(options, nullptr);
  ASSERT_FALSE(rank.has_value());
  EXPECT_EQ(rank.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(rank.error().message().find("rank 0: no memory for its weights"), 0U);
}
#endif

// A group that dies at its n-th exchange, as that of a process that is killed there: it leaves, and
// tells nobody why.
class MortalGroup final : public collective::ProcessGroup {
 public:
  MortalGroup(std::unique_ptr<collective::ProcessGroup> group, int exchanges)
      : group_(std::move(group)),
        rank_(group_->rank()),
        size_(group_->size()),
        exchanges_(exchanges) {}
  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept override { return size_; }
  [[nodiscard]] Result<> exchange(std::span<const collective::Send> sends,
                                  std::span<const collective::Receive> receives,
                                  TimePoint deadline) override {
    if (exchanges_-- == 0) group_.reset();
    if (group_ == nullptr) return fail(ErrorCode::kCancelled, "this rank is dead");
    return group_->exchange(sends, receives, deadline);
  }
  void abort(const Error& /*reason*/) override {
    ASSERT_EQ(group_, nullptr) << "only its own death is a reason here";
  }
  [[nodiscard]] Result<> health() const override {
    return group_ == nullptr ? Result<>() : group_->health();
  }

 private:
  std::unique_ptr<collective::ProcessGroup> group_;
  const std::uint32_t rank_, size_;
  int exchanges_;
};

TEST(Ranks, OneThatDiesInAStepIsNamedByAllOthers) {
  TrainingOptions options = small_options({.pp = 2, .vpp = 2, .ep = 2, .dp = 2}, 2);
  options.offload = options.schedule.overlap = true;
  options.spec.tied_embeddings = true;
  constexpr int kBeforeSteps = 1;  // exchanges
  for (int exchanges = kBeforeSteps + 1; exchanges < 60; exchanges += 3) {
    const auto killed = static_cast<std::uint32_t>(exchanges) % 4;
    std::vector<Result<>> results(4);
    run_as_threads(4, [&](std::uint32_t number, std::unique_ptr<collective::ProcessGroup> group) {
      if (number == killed) group = std::make_unique<MortalGroup>(std::move(group), exchanges);
      const auto rank = TrainingRank::create(options, group.get());
      ASSERT_TRUE(rank.has_value()) << rank.error().message();
      results[number] = run_steps(**rank);
    });
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      ASSERT_FALSE(results[rank].has_value());
      if (rank == killed) {
        EXPECT_EQ(message_of(results[rank]), "this rank is dead");
        continue;
      }
      EXPECT_EQ(results[rank].error().code(), ErrorCode::kPeerLost);
      EXPECT_TRUE(has(results[rank], "rank " + std::to_string(killed) + " has left the group"))
          << message_of(results[rank]);
    }
  }
}

TEST(Ranks, OneThatCannotGoOnBeforeTheUpdateIsNamedByAllOthers) {
  const TrainingOptions options = small_options({.pp = 2, .vpp = 1, .ep = 1, .dp = 2}, 2);
  const auto results = run_ranks(
      4, [&](std::uint32_t) { return options; },
      [](TrainingRank& rank, collective::ProcessGroup*) {
        return run_steps(rank, [&rank]() -> Result<> {
          if (rank.place().rank != 1) return {};
          return fail(ErrorCode::kIo, "the disk is full");
        });
      });
  for (const Result<>& result : results) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), ErrorCode::kIo);
    EXPECT_EQ(message_of(result), "rank 1: the disk is full");
  }
}

// The lanes of one rank fail by themselves, here for want of slots: the others are told which rank.
TEST(Ranks, OneWhoseLanesFailIsNamedByAllOthers) {
  const TrainingOptions options = small_options({.pp = 2, .vpp = 1, .ep = 1, .dp = 2}, 4);
  const auto program = std::make_shared<const schedule::Program>(plan_training(options).value());
  std::vector<Result<>> results(4);
  run_as_threads(4, [&](std::uint32_t number, auto group) {
    const Place place = place_of(options.sizes, number);
    RankWeights weights(options.spec, options.sizes, place);
    initialise(weights.dense, kSeed, 0.3);
    initialise(weights.experts, kSeed, 0.3);
    const std::size_t slots = max_activations(program->ranks[place.pipeline]);
    Pipeline pipeline({.spec = options.spec,
                       .sizes = options.sizes,
                       .place = place,
                       .program = program,
                       .tokens = options.sequences * options.sequence,
                       .sequence = options.sequence,
                       .device_slots = number == 1 ? slots - 1 : slots,
                       .host_slots = 0,
                       .group = group.get()},
                      weights);
    RankGradients gradients(options.spec, options.sizes, place);
    const auto step = pipeline.run_step(batches_of(options, 1, place.replica), 0.01F, gradients);
    if (!step) results[number] = fail(step.error());
    // Replicas are not coupled before the update.
    const auto met = collective::barrier(collective::Team(group.get(), {0, 1, 2, 3}),
                                         now() + std::chrono::minutes(1));
    if (!met && results[number]) results[number] = fail(met.error());
  });
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    ASSERT_FALSE(results[rank].has_value());
    EXPECT_EQ(results[rank].error().code(), ErrorCode::kResourceExhausted);
    EXPECT_TRUE(has(results[rank], "slots")) << message_of(results[rank]);
    if (rank != 1) {
      EXPECT_EQ(message_of(results[rank]).find("rank 1: all "), 0U) << message_of(results[rank]);
    }
  }
}

TEST(Ranks, AWeightThatIsNotFiniteStopsAllAtTheStepAsInOneProcess) {
  const TrainingOptions options = small_options({.pp = 2, .vpp = 2, .ep = 2, .dp = 2}, 4);
  const std::string bad = "model.layers.2.mlp.experts.3.gate_proj.weight";
  const auto spoil = [&](ParameterSet& set) {
    if (set.contains(bad))
      for (float& value : set.values(bad)) value = std::numeric_limits<float>::quiet_NaN();
  };
  ParameterSet weights = initial(moe::all_parameters(options.spec));
  spoil(weights);
  ReferenceTrainer reference(options.spec, options.optimizer, std::move(weights));
  const auto expected =
      reference.run_step(1, {batches_of(options, 1, 0), batches_of(options, 1, 1)});
  ASSERT_FALSE(expected.has_value());
  EXPECT_NE(expected.error().message().find("step 1: the loss is nan, and " + bad + " holds"),
            std::string::npos)
      << expected.error().message();
  for (const Result<>&result : run_ranks(
           4, [&](std::uint32_t) { return options; },
           [&](TrainingRank& rank, collective::ProcessGroup*) -> Result<> {
             WSYNC_TRY(set_weights(rank, spoil));
             const auto done = rank.run_step(1, batches_of(options, 1, rank.place().replica));
             if (!done) return fail(done.error());
             return {};
           })) {
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), ErrorCode::kRefused);
    EXPECT_EQ(message_of(result), expected.error().message());
  }
}

}  // namespace
}  // namespace wsync::training
