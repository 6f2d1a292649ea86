// Blocks and the prefixes that are known: what is shared, what is taken first, what is forgotten.
#include "inference_side/reference_engine/generation/block_pool.h"

#include <gtest/gtest.h>
#include <optional>
#include <set>
#include <vector>

namespace wsync::engine::generation {
namespace {

using Tokens = std::vector<Token>;

TEST(BlockPool, EveryBlockIsGivenOnceAndThenNone) {
  BlockPool pool(3);
  std::set<std::uint32_t> given;
  for (int i = 0; i < 3; ++i) given.insert(pool.allocate().value());
  EXPECT_EQ(given, (std::set<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(pool.allocate(), std::nullopt);
  EXPECT_EQ(pool.used(), 3U);
  pool.release(1);
  EXPECT_EQ(pool.available(), 1U);
  EXPECT_EQ(pool.cached(), 0U) << "nothing is known of it";
  EXPECT_EQ(pool.allocate(), 1U);
}

TEST(BlockPool, APrefixIsFoundAfterItsOwnBeginningOnly) {
  BlockPool pool(4);
  const std::uint32_t a = pool.allocate().value();
  const std::uint32_t b = pool.allocate().value();
  const Prefix first = pool.publish(a, Prefix::kEmpty, Tokens{1, 2});
  const Prefix second = pool.publish(b, first, Tokens{3, 4});
  EXPECT_NE(first, second);

  EXPECT_FALSE(pool.find(Prefix::kEmpty, Tokens{3, 4})) << "the same tokens after nothing";
  EXPECT_FALSE(pool.find(first, Tokens{3, 5}));
  EXPECT_FALSE(pool.find(second, Tokens{3, 4}));
  const auto found = pool.find(first, Tokens{3, 4});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->block, b);
  EXPECT_EQ(found->prefix, second);

  // It has two users now.
  pool.release(b);
  EXPECT_EQ(pool.used(), 2U);
  pool.release(b);
  EXPECT_EQ(pool.used(), 1U);
  EXPECT_EQ(pool.cached(), 1U);
  ASSERT_TRUE(pool.find(first, Tokens{3, 4}));
  EXPECT_EQ(pool.cached(), 0U);
}

TEST(BlockPool, WhatTwoHaveComputedIsKnownOnce) {
  BlockPool pool(2);
  const std::uint32_t a = pool.allocate().value();
  const std::uint32_t b = pool.allocate().value();
  const Prefix first = pool.publish(a, Prefix::kEmpty, Tokens{1});
  EXPECT_EQ(pool.publish(b, Prefix::kEmpty, Tokens{1}), first);
  pool.release(b);
  EXPECT_EQ(pool.cached(), 0U) << "the second is nobody's prefix";
  pool.release(a);
  EXPECT_EQ(pool.cached(), 1U);
  EXPECT_EQ(pool.find(Prefix::kEmpty, Tokens{1})->block, a);
}

TEST(BlockPool, FreeBlocksAreTakenFirstThenTheLongestUnused) {
  BlockPool pool(4);
  std::vector<std::uint32_t> blocks;
  for (Token t = 0; t < 3; ++t) {
    blocks.push_back(pool.allocate().value());
    static_cast<void>(pool.publish(blocks.back(), Prefix::kEmpty, Tokens{t}));
  }
  for (const std::uint32_t block : blocks) pool.release(block);
  // A use makes the first the last one again.
  pool.release(pool.find(Prefix::kEmpty, Tokens{0})->block);

  EXPECT_EQ(pool.available(), 4U);
  EXPECT_EQ(pool.allocate(), 3U) << "the free one";
  EXPECT_EQ(pool.allocate(), blocks[1]);
  EXPECT_FALSE(pool.find(Prefix::kEmpty, Tokens{1}));
  EXPECT_EQ(pool.allocate(), blocks[2]);
  EXPECT_EQ(pool.allocate(), blocks[0]);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  EXPECT_FALSE(pool.find(Prefix::kEmpty, Tokens{0}));
}

TEST(BlockPool, UsedBlocksAreNotTakenHoweverOldTheyAre) {
  BlockPool pool(2);
  const std::uint32_t a = pool.allocate().value();
  static_cast<void>(pool.publish(a, Prefix::kEmpty, Tokens{1}));
  const std::uint32_t b = pool.allocate().value();
  EXPECT_EQ(pool.allocate(), std::nullopt);
  pool.release(b);
  EXPECT_EQ(pool.allocate(), b);
  EXPECT_TRUE(pool.find(Prefix::kEmpty, Tokens{1}));
}

TEST(BlockPool, ForgottenPrefixesAreFoundNeverAgain) {
  BlockPool pool(3);
  const std::uint32_t used = pool.allocate().value();
  const std::uint32_t cached = pool.allocate().value();
  const Prefix first = pool.publish(used, Prefix::kEmpty, Tokens{1});
  static_cast<void>(pool.publish(cached, first, Tokens{2}));
  pool.release(cached);
  pool.forget_prefixes();
  EXPECT_EQ(pool.cached(), 0U);
  EXPECT_EQ(pool.used(), 1U);
  EXPECT_FALSE(pool.find(Prefix::kEmpty, Tokens{1}));
  EXPECT_FALSE(pool.find(first, Tokens{2}));

  const std::uint32_t again = pool.allocate().value();
  EXPECT_NE(pool.publish(again, Prefix::kEmpty, Tokens{1}), first)
      << "what followed the old one does not follow the new one";
  pool.release(used);
  EXPECT_EQ(pool.cached(), 0U) << "the block of a forgotten prefix is free";
  EXPECT_EQ(pool.available(), 2U);
}

}  // namespace
}  // namespace wsync::engine::generation
