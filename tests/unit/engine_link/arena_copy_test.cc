// A load out of a mapped arena by several threads: the same bytes and sums as by one, told in
// order, and nobody writes once it has ended.
#include "inference_side/engine_link/arena_copy.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/units.h"
#include "tests/support/bytes.h"

namespace wsync::engine {
namespace {

constexpr TimePoint kNoDeadline{INT64_MAX};

// Tensors of less than a chunk, of many chunks, strided, and of several buckets.
class ArenaCopyTest : public testing::Test {
 protected:
  ArenaCopyTest() {
    const auto manifest =
        Manifest::create({{.name = "embed", .dtype = DType::kBF16, .shape = {1500, 1024}},
                          {.name = "layers.0.norm", .dtype = DType::kBF16, .shape = {1000}},
                          {.name = "layers.0.w", .dtype = DType::kBF16, .shape = {1024, 3000}},
                          {.name = "layers.1.w", .dtype = DType::kF32, .shape = {777, 511}}})
            .value();
    const auto buckets = BucketPlan::create(manifest, 2 * limits::kMiB).value();
    std::vector<control::EngineTensor> tensors;
    for (const TensorInfo& info : manifest.tensors())
      tensors.push_back({.name = info.name, .dtype = info.dtype, .shape = info.shape});
    tensors[2].ranges = {{.dim = 1, .begin = 500, .length = 1200}};
    plan_ = reload::LoadPlan::make(manifest, buckets, tensors).value();
    arena_.resize(plan_.arena_bytes());
    std::mt19937_64 random(5);
    fill_random(random, arena_);
    for (const reload::CopyGroup& group : plan_.groups())
      expected_.push_back(plan_.sum(group, plan_.bucket_of(arena_, group.bucket)));
    for (const reload::LoadTensor& tensor : plan_.tensors())
      memory_.emplace_back(tensor.shard.bytes());
  }

  [[nodiscard]] std::vector<Destination> destinations() {
    std::vector<Destination> all;
    for (auto& tensor : memory_) all.push_back({.memory = tensor, .cast = std::nullopt});
    return all;
  }
  void fill(std::byte value) {
    for (auto& tensor : memory_) std::ranges::fill(tensor, value);
  }

  reload::LoadPlan plan_;
  std::vector<std::byte> arena_;
  std::vector<SplitSum> expected_;
  std::vector<std::vector<std::byte>> memory_;
};

TEST_F(ArenaCopyTest, AnyNumberOfThreadsLoadsTheSame) {
  reload::CopyScratch scratch;
  for (const reload::CopyGroup& group : plan_.groups())
    (void)plan_.execute(group, plan_.bucket_of(arena_, group.bucket), memory_[group.tensor],
                        scratch);
  const auto by_one = memory_;
  for (const unsigned helpers : {0U, 1U, 3U}) {
    fill(std::byte{0xee});
    std::unique_ptr<ThreadPool> pool;
    if (helpers > 0) pool = std::make_unique<ThreadPool>(helpers);
    for (int repeat = 0; repeat < 10; ++repeat) {
      std::vector<SplitSum> told;
      ArenaCopy copy(plan_, arena_, destinations());
      const auto outcome =
          copy.run(pool.get(), kNoDeadline, [&](std::size_t g, const SplitSum& sum) {
            EXPECT_EQ(g, told.size());
            told.push_back(sum);
            return Result<>();
          });
      ASSERT_TRUE(outcome) << outcome.error().message();
      EXPECT_EQ(told, expected_);
      EXPECT_EQ(memory_, by_one);
    }
  }
}

TEST_F(ArenaCopyTest, WhatHasChangedInTheArenaIsSeenInItsGroup) {
  arena_[plan_.tensors()[0].arena_offset + limits::kMiB] ^= std::byte{1};
  ThreadPool pool(1);
  std::size_t differing = 0;
  ArenaCopy copy(plan_, arena_, destinations());
  ASSERT_TRUE(copy.run(&pool, kNoDeadline, [&](std::size_t g, const SplitSum& sum) {
    if (sum != expected_[g]) ++differing;
    return Result<>();
  }));
  EXPECT_EQ(differing, 1U);
}

TEST_F(ArenaCopyTest, NobodyWritesAfterAnError) {
  ThreadPool pool(2);
  ArenaCopy copy(plan_, arena_, destinations());
  const auto outcome = copy.run(&pool, kNoDeadline, [](std::size_t, const SplitSum&) -> Result<> {
    return fail(ErrorCode::kDigestMismatch, "wrong");
  });
  fill(std::byte{0xee});
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().message(), "wrong");
  // The helpers have nothing left to do: what they are given now runs at once, after all of it.
  std::atomic<int> ran = 0;
  while (ran == 0) {
    pool.post([&] { ++ran; });
    std::this_thread::yield();
  }
  for (const auto& tensor : memory_)
    EXPECT_TRUE(std::ranges::all_of(tensor, [](std::byte b) { return b == std::byte{0xee}; }));
}

TEST_F(ArenaCopyTest, EndsAtItsDeadline) {
  ArenaCopy copy(plan_, arena_, destinations());
  const auto outcome =
      copy.run(nullptr, now(), [](std::size_t, const SplitSum&) { return Result<>(); });
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code(), ErrorCode::kDeadline);
}

}  // namespace
}  // namespace wsync::engine
