// Engines that take whole tensors in the memory of a GPU, for the call or until their commit. Over
// the emulated driver (tests/emulated_cuda), which reports memory that is read after it was freed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/contract/engine_link/gpu_rank.h"
#include "tests/support/bytes.h"

namespace wsync::engine::test {
namespace {

using control::RankState;
using control::TakeMode;
using testing::AllOf;
using testing::HasSubstr;

struct WholeRank : GpuRank {
  WholeRank(const Model& from, TakeMode take, std::uint32_t rank = 0, std::uint32_t world = 1)
      : GpuRank(from, rank, world, take) {}
  control::EngineHello attach(const GpuSidecar& sidecar) {
    start();
    auto hello = peer.accept();
    peer.send(welcome(sidecar.handles()), sidecar.fds());
    return hello;
  }
  // All of a load but its answer. With an acknowledgement for each bucket.
  void give_all(GpuSidecar& sidecar, const SharedArena& arena, Version version) {
    EXPECT_EQ(peer.ask<control::Prepared>(prepare(version)).failure, "");
    peer.send(control::Load{.version = version});
    for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket)
      EXPECT_EQ(give(sidecar, arena, bucket).failure, "");
  }
};

struct WholeOnGpu : testing::TestWithParam<TakeMode> {};
INSTANTIATE_TEST_SUITE_P(Engine, WholeOnGpu, testing::Values(TakeMode::kWhole, TakeMode::kBorrow),
                         [](const auto& mode) {
                           return mode.param == TakeMode::kWhole ? "Whole" : "Borrow";
                         });

TEST_P(WholeOnGpu, TwoVersionsAndNoMemoryIsKeptForThem) {
  for (const Model& model : {with_odd_rows(), wide_layers()}) {
    GpuSidecar sidecar(model.plan.largest_bucket());
    for (const std::uint32_t r : {0U, 1U}) {
      WholeRank rank(model, GetParam(), r, 2);
      EXPECT_EQ(rank.attach(sidecar).gpu, rank.device->uuid());
      const SharedArena first = model.arena(kFirst);
      const SharedArena second = model.arena(kSecond);
      rank.load(sidecar, first, kFirst);
      rank.commit(kFirst);
      rank.expect_holds(first);
      const std::uint64_t free = rank.free_bytes();
      rank.load(sidecar, second, kSecond);
      rank.commit(kSecond);
      rank.expect_holds(second);
      EXPECT_EQ(rank.free_bytes(), free) << "memory of a load is kept while the engine serves";
    }
  }
}

TEST_P(WholeOnGpu, WithoutEnoughMemoryTheOldVersionIsServed) {
  const Model model = wide_layers();
  GpuSidecar sidecar(model.plan.largest_bucket());
  WholeRank rank(model, GetParam());
  rank.attach(sidecar);
  const SharedArena first = model.arena(kFirst);
  const SharedArena second = model.arena(kSecond);
  rank.load(sidecar, first, kFirst);
  rank.commit(kFirst);
  rank.engine.calls.clear();
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kSecond)).failure, "");
  std::vector<std::unique_ptr<device::Memory>> others;
  constexpr std::uint64_t kLeft = std::uint64_t{2} << 20U;
  while (rank.free_bytes() >= 2 * kLeft)
    others.push_back(rank.device->allocate(rank.free_bytes() - kLeft).value());
  const std::string failure =
      rank.peer.ask<control::Loaded>(control::Load{.version = kSecond}).failure;
  EXPECT_THAT(failure, AllOf(HasSubstr("GPU 0"), HasSubstr("bytes of GPU memory during a load"),
                             HasSubstr("are free; leave more memory free")));
  EXPECT_EQ(rank.link->status().state, RankState::kPaused);
  EXPECT_EQ(rank.link->status().active, kFirst);
  rank.expect_holds(first);
  EXPECT_EQ(rank.engine.calls, std::vector<std::string>{"check 1.2"});
  others.clear();
  rank.load(sidecar, second, kSecond);
  rank.commit(kSecond);
  rank.expect_holds(second);
}

TEST_P(WholeOnGpu, ALayerThatFailsLeavesTheRankTaintedAndTheNextLoadRepairsIt) {
  const Model model = wide_layers();
  GpuSidecar sidecar(model.plan.largest_bucket());
  WholeRank rank(model, GetParam());
  rank.attach(sidecar);
  const SharedArena arena = model.arena(kFirst);
  const std::uint64_t free = rank.free_bytes();
  rank.engine.fail_layer = 1;
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
  rank.peer.send(control::Load{.version = kFirst});
  std::uint64_t bucket = 0;
  while (rank.give(sidecar, arena, bucket).failure.empty()) ++bucket;
  EXPECT_THAT(rank.peer.expect<control::Loaded>().failure, HasSubstr("no room for this layer"));
  EXPECT_EQ(rank.link->status().state, RankState::kTainted);
  constexpr std::uint64_t kTables = std::uint64_t{4} << 20U;  // the two of a stream
  if (GetParam() == TakeMode::kWhole) {
    EXPECT_GE(rank.free_bytes() + kTables, free) << "the memory of a load that has failed is kept";
  }
  rank.engine.fail_layer = UINT32_MAX;
  rank.load(sidecar, arena, kFirst);
  rank.commit(kFirst);
  rank.expect_holds(arena);
}

TEST(WholeOnGpuRules, BucketsComeInTheirOrder) {
  const Model model = wide_layers();
  GpuSidecar sidecar(model.plan.largest_bucket());
  WholeRank rank(model, TakeMode::kWhole);
  rank.attach(sidecar);
  const SharedArena arena = model.arena(kFirst);
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
  rank.peer.send(control::Load{.version = kFirst});
  EXPECT_EQ(rank.give(sidecar, arena, 0).failure, "");
  EXPECT_EQ(rank.give(sidecar, arena, 0).failure, "") << "it comes again if its answer got lost";
  EXPECT_THAT(rank.give(sidecar, arena, 2).failure, HasSubstr("bucket 2 came before bucket 1"));
  EXPECT_THAT(rank.peer.expect<control::Loaded>().failure, HasSubstr("came before bucket 1"));
}

TEST(WholeOnGpuRules, AWholeLayerIsNotAnsweredLater) {
  const Model model = Model::make();
  GpuSidecar sidecar(model.plan.largest_bucket());
  WholeRank rank(model, TakeMode::kWhole);
  rank.engine.late_layers = {0};
  rank.attach(sidecar);
  const SharedArena arena = model.arena(kFirst);
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
  rank.peer.send(control::Load{.version = kFirst});
  std::uint64_t bucket = 0;
  while (rank.give(sidecar, arena, bucket).failure.empty()) ++bucket;
  EXPECT_THAT(rank.peer.expect<control::Loaded>().failure,
              HasSubstr("only a rank that borrows or adopts can"));
}

// ---- until the commit ----

TEST(BorrowOnGpu, TheBytesStayUntilTheCommitAlsoWithoutTheSidecar) {
  const Model model = wide_layers();
  GpuSidecar sidecar(model.plan.largest_bucket());
  WholeRank rank(model, TakeMode::kBorrow);
  rank.attach(sidecar);
  const SharedArena arena = model.arena(kFirst);
  rank.load(sidecar, arena, kFirst);
  rank.peer.hang_up();
  EXPECT_EQ(rank.peer.accept().state, RankState::kLoaded);
  rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
  const std::uint64_t loaded = rank.free_bytes();
  rank.commit(kFirst);  // the engine copies what it has borrowed
  EXPECT_GT(rank.free_bytes(), loaded) << "memory of a committed version is kept";
  rank.expect_holds(arena);
}

TEST(BorrowOnGpu, TheLoadEndsWithTheReport) {
  const Model model = wide_layers();
  GpuSidecar sidecar(model.plan.largest_bucket());
  WholeRank rank(model, TakeMode::kBorrow);
  rank.engine.late_layers = {0, 2};
  rank.engine.late_commit = true;
  rank.attach(sidecar);
  const SharedArena arena = model.arena(kFirst);
  rank.give_all(sidecar, arena, kFirst);
  rank.peer.ask<control::Pong>(control::Ping{});  // no Loaded, and the link goes on
  EXPECT_TRUE(rank.engine.copy_borrowed());
  rank.link->report_loaded(kFirst, {});
  const auto loaded = rank.peer.expect<control::Loaded>();
  EXPECT_EQ(loaded.failure, "");
  EXPECT_EQ(loaded.sums.size(), model.manifest.size());
  rank.peer.send(control::Commit{.version = kFirst});
  rank.peer.ask<control::Pong>(control::Ping{});
  EXPECT_TRUE(rank.engine.copy_borrowed()) << "the engine still packs it";
  rank.link->report_committed(kFirst, {});
  EXPECT_EQ(rank.peer.expect<control::Committed>().failure, "");
  rank.expect_holds(arena);
}

TEST(BorrowOnGpu, AReportBeforeTheLastLayerFailsTheLoad) {
  const Model model = wide_layers();
  GpuSidecar sidecar(model.plan.largest_bucket());
  WholeRank rank(model, TakeMode::kBorrow);
  rank.engine.late_layers = {0};
  rank.attach(sidecar);
  const SharedArena arena = model.arena(kFirst);
  for (const bool is_failure : {false, true}) {
    EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
    rank.peer.send(control::Load{.version = kFirst});
    for (const std::uint64_t bucket : {0U, 1U, 2U})
      EXPECT_EQ(rank.give(sidecar, arena, bucket).failure, "");
    rank.link->report_loaded(
        kFirst, is_failure ? Result<>(fail(ErrorCode::kRefused, "no expert 7")) : Result<>{});
    EXPECT_THAT(rank.peer.expect<control::Loaded>().failure,
                HasSubstr(is_failure ? "no expert 7" : "before it was given all of its layers"));
    EXPECT_EQ(rank.link->status().state, RankState::kTainted);
  }
  rank.engine.late_layers = {};
  rank.load(sidecar, arena, kFirst);
  rank.commit(kFirst);
  rank.expect_holds(arena);
}

// The engine's thread still reads when the sidecar is lost, comes back and loads again.
TEST(BorrowOnGpu, NoByteIsGivenUpBeforeTheReport) {
  const Model model = wide_layers();
  GpuSidecar sidecar(model.plan.largest_bucket());
  WholeRank rank(model, TakeMode::kBorrow);
  rank.engine.late_layers = {0};
  rank.attach(sidecar);
  const SharedArena first = model.arena(kFirst);
  const SharedArena second = model.arena(kSecond);
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
  rank.peer.send(control::Load{.version = kFirst});
  for (const std::uint64_t bucket : {0U, 1U, 2U})
    EXPECT_EQ(rank.give(sidecar, first, bucket).failure, "");
  rank.peer.hang_up();
  EXPECT_EQ(rank.peer.accept().state, RankState::kTainted);
  rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kSecond)).failure, "");
  rank.peer.send(control::Load{.version = kSecond});
  const std::uint64_t load = rank.peer.envelope.request;
  // Of the second load, and not to be mixed with the first one.
  sidecar.put(0, second.data().subspan(0, model.plan.bucket_size(0)));
  rank.peer.send(control::BucketReady{.bucket = 0, .slot = 0});
  const std::uint64_t bucket = rank.peer.envelope.request;
  rank.peer.ask<control::Pong>(control::Ping{});
  std::vector<std::byte> layer;
  ASSERT_TRUE(rank.engine.copy_out(rank.engine.adopted[0], layer));
  EXPECT_EQ(tensor_digest(seed_of("model.layers.0.a"), layer),
            reload::expected_digest(plan_of(model, rank.engine).tensors()[0], first.data()))
      << "the engine's thread still reads";
  EXPECT_EQ(std::ranges::count(rank.engine.calls, "begin 1.2"), 0) << "two loads at once";
  rank.engine.late_layers = {};
  rank.link->report_loaded(kFirst, {});
  EXPECT_EQ(rank.peer.expect<control::BucketAck>().failure, "");
  EXPECT_EQ(rank.peer.last_envelope.request, bucket);
  for (std::uint64_t b = 1; b < model.plan.bucket_count(); ++b)
    EXPECT_EQ(rank.give(sidecar, second, b).failure, "");
  EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
  EXPECT_EQ(rank.peer.last_envelope.request, load);
  rank.commit(kSecond);
  rank.expect_holds(second);
}

// Nobody tells the engine that the sidecar is lost. Its work on the GPU may still read a layer.
TEST(BorrowOnGpu, WhatItHasOfALostLoadStaysUntilTheNextOneBegins) {
  const Model model = wide_layers();
  const Model other = Model::make();
  GpuSidecar sidecar(model.plan.largest_bucket());
  WholeRank rank(model, TakeMode::kBorrow);
  rank.engine.description.tensors.clear();
  rank.engine.description.any_layout = true;
  rank.attach(sidecar);
  const SharedArena first = model.arena(kFirst);
  const SharedArena second = other.arena(kSecond);
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
  rank.peer.send(control::Load{.version = kFirst});
  for (const std::uint64_t bucket : {0U, 1U, 2U})
    EXPECT_EQ(rank.give(sidecar, first, bucket).failure, "");
  const auto expect_readable = [&](std::string_view why) {
    std::vector<std::byte> layer;
    ASSERT_TRUE(rank.engine.copy_out(rank.engine.adopted[0], layer)) << why;
    EXPECT_TRUE(same_bytes(layer, first.data().subspan(model.plan.bucket_offset(0), layer.size())))
        << why;
  };
  rank.peer.hang_up();
  EXPECT_EQ(rank.peer.accept().state, RankState::kTainted);
  expect_readable("the sidecar is lost, and the engine still reads");
  // Memory for both is not there, which is no reason to keep what nobody will commit.
  std::vector<std::unique_ptr<device::Memory>> others;
  constexpr std::uint64_t kLeft = std::uint64_t{2} << 20U;
  while (rank.free_bytes() >= 2 * kLeft)
    others.push_back(rank.device->allocate(rank.free_bytes() - kLeft).value());
  rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
  int begun = 0;
  rank.engine.on_begin = [&] {
    ++begun;
    expect_readable("the engine waits for its work when the next load begins");
  };
  EXPECT_EQ(rank.peer.ask<control::Prepared>(prepare_of(other, kSecond)).failure, "");
  rank.engine.adopted.resize(other.manifest.size());
  rank.peer.send(control::Load{.version = kSecond});
  for (std::uint64_t bucket = 0; bucket < other.plan.bucket_count(); ++bucket) {
    const auto slot = static_cast<std::uint32_t>(bucket % 2);
    sidecar.put(slot, second.data().subspan(other.plan.bucket_offset(bucket),
                                            other.plan.bucket_size(bucket)));
    EXPECT_EQ(
        rank.peer.ask<control::BucketAck>(control::BucketReady{.bucket = bucket, .slot = slot})
            .failure,
        "");
  }
  EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
  EXPECT_EQ(begun, 1);
}

// The sidecar frees its buffers when a load that brought them is given up. The engine has pointers
// into other memory.
TEST(BorrowOnGpu, ALoadThatIsCancelledIsAnsweredAtOnceAndItsBytesStay) {
  const Model model = wide_layers();
  WholeRank rank(model, TakeMode::kBorrow);
  rank.engine.late_layers = {0};
  rank.start();
  rank.peer.accept();
  rank.peer.send(rank.welcome({}));
  const SharedArena arena = model.arena(kFirst);
  GpuSidecar sidecar(model.plan.largest_bucket());
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
  rank.peer.send(control::Load{.version = kFirst, .buffers = sidecar.handles()}, sidecar.fds());
  const std::uint64_t load = rank.peer.envelope.request;
  for (const std::uint64_t bucket : {0U, 1U, 2U})
    EXPECT_EQ(rank.give(sidecar, arena, bucket).failure, "");
  rank.peer.send(control::Abort{.version = kFirst});
  EXPECT_THAT(rank.peer.expect<control::Loaded>().failure, HasSubstr("cancelled"));
  EXPECT_EQ(rank.peer.last_envelope.request, load);
  sidecar.free_buffers();
  std::vector<std::byte> layer;
  EXPECT_TRUE(rank.engine.copy_out(rank.engine.adopted[0], layer)) << "the engine still reads";
  const auto suspended = rank.link->suspend();
  ASSERT_FALSE(suspended);
  EXPECT_THAT(suspended.error().message(), HasSubstr("has not answered the load of 1.1 yet"));
  const std::uint64_t read = rank.free_bytes();
  rank.link->report_loaded(kFirst, {});
  rank.peer.ask<control::Pong>(control::Ping{});
  EXPECT_GT(rank.free_bytes(), read);
  EXPECT_TRUE(rank.link->suspend());
}

TEST(BorrowOnGpu, AnyLayoutIsTakenInTheMemoryOfTheGpu) {
  const Model one = wide_layers();
  const Model two = Model::of({{.name = "fused.weight", .dtype = DType::kF32, .shape = {3, 5}},
                               {.name = "head", .dtype = DType::kBF16, .shape = {7}}});
  GpuSidecar sidecar(one.plan.largest_bucket());
  WholeRank rank(one, TakeMode::kBorrow);
  rank.engine.description.tensors.clear();
  rank.engine.description.any_layout = true;
  const auto hello = rank.attach(sidecar);
  EXPECT_TRUE(hello.any_layout);
  EXPECT_NE(hello.gpu, "");
  const SharedArena first = one.arena(kFirst);
  rank.give_all(sidecar, first, kFirst);
  EXPECT_EQ(rank.peer.expect<control::Loaded>().sums.size(), one.manifest.size());
  rank.commit(kFirst);
  const SharedArena second = two.arena(kSecond);
  rank.engine.adopted.assign(two.manifest.size(), {});
  rank.engine.memory.assign(two.manifest.size(), {});
  EXPECT_EQ(rank.peer.ask<control::Prepared>(prepare_of(two, kSecond)).failure, "");
  rank.peer.send(control::Load{.version = kSecond});
  sidecar.put(0, second.data().subspan(0, two.plan.bucket_size(0)));
  EXPECT_EQ(rank.peer.ask<control::BucketAck>(control::BucketReady{.bucket = 0, .slot = 0}).failure,
            "");
  EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
  rank.commit(kSecond);
  const auto digests = rank.peer.ask<control::Digests>(control::ReadDigests{});
  ASSERT_EQ(digests.tensors.size(), 2U) << digests.failure;
  const auto layout = rank.link->layout(kSecond);
  for (std::size_t t = 0; t < 2; ++t)
    EXPECT_EQ(digests.tensors[t].digest,
              reload::expected_digest(layout->plan.tensors()[t], second.data()));
}

}  // namespace
}  // namespace wsync::engine::test
