// Properties of patches over all types, shapes and shares of changed elements: what is applied is
// the target bit for bit, twice is as once, the reverse leads back, links merge, and the sums of
// the parts of all ranks are those of the blocks.
#include "shared/weights/patch/patch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "shared/weights/patch/bucket.h"
#include "shared/weights/patch/merge.h"
#include "tests/unit/weights/patch/patch_models.h"

namespace wsync::patch {
namespace {

using test::apply_and_reverse;
using test::apply_patch;
using test::block_bytes;
using test::changed;
using test::Content;
using test::digest_of_content;
using test::every_dtype;
using test::make_patch;
using test::places_of;
using test::random_content;
using testing::HasSubstr;

constexpr double kShares[] = {0, 0.0001, 0.001, 0.01, 0.05, 0.3, 0.7, 1};

class Patches : public testing::TestWithParam<double> {
 protected:
  const Manifest manifest_ = every_dtype();
  const Layout layout_{manifest_};
  std::mt19937_64 random_{static_cast<std::uint64_t>(GetParam() * 1e6) + 1};
  const Content base_ = random_content(manifest_, random_);
  const Content target_ = changed(layout_, base_, GetParam(), random_);
};

TEST_P(Patches, AppliedIsTheTargetBitForBit) {
  const Patch patch = make_patch(layout_, base_, target_);
  Content content = base_;
  const auto applied = apply_patch(layout_, patch, content);
  ASSERT_TRUE(applied) << applied.error().message();
  EXPECT_TRUE(content == target_);
  const auto index = Index::parse(patch.index).value();
  EXPECT_EQ(index.link().base, digest_of_content(manifest_, base_));
  EXPECT_EQ(index.link().target, digest_of_content(manifest_, target_));
}

TEST_P(Patches, AppliedAgainChangesNothing) {
  const Patch patch = make_patch(layout_, base_, target_);
  Content content = base_;
  ASSERT_TRUE(apply_patch(layout_, patch, content));
  ASSERT_TRUE(apply_patch(layout_, patch, content, BeforeRule::kRepeat));
  EXPECT_TRUE(content == target_);
  // It is not the base any more, and whoever expects that is told.
  const auto strict = apply_patch(layout_, patch, content);
  EXPECT_EQ(strict.has_value(), base_ == target_);
  if (!strict) {
    EXPECT_THAT(strict.error().message(), HasSubstr("they have been patched already"));
  }
  EXPECT_TRUE(content == target_);
}

TEST_P(Patches, AppliedAgainAfterAnEndHalfway) {
  const Patch patch = make_patch(layout_, base_, target_);
  // Any mixture of the elements of both.
  Content content = base_;
  for (std::size_t t = 0; t < content.size(); ++t) {
    const std::uint32_t size = layout_.tensor(static_cast<std::uint32_t>(t)).element_bytes;
    for (std::size_t at = 0; at < content[t].size(); at += size)
      if (random_() % 2 == 0) std::copy_n(&target_[t][at], size, &content[t][at]);
  }
  const auto applied = apply_patch(layout_, patch, content, BeforeRule::kRepeat);
  ASSERT_TRUE(applied) << applied.error().message();
  EXPECT_TRUE(content == target_);
}

TEST_P(Patches, TheReverseIsThePatchBack) {
  const Patch patch = make_patch(layout_, base_, target_);
  Content content = base_;
  const auto reverse = apply_and_reverse(layout_, patch, content);
  ASSERT_TRUE(reverse) << reverse.error().message();
  EXPECT_TRUE(content == target_);
  EXPECT_TRUE(*reverse == make_patch(layout_, target_, base_)) << "the reverse has other bytes";
  const auto back = apply_patch(layout_, *reverse, content);
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_TRUE(content == base_);
}

TEST_P(Patches, AllKindsOfComparisonMakeTheSame) {
  const Patch patch = make_patch(layout_, base_, target_);
  for (const CopyKind kind : available_copy_kinds())
    EXPECT_TRUE(make_patch(layout_, base_, target_, limits::kMiB, kind) == patch)
        << copy_kind_name(kind);
}

TEST_P(Patches, ThreadsInAnyOrderMakeTheSame) {
  auto builder = PatchBuilder::create(layout_, limits::kMiB).value();
  auto places = places_of(layout_);
  std::ranges::shuffle(places, random_);
  const auto work = [&](std::size_t first) {
    BlockMaker maker;
    for (std::size_t i = first; i < places.size(); i += 2)
      if (auto block = maker.make(layout_, places[i], block_bytes(layout_, base_, places[i]),
                                  block_bytes(layout_, target_, places[i])))
        builder.add(std::move(*block));
  };
  std::thread other(work, 0);
  work(1);
  other.join();
  const auto patch =
      builder.finish(digest_of_content(manifest_, base_), digest_of_content(manifest_, target_));
  ASSERT_TRUE(patch) << patch.error().message();
  EXPECT_TRUE(*patch == make_patch(layout_, base_, target_));
}

TEST_P(Patches, AnotherBaseIsRefusedAndNothingIsWritten) {
  const Patch patch = make_patch(layout_, base_, target_);
  const auto reader = PatchReader::open(layout_, patch).value();
  BlockApplier applier(layout_);
  for (const BlockView& block : reader.blocks()) {
    // A bit of a word that the block touches is another one.
    Bytes other;
    std::ranges::copy(block_bytes(layout_, base_, block.place), std::back_inserter(other));
    std::vector<std::uint32_t> positions{0};
    const std::uint32_t size = layout_.tensor(block.place.tensor).element_bytes;
    if (!block.dense) {
      positions.resize(block.elements);
      ASSERT_TRUE(read_positions(block, other.size() / size, positions));
    }
    other[std::size_t{positions[random_() % positions.size()]} * size] ^= std::byte{4};
    const Bytes before = other;
    const auto applied = applier.apply(block, other);
    ASSERT_FALSE(applied) << "another base was accepted";
    EXPECT_EQ(applied.error().code(), ErrorCode::kDigestMismatch);
    EXPECT_THAT(applied.error().message(),
                HasSubstr(layout_.describe(block.place) + ": the words that the patch changes"));
    EXPECT_TRUE(other == before) << "a block of another base was written";
  }
}

// Link B to C of a third content, merged with the link A to B.
TEST_P(Patches, MergedLinksAreBothApplied) {
  for (const double share : {0.0, 0.001, 0.05, 1.0}) {
    SCOPED_TRACE(share);
    const Content third = changed(layout_, target_, share, random_);
    const Patch first = make_patch(layout_, base_, target_);
    const Patch second = make_patch(layout_, target_, third);
    const auto one = PatchReader::open(layout_, first).value();
    const auto two = PatchReader::open(layout_, second).value();
    const auto merged = merge(
        layout_, one, two,
        [&](const BlockPlace& place, std::span<std::byte> out) -> Result<> {
          std::ranges::copy(block_bytes(layout_, target_, place), out.begin());
          return {};
        },
        limits::kMiB);
    ASSERT_TRUE(merged) << merged.error().message();
    Content content = base_;
    const auto reverse = apply_and_reverse(layout_, *merged, content);
    ASSERT_TRUE(reverse) << reverse.error().message();
    EXPECT_TRUE(content == third);
    const auto back = apply_patch(layout_, *reverse, content);
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_TRUE(content == base_);
  }
}

TEST_P(Patches, MergedWithTheWayBackHasNoBlocks) {
  const Patch first = make_patch(layout_, base_, target_);
  const Patch second = make_patch(layout_, target_, base_);
  const auto one = PatchReader::open(layout_, first).value();
  const auto two = PatchReader::open(layout_, second).value();
  const auto merged = merge(
      layout_, one, two,
      [](const BlockPlace& /*place*/, std::span<std::byte> /*out*/) -> Result<> {
        return fail(ErrorCode::kInternal, "nobody needs these bytes");
      },
      limits::kMiB);
  ASSERT_TRUE(merged) << merged.error().message();
  EXPECT_TRUE(merged->buckets.empty());
}

// Ranks that divide every tensor along a random dimension, at random places.
std::vector<TensorPart> random_parts(const TensorInfo& tensor, std::mt19937_64& random) {
  std::vector<std::uint32_t> dims;
  for (std::uint32_t dim = 0; dim < tensor.shape.size(); ++dim)
    if (dtype_bits(tensor.dtype) >= 8 && tensor.shape[dim] > 1) dims.push_back(dim);
  if (dims.empty()) return {TensorPart::create(tensor, {}).value()};
  std::vector<TensorPart> parts;
  const std::uint32_t dim = dims[random() % dims.size()];
  // A second dimension is divided in two everywhere.
  const std::uint32_t other = dims[random() % dims.size()];
  const std::uint64_t cut = random() % tensor.shape[other];
  for (std::uint64_t begin = 0; begin < tensor.shape[dim];) {
    const std::uint64_t length =
        std::min(tensor.shape[dim] - begin, 1 + random() % tensor.shape[dim]);
    if (other == dim) {
      parts.push_back(TensorPart::create(tensor, {{{dim, begin, length}}}).value());
    } else {
      parts.push_back(
          TensorPart::create(tensor, {{{dim, begin, length}, {other, 0, cut}}}).value());
      parts.push_back(TensorPart::create(
                          tensor, {{{dim, begin, length}, {other, cut, tensor.shape[other] - cut}}})
                          .value());
    }
    begin += length;
  }
  return parts;
}

Bytes part_of(const Bytes& tensor, const TensorPart& part) {
  Bytes bytes(part.bytes());
  for (auto run = part.run_from(0); run; run = part.run_from(run->end))
    std::copy_n(tensor.begin() + static_cast<long>(run->begin), run->end - run->begin,
                bytes.begin() + static_cast<long>(run->offset));
  return bytes;
}

TEST_P(Patches, PartsOfRanksMakeUpTheTensor) {
  const Patch patch = make_patch(layout_, base_, target_);
  const auto reader = PatchReader::open(layout_, patch).value();
  BlockApplier applier(layout_);
  for (std::uint32_t t = 0; t < manifest_.size(); ++t) {
    SCOPED_TRACE(describe(manifest_.tensor(t)));
    const auto parts = random_parts(manifest_.tensor(t), random_);
    std::vector<Bytes> memories;
    for (const TensorPart& part : parts) memories.push_back(part_of(base_[t], part));
    for (const BlockView& block : reader.blocks(t, 0, layout_.block_count(t))) {
      WordSum before =
          applier.sum_of_cut_words(block, parts, block_bytes(layout_, base_, block.place));
      WordSum after =
          applier.sum_of_cut_words(block, parts, block_bytes(layout_, target_, block.place));
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        const PartSums sums = applier.apply_to_part(block, parts[rank], memories[rank]);
        before += sums.before.words;
        after += sums.after.words;
        EXPECT_EQ(sums.before, applier.share_of_part(block, parts[rank],
                                                     block_bytes(layout_, base_, block.place)));
        EXPECT_EQ(sums.after, applier.share_of_part(block, parts[rank],
                                                    block_bytes(layout_, target_, block.place)));
        // Again, as after a failure.
        const PartSums again = applier.apply_to_part(block, parts[rank], memories[rank]);
        EXPECT_EQ(again.after, sums.after);
        EXPECT_EQ(again.before, sums.after);
      }
      EXPECT_EQ(before, block.before);
      EXPECT_EQ(after, block.after);
    }
    for (std::size_t rank = 0; rank < parts.size(); ++rank)
      EXPECT_TRUE(memories[rank] == part_of(target_[t], parts[rank])) << "rank " << rank;
  }
}

TEST_P(Patches, BlocksAreWrittenTogetherAsOneByOne) {
  const Patch patch = make_patch(layout_, base_, target_);
  const auto reader = PatchReader::open(layout_, patch).value();
  BlockApplier one_by_one(layout_);
  BlockApplier together(layout_);
  for (std::uint32_t t = 0; t < manifest_.size(); ++t) {
    SCOPED_TRACE(describe(manifest_.tensor(t)));
    auto parts = random_parts(manifest_.tensor(t), random_);
    parts.push_back(TensorPart::create(manifest_.tensor(t), {}).value());  // all of it
    const auto blocks = reader.blocks(t, 0, layout_.block_count(t));
    for (const TensorPart& part : parts) {
      Bytes expected = part_of(base_[t], part);
      std::vector<PartSums> sums;
      for (const BlockView& block : blocks)
        sums.push_back(one_by_one.apply_to_part(block, part, expected));
      Bytes memory = part_of(base_[t], part);
      std::vector<PartSums> found(blocks.size());
      together.apply_to_part(blocks, part, memory, found);
      EXPECT_TRUE(memory == expected);
      EXPECT_TRUE(memory == part_of(target_[t], part));
      const auto expect_same = [&] {
        for (std::size_t i = 0; i < blocks.size(); ++i) {
          EXPECT_EQ(found[i].before, sums[i].before);
          EXPECT_EQ(found[i].after, sums[i].after);
          EXPECT_EQ(found[i].written_bytes, sums[i].written_bytes);
        }
      };
      expect_same();
      // What is replaced as a whole was read before.
      memory = part_of(base_[t], part);
      std::vector<WordSum> replaced;
      for (const BlockView& block : blocks) {
        const auto sum = together.sum_of_replaced(block, part, memory);
        EXPECT_TRUE(block.dense || !sum);
        replaced.push_back(sum.value_or(WordSum{}));
      }
      found.assign(blocks.size(), {});
      together.apply_to_part(blocks, part, memory, found, replaced);
      EXPECT_TRUE(memory == expected);
      expect_same();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shares, Patches, testing::ValuesIn(kShares));

// ---- sizes ----

struct Size {
  double share;
  double limit;  // bytes of the patch by those of the model
};
class PatchSize : public testing::TestWithParam<Size> {};

TEST_P(PatchSize, OfBfloat16ChangedAtRandom) {
  const Manifest manifest =
      Manifest::create({{.name = "w", .dtype = DType::kBF16, .shape = {16 << 10U, 1 << 9U}}})
          .value();
  const Layout layout(manifest);
  std::mt19937_64 random(7);
  const Content base = random_content(manifest, random);
  const Patch patch = make_patch(layout, base, changed(layout, base, GetParam().share, random));
  const double share =
      static_cast<double>(patch.bytes()) / static_cast<double>(manifest.total_bytes());
  RecordProperty("percent", std::to_string(100 * share));
  EXPECT_LE(share, GetParam().limit);
}

INSTANTIATE_TEST_SUITE_P(Targets, PatchSize,
                         testing::Values(Size{0.01, 0.017}, Size{0.001, 0.0026},
                                         Size{0.0001, 0.0006}, Size{1, 1.001}));

TEST(PatchSizes, EqualModelsHaveAPatchWithoutBlocks) {
  const Manifest manifest = every_dtype();
  const Layout layout(manifest);
  std::mt19937_64 random(7);
  const Content base = random_content(manifest, random);
  const Patch patch = make_patch(layout, base, base);
  EXPECT_TRUE(patch.buckets.empty());
  EXPECT_EQ(Index::parse(patch.index).value().blocks(), 0U);
  Content content = base;
  ASSERT_TRUE(apply_patch(layout, patch, content));
  EXPECT_TRUE(content == base);
}

// ---- values are bits ----

TEST(PatchValues, ZerosOfAnotherSignAndPayloadsOfNansAreChanges) {
  const Manifest manifest =
      Manifest::create({{.name = "w", .dtype = DType::kF32, .shape = {4096}}}).value();
  const Layout layout(manifest);
  Content base{Bytes(manifest.byte_size(0))};
  const auto set = [](Bytes& bytes, std::size_t element, std::uint32_t bits) {
    std::memcpy(&bytes[4 * element], &bits, sizeof bits);
  };
  set(base[0], 9, 0x7fc00000);
  Content target = base;
  set(target[0], 5, 0x80000000);
  set(target[0], 9, 0x7fc00001);
  const Patch patch = make_patch(layout, base, target);
  EXPECT_EQ(Index::parse(patch.index).value().elements(), 2U);
  Content content = base;
  ASSERT_TRUE(apply_patch(layout, patch, content));
  EXPECT_TRUE(content == target);
}

// If another element of the same half of a word differs, the sums of base and target change alike:
// their difference says nothing about the base.
TEST(PatchValues, ABaseWithTheSameDifferenceIsRefused) {
  const Manifest manifest =
      Manifest::create({{.name = "w", .dtype = DType::kBF16, .shape = {4096}}}).value();
  const Layout layout(manifest);
  const Content base{Bytes(manifest.byte_size(0), std::byte{17})};
  Content target = base;
  target[0][64] ^= std::byte{1};
  const Patch patch = make_patch(layout, base, target);
  for (const std::size_t at : {64U, 66U, 70U}) {
    Content other = base;
    other[0][at] ^= std::byte{2};
    const Content before = other;
    const auto applied = apply_patch(layout, patch, other);
    ASSERT_FALSE(applied) << "another base was accepted, byte " << at;
    EXPECT_THAT(applied.error().message(), HasSubstr("the base is another one"));
    EXPECT_TRUE(other == before);
    // What is written again may be anything, the rest of its words may not.
    const auto repeated = apply_patch(layout, patch, other, BeforeRule::kRepeat);
    EXPECT_EQ(repeated.has_value(), at == 64);
    if (!repeated) {
      EXPECT_THAT(repeated.error().message(), HasSubstr("after the patch the words"));
    }
  }
}

// The maker counts where it looks dense, and goes on collecting if it is not.
TEST(BlockMakers, BlocksThatAreDenseInPartsAreAsSmallAsPossible) {
  BlockMaker maker;
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kI64}) {
    const std::uint64_t size = dtype_bits(dtype) / 8;
    const auto manifest =
        Manifest::create({{.name = "w", .dtype = dtype, .shape = {kBlockBytes / size}}}).value();
    const Layout layout(manifest);
    const Bytes base(kBlockBytes, std::byte{7});
    for (const unsigned bytes : {4'096U, 8'192U, 65'536U, 131'072U, 163'840U, 174'080U, 176'128U,
                                 209'715U, 212'992U, 231'424U, 236'032U, 258'048U, 262'144U})
      for (const std::uint64_t begin : {std::uint64_t{0}, kBlockBytes - bytes}) {
        const std::uint64_t first = begin / size;
        const std::uint64_t count = (begin + bytes) / size - first;
        Bytes target = base;
        // The last byte of each element.
        for (std::uint64_t e = first; e < first + count; ++e)
          target[(e + 1) * size - 1] = std::byte{8};
        const std::uint64_t sparse = varint_bytes(first) + count - 1 + count * size;
        const auto block = maker.make(layout, {.tensor = 0, .block = 0}, base, target);
        ASSERT_TRUE(block);
        EXPECT_EQ(block->dense, sparse >= kBlockBytes) << size << " " << bytes << " " << begin;
        EXPECT_EQ(block->payload.size(), std::min(sparse, kBlockBytes)) << size << " " << bytes;
        if (!block->dense) {
          EXPECT_EQ(block->elements, count);
        }
      }
  }
}

// ---- builder, merge and parts refuse ----

TEST(PatchBuilders, RefuseWhatIsNoPatch) {
  const Manifest manifest = every_dtype();
  const Layout layout(manifest);
  std::mt19937_64 random(3);
  const Content base = random_content(manifest, random);
  const Content target = changed(layout, base, 0.01, random);
  EXPECT_FALSE(PatchBuilder::create(layout, limits::kBucketBytesMin - 1));
  EXPECT_FALSE(PatchBuilder::create(layout, limits::kBucketBytesMax + 1));
  const BlockPlace place{.tensor = manifest.find("bytes").value(), .block = 1};
  BlockMaker maker;
  const auto block = maker.make(layout, place, block_bytes(layout, base, place),
                                block_bytes(layout, target, place));
  ASSERT_TRUE(block);
  auto builder = PatchBuilder::create(layout, limits::kMiB).value();
  builder.add(*block);
  builder.add(*block);
  const auto twice = builder.finish({.low = 1}, {.low = 2});
  ASSERT_FALSE(twice);
  EXPECT_THAT(twice.error().message(), HasSubstr("added to the patch twice"));
  EXPECT_FALSE(builder.finish({.low = 1}, {.low = 2})) << "no blocks, but contents differ";
  builder.add(*block);
  EXPECT_FALSE(builder.finish({.low = 1}, {.low = 1})) << "blocks, but contents are equal";
}

TEST(PatchMerge, RefusesLinksThatDoNotMeetAndOtherBytes) {
  const Manifest manifest = every_dtype();
  const Layout layout(manifest);
  std::mt19937_64 random(3);
  const Content base = random_content(manifest, random);
  const Content target = changed(layout, base, 0.05, random);
  const Content third = changed(layout, target, 0.05, random);
  const Patch first = make_patch(layout, base, target);
  const Patch second = make_patch(layout, target, third);
  const auto one = PatchReader::open(layout, first).value();
  const auto two = PatchReader::open(layout, second).value();
  const auto from = [&](const Content& content) -> ReadMiddle {
    return [&](const BlockPlace& place, std::span<std::byte> out) -> Result<> {
      std::ranges::copy(block_bytes(layout, content, place), out.begin());
      return {};
    };
  };
  const auto apart = merge(layout, two, one, from(target), limits::kMiB);
  ASSERT_FALSE(apart);
  EXPECT_THAT(apart.error().message(), HasSubstr("does not begin where the first one ends"));
  for (const Content* wrong : {&base, &third}) {
    const auto merged = merge(layout, one, two, from(*wrong), limits::kMiB);
    ASSERT_FALSE(merged);
    EXPECT_EQ(merged.error().code(), ErrorCode::kDigestMismatch);
    EXPECT_THAT(merged.error().message(), HasSubstr("between two patches"));
  }
}

TEST(TensorParts, RefuseRangesThatAreNone) {
  const TensorInfo tensor{.name = "w", .dtype = DType::kBF16, .shape = {4, 6}};
  EXPECT_FALSE(TensorPart::create(tensor, {{{2, 0, 1}}}));
  EXPECT_FALSE(TensorPart::create(tensor, {{{0, 3, 2}}}));
  EXPECT_FALSE(TensorPart::create(tensor, {{{0, 5, 0}}}));
  EXPECT_FALSE(TensorPart::create(tensor, {{{0, 0, 1}, {0, 1, 1}}}));
  const TensorInfo half{.name = "h", .dtype = DType::kF4, .shape = {4, 6}};
  EXPECT_FALSE(TensorPart::create(half, {{{1, 1, 3}}}));
  const auto part = TensorPart::create(half, {{{1, 2, 2}}});
  ASSERT_TRUE(part);
  EXPECT_EQ(part->bytes(), 4U);
  EXPECT_FALSE(TensorPart::create(tensor, {{{1, 3, 0}}}).value().run_from(0));
}

}  // namespace
}  // namespace wsync::patch
