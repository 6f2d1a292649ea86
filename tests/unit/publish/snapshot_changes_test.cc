// Snapshots that are held as what changes from another one, and how they become complete.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <thread>

#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/format.h"
#include "shared/weights/patch/leaf_changes.h"
#include "tests/support/bytes.h"
#include "tests/unit/publish/host_weights.h"
#include "trainer_side/publish/snapshot.h"

namespace wsync::publish {
namespace {

using ::testing::HasSubstr;

class SnapshotChanges : public testing::TestWithParam<Given> {
 protected:
  SnapshotChanges() {
    std::mt19937_64 random(17);
    for (const TensorInfo& info : manifest_->tensors()) {
      tensors_.emplace_back(*info.byte_size());
      fill_random(random, tensors_.back());
    }
  }
  // Changes each `every`-th element of two bytes, or byte.
  void change(std::size_t every) {
    for (auto& bytes : tensors_)
      for (std::size_t at = 0; at < bytes.size(); at += 2 * every) bytes[at] ^= std::byte{1};
  }
  [[nodiscard]] HostWeights source() const { return {manifest_, tensors_, GetParam()}; }
  [[nodiscard]] static SnapshotRequest request(std::uint64_t step,
                                               const std::shared_ptr<const Snapshot>& base) {
    return {.fence_epoch = 3,
            .version = {.epoch = 1, .step = step},
            .bucket_bytes = limits::kBucketBytesMin,
            .deadline = now(),
            .base = base,
            .as_changes = true};
  }
  std::shared_ptr<Snapshot> take(std::uint64_t step, const std::shared_ptr<const Snapshot>& base) {
    HostWeights weights = source();
    auto taken = snapshotter_.take(weights, request(step, base));
    EXPECT_TRUE(taken) << taken.error().message();
    return *taken;
  }
  // The weights as they are now, in an arena of their own.
  [[nodiscard]] std::shared_ptr<Snapshot> now_in_full() const {
    Snapshotter other({.threads = 2});
    HostWeights weights = source();
    return other.take(weights, request(99, nullptr)).value();
  }
  // The bytes of a snapshot that is held as its changes.
  [[nodiscard]] static Bytes composed(const Snapshot& base, const Snapshot& snapshot) {
    Bytes bytes(base.data().size());
    const auto copied = patch::copy_with_changes(*snapshot.changes(), base.data(), bytes,
                                                 snapshot.digests().leaves, 2, {});
    EXPECT_TRUE(copied) << copied.error().message();
    return bytes;
  }
  // What a process gets that maps the arena.
  static void expect_maps(const Snapshot& snapshot, const Snapshot& content) {
    const auto fd = snapshot.share();
    ASSERT_TRUE(fd) << fd.error().message();
    const Version version = snapshot.version();
    const auto view = ArenaView::open(
        fd->get(), {.version = {{version.epoch, version.step}}, .content = content.digests().root});
    ASSERT_TRUE(view) << view.error().message();
    EXPECT_TRUE(view->is_protected());
    EXPECT_TRUE(same_bytes(view->data(), content.data()));
    const auto sums = digests_of_leaves(*snapshot.manifest(), view->leaf_sums());
    ASSERT_TRUE(sums);
    EXPECT_EQ(*sums, content.digests());
  }

  const std::shared_ptr<const Manifest> manifest_ = std::make_shared<const Manifest>(
      Manifest::create({{"embed.weight", DType::kBF16, {3000, 1777}},
                        {"layers.0.w", DType::kF32, {100, 30}},
                        {"layers.1.w", DType::kU8, {9 * limits::kMiB + 5}},
                        {"layers.2.none", DType::kU8, {0}}})
          .value());
  std::vector<std::vector<std::byte>> tensors_;
  Snapshotter snapshotter_{{.arenas = 2, .threads = 3}};
};

TEST_P(SnapshotChanges, HoldOnlyWhatChangesAndNoArena) {
  const auto base = take(1, nullptr);
  ASSERT_TRUE(base->is_complete());
  EXPECT_FALSE(base->changes());
  const std::uint64_t one_arena = snapshotter_.arena_bytes();
  change(500);
  const auto next = take(2, base);
  ASSERT_FALSE(next->is_complete());
  EXPECT_EQ(snapshotter_.arena_bytes(), one_arena);
  EXPECT_EQ(next->version(), (Version{.epoch = 1, .step = 2}));
  EXPECT_EQ(next->changes()->base, base->version());
  EXPECT_LT(next->changes()->bytes(), base->data().size() / 20);
  EXPECT_TRUE(next->data().empty());
  EXPECT_EQ(next->patch(), nullptr);
  const auto full = now_in_full();
  EXPECT_EQ(next->digests(), full->digests());
  EXPECT_EQ(next->identity().content, full->digests().root);
  EXPECT_TRUE(same_bytes(composed(*base, *next), full->data()));
  EXPECT_EQ(next->bucket_times().size(), base->plan()->bucket_count());
  const auto shared = next->share();
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.error().message(), "only what changes from 1.1 is held of version 1.2");
}

TEST_P(SnapshotChanges, NothingHasChanged) {
  const auto base = take(1, nullptr);
  const auto next = take(2, base);
  ASSERT_FALSE(next->is_complete());
  EXPECT_EQ(next->digests(), base->digests());
  EXPECT_TRUE(same_bytes(composed(*base, *next), base->data()));
}

TEST_P(SnapshotChanges, ARenamedOneLeadsFromTheSameBase) {
  const auto base = take(1, nullptr);
  change(500);
  const auto next = take(2, base);
  snapshotter_.rename(*next, 8, {5, 6}, {.epoch = 4, .step = 7});
  EXPECT_EQ(next->version(), (Version{.epoch = 4, .step = 7}));
  EXPECT_EQ(next->identity().fence_epoch, 8U);
  EXPECT_EQ(next->changes()->base, base->version());
}

// Whatever the reason, the weights are copied to an arena.
TEST_P(SnapshotChanges, AreNotHeldWhereTheyAreNotWorthItOrCannotBeFound) {
  auto base = take(1, nullptr);
  change(1);
  EXPECT_TRUE(take(2, base)->is_complete()) << "everything has changed";
  change(1);
  change(16);  // too much, which is not clear from a few blocks
  const auto copied = take(3, base);
  ASSERT_TRUE(copied->is_complete());
  EXPECT_TRUE(same_bytes(copied->data(), now_in_full()->data()));
}

TEST_P(SnapshotChanges, AreNotHeldWithoutACompleteBaseOfTheSameLayout) {
  const auto base = take(1, nullptr);
  change(500);
  EXPECT_FALSE(take(2, base)->is_complete());
  const auto alone = take(2, base);
  EXPECT_TRUE(take(3, alone)->is_complete()) << "the base has no bytes";
  HostWeights weights = source();
  SnapshotRequest wanted = request(4, base);
  wanted.bucket_bytes = 2 * limits::kBucketBytesMin;
  Snapshotter other({.threads = 2});
  EXPECT_TRUE(other.take(weights, wanted).value()->is_complete()) << "it is cut differently";
  weights.is_here = false;
  EXPECT_TRUE(snapshotter_.take(weights, request(5, base)).value()->is_complete())
      << "the weights are not in host memory";
}

TEST_P(SnapshotChanges, OfWeightsThatAreWrittenMeanwhileAreNotHeld) {
  const auto base = take(1, nullptr);
  change(500);
  HostWeights weights(manifest_, tensors_, Given::kCopies);
  weights.is_written = true;
  const auto taken = snapshotter_.take(weights, request(2, base)).value();
  ASSERT_TRUE(taken->is_complete());
  EXPECT_EQ(taken->digests(), now_in_full()->digests()) << "read again, and not written";
}

// Not instrumented, because the race is what is tested.
__attribute__((no_sanitize("thread"))) void write_until(const std::stop_token& stop,
                                                        std::span<std::byte> bytes) {
  volatile std::byte* const at = bytes.data();
  for (std::size_t i = 0; !stop.stop_requested(); i = (i + 4099) % bytes.size())
    at[i] = static_cast<std::byte>(i);
}

// A trainer must not do that. What it publishes then is still what it says, and nothing is lost.
TEST_P(SnapshotChanges, OfWeightsThatAreWrittenByTheTrainerAreWhatTheySay) {
  const auto base = take(1, nullptr);
  std::vector<std::byte>& tensor = tensors_[2];
  const std::span<std::byte> dense = std::span(tensor).first(patch::kBlockBytes);
  for (std::byte& byte : dense) byte ^= std::byte{0x55};
  for (std::uint64_t step = 2; step < 12; ++step) {
    std::jthread writer(write_until, dense);
    const auto taken = take(step, base);
    writer = {};
    if (taken->is_complete()) continue;
    (void)composed(*base, *taken);  // compares what it says
  }
}

TEST_P(SnapshotChanges, TheErrorsAreThoseOfACopy) {
  const auto base = take(1, nullptr);
  std::stop_source stop;
  stop.request_stop();
  SnapshotRequest wanted = request(2, base);
  wanted.stop = stop.get_token();
  HostWeights weights = source();
  EXPECT_EQ(snapshotter_.take(weights, wanted).error().code(), ErrorCode::kCancelled);
  wanted = request(2, base);
  wanted.copy_deadline = now();
  EXPECT_EQ(snapshotter_.take(weights, wanted).error().code(), ErrorCode::kDeadline);
  if (GetParam() == Given::kViews) return;
  weights.fails_at = 1;
  const auto failed = snapshotter_.take(weights, request(2, base));
  EXPECT_EQ(failed.error().message(), "snapshot of version 1.2: the source cannot be read");
}

// A source that is read to see that too much has changed is read twice, but not every time.
TEST_P(SnapshotChanges, AreLookedForLessOftenWhereTooMuchChanges) {
  auto base = take(1, nullptr);
  std::string compared;
  for (std::uint64_t step = 2; step < 14; ++step) {
    change(16);
    HostWeights weights(manifest_, tensors_, Given::kCopies);
    base = snapshotter_.take(weights, request(step, base)).value();
    EXPECT_TRUE(base->is_complete());
    compared += weights.reads > base->leaves()->all().size() ? 'c' : '-';
  }
  EXPECT_EQ(compared, "cc-c--c----c");
  // Now little changes, which is seen after the next eight.
  for (std::uint64_t step = 14; step < 22; ++step) {
    HostWeights weights(manifest_, tensors_, Given::kCopies);
    base = snapshotter_.take(weights, request(step, base)).value();
    EXPECT_TRUE(base->is_complete()) << step;
  }
  const auto next = take(22, base);
  EXPECT_FALSE(next->is_complete());
  EXPECT_FALSE(take(23, base)->is_complete());
}

// ---- exchange ----

TEST_P(SnapshotChanges, BothVersionsChangePlacesAsOftenAsOneLikes) {
  auto base = take(1, nullptr);
  const auto first_content = now_in_full();
  const std::uint64_t one_arena = snapshotter_.arena_bytes();
  change(500);
  const auto second_content = now_in_full();
  std::shared_ptr<const Snapshot> newer = take(2, base);
  base.reset();
  for (int turn = 0; turn < 4; ++turn) {
    const bool is_second = turn % 2 == 0;
    auto exchanged = snapshotter_.exchange(std::move(newer), now());
    ASSERT_TRUE(exchanged) << exchanged.error().message();
    EXPECT_FALSE(exchanged->failure);
    EXPECT_GT(exchanged->bytes, 0U);
    ASSERT_TRUE(exchanged->newer->is_complete());
    EXPECT_EQ(exchanged->newer->version().step, is_second ? 2U : 1U);
    const Snapshot& content = is_second ? *second_content : *first_content;
    expect_maps(*exchanged->newer, content);
    EXPECT_EQ(exchanged->newer->identity().fence_epoch, 3U);
    EXPECT_EQ(snapshotter_.find(exchanged->newer->version()), exchanged->newer);
    ASSERT_FALSE(exchanged->older->is_complete());
    EXPECT_EQ(snapshotter_.find(exchanged->older->version()), nullptr);
    EXPECT_EQ(exchanged->older->changes()->base, exchanged->newer->version());
    EXPECT_TRUE(same_bytes(composed(*exchanged->newer, *exchanged->older),
                           (is_second ? *first_content : *second_content).data()));
    newer = exchanged->older;
  }
  EXPECT_EQ(snapshotter_.arena_bytes(), one_arena);
}

TEST_P(SnapshotChanges, TheNextOneIsComparedWithWhatIsInTheArenaThen) {
  auto base = take(1, nullptr);
  change(500);
  std::shared_ptr<const Snapshot> newer = take(2, base);
  base.reset();
  const auto exchanged = snapshotter_.exchange(std::move(newer), now()).value();
  change(700);
  const auto third = take(3, exchanged.newer);
  ASSERT_FALSE(third->is_complete());
  EXPECT_TRUE(same_bytes(composed(*exchanged.newer, *third), now_in_full()->data()));
}

TEST_P(SnapshotChanges, WhatAReaderHasIsNotChanged) {
  auto base = take(1, nullptr);
  const auto content = now_in_full();
  const auto fd = base->share();
  auto view = ArenaView::open(fd->get());
  ASSERT_TRUE(view);
  change(500);
  std::shared_ptr<const Snapshot> newer = take(2, base);
  base.reset();
  const auto exchanged = snapshotter_.exchange(std::move(newer), now());
  ASSERT_TRUE(exchanged) << exchanged.error().message();
  ASSERT_TRUE(exchanged->failure);
  EXPECT_EQ(exchanged->failure->code(), ErrorCode::kBusy);
  EXPECT_TRUE(same_bytes(view->data(), content->data()));
  ASSERT_TRUE(exchanged->older->is_complete());
  EXPECT_TRUE(same_bytes(exchanged->older->data(), content->data()));
  ASSERT_FALSE(exchanged->newer->is_complete());
  const auto beside = snapshotter_.complete_beside(*exchanged->newer);
  ASSERT_TRUE(beside) << beside.error().message();
  expect_maps(**beside, *now_in_full());
  EXPECT_TRUE(same_bytes(view->data(), content->data()));
}

TEST_P(SnapshotChanges, WithAReaderAndNoMemoryBothStayAsTheyAre) {
  Snapshotter one({.arenas = 1, .threads = 2});
  HostWeights weights = source();
  std::shared_ptr<const Snapshot> base = one.take(weights, request(1, nullptr)).value();
  const auto fd = base->share();
  std::optional<ArenaView> view = ArenaView::open(fd->get()).value();
  change(500);
  std::shared_ptr<const Snapshot> newer = one.take(weights, request(2, base)).value();
  auto still = base;  // as a source that sends a bucket
  base.reset();
  auto exchanged = one.exchange(std::move(newer), now()).value();
  ASSERT_TRUE(exchanged.failure);
  EXPECT_EQ(exchanged.failure->code(), ErrorCode::kBusy);
  const auto beside = one.complete_beside(*exchanged.newer);
  ASSERT_FALSE(beside);
  EXPECT_THAT(beside.error().message(), HasSubstr("all 1 arenas are still being read"));
  EXPECT_EQ(exchanged.older, still);
  EXPECT_FALSE(exchanged.newer->is_complete());
  EXPECT_TRUE(same_bytes(composed(*exchanged.older, *exchanged.newer), now_in_full()->data()));
  // Without the pointer as well, the arena is still known as that of the older version.
  still.reset();
  exchanged.older.reset();
  exchanged = one.exchange(std::move(exchanged.newer), now()).value();
  ASSERT_TRUE(exchanged.failure);
  EXPECT_EQ(one.find({.epoch = 1, .step = 1}), exchanged.older);
  EXPECT_TRUE(same_bytes(composed(*exchanged.older, *exchanged.newer), now_in_full()->data()));
  view.reset();
  exchanged.older.reset();
  exchanged = one.exchange(std::move(exchanged.newer), now()).value();
  EXPECT_FALSE(exchanged.failure);
  expect_maps(*exchanged.newer, *now_in_full());
}

TEST_P(SnapshotChanges, DamagedOnesAreFoundAndTheArenaIsFree) {
  auto base = take(1, nullptr);
  change(500);
  auto next = take(2, base);
  patch::VersionChanges damaged = *next->changes();
  auto bytes = std::make_shared<Bytes>(*damaged.buckets[1]);
  bytes->back() ^= std::byte{1};
  damaged.buckets[1] = bytes;
  std::shared_ptr<const Snapshot> newer = std::make_shared<Snapshot>(
      Snapshot::Described{.identity = next->identity(),
                          .manifest = next->manifest(),
                          .layout = {next->plan(), next->leaves(), next->blocks()},
                          .digests = next->digests(),
                          .times = {},
                          .bucket_times = {}},
      damaged, base);
  next.reset();
  base.reset();
  const auto exchanged = snapshotter_.exchange(std::move(newer), now());
  ASSERT_FALSE(exchanged);
  EXPECT_EQ(exchanged.error().code(), ErrorCode::kDigestMismatch);
  EXPECT_EQ(snapshotter_.find({.epoch = 1, .step = 1}), nullptr);
  const auto again = take(3, nullptr);
  EXPECT_TRUE(same_bytes(again->data(), now_in_full()->data()));
}

INSTANTIATE_TEST_SUITE_P(All, SnapshotChanges, testing::Values(Given::kViews, Given::kCopies),
                         [](const auto& one) {
                           return one.param == Given::kViews ? "InMemory" : "Copied";
                         });

}  // namespace
}  // namespace wsync::publish
