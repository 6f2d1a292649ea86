#include "shared/weights/patch/leaf_changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/weights/bucket_plan.h"
#include "tests/unit/weights/patch/patch_models.h"

namespace wsync::patch::test {
namespace {

using ::testing::HasSubstr;

// A model in arenas: the same layout for base and target.
class LeafChanges : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kBucketBytes = limits::kMiB;

  [[nodiscard]] Bytes arena_of(const Content& content) const {
    Bytes arena(plan_.arena_bytes(), std::byte{0xEE});  // what lies between tensors
    for (const Piece& piece : plan_.pieces())
      std::memcpy(arena.data() + plan_.arena_offset(piece),
                  content[piece.tensor].data() + piece.tensor_offset, piece.bytes);
    return arena;
  }
  // Makes and applies the changes of every bucket. Returns their size.
  std::uint64_t transfer(const Bytes& base, const Bytes& target, Bytes& into) {
    std::uint64_t bytes = 0;
    for (std::size_t b = 0; b < plan_.bucket_count(); ++b) {
      const auto made = maker_.make(layout_, leaves_.bucket(b), base, target, ~std::uint64_t{0});
      EXPECT_TRUE(made.has_value());
      if (!made) return 0;
      bytes += made->size();
      const auto blocks = read_leaf_changes(layout_, leaves_.bucket(b), *made);
      EXPECT_TRUE(blocks) << blocks.error().message();
      if (!blocks) return 0;
      const auto sums = apply_leaf_changes(layout_, leaves_.bucket(b), *blocks, base, into);
      EXPECT_TRUE(sums) << sums.error().message();
      if (!sums) return 0;
      for (std::size_t i = 0; i < sums->size(); ++i) {
        const LeafPlace& leaf = leaves_.bucket(b)[i];
        EXPECT_EQ((*sums)[i],
                  word_sum(std::span(target).subspan(leaf.arena_offset, leaf.bytes), leaf.place));
      }
    }
    return bytes;
  }
  [[nodiscard]] std::vector<WordSum> sums_of(std::span<const LeafPlace> leaves,
                                             const Bytes& arena) const {
    std::vector<WordSum> sums;
    for (const LeafPlace& leaf : leaves)
      sums.push_back(word_sum(std::span(arena).subspan(leaf.arena_offset, leaf.bytes), leaf.place));
    return sums;
  }
  [[nodiscard]] Bytes changes_of(std::span<const LeafPlace> leaves, const Bytes& base,
                                 const Bytes& target) {
    return maker_.make(layout_, leaves, base, target, ~std::uint64_t{0}).value();
  }
  [[nodiscard]] Result<Bytes> merged(std::span<const LeafPlace> leaves, const Bytes& first,
                                     const Bytes& second, const Bytes& middle) const {
    return merge_leaf_changes(layout_, leaves, read_leaf_changes(layout_, leaves, first).value(),
                              read_leaf_changes(layout_, leaves, second).value(), middle);
  }
  // The changes lead from one arena to the other, in place and by their sums.
  void expect_leads(std::span<const LeafPlace> leaves, const Bytes& changes, const Bytes& from,
                    const Bytes& to) const {
    const auto blocks = read_leaf_changes(layout_, leaves, changes);
    ASSERT_TRUE(blocks.has_value()) << blocks.error().message();
    Bytes data = from;
    const auto back = exchange_leaf_changes(layout_, leaves, *blocks, data);
    ASSERT_TRUE(back.has_value()) << back.error().message();
    for (const LeafPlace& leaf : leaves)
      EXPECT_TRUE(same_bytes(std::span(data).subspan(leaf.arena_offset, leaf.bytes),
                             std::span(to).subspan(leaf.arena_offset, leaf.bytes)));
    const auto sums = sum_leaf_changes(layout_, leaves, *blocks, from, sums_of(leaves, from));
    ASSERT_TRUE(sums.has_value()) << sums.error().message();
    EXPECT_EQ(*sums, sums_of(leaves, to));
  }

  Manifest manifest_ = every_dtype();
  Layout layout_{manifest_};
  BucketPlan plan_ = BucketPlan::create(manifest_, kBucketBytes).value();
  LeafTable leaves_{manifest_, plan_};
  std::mt19937_64 random_{5};
  Content base_ = random_content(manifest_, random_);
  LeafChangesMaker maker_;
};

TEST_F(LeafChanges, GiveTheTargetOfEveryTypeAndDensity) {
  const Bytes base = arena_of(base_);
  for (const double share : {0.0, 0.0001, 0.01, 0.3, 1.0}) {
    const Bytes target = arena_of(changed(layout_, base_, share, random_));
    Bytes into(base.size(), std::byte{0xEE});
    const std::uint64_t bytes = transfer(base, target, into);
    EXPECT_EQ(into, target) << "share " << share;
    if (share == 0.0) {
      EXPECT_EQ(bytes, 8 * plan_.bucket_count());
    }
  }
}

// The sums of blocks and of leaves are of the same words at the same positions.
TEST_F(LeafChanges, LeadFromTheSumsOfTheBaseToThoseOfTheTarget) {
  const Bytes base = arena_of(base_);
  for (const double share : {0.0, 0.0001, 0.01, 0.1, 0.3, 0.6, 1.0}) {
    const Bytes target = arena_of(changed(layout_, base_, share, random_));
    for (std::size_t b = 0; b < plan_.bucket_count(); ++b) {
      const auto leaves = leaves_.bucket(b);
      const Bytes made = changes_of(leaves, base, target);
      const auto blocks = read_leaf_changes(layout_, leaves, made).value();
      const auto sums = sum_leaf_changes(layout_, leaves, blocks, base, sums_of(leaves, base));
      ASSERT_TRUE(sums.has_value()) << sums.error().message();
      EXPECT_EQ(*sums, sums_of(leaves, target)) << "share " << share << ", bucket " << b;
    }
  }
}

TEST_F(LeafChanges, AreExchangedForThoseThatLeadBack) {
  const Bytes base = arena_of(base_);
  for (const double share : {0.0, 0.0001, 0.01, 0.1, 0.3, 0.6, 1.0}) {
    const Bytes target = arena_of(changed(layout_, base_, share, random_));
    Bytes data = base;
    const auto exchange = [&](std::span<const LeafPlace> leaves, const Bytes& changes) {
      const auto blocks = read_leaf_changes(layout_, leaves, changes);
      EXPECT_TRUE(blocks.has_value()) << blocks.error().message();
      auto back = exchange_leaf_changes(layout_, leaves, *blocks, data);
      EXPECT_TRUE(back.has_value()) << back.error().message();
      return std::move(back).value();
    };
    std::vector<Bytes> there;
    std::vector<Bytes> back;
    for (std::size_t b = 0; b < plan_.bucket_count(); ++b) {
      there.push_back(changes_of(leaves_.bucket(b), base, target));
      back.push_back(exchange(leaves_.bucket(b), there[b]));
    }
    EXPECT_EQ(data, target) << "share " << share;
    for (std::size_t b = 0; b < plan_.bucket_count(); ++b) {
      EXPECT_EQ(back[b].size(), there[b].size());
      EXPECT_EQ(exchange(leaves_.bucket(b), back[b]), there[b])
          << "share " << share << ", bucket " << b;
    }
    EXPECT_EQ(data, base) << "share " << share;
  }
}

TEST_F(LeafChanges, AreNotMadeWhereTheyWouldBeTooLarge) {
  const Bytes base = arena_of(base_);
  const Bytes target = arena_of(changed(layout_, base_, 0.01, random_));
  for (std::size_t b = 0; b < plan_.bucket_count(); ++b) {
    const auto leaves = leaves_.bucket(b);
    const auto made = maker_.make(layout_, leaves, base, target, ~std::uint64_t{0});
    ASSERT_TRUE(made.has_value());
    EXPECT_TRUE(maker_.make(layout_, leaves, base, target, made->size()).has_value());
    EXPECT_FALSE(maker_.make(layout_, leaves, base, target, made->size() - 1).has_value());
    EXPECT_FALSE(maker_.make(layout_, leaves, base, target, 0).has_value());
    EXPECT_FALSE(maker_.make(layout_, leaves, base, base, 7).has_value());
  }
}

TEST_F(LeafChanges, AnotherBaseIsRefusedWithTheBlock) {
  Bytes base = arena_of(base_);
  const Bytes target = arena_of(changed(layout_, base_, 0.01, random_));
  const auto leaves = leaves_.bucket(0);
  const Bytes made = maker_.make(layout_, leaves, base, target, ~std::uint64_t{0}).value();
  const auto blocks = read_leaf_changes(layout_, leaves, made).value();
  const auto at = std::ranges::mismatch(base, target).in1 - base.begin();
  base[static_cast<std::size_t>(at)] ^= std::byte{0x10};
  Bytes into(base.size());
  const auto applied = apply_leaf_changes(layout_, leaves, blocks, base, into);
  ASSERT_FALSE(applied.has_value());
  EXPECT_EQ(applied.error().code(), ErrorCode::kDigestMismatch);
  EXPECT_THAT(applied.error().message(), HasSubstr("the base is another one"));
}

TEST_F(LeafChanges, WhatDoesNotFitIsRefusedBeforeAndWhileItIsExchanged) {
  const Bytes base = arena_of(base_);
  for (const double share : {0.01, 1.0}) {
    const Bytes target = arena_of(changed(layout_, base_, share, random_));
    const auto leaves = leaves_.bucket(0);
    const auto base_sums = sums_of(leaves, base);
    const Bytes made = changes_of(leaves, base, target);
    const auto good = read_leaf_changes(layout_, leaves, made).value();
    const auto refused = [&](const std::vector<BlockView>& blocks, const Bytes& arena,
                             const std::string& says) {
      const auto sums = sum_leaf_changes(layout_, leaves, blocks, arena, base_sums);
      ASSERT_FALSE(sums.has_value());
      EXPECT_EQ(sums.error().code(), ErrorCode::kDigestMismatch);
      EXPECT_THAT(sums.error().message(), HasSubstr(says));
      Bytes data = arena;
      const auto back = exchange_leaf_changes(layout_, leaves, blocks, data);
      ASSERT_FALSE(back.has_value());
      EXPECT_EQ(back.error().code(), ErrorCode::kDigestMismatch);
    };
    refused(good, target, "they have been patched already");
    Bytes damaged = base;
    const auto at = std::ranges::mismatch(base, target).in1 - base.begin();
    damaged[static_cast<std::size_t>(at)] ^= std::byte{0x10};
    refused(good, damaged, "the base is another one");
    auto wrong = good;
    wrong.back().after.sum += 1;
    refused(wrong, base, "with the values of the patch");
    wrong = good;
    wrong.back().after.product += 1;
    refused(wrong, base, layout_.describe(good.back().place));
    wrong = good;
    wrong.front().before.product += 1;
    refused(wrong, base, layout_.describe(good.front().place));
    Bytes values(good.back().values.begin(), good.back().values.end());
    values.back() ^= std::byte{0x20};
    wrong = good;
    wrong.back().values = values;
    refused(wrong, base, "with the values of the patch");
  }
}

// ---- merging ----

constexpr double kShares[] = {0.0, 0.0001, 0.01, 0.1, 0.3, 0.6, 1.0};

TEST_F(LeafChanges, MergeIntoThoseOfBothForEveryTypeAndDensity) {
  const Bytes a = arena_of(base_);
  for (const double one : kShares)
    for (const double two : kShares) {
      SCOPED_TRACE(std::to_string(one) + ", then " + std::to_string(two));
      const Content middle = changed(layout_, base_, one, random_);
      const Bytes b = arena_of(middle);
      const Bytes c = arena_of(changed(layout_, middle, two, random_));
      for (std::size_t i = 0; i < plan_.bucket_count(); ++i) {
        const auto leaves = leaves_.bucket(i);
        const Bytes first = changes_of(leaves, a, b);
        const Bytes second = changes_of(leaves, b, c);
        const auto both = merged(leaves, first, second, b);
        ASSERT_TRUE(both.has_value()) << both.error().message();
        EXPECT_LE(both->size(), first.size() + second.size());
        expect_leads(leaves, *both, a, c);
      }
    }
}

TEST_F(LeafChanges, AChainMergesFromEitherEnd) {
  for (const double share : {0.0003, 0.02, 0.2}) {
    std::vector<Content> contents{base_};
    std::vector<Bytes> arenas{arena_of(base_)};
    for (int i = 0; i < 5; ++i) {
      contents.push_back(changed(layout_, contents.back(), share, random_));
      arenas.push_back(arena_of(contents.back()));
    }
    for (std::size_t bucket = 0; bucket < plan_.bucket_count(); ++bucket) {
      const auto leaves = leaves_.bucket(bucket);
      Bytes forward = changes_of(leaves, arenas[0], arenas[1]);
      for (std::size_t i = 1; i + 1 < arenas.size(); ++i)
        forward = merged(leaves, forward, changes_of(leaves, arenas[i], arenas[i + 1]), arenas[i])
                      .value();
      Bytes backward = changes_of(leaves, arenas[4], arenas[5]);
      for (std::size_t i = 4; i > 0; --i)
        backward = merged(leaves, changes_of(leaves, arenas[i - 1], arenas[i]), backward, arenas[i])
                       .value();
      expect_leads(leaves, forward, arenas.front(), arenas.back());
      EXPECT_EQ(forward, backward) << "share " << share << ", bucket " << bucket;
    }
  }
}

TEST_F(LeafChanges, WhatGoesThereAndBackMergesIntoNothing) {
  const Bytes a = arena_of(base_);
  for (const double share : kShares) {
    const Bytes b = arena_of(changed(layout_, base_, share, random_));
    const auto leaves = leaves_.bucket(0);
    const auto both = merged(leaves, changes_of(leaves, a, b), changes_of(leaves, b, a), b);
    ASSERT_TRUE(both.has_value()) << both.error().message();
    EXPECT_EQ(*both, changes_of(leaves, a, a)) << "share " << share;
  }
}

TEST_F(LeafChanges, MergedInTheWrongOrderOrWithAnotherMiddleAreRefused) {
  for (const double share : {0.01, 0.3, 1.0}) {
    const Content middle = changed(layout_, base_, share, random_);
    const Bytes a = arena_of(base_);
    const Bytes b = arena_of(middle);
    const Bytes c = arena_of(changed(layout_, middle, share, random_));
    const auto leaves = leaves_.bucket(0);
    const Bytes first = changes_of(leaves, a, b);
    const Bytes second = changes_of(leaves, b, c);
    Bytes damaged = b;
    const auto at = std::ranges::mismatch(a, b).in1 - a.begin();
    damaged[static_cast<std::size_t>(at)] ^= std::byte{0x10};
    const auto refused = [&](const Result<Bytes>& both) {
      ASSERT_FALSE(both.has_value());
      EXPECT_EQ(both.error().code(), ErrorCode::kDigestMismatch);
      EXPECT_THAT(both.error().message(), HasSubstr("the bytes between two patches are not those"));
      EXPECT_THAT(both.error().message(), HasSubstr("tensor '"));
    };
    refused(merged(leaves, first, second, a));
    refused(merged(leaves, first, second, c));
    refused(merged(leaves, first, second, damaged));
    refused(merged(leaves, second, first, b));
    refused(merged(leaves, first, first, b));
  }
}

// What no block has is found by whoever compares the sums with those of the target.
TEST_F(LeafChanges, ABlockThatIsLeftOutGivesOtherSums) {
  const Bytes base = arena_of(base_);
  const Bytes target = arena_of(changed(layout_, base_, 0.01, random_));
  const auto leaves = leaves_.bucket(0);
  const Bytes made = changes_of(leaves, base, target);
  const auto good = read_leaf_changes(layout_, leaves, made).value();
  for (std::size_t left_out = 0; left_out < good.size(); ++left_out) {
    auto blocks = good;
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(left_out));
    const auto sums = sum_leaf_changes(layout_, leaves, blocks, base, sums_of(leaves, base));
    ASSERT_TRUE(sums.has_value());
    EXPECT_NE(bucket_digest(*sums), bucket_digest(sums_of(leaves, target)));
  }
}

TEST_F(LeafChanges, WhatIsNotAsThePageSaysIsRefused) {
  const Bytes base = arena_of(base_);
  const Bytes target = arena_of(changed(layout_, base_, 0.01, random_));
  const auto leaves = leaves_.bucket(0);
  const Bytes good = maker_.make(layout_, leaves, base, target, ~std::uint64_t{0}).value();
  const auto refused = [&](const Bytes& bytes, std::span<const LeafPlace> of) {
    const auto read = read_leaf_changes(layout_, of, bytes);
    EXPECT_FALSE(read.has_value());
    return read ? std::string() : read.error().message();
  };
  for (std::size_t size = 0; size < good.size(); size += size < 64 ? 1 : 997)
    (void)refused(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)), leaves);
  EXPECT_THAT(refused(Bytes(7), leaves), HasSubstr("they begin with 8 bytes, found 7"));
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_THAT(refused(longer, leaves), HasSubstr("0 bytes of their directory and 1 bytes"));
  Bytes directory = good;
  directory[7] = std::byte{0x7f};
  EXPECT_THAT(refused(directory, leaves), HasSubstr("their directory has"));
  Bytes more = good;
  more[0] = static_cast<std::byte>(static_cast<unsigned>(more[0]) + 1);
  EXPECT_THAT(refused(more, leaves), HasSubstr("the number of its tensor is not valid"));
  EXPECT_THAT(refused(good, leaves_.bucket(plan_.bucket_count() - 1)),
              HasSubstr("it does not lie in the bucket"));
  EXPECT_THAT(refused(good, {}), HasSubstr("it does not lie in the bucket"));
}

}  // namespace
}  // namespace wsync::patch::test
