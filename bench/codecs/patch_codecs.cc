#include "bench/codecs/patch_codecs.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "bench/baseline/pages.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"
#include "shared/base/units.h"
#include "shared/weights/patch/block_applier.h"
#include "shared/weights/patch/block_maker.h"
#include "shared/weights/patch/format.h"
#include "shared/weights/patch/patch.h"

namespace wsync::bench {
namespace {

using std::chrono::nanoseconds;

constexpr std::uint64_t kPatchBucketBytes = 64 * limits::kMiB;
constexpr std::size_t kElementBytes = 2;  // bfloat16

struct ChangedShare {
  const char* variant;
  double share;
};
constexpr ChangedShare kChangedShares[] = {
    {"0 %", 0}, {"0.1 %", 0.001}, {"1 %", 0.01}, {"5 %", 0.05}};

Result<> expect(bool right, const char* what) {
  if (right) return {};
  return fail(ErrorCode::kDigestMismatch, fmt::format("{} differs from the expected value", what));
}

// Random weights twice. The second copy is changed and changed back by the measurements.
class PatchGround {
 public:
  static Result<std::shared_ptr<PatchGround>> create(std::uint64_t bytes) {
    auto manifest = WSYNC_TRY(Manifest::create(
        {{.name = "model.weight", .dtype = DType::kBF16, .shape = {bytes / kElementBytes}}}));
    auto base = WSYNC_TRY(Pages::make_private(bytes, PageKind::kHuge));
    auto weights = WSYNC_TRY(Pages::make_private(bytes, PageKind::kHuge));
    std::mt19937_64 random(11);
    for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes; at += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(&base.bytes()[at], &word, sizeof word);
    }
    std::ranges::copy(base.bytes(), weights.bytes().begin());
    return std::shared_ptr<PatchGround>(
        new PatchGround(std::move(manifest), std::move(base), std::move(weights)));
  }

  [[nodiscard]] const patch::Layout& layout() const { return layout_; }
  [[nodiscard]] std::span<const std::byte> base() const { return base_.bytes(); }
  [[nodiscard]] std::span<std::byte> weights() { return weights_.bytes(); }
  // The blocks that turn `from` into `to`.
  std::vector<patch::Block> compare(std::span<const std::byte> from,
                                    std::span<const std::byte> to) {
    std::vector<patch::Block> blocks;
    for (std::uint32_t number = 0; number < layout_.block_count(0); ++number) {
      const patch::BlockPlace place{.tensor = 0, .block = number};
      const std::uint64_t at = patch::Layout::offset(place);
      const std::uint64_t size = layout_.block_bytes(place);
      if (auto block = maker_.make(layout_, place, from.subspan(at, size), to.subspan(at, size)))
        blocks.push_back(std::move(*block));
    }
    return blocks;
  }
  Result<> apply(const patch::Patch& patch) {
    const auto reader = WSYNC_TRY(patch::PatchReader::open(layout_, patch));
    for (const patch::BlockView& block : reader.blocks())
      WSYNC_TRY(applier_.apply(block, weights().subspan(patch::Layout::offset(block.place),
                                                        layout_.block_bytes(block.place))));
    return {};
  }

 private:
  PatchGround(Manifest manifest, Pages base, Pages weights)
      : manifest_(std::move(manifest)),
        layout_(manifest_),
        base_(std::move(base)),
        weights_(std::move(weights)),
        applier_(layout_) {}
  Manifest manifest_;
  patch::Layout layout_;
  Pages base_;
  Pages weights_;
  patch::BlockMaker maker_;
  patch::BlockApplier applier_;
};

Result<patch::Patch> patch_of(const patch::Layout& layout, std::vector<patch::Block> blocks) {
  auto builder = WSYNC_TRY(patch::PatchBuilder::create(layout, kPatchBucketBytes));
  const Digest target{.low = blocks.empty() ? 1U : 2U};
  for (patch::Block& block : blocks) builder.add(std::move(block));
  return builder.finish({.low = 1}, target);
}

// One share of changed elements: the patch to it, and the one back.
class ShareOfChanges {
 public:
  static Result<std::shared_ptr<ShareOfChanges>> create(std::shared_ptr<PatchGround> ground,
                                                        double share) {
    const auto weights = ground->weights();
    if (share > 0) {
      std::mt19937_64 random(13);
      std::geometric_distribution<std::size_t> gap(share);
      for (std::size_t at = gap(random); at < weights.size() / kElementBytes; at += 1 + gap(random))
        weights[at * kElementBytes] ^= std::byte{1};
    }
    auto forward = WSYNC_TRY(patch_of(ground->layout(), ground->compare(ground->base(), weights)));
    auto back = WSYNC_TRY(patch_of(ground->layout(), ground->compare(weights, ground->base())));
    const WordSum target = word_sum(weights, {});
    std::shared_ptr<ShareOfChanges> made(
        new ShareOfChanges(std::move(ground), std::move(forward), std::move(back), target));
    WSYNC_TRY(made->restore());
    return made;
  }

  Result<nanoseconds> measure_make() {
    WSYNC_TRY(ground_->apply(forward_));
    const TimePoint begin = now();
    auto blocks = ground_->compare(ground_->base(), ground_->weights());
    const nanoseconds taken = now() - begin;
    const auto made = WSYNC_TRY(patch_of(ground_->layout(), std::move(blocks)));
    WSYNC_TRY(expect(made == forward_, "a patch that was made"));
    WSYNC_TRY(restore());
    return taken;
  }
  Result<nanoseconds> measure_apply() {
    const TimePoint begin = now();
    WSYNC_TRY(ground_->apply(forward_));
    const nanoseconds taken = now() - begin;
    WSYNC_TRY(expect(word_sum(ground_->weights(), {}) == target_, "what was patched"));
    WSYNC_TRY(restore());
    return taken;
  }

 private:
  ShareOfChanges(std::shared_ptr<PatchGround> ground, patch::Patch forward, patch::Patch back,
                 const WordSum& target)
      : ground_(std::move(ground)),
        forward_(std::move(forward)),
        back_(std::move(back)),
        target_(target) {}
  Result<> restore() {
    WSYNC_TRY(ground_->apply(back_));
    return expect(std::ranges::equal(ground_->weights(), ground_->base()),
                  "what was patched and patched back");
  }
  std::shared_ptr<PatchGround> ground_;
  patch::Patch forward_;
  patch::Patch back_;
  WordSum target_;
};

}  // namespace

Result<> add_patch_codec_rows(std::uint64_t bytes, std::vector<Row>& rows) {
  const auto ground = WSYNC_TRY(PatchGround::create(bytes));
  for (const ChangedShare& changed : kChangedShares) {
    const auto share = WSYNC_TRY(ShareOfChanges::create(ground, changed.share));
    const auto add = [&](const char* name, auto measure) {
      rows.push_back(rate_row(
          {.name = name, .variant = changed.variant, .bytes = bytes, .against = "streaming copy"},
          measure));
    };
    add("make patch", [share] { return share->measure_make(); });
    if (changed.share > 0) add("apply patch", [share] { return share->measure_apply(); });
  }
  return {};
}

}  // namespace wsync::bench
