// Versions of which only what changes from another one is held: staged, made complete in the memory
// of that one or beside it, and led back.
#include <array>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "inference_side/staging/store.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/leaf_changes.h"
#include "tests/support/bytes.h"
#include "tests/support/owner_loop.h"
#include "tests/support/versions.h"

namespace wsync::staging {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

using Weights = std::vector<std::byte>;

// Versions 1.1, 1.2 and 1.3 of a model. Of each, other elements are changed.
class StoreChangesTest : public ::testing::Test {
 protected:
  StoreChangesTest() {
    manifest_ = std::make_shared<const Manifest>(
        Manifest::create({{"embed.weight", DType::kBF16, {3000, 777}},
                          {"layers.0.w", DType::kF32, {100, 30}},
                          {"layers.1.w", DType::kU8, {limits::kMiB + 5}},
                          {"layers.2.none", DType::kU8, {0}}})
            .value());
    plan_ = std::make_shared<const BucketPlan>(
        BucketPlan::create(*manifest_, limits::kBucketBytesMin).value());
    leaves_ = std::make_shared<const LeafTable>(*manifest_, *plan_);
    blocks_ = std::make_shared<const patch::Layout>(*manifest_);
    weights_[0].resize(plan_->arena_bytes());
    std::mt19937_64 random(3);
    for (const Piece& piece : plan_->pieces())
      fill_random(random, std::span(weights_[0]).subspan(plan_->arena_offset(piece), piece.bytes));
    for (std::size_t i = 1; i < weights_.size(); ++i) {
      weights_[i] = weights_[i - 1];
      for (const Piece& piece : plan_->pieces()) {
        const auto bytes = std::span(weights_[i]).subspan(plan_->arena_offset(piece), piece.bytes);
        for (std::size_t at = i * 7; at < bytes.size(); at += 1000 * (i + 1))
          bytes[at] ^= std::byte{0x55};
      }
    }
  }
  [[nodiscard]] const Weights& weights(const Version& version) const {
    return weights_.at(version.step - 1);
  }
  [[nodiscard]] ContentDigests digests(const Version& version) const {
    ContentDigester digester(*manifest_);
    for (const Piece& piece : plan_->pieces())
      EXPECT_TRUE(digester.add(
          piece.tensor, piece.tensor_offset,
          std::span(weights(version)).subspan(plan_->arena_offset(piece), piece.bytes)));
    return digester.finish().value();
  }
  [[nodiscard]] StagingJob job(const Version& version) const {
    return {.identity = {.fence_epoch = 3,
                         .version_epoch = version.epoch,
                         .version_step = version.step,
                         .layout = manifest_->layout_digest(),
                         .content = digests(version).root,
                         .bucket_bytes = plan_->bucket_bytes()},
            .manifest = manifest_,
            .plan = plan_,
            .leaves = leaves_,
            .blocks = blocks_};
  }
  using Held = std::shared_ptr<const HeldVersion>;
  // Stages a version with all its bytes.
  Held stage(const Version& version) {
    std::optional<Result<Held>> staged;
    std::optional<Result<Destination>> memory;
    EXPECT_TRUE(store_->begin_own(
        job(version), [&](Result<Destination> got) { memory = std::move(got); },
        [&](Result<Held> held) { staged = std::move(held); }));
    EXPECT_TRUE(loop_.run_until([&] { return memory.has_value(); }));
    const std::span<std::byte> data = memory->value().data;
    std::memcpy(data.data(), weights(version).data(), data.size());
    memory.reset();
    for (std::size_t bucket = 0; bucket < plan_->bucket_count(); ++bucket)
      store_->bucket_arrived(bucket, sums_of(version, bucket));
    store_->all_arrived();
    EXPECT_TRUE(loop_.run_until([&] { return staged.has_value(); }));
    return staged->value();
  }
  [[nodiscard]] std::vector<WordSum> sums_of(const Version& version, std::size_t bucket) const {
    std::vector<WordSum> sums;
    for (const LeafPlace& leaf : leaves_->bucket(bucket))
      sums.push_back(
          word_sum(std::span(weights(version)).subspan(leaf.arena_offset, leaf.bytes), leaf.place));
    return sums;
  }
  // Stages a version as what changes from `base`.
  Result<Held> stage_changes(const Version& version, const Version& base) {
    std::optional<Result<Held>> staged;
    WSYNC_TRY(store_->begin_changes(job(version), base,
                                    [&](Result<Held> held) { staged = std::move(held); }));
    patch::LeafChangesMaker maker;
    for (std::size_t bucket = 0; bucket < plan_->bucket_count(); ++bucket) {
      auto changes = maker.make(*blocks_, leaves_->bucket(bucket), weights(base), weights(version),
                                weights(base).size());
      store_->changes_arrived(bucket, sums_of(version, bucket),
                              std::make_shared<const Bytes>(std::move(*changes)));
    }
    store_->all_arrived();
    EXPECT_TRUE(loop_.run_until([&] { return staged.has_value(); }));
    return *staged;
  }
  Store::Completed complete(const Version& version, bool in_place) {
    std::optional<Store::Completed> completed;
    const auto begun = store_->complete(
        version, in_place, [&](Store::Completed outcome) { completed = std::move(outcome); });
    if (!begun) return {.held = fail(begun.error())};
    EXPECT_FALSE(completed.has_value()) << "never inside the call";
    EXPECT_TRUE(loop_.run_until([&] { return completed.has_value(); }));
    return *completed;
  }
  void expect_bytes(const Version& version) {
    const auto held = store_->find(version);
    ASSERT_TRUE(held && held->is_complete()) << version.to_string();
    EXPECT_EQ(held->identity().version_step, version.step);
    for (const Piece& piece : plan_->pieces()) {
      const std::uint64_t at = plan_->arena_offset(piece);
      ASSERT_EQ(std::memcmp(held->data().data() + at, weights(version).data() + at, piece.bytes), 0)
          << version.to_string() << " differs at " << at;
    }
    // What an engine sees that maps it.
    const auto view = ArenaView::open(held->share()->get());
    ASSERT_TRUE(view) << view.error().message();
    EXPECT_EQ(view->identity().version_step, version.step);
    EXPECT_EQ(view->identity().content, digests(version).root);
  }

  std::shared_ptr<const Manifest> manifest_;
  std::shared_ptr<const BucketPlan> plan_;
  std::shared_ptr<const LeafTable> leaves_;
  std::shared_ptr<const patch::Layout> blocks_;
  std::array<Weights, 3> weights_;
  OwnerLoop loop_;
  std::unique_ptr<Store> store_ =
      std::make_unique<Store>(StoreOptions{.name = "test"}, loop_.post());
};

TEST_F(StoreChangesTest, AVersionOfChangesTakesTheMemoryOfItsBaseAndGivesItBack) {
  stage(kV1);
  const std::uint64_t one = store_->bytes();
  ASSERT_TRUE(stage_changes(kV2, kV1));
  EXPECT_LT(store_->bytes(), one + one / 20) << "no arena was made";
  const auto changes = store_->find(kV2);
  EXPECT_FALSE(changes->is_complete());
  EXPECT_TRUE(changes->data().empty());
  EXPECT_FALSE(changes->share());
  EXPECT_EQ(changes->digests().root, digests(kV2).root);
  expect_bytes(kV1);

  {
    const auto there = complete(kV2, true);
    ASSERT_TRUE(there.held) << there.held.error().message();
    EXPECT_TRUE(there.in_place);
  }
  expect_bytes(kV2);
  EXPECT_FALSE(store_->find(kV1)->is_complete());
  EXPECT_EQ(store_->changes_of(kV1)->base, kV2);
  EXPECT_EQ(store_->changes_of(kV2), nullptr);
  EXPECT_LT(store_->bytes(), one + one / 20);

  {
    const auto back = complete(kV1, true);
    ASSERT_TRUE(back.held) << back.held.error().message();
  }
  expect_bytes(kV1);
  ASSERT_TRUE(complete(kV2, true).held);
  expect_bytes(kV2);
}

TEST_F(StoreChangesTest, ChangesLeadOverSeveralVersions) {
  stage(kV1);
  ASSERT_TRUE(stage_changes(kV2, kV1));
  ASSERT_TRUE(complete(kV2, true).held);
  ASSERT_TRUE(stage_changes(kV3, kV2));
  ASSERT_TRUE(complete(kV3, true).held);
  // 1.1 leads from 1.2, of which only what leads from 1.3 is here.
  EXPECT_THAT(complete(kV1, true).held.error().message(), HasSubstr("nothing that leads from a"));
  ASSERT_TRUE(complete(kV2, true).held);
  ASSERT_TRUE(complete(kV1, true).held);
  expect_bytes(kV1);
}

TEST_F(StoreChangesTest, TheBaseStaysIfTheVersionGetsOtherMemory) {
  stage(kV1);
  const std::uint64_t one = store_->bytes();
  ASSERT_TRUE(stage_changes(kV2, kV1));
  const auto completed = complete(kV2, false);
  ASSERT_TRUE(completed.held) << completed.held.error().message();
  EXPECT_FALSE(completed.in_place);
  EXPECT_EQ(store_->bytes(), 2 * one);
  expect_bytes(kV1);
  expect_bytes(kV2);
}

TEST_F(StoreChangesTest, WhatSomebodyReadsIsNotChanged) {
  auto held = stage(kV1);
  ASSERT_TRUE(stage_changes(kV2, kV1));
  EXPECT_EQ(complete(kV2, true).held.error().code(), ErrorCode::kBusy) << "this process";
  auto memory = held->hold();
  held.reset();
  EXPECT_EQ(complete(kV2, true).held.error().code(), ErrorCode::kBusy) << "its memory alone";
  memory.reset();
  {
    const auto engine = ArenaView::open(store_->find(kV1)->share()->get());
    ASSERT_TRUE(engine);
    EXPECT_EQ(complete(kV2, true).held.error().code(), ErrorCode::kBusy) << "an engine";
    expect_bytes(kV1);
  }
  ASSERT_TRUE(complete(kV2, true).held);
  expect_bytes(kV2);
}

TEST_F(StoreChangesTest, ABaseWhoseWordsHaveChangedIsLost) {
  stage(kV1);
  ASSERT_TRUE(stage_changes(kV2, kV1));
  // A bit flips in a word that the changes touch.
  auto* data = const_cast<std::byte*>(store_->find(kV1)->data().data());
  const std::uint64_t at = plan_->arena_offset(plan_->pieces().front()) + 7;
  data[at] ^= std::byte{1};
  const auto completed = complete(kV2, true);
  ASSERT_FALSE(completed.held);
  EXPECT_TRUE(completed.base_lost);
  EXPECT_THAT(completed.held.error().message(), HasSubstr("make 1.2 complete"));
  EXPECT_THAT(completed.held.error().message(), HasSubstr("embed.weight"));
  // Both are released, and the memory holds the next version.
  store_->release(kV2);
  store_->release(kV1);
  const std::uint64_t before = store_->bytes();
  stage(kV3);
  EXPECT_EQ(store_->bytes(), before);
  expect_bytes(kV3);
}

TEST_F(StoreChangesTest, WithoutMemoryBesideTheBaseItStays) {
  store_ = std::make_unique<Store>(
      StoreOptions{.name = "test", .memory_bytes = plan_->arena_bytes() * 3 / 2}, loop_.post());
  stage(kV1);
  ASSERT_TRUE(stage_changes(kV2, kV1));
  const auto completed = complete(kV2, false);
  ASSERT_FALSE(completed.held);
  EXPECT_FALSE(completed.base_lost);
  EXPECT_EQ(completed.held.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(completed.held.error().message(),
              HasSubstr("1.1 is still used, and memory beside it"));
  expect_bytes(kV1);
  ASSERT_TRUE(complete(kV2, true).held) << "in place it fits";
  expect_bytes(kV2);
}

// What check_budget() admits is enough: what changes is given back when the version is complete.
TEST_F(StoreChangesTest, TwoVersionsFitWhereTwoAreAllowed) {
  store_ = std::make_unique<Store>(
      StoreOptions{.name = "test", .memory_bytes = plan_->arena_bytes() * 2}, loop_.post());
  ASSERT_TRUE(store_->check_budget(plan_->arena_bytes(), 2));
  stage(kV1);
  ASSERT_TRUE(stage_changes(kV2, kV1));
  const auto completed = complete(kV2, false);
  ASSERT_TRUE(completed.held) << completed.held.error().message();
  expect_bytes(kV1);
  expect_bytes(kV2);
}

TEST_F(StoreChangesTest, WhatArrivesAsChangesCountsAsHeld) {
  stage(kV1);
  const std::uint64_t one = store_->bytes();
  ASSERT_TRUE(store_->begin_changes(job(kV2), kV1, [](const Result<Held>&) {}));
  store_->changes_arrived(0, sums_of(kV2, 0), std::make_shared<const Bytes>(100));
  EXPECT_EQ(store_->bytes(), one + 100);
  store_->abort();
  EXPECT_EQ(store_->bytes(), one);
}

TEST_F(StoreChangesTest, OnlyAnOwnVersionOfTheSameLayoutIsABase) {
  EXPECT_EQ(store_->begin_changes(job(kV2), kV1, [](const Result<Held>&) {}).error().code(),
            ErrorCode::kRefused);
  stage(kV1);
  StagingJob without = job(kV2);
  without.blocks = nullptr;
  EXPECT_FALSE(store_->begin_changes(without, kV1, [](const Result<Held>&) {}));
  ASSERT_TRUE(stage_changes(kV2, kV1));
  EXPECT_FALSE(store_->begin_changes(job(kV3), kV2, [](const Result<Held>&) {}))
      << "of 1.2 only changes are here";
}

TEST_F(StoreChangesTest, AMissingBucketOrOtherSumsFailTheStaging) {
  stage(kV1);
  std::optional<Result<Held>> staged;
  ASSERT_TRUE(
      store_->begin_changes(job(kV2), kV1, [&](Result<Held> held) { staged = std::move(held); }));
  store_->changes_arrived(0, sums_of(kV2, 0), std::make_shared<const Bytes>());
  store_->all_arrived();
  ASSERT_TRUE(loop_.run_until([&] { return staged.has_value(); }));
  EXPECT_THAT(staged->error().message(), HasSubstr("bucket 1 of"));
  EXPECT_EQ(store_->find(kV2), nullptr);
  EXPECT_EQ(store_->changes_of(kV2), nullptr);

  staged.reset();
  ASSERT_TRUE(
      store_->begin_changes(job(kV2), kV1, [&](Result<Held> held) { staged = std::move(held); }));
  for (std::size_t bucket = 0; bucket < plan_->bucket_count(); ++bucket)
    store_->changes_arrived(bucket, sums_of(kV1, bucket), std::make_shared<const Bytes>());
  store_->all_arrived();
  ASSERT_TRUE(loop_.run_until([&] { return staged.has_value(); }));
  EXPECT_THAT(staged->error().message(), HasSubstr("expected"));
  expect_bytes(kV1);
}

TEST_F(StoreChangesTest, ReleasingForgetsWhatChanges) {
  stage(kV1);
  const std::uint64_t one = store_->bytes();
  ASSERT_TRUE(stage_changes(kV2, kV1));
  store_->release(kV2);
  EXPECT_EQ(store_->bytes(), one);
  EXPECT_EQ(store_->complete(kV2, true, [](const Store::Completed&) {}).error().code(),
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace wsync::staging
