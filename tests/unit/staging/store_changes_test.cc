// Versions of which only what changes from another one is held: staged, made complete in the memory
// of that one or beside it, and led back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/staging/store_changes_fixture.h"

namespace wsync::staging {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

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
  EXPECT_EQ(store_->complete(
                      kV2, true, [] {}, [](const Store::Completed&) {})
                .error()
                .code(),
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace wsync::staging
