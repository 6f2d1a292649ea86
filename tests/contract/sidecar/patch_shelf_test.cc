// Who waits for a patch is told that it is there, or that it never comes.
#include "inference_side/sidecar/patch_shelf.h"

#include <gtest/gtest.h>
#include <memory>

#include "tests/contract/sidecar/sidecar_fixture.h"
#include "tests/support/versions.h"

namespace wsync::agent::test {
namespace {

class PatchShelfTest : public ::testing::Test {
 protected:
  [[nodiscard]] PatchShelf::Held hold(Version version) {
    auto arena =
        SharedArena::create({.name = "trainer", .data_bytes = model_.plan->arena_bytes()}).value();
    EXPECT_TRUE(model_.write(arena, version));
    return staging::HeldVersion::make(
        {.identity = model_.identity(version),
         .manifest = model_.manifest,
         .plan = model_.plan,
         .leaves = model_.leaves},
        model_.digests(version), ArenaView::open(arena.share()->get()).value(), false, nullptr);
  }
  // A version with the bytes of kV1, so that a patch to it is small.
  [[nodiscard]] PatchShelf::Held hold_same(Version version) {
    ArenaIdentity identity = model_.identity(kV1);
    identity.version_epoch = version.epoch;
    identity.version_step = version.step;
    auto arena = model_.arena(kV1);
    return staging::HeldVersion::make(
        {.identity = identity,
         .manifest = model_.manifest,
         .plan = model_.plan,
         .leaves = model_.leaves},
        model_.digests(kV1), ArenaView::open(arena.share()->get()).value(), false, nullptr);
  }
  // Returns a callback that counts.
  [[nodiscard]] std::function<void()> count() {
    return [this] { ++told_; };
  }

  Bench bench_;
  Model model_;
  PatchShelf shelf_{bench_.loop(), {}};
  int told_ = 0;
};

TEST_F(PatchShelfTest, WhoWaitsIsToldWhenNobodyServesTheBaseAnyLonger) {
  const auto one = hold(kV1);
  const auto two = hold(kV2);
  ASSERT_TRUE(shelf_.make(one, two, count()));
  ASSERT_TRUE(shelf_.make(one, two, count()));  // the same patch
  // Before the loop runs, so it is still being made.
  shelf_.keep_only({kV2});
  EXPECT_EQ(told_, 0) << "inside the call";
  EXPECT_TRUE(bench_.until([&] { return told_ == 2; })) << "it waits for a patch that never comes";
  EXPECT_EQ(shelf_.find(kV1, kV2), nullptr);
}

TEST_F(PatchShelfTest, WhoWaitsIsToldWhenTheBaseIsForgottenAndNotWhenTheTargetIs) {
  const auto one = hold(kV1);
  const auto two = hold(kV2);
  const auto three = hold(kV3);
  bool is_told = false;
  ASSERT_TRUE(shelf_.make(one, two, count()));
  ASSERT_TRUE(shelf_.make(two, three, [&] { is_told = true; }));
  shelf_.forget(kV2);  // the target of the one, and the base of the other
  EXPECT_TRUE(bench_.until([&] { return is_told; })) << "it waits for a patch that never comes";
  EXPECT_EQ(told_, 0);
}

TEST_F(PatchShelfTest, WhatLeadsBackIsMadeOfWhatLeadsThere) {
  const auto one = hold(kV1);
  const auto two = hold_same(kV2);
  ASSERT_TRUE(shelf_.make(one, two, count()));
  ASSERT_TRUE(bench_.until([&] { return told_ == 1; }));
  const auto there = shelf_.find(kV1, kV2);
  ASSERT_NE(there, nullptr);
  shelf_.make_back(there, one);
  shelf_.make_back(there, one);  // it is being made
  shelf_.keep_only({kV2});
  EXPECT_EQ(shelf_.find(kV1, kV2), nullptr);
  ASSERT_TRUE(bench_.until([&] { return shelf_.find(kV2, kV1) != nullptr; }));
  EXPECT_EQ(shelf_.all().size(), 1U);
  EXPECT_EQ(shelf_.bytes(), there->bytes());
  shelf_.forget(kV1);
  EXPECT_EQ(shelf_.find(kV2, kV1), nullptr);
}

TEST_F(PatchShelfTest, WhatLeadsBackIsDroppedForAPatchThatNeedsItsRoom) {
  std::uint64_t room = ~std::uint64_t{0};
  PatchShelf shelf(bench_.loop(), {.room = [&] { return room; }});
  const auto one = hold(kV1);
  const auto two = hold_same(kV2);
  ASSERT_TRUE(shelf.make(one, two, count()));
  ASSERT_TRUE(bench_.until([&] { return told_ == 1; }));
  shelf.make_back(shelf.find(kV1, kV2), one);
  shelf.keep_only({kV2});
  ASSERT_TRUE(bench_.until([&] { return shelf.find(kV2, kV1) != nullptr; }));
  room = 0;
  ASSERT_TRUE(shelf.make(two, hold_same(kV3), count()));
  EXPECT_EQ(shelf.find(kV2, kV1), nullptr);
  // And it is not made where it does not fit.
  ASSERT_TRUE(bench_.until([&] { return told_ == 2; }));
  room = ~std::uint64_t{0};
  ASSERT_TRUE(shelf.make(one, two, count()));
  ASSERT_TRUE(bench_.until([&] { return told_ == 3; }));
  room = 0;
  shelf.make_back(shelf.find(kV1, kV2), one);
  EXPECT_EQ(shelf.all().size(), 1U);
}

TEST_F(PatchShelfTest, WhatLeadsBackIsCountedByItselfAndDroppedForAVersion) {
  std::uint64_t all = 0;
  std::uint64_t back = 0;
  PatchShelf shelf(bench_.loop(), {.on_bytes = [&](std::uint64_t bytes, std::uint64_t bytes_back) {
                     all = bytes;
                     back = bytes_back;
                   }});
  const auto one = hold(kV1);
  ASSERT_TRUE(shelf.make(one, hold_same(kV2), count()));
  ASSERT_TRUE(bench_.until([&] { return told_ == 1; }));
  const auto there = shelf.find(kV1, kV2);
  EXPECT_EQ(all, there->bytes());
  EXPECT_EQ(back, 0U);
  shelf.make_back(there, one);
  ASSERT_TRUE(bench_.until([&] { return back != 0; }));
  EXPECT_EQ(all, there->bytes() + back);
  shelf.drop_back();
  EXPECT_EQ(all, there->bytes());
  EXPECT_EQ(back, 0U);
  EXPECT_EQ(shelf.find(kV2, kV1), nullptr);
  EXPECT_NE(shelf.find(kV1, kV2), nullptr);
}

TEST_F(PatchShelfTest, APatchOfABaseThatIsServedIsMade) {
  ASSERT_TRUE(shelf_.make(hold(kV1), hold(kV2), count()));
  shelf_.keep_only({kV1});
  EXPECT_TRUE(bench_.until([&] { return told_ == 1; }));
}

}  // namespace
}  // namespace wsync::agent::test
