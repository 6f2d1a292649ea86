// What the ranks of a replica have changed by a patch against the patch: every way to divide a
// tensor, and every wrong word found with its tensor and its rank, before the patch or after it.
#include "inference_side/reload/patch_sum_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/block_applier.h"
#include "tests/unit/weights/patch/patch_models.h"

namespace wsync::reload {
namespace {

using control::DimRange;
using control::EngineTensor;
using patch::test::Content;
using testing::HasSubstr;

class PatchSumCheck : public testing::Test {
 protected:
  struct Rank {
    std::vector<EngineTensor> tensors;
    LoadPlan plan;
    std::vector<Bytes> memory;  // of each tensor
    std::vector<SplitSum> before;
    std::vector<SplitSum> after;
  };

  void make(std::vector<TensorInfo> infos, double share = 0.02) {
    manifest_ = Manifest::create(std::move(infos)).value();
    plan_ = BucketPlan::create(manifest_, limits::kBucketBytesMin).value();
    layout_.emplace(manifest_);
    base_ = patch::test::random_content(manifest_, random_);
    target_ = patch::test::changed(*layout_, base_, share, random_);
    patch_ = patch::test::make_patch(*layout_, base_, target_);
    reader_.emplace(patch::PatchReader::open(*layout_, patch_).value());
    ranks_.clear();
  }
  // Takes `ranges` of the named tensors, and holds what it has of the base.
  Rank& add_rank(const std::vector<std::pair<std::string, std::vector<DimRange>>>& parts) {
    Rank rank;
    for (const auto& [name, ranges] : parts) {
      const std::uint32_t index = manifest_.find(name).value();
      const TensorInfo& info = manifest_.tensor(index);
      rank.tensors.push_back(
          {.name = name, .dtype = info.dtype, .shape = info.shape, .ranges = ranges});
      const patch::TensorPart part = part_of(rank.tensors.back());
      Bytes memory(part.bytes());
      for (auto run = part.run_from(0); run; run = part.run_from(run->end))
        std::copy_n(base_[index].begin() + static_cast<std::ptrdiff_t>(run->begin),
                    run->end - run->begin,
                    memory.begin() + static_cast<std::ptrdiff_t>(run->offset));
      rank.memory.push_back(std::move(memory));
    }
    rank.plan = LoadPlan::make(manifest_, plan_, rank.tensors).value();
    ranks_.push_back(std::move(rank));
    return ranks_.back();
  }
  [[nodiscard]] patch::TensorPart part_of(const EngineTensor& tensor) const {
    std::vector<patch::PartRange> ranges;
    for (const DimRange& range : tensor.ranges)
      ranges.push_back({.dim = range.dim, .begin = range.begin, .length = range.length});
    return patch::TensorPart::create(manifest_.tensor(manifest_.find(tensor.name).value()), ranges)
        .value();
  }
  // Every rank writes the patch into what it holds.
  void apply() {
    patch::BlockApplier applier(*layout_);
    for (Rank& rank : ranks_) {
      rank.before.assign(rank.tensors.size(), {});
      rank.after.assign(rank.tensors.size(), {});
      for (std::size_t t = 0; t < rank.tensors.size(); ++t) {
        const patch::TensorPart part = part_of(rank.tensors[t]);
        for (const patch::BlockView& block : reader_->blocks()) {
          if (block.place.tensor != manifest_.find(rank.tensors[t].name).value()) continue;
          const patch::PartSums sums = applier.apply_to_part(block, part, rank.memory[t]);
          rank.before[t] += sums.before;
          rank.after[t] += sums.after;
        }
      }
    }
  }
  [[nodiscard]] SumCheck check() const {
    std::vector<PatchedRank> patched;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      patched.push_back({.rank = static_cast<std::uint32_t>(r),
                         .tensors = ranks_[r].plan.tensors(),
                         .ranges = ranks_[r].tensors,
                         .before = ranks_[r].before,
                         .after = ranks_[r].after});
    return check_patch_sums(
        {.layout = &*layout_,
         .reader = &*reader_,
         .base = [this](std::uint32_t t) { return std::span<const std::byte>(base_[t]); },
         .target = [this](std::uint32_t t) { return std::span<const std::byte>(target_[t]); }},
        patched);
  }
  void expect_equal(bool reads = false) {
    apply();
    const SumCheck found = check();
    EXPECT_FALSE(found.mismatch) << found.mismatch->why;
    EXPECT_EQ(found.read_bytes != 0, reads) << "of the held versions";
  }
  void expect_difference(std::uint32_t rank, const std::string& tensor, const std::string& what) {
    apply();
    const auto found = check().mismatch;
    ASSERT_TRUE(found);
    EXPECT_EQ(found->rank, rank);
    EXPECT_EQ(found->tensor, tensor);
    EXPECT_THAT(found->why, HasSubstr(what));
  }
  // Changes a byte of a rank's memory that belongs to a touched word, but to no element that
  // changes.
  void damage_beside_a_change(Rank& rank, std::size_t tensor) {
    const std::uint32_t index = manifest_.find(rank.tensors[tensor].name).value();
    const patch::TensorPart part = part_of(rank.tensors[tensor]);
    const std::uint32_t size = layout_->tensor(index).element_bytes;
    for (std::uint64_t at = 0; at + size < base_[index].size(); at += size) {
      const std::uint64_t next = at + size;
      const auto run = part.run_from(at);
      if (!run || run->begin > at || run->end <= next || at / 8 != next / 8) continue;
      const auto same = [&](std::uint64_t from) {
        return std::equal(base_[index].begin() + static_cast<std::ptrdiff_t>(from),
                          base_[index].begin() + static_cast<std::ptrdiff_t>(from + size),
                          target_[index].begin() + static_cast<std::ptrdiff_t>(from));
      };
      if (same(at) || !same(next)) continue;
      rank.memory[tensor][run->offset + (next - run->begin)] ^= std::byte{1};
      return;
    }
    FAIL() << "no element changes beside one that does not";
  }

  std::mt19937_64 random_{7};
  Manifest manifest_;
  BucketPlan plan_;
  std::optional<patch::Layout> layout_;
  Content base_;
  Content target_;
  patch::Patch patch_;
  std::optional<patch::PatchReader> reader_;
  std::vector<Rank> ranks_;
};

TensorInfo named(std::string name, std::vector<std::uint64_t> shape, DType dtype = DType::kBF16) {
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}

std::vector<DimRange> part(std::uint32_t dim, std::uint64_t begin, std::uint64_t length) {
  return {{.dim = dim, .begin = begin, .length = length}};
}

TEST_F(PatchSumCheck, WholeTensorsRowsColumnsAndCopiesOfThem) {
  make({named("norm", {1000}), named("rows", {1536, 512}), named("columns", {1536, 512}),
        named("kv", {512, 256})});
  for (std::uint64_t r = 0; r < 4; ++r)
    add_rank({{"norm", {}},
              {"rows", part(0, 384 * r, 384)},
              {"columns", part(1, 128 * r, 128)},
              {"kv", part(0, 256 * (r / 2), 256)}});  // each half on two ranks
  expect_equal();
}

TEST_F(PatchSumCheck, PartsMayCutWordsAndTensorsMayEndWithinOne) {
  make({named("odd", {999, 13}, DType::kU8), named("half", {77, 1001}),
        named("end", {3, 5}, DType::kU8)},
       0.3);
  add_rank({{"odd", part(1, 0, 3)}, {"half", part(1, 0, 333)}, {"end", part(0, 0, 1)}});
  add_rank({{"odd", part(1, 3, 5)}, {"half", part(1, 333, 1)}, {"end", part(0, 1, 1)}});
  add_rank({{"odd", part(1, 8, 5)}, {"half", part(1, 334, 667)}, {"end", part(0, 2, 1)}});
  expect_equal();
}

TEST_F(PatchSumCheck, OverlappingPartsAreComparedWithTheHeldVersions) {
  make({named("a", {64, 100})});
  add_rank({{"a", part(0, 0, 40)}});
  add_rank({{"a", part(0, 30, 34)}});
  expect_equal(true);
  make({named("a", {64, 100})});
  add_rank({{"a", part(0, 0, 40)}});
  damage_beside_a_change(add_rank({{"a", part(0, 30, 34)}}), 0);
  expect_difference(1, "a", "were not those of the version before");
}

TEST_F(PatchSumCheck, TensorsThatNobodyHoldsAndTensorsThatDoNotChange) {
  make({named("a", {300}), named("b", {300}), named("none", {0})}, 0.1);
  add_rank({{"b", {}}, {"none", {}}});
  expect_equal();
  make({named("a", {300}), named("b", {300})}, 0);
  add_rank({{"a", {}}});
  expect_equal();
  ranks_[0].after[0].words.sum = 1;
  const auto found = check().mismatch;
  ASSERT_TRUE(found);
  EXPECT_THAT(found->why, HasSubstr("the patch does not"));
}

// The difference of the sums is that of the patch: only the sums themselves show it.
TEST_F(PatchSumCheck, AnotherBaseIsFoundThoughTheDifferenceIsRight) {
  make({named("w", {512, 64})});
  add_rank({{"w", part(0, 0, 256)}});
  damage_beside_a_change(add_rank({{"w", part(0, 256, 256)}}), 0);
  expect_difference(1, "w", "were not those of the version before in the memory of rank 1");
}

// With the sums before alone a copy could take the place of another part.
TEST_F(PatchSumCheck, ARankThatHasNotWrittenIsFound) {
  make({named("w", {512, 64})});
  add_rank({{"w", {}}});
  apply();
  ranks_[0].after = ranks_[0].before;
  const auto found = check().mismatch;
  ASSERT_TRUE(found);
  EXPECT_THAT(found->why, HasSubstr("are not those of the new version"));
}

TEST_F(PatchSumCheck, OnlyTheSumsBeforeAreWrong) {
  make({named("w", {512, 64})});
  add_rank({{"w", {}}});
  apply();
  ranks_[0].before[0].words.product += 1;
  const auto found = check().mismatch;
  ASSERT_TRUE(found);
  EXPECT_THAT(found->why, HasSubstr("were not those of the version before"));
}

TEST_F(PatchSumCheck, AWrongShareOfACutWordIsFound) {
  make({named("odd", {999, 13}, DType::kU8)}, 0.5);
  add_rank({{"odd", part(1, 0, 3)}});
  add_rank({{"odd", part(1, 3, 10)}});
  apply();
  ranks_[1].after[0].edges.sum += 1;
  const auto found = check().mismatch;
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1U);
}

TEST_F(PatchSumCheck, EdgesWhereNoWordIsCutAreRefused) {
  make({named("w", {512, 64})});
  add_rank({{"w", part(0, 0, 256)}});
  add_rank({{"w", part(0, 256, 256)}});
  apply();
  ranks_[0].before[0].edges.sum = 1;
  ASSERT_TRUE(check().mismatch);
}

}  // namespace
}  // namespace wsync::reload
