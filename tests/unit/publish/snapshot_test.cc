#include "trainer_side/publish/snapshot.h"

#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "shared/base/format.h"
#include "shared/base/numa.h"
#include "shared/base/stream_copy.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "tests/support/bytes.h"

namespace wsync::publish {
namespace {

using ::testing::HasSubstr;

// A small model whose bytes follow from a seed: a tensor of several buckets, odd sizes, an empty
// one.
struct Model {
  explicit Model(std::uint64_t seed, std::uint64_t rows = 3000) {
    add("model.embed_tokens.weight", DType::kBF16, {rows, 512}, seed);
    add("model.layers.0.mlp.weight", DType::kF32, {77, 333}, seed + 1);
    add("model.layers.1.mlp.weight", DType::kU8, {13}, seed + 2);
    add("model.layers.1.none", DType::kF32, {0, 4}, seed + 3);
    add("lm_head.weight", DType::kBF16, {1}, seed + 4);
  }
  void add(const std::string& name, DType dtype, std::vector<std::uint64_t> shape,
           std::uint64_t seed) {
    TensorInfo info{.name = name, .dtype = dtype, .shape = std::move(shape)};
    std::mt19937_64 random(seed);
    std::vector<std::byte> bytes(*info.byte_size());
    fill_random(random, bytes);
    tensors.emplace_back(std::move(info), std::move(bytes));
  }
  [[nodiscard]] MemorySource source() const {
    std::vector<MemoryTensor> given;
    for (const auto& [info, bytes] : tensors)
      given.push_back({.info = info, .bytes = std::span<const std::byte>(bytes)});
    auto source = MemorySource::create(std::move(given));
    EXPECT_TRUE(source.has_value()) << source.error().message();
    return std::move(*source);
  }
  std::vector<std::pair<TensorInfo, std::vector<std::byte>>> tensors;
};

SnapshotRequest request(std::uint64_t step) {
  return {.fence_epoch = 4,
          .fence_run_id = {1, 2},
          .version = {.epoch = 2, .step = step},
          .bucket_bytes = limits::kBucketBytesMin};
}

Result<std::shared_ptr<Snapshot>> take(Snapshotter& snapshotter, const Model& model,
                                       const SnapshotRequest& wanted) {
  MemorySource source = model.source();
  return snapshotter.take(source, wanted);
}

TEST(Snapshot, HoldsEveryTensorWhereThePlanSaysWithItsDigests) {
  Snapshotter snapshotter({.threads = 3});
  const Model model(1);
  std::atomic<std::uint64_t> done = 0;
  std::atomic<std::uint64_t> total = 0;
  SnapshotRequest wanted = request(7);
  wanted.done_bytes = &done;
  wanted.total_bytes = &total;
  const auto taken = take(snapshotter, model, wanted);
  ASSERT_TRUE(taken.has_value()) << taken.error().message();
  const Snapshot& snapshot = **taken;
  EXPECT_EQ(snapshot.version(), (Version{.epoch = 2, .step = 7}));
  // The first one also touches the memory of its arena.
  const std::uint64_t arena = snapshot.plan()->arena_bytes();
  EXPECT_GT(total, 2 * arena);
  EXPECT_EQ(done, total - arena + snapshot.manifest()->total_bytes());
  std::vector<Digest> digests(model.tensors.size());
  for (const auto& [info, bytes] : model.tensors) {
    const auto index = snapshot.manifest()->find(info.name);
    ASSERT_TRUE(index.has_value());
    digests[*index] = tensor_digest(info.name, bytes);
    std::vector<std::byte> found;
    for (const Piece& piece : snapshot.plan()->tensor_pieces(*index)) {
      const auto part = snapshot.data().subspan(snapshot.plan()->arena_offset(piece), piece.bytes);
      found.insert(found.end(), part.begin(), part.end());
    }
    EXPECT_EQ(found, bytes) << info.name;
  }
  EXPECT_EQ(snapshot.digests().tensors, digests);
  EXPECT_EQ(snapshot.digests().root, root_digest(digests));
  EXPECT_EQ(snapshot.identity().content, snapshot.digests().root);

  const auto fd = snapshot.share();
  ASSERT_TRUE(fd.has_value());
  const auto view = ArenaView::open(fd->get(), {.version = {{2, 7}},
                                                .layout = snapshot.manifest()->layout_digest(),
                                                .content = snapshot.digests().root});
  ASSERT_TRUE(view.has_value()) << view.error().message();
  EXPECT_TRUE(view->is_protected());
  const auto by_sums = digests_of_leaves(*snapshot.manifest(), view->leaf_sums());
  ASSERT_TRUE(by_sums.has_value()) << by_sums.error().message();
  EXPECT_EQ(*by_sums, snapshot.digests());
}

// A source whose last tensor fails, or is read as the one of a model.
class FailingSource final : public WeightSource {
 public:
  explicit FailingSource(const Model& model) : source_(model.source()) {}
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const override {
    return source_.manifest();
  }
  [[nodiscard]] Result<> read(std::uint32_t tensor, std::uint64_t offset,
                              std::span<std::byte> into) override {
    if (tensor + 1 == manifest()->tensors().size())
      return fail(ErrorCode::kIo, "the source cannot be read");
    return source_.read(tensor, offset, into);
  }

 private:
  MemorySource source_;
};

// A source whose bytes seem to come from GPUs of a NUMA node.
class PlacedSource final : public WeightSource {
 public:
  PlacedSource(const Model& model, std::uint32_t node) : source_(model.source()), node_(node) {}
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const override {
    return source_.manifest();
  }
  [[nodiscard]] Result<> read(std::uint32_t tensor, std::uint64_t offset,
                              std::span<std::byte> into) override {
    return source_.read(tensor, offset, into);
  }
  [[nodiscard]] std::optional<std::uint32_t> numa_node() const override { return node_; }

 private:
  MemorySource source_;
  std::uint32_t node_;
};

// Node 0 is there on every machine that has the calls.
TEST(Snapshot, AnArenaIsPlacedNearTheGpusOfItsWeightsOrWhereTheOptionsSay) {
  const Model model(1);
  const auto node_of = [&](const SnapshotterOptions& options, std::uint32_t source_node) {
    Snapshotter snapshotter(options);
    PlacedSource source(model, source_node);
    const auto snapshot = snapshotter.take(source, request(1));
    EXPECT_TRUE(snapshot.has_value()) << snapshot.error().message();
    return preferred_node((*snapshot)->data());
  };
  const auto usual = node_of({}, 0);
  if (!usual) GTEST_SKIP() << "this system tells no NUMA policy: " << usual.error().message();
  EXPECT_EQ(*usual, std::nullopt) << "nothing was asked for";
  EXPECT_EQ(*node_of({.near_gpus = true}, 0), 0U);
  EXPECT_EQ(*node_of({.numa_node = 0}, 7), 0U);
  EXPECT_EQ(*node_of({.numa_node = 0, .near_gpus = true}, 7), 0U) << "a set node comes first";
  EXPECT_EQ(*node_of({.near_gpus = true}, 1000), std::nullopt) << "a node that is not there";
}

// A bucket that is reported is what it will be in the complete version, byte for byte.
class SnapshotBuckets : public testing::TestWithParam<unsigned> {};

// With one thread, nothing else writes the rest of a bucket that is offered too early.
INSTANTIATE_TEST_SUITE_P(Snapshot, SnapshotBuckets, testing::Values(1U, 3U),
                         [](const auto& threads) {
                           return fmt::format("{}Threads", threads.param);
                         });

TEST_P(SnapshotBuckets, AreReportedWhenTheirLastByteIsThere) {
  Snapshotter snapshotter({.threads = GetParam()});
  const Model model(1);
  std::mutex mutex;
  std::optional<CopiedSnapshot> copied;
  std::map<std::uint64_t, Digest> promised;
  std::map<std::uint64_t, Digest> found;
  SnapshotRequest wanted = request(7);
  wanted.on_copy = [&](const CopiedSnapshot& snapshot) {
    EXPECT_TRUE(promised.empty());
    copied = snapshot;
  };
  wanted.on_bucket = [&](std::uint64_t bucket, const std::vector<WordSum>& given) {
    std::vector<WordSum> sums;
    for (const LeafPlace& leaf : copied->layout.leaves->bucket(bucket))
      sums.push_back(word_sum(copied->data.subspan(leaf.arena_offset, leaf.bytes), leaf.place));
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(promised.emplace(bucket, bucket_digest(given)).second) << "once";
    found[bucket] = bucket_digest(sums);
  };
  const auto taken = take(snapshotter, model, wanted);
  ASSERT_TRUE(taken.has_value()) << taken.error().message();
  ASSERT_TRUE(copied.has_value());
  EXPECT_EQ(copied->identity.layout, (*taken)->identity().layout);
  EXPECT_EQ(copied->identity.version_step, 7U);
  EXPECT_EQ(copied->identity.content, Digest{});
  EXPECT_EQ(promised.size(), (*taken)->plan()->bucket_count());
  for (const auto& [bucket, digest] : promised) {
    const auto sums =
        std::span((*taken)->digests().leaves)
            .subspan((*taken)->leaves()->first(bucket), (*taken)->leaves()->bucket(bucket).size());
    EXPECT_EQ(digest, bucket_digest(sums)) << "bucket " << bucket << " was offered too early";
    EXPECT_EQ(found[bucket], digest) << "bucket " << bucket << " was offered too early";
  }
}

TEST(Snapshot, AnArenaThatIsStillServedIsNotWrittenAfterAFailure) {
  Snapshotter snapshotter({.arenas = 1, .threads = 2});
  const Model model(1);
  std::optional<CopiedSnapshot> copied;
  std::atomic<int> buckets = 0;
  SnapshotRequest wanted = request(1);
  wanted.on_copy = [&](const CopiedSnapshot& snapshot) { copied = snapshot; };
  wanted.on_bucket = [&](std::uint64_t, const std::vector<WordSum>&) { ++buckets; };
  FailingSource source(model);
  const auto failed = snapshotter.take(source, wanted);
  ASSERT_FALSE(failed.has_value());
  EXPECT_GT(buckets, 0) << "some were served";
  ASSERT_TRUE(copied.has_value());
  const std::vector<std::byte> before(copied->data.begin(), copied->data.end());
  SnapshotRequest next = request(2);
  next.deadline = now();
  EXPECT_EQ(take(snapshotter, Model(9), next).error().code(), ErrorCode::kBusy);
  EXPECT_TRUE(same_bytes(copied->data, before));
  copied.reset();
  EXPECT_TRUE(take(snapshotter, Model(9), next).has_value()) << "nobody has it any more";
}

TEST(Snapshot, ProgressCountsTheMemoryOfANewArenaOnly) {
  Snapshotter snapshotter({.arenas = 1});
  std::atomic<std::uint64_t> total = 0;
  SnapshotRequest wanted = request(1);
  wanted.total_bytes = &total;
  auto first = take(snapshotter, Model(1), wanted);
  ASSERT_TRUE(first.has_value());
  const std::uint64_t arena = (*first)->plan()->arena_bytes();
  EXPECT_GT(total, 2 * arena);
  first->reset();
  wanted.version.step = 2;
  ASSERT_TRUE(take(snapshotter, Model(2), wanted).has_value());
  EXPECT_EQ(total, arena);
}

TEST(Snapshot, AFreeArenaIsPreparedForTheNextOne) {
  Snapshotter snapshotter({.arenas = 2});
  auto first = take(snapshotter, Model(1), request(1));
  auto second = take(snapshotter, Model(2), request(2));
  ASSERT_TRUE(first.has_value() && second.has_value());
  snapshotter.prepare_next();  // both are in use
  const auto& in_use = **second;
  EXPECT_EQ(in_use.identity().content, in_use.digests().root);
  first->reset();
  snapshotter.prepare_next();
  const auto third = take(snapshotter, Model(3), request(3));
  ASSERT_TRUE(third.has_value()) << third.error().message();
  const auto view = ArenaView::open((*third)->share()->get(), {.version = {{2, 3}}});
  ASSERT_TRUE(view.has_value()) << view.error().message();
  EXPECT_TRUE(view->is_protected());
}

TEST(SnapshotDeathTest, AStrayWriteIntoAPublishedVersionEndsItsProcess) {
  // With SIGSEGV; a sanitizer makes an exit code of it.
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // arenas are not mapped in a forked child
  const auto stray_write = [] {
    Snapshotter snapshotter({.threads = 2});
    const auto taken = take(snapshotter, Model(1), request(1));
    const auto data = (*taken)->data();
    const_cast<std::byte&>(data[data.size() / 2]) ^= std::byte{1};
  };
  EXPECT_DEATH(stray_write(), "");
}

TEST(Snapshot, ArenasTakeTurnsAndOneThatIsReadIsNeverOverwritten) {
  Snapshotter snapshotter({.arenas = 2});
  auto first = take(snapshotter, Model(1), request(1));
  auto second = take(snapshotter, Model(2), request(2));
  ASSERT_TRUE(first.has_value() && second.has_value());
  const auto* memory = (*first)->data().data();
  EXPECT_NE(memory, (*second)->data().data());

  const auto refused = take(snapshotter, Model(3), request(3));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("all 2 arenas are still being read: version 2.1 by this process"));
  EXPECT_EQ((*first)->identity().content, (*first)->digests().root);

  // A reader elsewhere counts as much as a pointer here.
  const auto fd = (*first)->share();
  auto view = ArenaView::open(fd->get());
  ASSERT_TRUE(view.has_value());
  first->reset();
  EXPECT_EQ(take(snapshotter, Model(3), request(3)).error().code(), ErrorCode::kBusy);
  EXPECT_EQ(view->identity().version_step, 1U);
  view = fail(ErrorCode::kCancelled, "unmapped");
  const auto third = take(snapshotter, Model(3), request(3));
  ASSERT_TRUE(third.has_value()) << third.error().message();
  EXPECT_EQ((*third)->data().data(), memory);  // the same memory again
  EXPECT_EQ((*third)->times().setup.count(), 0);
}

TEST(Snapshot, WaitsForAReaderUntilTheDeadline) {
  Snapshotter snapshotter({.arenas = 1});
  auto first = take(snapshotter, Model(1), request(1));
  ASSERT_TRUE(first.has_value());
  SnapshotRequest wanted = request(2);
  wanted.deadline = now() + std::chrono::seconds(60);
  std::jthread reader([&] { first->reset(); });
  EXPECT_TRUE(take(snapshotter, Model(2), wanted).has_value());
}

TEST(Snapshot, AnotherLayoutGetsOtherArenasAndTheOldOnesGo) {
  Snapshotter snapshotter({.arenas = 1});
  auto small = take(snapshotter, Model(1), request(1));
  ASSERT_TRUE(small.has_value());
  EXPECT_EQ(take(snapshotter, Model(1, 6000), request(2)).error().code(), ErrorCode::kBusy);
  small->reset();
  const auto big = take(snapshotter, Model(1, 6000), request(2));
  ASSERT_TRUE(big.has_value()) << big.error().message();
  EXPECT_GT((*big)->data().size(), 6000U * 512 * 2);
}

TEST(Snapshot, ReservedArenasAreUsedWithoutSetup) {
  Snapshotter snapshotter({.arenas = 2});
  const Model model(1);
  ASSERT_TRUE(snapshotter.reserve(*model.source().manifest(), limits::kBucketBytesMin, 2));
  const auto taken = take(snapshotter, model, request(1));
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ((*taken)->times().setup.count(), 0);
}

TEST(Snapshot, FailingSourceLeavesNoVersionAndAFreeArena) {
  Snapshotter snapshotter({.arenas = 1});
  const TensorInfo info{.name = "w", .dtype = DType::kU8, .shape = {5 * limits::kMiB}};
  auto broken = MemorySource::create(
      {{.info = info, .bytes = ReadTensor([](std::uint64_t offset, std::span<std::byte>) {
                        return offset < 3 * limits::kMiB ? Result<>{}
                                                         : fail(ErrorCode::kIo, "device gone");
                      })}});
  ASSERT_TRUE(broken.has_value());
  const auto failed = snapshotter.take(*broken, request(1));
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code(), ErrorCode::kIo);
  EXPECT_EQ(failed.error().message(), "snapshot of version 2.1: w: device gone");
  EXPECT_TRUE(take(snapshotter, Model(1), request(2)).has_value());
}

TEST(Snapshot, StopsOnRequest) {
  Snapshotter snapshotter({.arenas = 1});
  std::stop_source stop;
  stop.request_stop();
  SnapshotRequest wanted = request(1);
  wanted.stop = stop.get_token();
  EXPECT_EQ(take(snapshotter, Model(1), wanted).error().code(), ErrorCode::kCancelled);
  const auto held = take(snapshotter, Model(1), request(2));
  ASSERT_TRUE(held.has_value());
  wanted.deadline = now() + std::chrono::seconds(60);
  EXPECT_EQ(take(snapshotter, Model(1), wanted).error().code(), ErrorCode::kCancelled);
}

// A reader that keeps its lease, as a process that hangs does.
Result<ArenaView> hold(const Snapshot& snapshot) {
  const auto fd = snapshot.share();
  return fd ? ArenaView::open(fd->get()) : fail(fd.error());
}

TEST(Snapshot, AnArenaThatOnlyAnotherProcessReadsDoesNotCount) {
  Snapshotter snapshotter({.arenas = 2, .additional_arenas = true});
  auto first = take(snapshotter, Model(1), request(1));
  auto second = take(snapshotter, Model(2), request(2));
  ASSERT_TRUE(first.has_value() && second.has_value());
  auto hung = hold(**first);
  ASSERT_TRUE(hung.has_value());
  first->reset();
  bool waited = false;
  SnapshotRequest wanted = request(3);
  wanted.deadline = now() + std::chrono::seconds(60);
  wanted.on_wait = [&] { waited = true; };
  auto third = take(snapshotter, Model(3), wanted);
  ASSERT_TRUE(third.has_value()) << third.error().message();
  EXPECT_TRUE(waited);
  const std::uint64_t one = (*third)->plan()->arena_bytes();
  EXPECT_EQ(snapshotter.arena_bytes(), 3 * one) << "one more, for the process that hangs";
  EXPECT_EQ(hung->identity().version_step, 1U);

  // The maximum counts what this process needs.
  const auto refused = take(snapshotter, Model(4), request(4));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kBusy);

  // The reader continues. The arena that was created for it is given back.
  hung = fail(ErrorCode::kCancelled, "unmapped");
  second->reset();
  const auto fourth = take(snapshotter, Model(4), request(4));
  ASSERT_TRUE(fourth.has_value()) << fourth.error().message();
  EXPECT_EQ(snapshotter.arena_bytes(), 2 * one);
}

TEST(Snapshot, WhenTheReaderThatHungContinuesTheMaximumHoldsAgain) {
  Snapshotter snapshotter({.arenas = 2, .additional_arenas = true});
  auto first = take(snapshotter, Model(1), request(1));
  ASSERT_TRUE(first.has_value());
  auto hung = hold(**first);
  first->reset();
  const auto second = take(snapshotter, Model(2), request(2));
  SnapshotRequest wanted = request(3);
  wanted.deadline = now() + std::chrono::seconds(60);
  const auto third = take(snapshotter, Model(3), wanted);
  ASSERT_TRUE(hung.has_value() && second.has_value() && third.has_value());
  const std::uint64_t one = (*third)->plan()->arena_bytes();
  EXPECT_EQ(snapshotter.arena_bytes(), 3 * one);

  hung = fail(ErrorCode::kCancelled, "unmapped");
  const auto refused = take(snapshotter, Model(4), request(4));
  ASSERT_FALSE(refused.has_value()) << "two versions are needed here";
  EXPECT_EQ(refused.error().code(), ErrorCode::kBusy);
  EXPECT_EQ(snapshotter.arena_bytes(), 2 * one);
}

TEST(Snapshot, AReaderThatHangsDelaysOnlyOneSnapshot) {
  Snapshotter snapshotter({.arenas = 2, .additional_arenas = true});
  auto first = take(snapshotter, Model(1), request(1));
  ASSERT_TRUE(first.has_value());
  const auto hung = hold(**first);
  first->reset();
  auto second = take(snapshotter, Model(2), request(2));
  int waits = 0;
  SnapshotRequest wanted = request(3);
  wanted.deadline = now() + std::chrono::seconds(60);
  wanted.on_wait = [&] { ++waits; };
  auto third = take(snapshotter, Model(3), wanted);
  ASSERT_TRUE(hung.has_value() && second.has_value() && third.has_value());
  EXPECT_EQ(waits, 1);
  // Both other arenas are free now, and stay.
  second->reset();
  third->reset();
  const auto fourth = take(snapshotter, Model(4), wanted);
  const auto fifth = take(snapshotter, Model(5), wanted);
  ASSERT_TRUE(fourth.has_value() && fifth.has_value());
  EXPECT_EQ(waits, 1) << "the additional arena was kept for the reader that hangs";
}

TEST(Snapshot, TheWaitForAnArenaHasItsOwnLimit) {
  Snapshotter snapshotter({.arenas = 1});
  auto first = take(snapshotter, Model(1), request(1));
  ASSERT_TRUE(first.has_value());
  SnapshotRequest wanted = request(2);
  wanted.deadline = now() + std::chrono::hours(1);
  wanted.arena_wait = std::chrono::milliseconds(1);
  EXPECT_EQ(take(snapshotter, Model(2), wanted).error().code(), ErrorCode::kBusy);
}

TEST(Snapshot, ItsNameMayBeGivenLater) {
  Snapshotter snapshotter({.arenas = 2});
  SnapshotRequest unnamed = request(7);
  unnamed.fence_epoch = 0;
  unnamed.fence_run_id = {};
  unnamed.version = {.epoch = 0, .step = 7};
  const auto taken = take(snapshotter, Model(1), unnamed);
  ASSERT_TRUE(taken.has_value());
  const Digest content = (*taken)->identity().content;
  snapshotter.rename(**taken, 4, {1, 2}, {.epoch = 2, .step = 9});
  EXPECT_EQ((*taken)->version(), (Version{.epoch = 2, .step = 9}));
  const auto fd = (*taken)->share();
  const auto view =
      ArenaView::open(fd->get(), {.fence = {{4, {1, 2}}}, .version = {{2, 9}}, .content = content});
  EXPECT_TRUE(view.has_value()) << view.error().message();
}

TEST(MemorySource, SpanOfAnotherSizeThanTheShapeIsRefused) {
  const std::vector<std::byte> bytes(10);
  const auto source =
      MemorySource::create({{.info = {.name = "w", .dtype = DType::kF32, .shape = {3}},
                             .bytes = std::span<const std::byte>(bytes)}});
  ASSERT_FALSE(source.has_value());
  EXPECT_THAT(source.error().message(),
              HasSubstr("has 10 bytes in memory, but its shape needs 12"));
}

TEST(Snapshot, ACopyThatIsNotCompleteAtItsDeadlineIsNone) {
  Snapshotter snapshotter({.arenas = 1});
  SnapshotRequest late = request(1);
  late.copy_deadline = now();
  const auto taken = take(snapshotter, Model(1), late);
  ASSERT_FALSE(taken.has_value());
  EXPECT_EQ(taken.error().code(), ErrorCode::kDeadline);
  EXPECT_TRUE(take(snapshotter, Model(1), request(2)).has_value()) << "its arena is free again";
}

}  // namespace
}  // namespace wsync::publish
