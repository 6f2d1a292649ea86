// Versions 1.1, 1.2 and 1.3 of a model, and a store that holds some of them as what changes from
// another one.
#pragma once

#include <array>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "inference_side/staging/store.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/leaf_changes.h"
#include "tests/support/bytes.h"
#include "tests/support/owner_loop.h"
#include "tests/support/versions.h"

namespace wsync::staging {

using Weights = std::vector<std::byte>;

// Of each version, other elements are changed.
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
        version, in_place, [this] { fetched(); },
        [&](Store::Completed outcome) { completed = std::move(outcome); });
    if (!begun) return {.held = fail(begun.error())};
    EXPECT_FALSE(completed.has_value()) << "never inside the call";
    EXPECT_TRUE(loop_.run_until([&] { return completed.has_value(); }));
    return *completed;
  }
  // The trainer is asked for the arena of a version.
  virtual void fetched() { ADD_FAILURE() << "no arena is mapped"; }
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

}  // namespace wsync::staging
