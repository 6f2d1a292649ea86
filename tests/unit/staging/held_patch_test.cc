// Patches between held versions: made, given up as soon as they are not worth it, and proven.
#include "inference_side/staging/held_patch.h"

#include <array>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/block_applier.h"
#include "shared/weights/patch/block_maker.h"
#include "shared/weights/patch/format.h"
#include "shared/weights/patch/leaf_changes.h"
#include "shared/weights/patch/mapped_patch.h"
#include "tests/support/bytes.h"

namespace wsync::staging {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kNoLimit = ~std::uint64_t{0} / 4;

// Two versions of a model in arenas, with the bytes of the second one changed from the first one.
class HeldPatchTest : public testing::Test {
 protected:
  HeldPatchTest() {
    manifest_ = std::make_shared<const Manifest>(
        Manifest::create({{"embed.weight", DType::kBF16, {3000, 1777}},
                          {"layers.0.w", DType::kF32, {100, 30}},
                          {"layers.1.w", DType::kU8, {limits::kMiB + 5}},
                          {"layers.2.none", DType::kU8, {0}}})
            .value());
    plan_ = std::make_shared<const BucketPlan>(
        BucketPlan::create(*manifest_, limits::kBucketBytesMin).value());
    leaves_ = std::make_shared<const LeafTable>(*manifest_, *plan_);
    base_.resize(plan_->arena_bytes());
    std::mt19937_64 random(3);
    for (const Piece& piece : plan_->pieces())
      fill_random(random, std::span(base_).subspan(plan_->arena_offset(piece), piece.bytes));
    target_ = base_;
  }
  // Changes each `every`-th element of two bytes.
  void change(std::size_t every) {
    for (const Piece& piece : plan_->pieces()) {
      const auto bytes = std::span(target_).subspan(plan_->arena_offset(piece), piece.bytes);
      for (std::size_t at = 0; at < bytes.size(); at += 2 * every) bytes[at] ^= std::byte{1};
    }
  }
  [[nodiscard]] ContentDigests digests_of(std::span<const std::byte> arena) const {
    ContentDigester digester(*manifest_);
    for (const Piece& piece : plan_->pieces())
      EXPECT_TRUE(digester.add(piece.tensor, piece.tensor_offset,
                               arena.subspan(plan_->arena_offset(piece), piece.bytes)));
    return digester.finish().value();
  }
  // Holds `bytes` under the digests of `claimed`.
  [[nodiscard]] std::shared_ptr<const HeldVersion> hold(std::uint64_t step,
                                                        std::span<const std::byte> bytes,
                                                        std::span<const std::byte> claimed) const {
    const ContentDigests digests = digests_of(claimed);
    const StagingJob job{.identity = {.fence_epoch = 3,
                                      .version_epoch = 1,
                                      .version_step = step,
                                      .layout = manifest_->layout_digest(),
                                      .content = digests.root,
                                      .bucket_bytes = plan_->bucket_bytes()},
                         .manifest = manifest_,
                         .plan = plan_,
                         .leaves = leaves_};
    auto arena = SharedArena::create({.name = "trainer", .data_bytes = bytes.size()}).value();
    auto lease = arena.try_write_lease(job.identity).value();
    std::memcpy(lease.data().data(), bytes.data(), bytes.size());
    std::move(lease).complete(digests.root);
    return HeldVersion::make(job, digests, ArenaView::open(arena.share()->get()).value(), false,
                             nullptr);
  }
  [[nodiscard]] Result<std::shared_ptr<const HeldPatch>> make(const PatchLimits& limits) const {
    return HeldPatch::make(hold(1, base_, base_), hold(2, target_, target_), limits);
  }

  std::shared_ptr<const Manifest> manifest_;
  std::shared_ptr<const BucketPlan> plan_;
  std::shared_ptr<const LeafTable> leaves_;
  std::vector<std::byte> base_;
  std::vector<std::byte> target_;
};

TEST_F(HeldPatchTest, LeadsFromTheBaseToTheTarget) {
  change(500);
  const auto held = make({.max_bytes = kNoLimit, .threads = 2});
  ASSERT_TRUE(held) << held.error().message();
  const HeldPatch& patch = **held;
  EXPECT_EQ(patch.reader().index().link().target, digests_of(target_).root);
  EXPECT_LT(patch.bytes(), base_.size() / 10);
  // Both were read while the patch was made.
  EXPECT_TRUE(patch.base().is_verified());
  EXPECT_TRUE(patch.target().is_verified());
  // As an engine does it, with the memory that it is given.
  const auto memory = SealedMemory::map(patch.share()->get(), patch.bytes()).value();
  const patch::Layout layout(*manifest_);
  const auto reader = patch::read_mapped(layout, memory.bytes(), nullptr).value();
  patch::BlockApplier applier(layout);
  for (const patch::BlockView& block : reader.blocks()) {
    const std::uint64_t at = plan_->arena_offset(plan_->tensor_pieces(block.place.tensor).front()) +
                             patch::Layout::offset(block.place);
    ASSERT_TRUE(
        applier.apply(block, std::span(base_).subspan(at, layout.block_bytes(block.place))));
  }
  EXPECT_EQ(base_, target_);
}

TEST_F(HeldPatchTest, LeadsBack) {
  for (const std::size_t every : {500U, 5000U, 100'000U}) {
    target_ = base_;
    change(every);
    // A dense block.
    const std::uint64_t dense = plan_->arena_offset(plan_->tensor_pieces(1).front());
    for (std::byte& byte : std::span(target_).subspan(dense, 4 * 100 * 30)) byte ^= std::byte{2};
    const auto forward = make({.max_bytes = kNoLimit, .threads = 2});
    ASSERT_TRUE(forward) << every << ": " << forward.error().message();
    const auto back = HeldPatch::make_back(**forward, (*forward)->base(), {.max_bytes = kNoLimit});
    ASSERT_TRUE(back) << every << ": " << back.error().message();
    EXPECT_EQ((*back)->reader().index().link().base, digests_of(target_).root);
    EXPECT_EQ((*back)->reader().index().link().target, digests_of(base_).root);
    EXPECT_EQ((*back)->bytes(), (*forward)->bytes());
    // It keeps neither version's memory.
    EXPECT_FALSE((*back)->base().is_complete());
    EXPECT_FALSE((*back)->target().is_complete());
    patch::BlockApplier applier((*back)->layout());
    std::vector<std::byte> bytes = target_;
    for (const patch::BlockView& block : (*back)->reader().blocks()) {
      const std::uint64_t at =
          plan_->arena_offset(plan_->tensor_pieces(block.place.tensor).front()) +
          patch::Layout::offset(block.place);
      ASSERT_TRUE(applier.apply(
          block, std::span(bytes).subspan(at, (*back)->layout().block_bytes(block.place))));
    }
    EXPECT_EQ(bytes, base_) << every;
  }
}

TEST_F(HeldPatchTest, NothingLeadsBackToOtherBytesThanThoseOfTheBase) {
  change(500);
  const auto forward = make({.max_bytes = kNoLimit, .threads = 1}).value();
  auto damaged = base_;
  damaged[0] ^= std::byte{4};
  const auto back =
      HeldPatch::make_back(*forward, *hold(1, damaged, base_), {.max_bytes = kNoLimit});
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code(), ErrorCode::kDigestMismatch);
  const auto too_large = HeldPatch::make_back(*forward, forward->base(), {.max_bytes = 1000});
  ASSERT_FALSE(too_large);
  EXPECT_EQ(too_large.error().code(), ErrorCode::kRefused);
  std::stop_source stop;
  stop.request_stop();
  const auto stopped = HeldPatch::make_back(*forward, forward->base(),
                                            {.max_bytes = kNoLimit, .stop = stop.get_token()});
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code(), ErrorCode::kCancelled);
}

// The changes by which the target comes from version 1.1.
TEST_F(HeldPatchTest, IsTheSameOfTheChangesByWhichTheTargetHasCome) {
  change(500);
  const auto base = hold(1, base_, base_);
  const auto target = hold(2, target_, target_);
  ReceivedChanges changes{.base = base->version(), .buckets = {}};
  const patch::Layout layout(*manifest_);
  patch::LeafChangesMaker maker;
  for (std::size_t b = 0; b < plan_->bucket_count(); ++b)
    changes.buckets.push_back(std::make_shared<const Bytes>(
        maker.make(layout, leaves_->bucket(b), base_, target_, kNoLimit).value()));
  const PatchLimits limits{.max_bytes = kNoLimit};
  const auto compared = HeldPatch::make(base, target, limits).value();
  ASSERT_TRUE(base->is_verified() && target->is_verified());
  const auto bytes_of = [](const HeldPatch& patch) {
    const auto memory = SealedMemory::map(patch.share()->get(), patch.bytes()).value();
    return Bytes(memory.bytes().begin(), memory.bytes().end());
  };
  const auto taken = HeldPatch::make(base, target, limits, &changes);
  ASSERT_TRUE(taken) << taken.error().message();
  EXPECT_EQ(bytes_of(**taken), bytes_of(*compared));

  // Bytes that nobody has read yet, as in the arena of a trainer, are not read for it either.
  const auto unread = hold(1, base_, base_);
  EXPECT_TRUE(HeldPatch::make(unread, target, limits, &changes));
  EXPECT_FALSE(unread->is_verified());
  // Limits hold as well.
  EXPECT_FALSE(HeldPatch::make(base, target, {.max_bytes = 100}, &changes));
  // What shows that the changes were taken: none say that nothing has changed.
  for (auto& bucket : changes.buckets) bucket = std::make_shared<const Bytes>(8);
  EXPECT_FALSE(HeldPatch::make(base, target, limits, &changes));
  // Those from another base are not used.
  changes.base.step += 7;
  EXPECT_TRUE(HeldPatch::make(base, target, limits, &changes));
}

// The trainer has sent it: the sums of both versions decide whether it is used. No byte of them is
// read.
TEST_F(HeldPatchTest, OneThatHasComeIsUsedIfItHasAllThatDiffers) {
  change(500);
  const auto base = hold(1, base_, base_);
  const auto target = hold(2, target_, target_);
  const PatchLimits limits{.max_bytes = kNoLimit};
  const patch::Layout layout(*manifest_);
  // All blocks that differ, but for the first `without`.
  const auto send = [&](std::size_t without) {
    auto builder = patch::PatchBuilder::create(layout, patch::kPatchBucketBytes).value();
    patch::BlockMaker maker;
    for (std::uint32_t tensor = 0; tensor < manifest_->size(); ++tensor)
      for (std::uint32_t number = 0; number < layout.block_count(tensor); ++number) {
        const patch::BlockPlace place{.tensor = tensor, .block = number};
        const std::uint64_t at = patch::Layout::offset(place);
        const std::uint64_t bytes = layout.block_bytes(place);
        auto block =
            maker.make(layout, place, HeldPatch::tensor_bytes(*base, tensor).subspan(at, bytes),
                       HeldPatch::tensor_bytes(*target, tensor).subspan(at, bytes));
        if (block && number >= without) builder.add(std::move(*block));
      }
    const auto patch = builder.finish(digests_of(base_).root, digests_of(target_).root).value();
    ReceivedChanges changes;
    changes.patch = patch::share_patch(patch).value();
    changes.patch_base = digests_of(base_).root;
    return changes;
  };
  const ReceivedChanges good = send(0);
  EXPECT_TRUE(HeldPatch::is_known(*base, *target, &good));
  const auto held = HeldPatch::make(base, target, limits, &good);
  ASSERT_TRUE(held) << held.error().message();
  EXPECT_EQ((*held)->bytes(), good.patch->bytes().size());
  EXPECT_FALSE(base->is_verified() || target->is_verified());
  EXPECT_EQ(HeldPatch::make(base, target, {.max_bytes = 100}, &good).error().code(),
            ErrorCode::kRefused);

  const ReceivedChanges incomplete = send(1);
  const auto refused = HeldPatch::make(base, target, limits, &incomplete);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kDigestMismatch);
  EXPECT_THAT(refused.error().message(), HasSubstr("tensor 'embed.weight', MiB 1 of"));

  // To another version, from another version, and what is no patch.
  const auto other = HeldPatch::make(base, hold(3, base_, target_), limits, &good);
  EXPECT_TRUE(other) << "what it is called does not matter";
  std::vector<std::byte> third = target_;
  third[5] ^= std::byte{1};
  EXPECT_THAT(HeldPatch::make(base, hold(3, third, third), limits, &good).error().message(),
              HasSubstr("leads to another content"));
  EXPECT_FALSE(HeldPatch::is_known(*hold(4, third, third), *target, &good));
  ReceivedChanges garbage;
  const std::vector<std::byte> noise(5000, std::byte{7});
  const std::array<std::span<const std::byte>, 1> parts = {noise};
  garbage.patch = std::make_shared<const SealedMemory>(SealedMemory::create("x", parts).value());
  garbage.patch_base = good.patch_base;
  EXPECT_EQ(HeldPatch::make(base, target, limits, &garbage).error().code(),
            ErrorCode::kInvalidInput);
}

TEST_F(HeldPatchTest, EqualContentsGiveAPatchWithoutBlocksAndNothingIsRead) {
  const auto base = hold(1, base_, base_);
  const auto target = hold(2, target_, target_);
  EXPECT_TRUE(HeldPatch::is_known(*base, *target, nullptr));
  const auto held = HeldPatch::make(base, target, {.max_bytes = kNoLimit});
  ASSERT_TRUE(held) << held.error().message();
  EXPECT_TRUE((*held)->reader().blocks().empty());
  EXPECT_FALSE(base->is_verified() || target->is_verified());
  change(500);
  EXPECT_FALSE(HeldPatch::is_known(*base, *hold(3, target_, target_), nullptr));
}

TEST_F(HeldPatchTest, ASampleShowsThatEverythingHasChanged) {
  change(1);
  const auto held = make({.max_bytes = base_.size() / 3});
  ASSERT_FALSE(held);
  EXPECT_EQ(held.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(held.error().message(), HasSubstr("too much has changed: a patch would have"));
}

TEST_F(HeldPatchTest, ThatItIsTooLargeMayShowOnlyOnTheWay) {
  change(500);
  const std::uint64_t bytes = (*make({.max_bytes = kNoLimit}))->bytes();
  const auto held = make({.max_bytes = bytes * 8 / 10, .threads = 2});
  ASSERT_FALSE(held);
  EXPECT_EQ(held.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(held.error().message(), HasSubstr("too much has changed: more than"));
  EXPECT_EQ(make({.max_bytes = 0}).error().code(), ErrorCode::kRefused) << "there is no room";
}

// 5 % of the values, each one alone: 7 % of the bytes, but more time than all of them.
TEST_F(HeldPatchTest, IsNotMadeIfItSavesTooLittle) {
  change(20);
  const auto sampled = make({.max_bytes = kNoLimit});
  ASSERT_FALSE(sampled);
  EXPECT_EQ(sampled.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(sampled.error().message(), HasSubstr("times the time of all bytes or more"));
  target_ = base_;
  change(80);  // not clear from a few blocks
  const auto compared = make({.max_bytes = kNoLimit, .threads = 2});
  ASSERT_FALSE(compared);
  EXPECT_THAT(compared.error().message(), HasSubstr("more than 0.7 of the time of all bytes"));
  EXPECT_TRUE(make({.max_bytes = kNoLimit, .value_cost = patch::kGpuValueCost}));
  target_ = base_;
  change(100);
  EXPECT_TRUE(make({.max_bytes = kNoLimit, .threads = 2}));
  // Whole blocks in which everything changes.
  const std::size_t blocks = base_.size() / patch::kBlockBytes;
  for (const std::size_t of : {20U, 10U}) {
    target_ = base_;
    for (std::size_t at = 0; at < blocks / of * patch::kBlockBytes; ++at)
      target_[at] ^= std::byte{1};
    EXPECT_EQ(make({.max_bytes = kNoLimit, .threads = 2}).has_value(), of == 20) << blocks;
  }
}

TEST_F(HeldPatchTest, StopsWhenItIsNotNeeded) {
  change(500);
  std::stop_source stop;
  stop.request_stop();
  const auto held = make({.max_bytes = kNoLimit, .threads = 2, .stop = stop.get_token()});
  ASSERT_FALSE(held);
  EXPECT_EQ(held.error().code(), ErrorCode::kCancelled);
}

// Otherwise the patch would lead to bytes that are none of any version, and would prove them.
TEST_F(HeldPatchTest, WrongBytesOfAVersionAreFound) {
  change(500);
  std::vector<std::byte> wrong = target_;
  wrong[limits::kMiB + 100] ^= std::byte{4};
  auto held =
      HeldPatch::make(hold(1, base_, base_), hold(2, wrong, target_), {.max_bytes = kNoLimit});
  ASSERT_FALSE(held);
  EXPECT_EQ(held.error().code(), ErrorCode::kDigestMismatch);
  EXPECT_THAT(held.error().message(), HasSubstr("embed.weight"));
  held = HeldPatch::make(hold(1, wrong, base_), hold(2, target_, target_), {.max_bytes = kNoLimit});
  ASSERT_FALSE(held);
  EXPECT_EQ(held.error().code(), ErrorCode::kDigestMismatch);
}

// ---- its memory ----

TEST(SealedMemoryTest, NobodyCanChangeItAndItsSizeIsCompared) {
  const std::vector<std::byte> a(5000, std::byte{1});
  const std::vector<std::byte> b(3, std::byte{2});
  const std::array<std::span<const std::byte>, 3> parts = {a, {}, b};
  const auto memory = SealedMemory::create("test", parts).value();
  ASSERT_EQ(memory.bytes().size(), 5003U);
  EXPECT_EQ(memory.bytes()[5002], std::byte{2});
  const UniqueFd fd = memory.share().value();
  EXPECT_TRUE(SealedMemory::map(fd.get(), 5003));
  EXPECT_THAT(SealedMemory::map(fd.get(), 5004).error().message(), HasSubstr("expected 5004"));
  EXPECT_FALSE(MappedRegion::map(fd.get(), 5003, true)) << "it can be mapped for writing";
  const auto adopted = SealedMemory::adopt(memory.share().value(), 5003);
  ASSERT_TRUE(adopted) << adopted.error().message();
  EXPECT_EQ(adopted->bytes()[5002], std::byte{2});
  EXPECT_TRUE(SealedMemory::map(adopted->share()->get(), 5003)) << "it can be passed on";
  EXPECT_THAT(SealedMemory::adopt(memory.share().value(), 5002).error().message(),
              HasSubstr("at most 5002"));
  const auto arena = SharedArena::create({.name = "arena", .data_bytes = 4096}).value();
  EXPECT_THAT(SealedMemory::map(arena.share()->get(), 8192).error().message(),
              HasSubstr("sealed content"));
}

}  // namespace
}  // namespace wsync::staging
