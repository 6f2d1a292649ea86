// The patch that is made beside a snapshot: what it has, and when there is none.
#include "trainer_side/publish/change_finder.h"

#include <cstring>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/block_applier.h"
#include "shared/weights/patch/mapped_patch.h"
#include "tests/support/bytes.h"

namespace wsync::publish {
namespace {

// How a source gives its bytes.
enum class Gives { kViews, kCopies, kOtherViews };

class ChangedWeights final : public WeightSource {
 public:
  ChangedWeights(std::shared_ptr<const Manifest> manifest,
                 const std::vector<std::vector<std::byte>>& tensors, Gives gives)
      : manifest_(std::move(manifest)), tensors_(tensors), views_(tensors), gives_(gives) {
    if (gives == Gives::kOtherViews) views_[0][300 * limits::kKiB] ^= std::byte{1};
  }
  [[nodiscard]] const std::shared_ptr<const Manifest>& manifest() const override {
    return manifest_;
  }
  [[nodiscard]] Result<> read(std::uint32_t tensor, std::uint64_t offset,
                              std::span<std::byte> into) override {
    std::memcpy(into.data(), tensors_[tensor].data() + offset, into.size());
    return {};
  }
  [[nodiscard]] std::optional<std::span<const std::byte>> view(std::uint32_t tensor,
                                                               std::uint64_t offset,
                                                               std::uint64_t bytes) const override {
    if (gives_ == Gives::kCopies) return std::nullopt;
    return std::span(views_[tensor]).subspan(offset, bytes);
  }

 private:
  const std::shared_ptr<const Manifest> manifest_;
  const std::vector<std::vector<std::byte>>& tensors_;
  std::vector<std::vector<std::byte>> views_;
  const Gives gives_;
};

class ChangeFinderTest : public testing::Test {
 protected:
  ChangeFinderTest() {
    std::mt19937_64 random(11);
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
  std::shared_ptr<Snapshot> take(std::uint64_t step, const std::shared_ptr<const Snapshot>& base,
                                 Gives gives = Gives::kViews,
                                 std::uint64_t bucket_bytes = limits::kBucketBytesMin) {
    ChangedWeights source(manifest_, tensors_, gives);
    auto taken = snapshotter_.take(source, {.version = {.epoch = 1, .step = step},
                                            .bucket_bytes = bucket_bytes,
                                            .base = base,
                                            .value_cost = patch::kHostValueCost});
    EXPECT_TRUE(taken) << taken.error().message();
    return *taken;
  }
  // The bytes of the base with the patch.
  [[nodiscard]] Bytes patched(const Snapshot& base, const SealedMemory& memory) const {
    const patch::Layout& layout = *base.blocks();
    const auto reader = patch::read_mapped(layout, memory.bytes(), nullptr).value();
    Bytes bytes(base.data().begin(), base.data().end());
    patch::BlockApplier applier(layout);
    for (const patch::BlockView& block : reader.blocks()) {
      const auto pieces = base.plan()->tensor_pieces(block.place.tensor);
      const std::uint64_t at =
          base.plan()->arena_offset(pieces.front()) + patch::Layout::offset(block.place);
      EXPECT_TRUE(
          applier.apply(block, std::span(bytes).subspan(at, layout.block_bytes(block.place))));
    }
    return bytes;
  }

  const std::shared_ptr<const Manifest> manifest_ = std::make_shared<const Manifest>(
      Manifest::create({{"embed.weight", DType::kBF16, {3000, 1777}},
                        {"layers.0.w", DType::kF32, {100, 30}},
                        {"layers.1.w", DType::kU8, {9 * limits::kMiB + 5}},
                        {"layers.2.none", DType::kU8, {0}}})
          .value());
  std::vector<std::vector<std::byte>> tensors_;
  Snapshotter snapshotter_{{.threads = 3}};
};

class ChangeFinderSources : public ChangeFinderTest, public testing::WithParamInterface<Gives> {};

TEST_P(ChangeFinderSources, ThePatchTurnsTheBaseIntoTheSnapshot) {
  const auto base = take(1, nullptr);
  EXPECT_EQ(base->patch(), nullptr);
  change(500);
  const auto next = take(2, base, GetParam());
  ASSERT_NE(next->patch(), nullptr);
  const auto link = patch::link_of(next->patch()->bytes()).value();
  EXPECT_EQ(link.base, base->digests().root);
  EXPECT_EQ(link.target, next->digests().root);
  EXPECT_LT(next->patch()->bytes().size(), base->data().size() / 20);
  const Bytes bytes = patched(*base, *next->patch());
  EXPECT_TRUE(same_bytes(bytes, next->data()));
  // What is copied and summed is what it is without a base.
  const auto alone = take(3, nullptr);
  EXPECT_EQ(alone->digests(), next->digests());
  EXPECT_TRUE(same_bytes(alone->data(), next->data()));
}

TEST_P(ChangeFinderSources, ThereIsNoneIfItIsNotWorthIt) {
  const auto base = take(1, nullptr);
  EXPECT_EQ(take(2, base, GetParam())->patch(), nullptr) << "nothing has changed";
  change(1);
  const auto all = take(3, base, GetParam());
  EXPECT_EQ(all->patch(), nullptr);
  EXPECT_TRUE(same_bytes(all->data().first(100), std::span(tensors_[0]).first(100)));
  change(1);
  change(80);  // too much, which is not clear from a few blocks
  EXPECT_EQ(take(4, base, GetParam())->patch(), nullptr);
}

INSTANTIATE_TEST_SUITE_P(All, ChangeFinderSources, testing::Values(Gives::kViews, Gives::kCopies),
                         [](const auto& one) {
                           return one.param == Gives::kViews ? "InMemory" : "AfterTheCopy";
                         });

// Before anything is copied, so that versions in which much changes cost next to nothing.
TEST_F(ChangeFinderTest, AFewBytesShowThatAPatchIsNotWorthIt) {
  const auto base = take(1, nullptr);
  const auto begins = [&](Gives gives) {
    const ChangedWeights source(manifest_, tensors_, gives);
    return ChangeFinder::create(base, source, {}, patch::kHostValueCost) != nullptr;
  };
  EXPECT_TRUE(begins(Gives::kViews)) << "nothing has changed";
  change(1000);
  EXPECT_TRUE(begins(Gives::kViews));
  change(40);
  EXPECT_FALSE(begins(Gives::kViews));
  EXPECT_TRUE(begins(Gives::kCopies)) << "nothing can be looked at before the copy";
  change(40);
  change(1);
  EXPECT_FALSE(begins(Gives::kViews));
}

TEST_F(ChangeFinderTest, ThereIsNoneFromAnotherLayout) {
  const auto base = take(1, nullptr);
  change(500);
  EXPECT_EQ(take(2, base, Gives::kViews, 2 * limits::kBucketBytesMin)->patch(), nullptr);
}

// The sidecars have released it, and the new version goes into its arena.
TEST_F(ChangeFinderTest, ABaseThatNobodyNeedsAnyMoreHoldsNoArena) {
  Snapshotter one({.arenas = 1});
  ChangedWeights source(manifest_, tensors_, Gives::kViews);
  SnapshotRequest wanted{.version = {.epoch = 1, .step = 1},
                         .bucket_bytes = limits::kBucketBytesMin};
  auto base = one.take(source, wanted).value();
  change(500);
  wanted.base = base;
  base.reset();
  const auto next = one.take(source, wanted);
  ASSERT_TRUE(next) << next.error().message();
  EXPECT_EQ((*next)->patch(), nullptr);
}

// A training loop that goes on before the publish has returned.
TEST_F(ChangeFinderTest, ThereIsNoneIfTheWeightsChangeWhileTheyAreCopied) {
  const auto base = take(1, nullptr);
  change(500);
  const auto mixed = take(2, base, Gives::kOtherViews);
  EXPECT_EQ(mixed->patch(), nullptr);
}

}  // namespace
}  // namespace wsync::publish
