#include "inference_side/staging/held_patch.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "shared/base/check.h"
#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"
#include "shared/base/thread_pool.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/block_applier.h"
#include "shared/weights/patch/block_maker.h"
#include "shared/weights/patch/format.h"
#include "shared/weights/patch/leaf_changes.h"
#include "shared/weights/patch/mapped_patch.h"
#include "shared/weights/patch/sum_link.h"

namespace wsync::staging {
namespace {

// How many blocks are reversed between two looks at whether to stop.
constexpr std::size_t kBlocksAtOnce = 1024;

// The ranks then hold the target by its digest, whatever is staged.
bool have_same_content(const HeldVersion& base, const HeldVersion& target) {
  return base.digests().root == target.digests().root;
}

// Compares two versions.
class Comparison {
 public:
  Comparison(const HeldVersion& base, const HeldVersion& target, const patch::Layout& layout,
             const PatchLimits& limits, patch::PatchBuilder& builder)
      : base_(base),
        target_(target),
        layout_(layout),
        limits_(limits),
        builder_(builder),
        worth_(layout.manifest().total_bytes(), limits.max_bytes, limits.value_cost) {
    const std::size_t leaves = target.leaves()->all().size();
    if (!base.is_verified()) base_sums_.resize(leaves);
    if (!target.is_verified()) target_sums_.resize(leaves);
  }

  // Fails if a few bytes show that the patch will be too large, or will be written too slowly.
  [[nodiscard]] Result<> sample() const {
    return worth_.sample(layout_, [&](std::uint32_t tensor, std::uint64_t at, std::uint64_t bytes) {
      return std::optional(patch::PatchWorth::Pair{
          .base = HeldPatch::tensor_bytes(base_, tensor).subspan(at, bytes),
          .target = HeldPatch::tensor_bytes(target_, tensor).subspan(at, bytes)});
    });
  }

  // Takes the blocks by which the target has come.
  [[nodiscard]] Result<> take(const ReceivedChanges& changes) {
    const auto helpers = helpers_for(limits_.threads);
    std::vector<Result<>> taken(changes.buckets.size());
    for_each_index(helpers.get(), taken.size(), [&](std::size_t bucket) {
      if (!is_over()) taken[bucket] = take(bucket, *changes.buckets[bucket]);
    });
    for (const Result<>& bucket : taken) WSYNC_TRY(bucket);
    return within_limits();
  }

  // Compares everything.
  [[nodiscard]] Result<> run() {
    const auto leaves = target_.leaves()->all();
    const auto helpers = helpers_for(limits_.threads);
    std::atomic<std::size_t> next = 0;
    for_each_index(helpers.get(), std::max(1U, limits_.threads), [&](std::size_t /*thread*/) {
      patch::BlockMaker maker;
      for (std::size_t at = next++; at < leaves.size() && !is_over(); at = next++)
        compare_leaf(maker, at);
    });
    WSYNC_TRY(within_limits());
    if (!base_sums_.empty()) WSYNC_TRY(base_.prove(std::move(base_sums_)));
    if (!target_sums_.empty()) WSYNC_TRY(target_.prove(std::move(target_sums_)));
    return {};
  }

 private:
  [[nodiscard]] Result<> take(std::size_t bucket, std::span<const std::byte> changes) {
    const auto views =
        WSYNC_TRY(patch::read_leaf_changes(layout_, target_.leaves()->bucket(bucket), changes));
    for (const patch::BlockView& view : views) add(patch::copy_of(view));
    return {};
  }
  void add(patch::Block block) {
    worth_.add(block.view());
    builder_.add(std::move(block));
  }
  [[nodiscard]] Result<> within_limits() const {
    if (limits_.stop.stop_requested())
      return fail(ErrorCode::kCancelled, "the patch is no longer needed");
    return worth_.check();
  }
  [[nodiscard]] bool is_over() const {
    return limits_.stop.stop_requested() || worth_.is_exceeded();
  }
  [[nodiscard]] std::optional<patch::Block> make(patch::BlockMaker& maker,
                                                 const patch::BlockPlace& place) const {
    const std::uint64_t at = patch::Layout::offset(place);
    const std::uint64_t bytes = layout_.block_bytes(place);
    return maker.make(layout_, place,
                      HeldPatch::tensor_bytes(base_, place.tensor).subspan(at, bytes),
                      HeldPatch::tensor_bytes(target_, place.tensor).subspan(at, bytes));
  }
  // A leaf consists of whole blocks. They are summed while they are in the cache.
  void compare_leaf(patch::BlockMaker& maker, std::size_t index) {
    const LeafPlace& leaf = target_.leaves()->all()[index];
    for (std::uint64_t at = 0; at < leaf.bytes; at += patch::kBlockBytes) {
      const patch::BlockPlace place{
          .tensor = leaf.tensor,
          .block = static_cast<std::uint32_t>((leaf.place.position + at) / patch::kBlockBytes)};
      const std::uint64_t bytes = layout_.block_bytes(place);
      const SumPlace sum_place{.seed = leaf.place.seed, .position = leaf.place.position + at};
      if (auto block = make(maker, place)) add(std::move(*block));
      if (!base_sums_.empty())
        base_sums_[index] +=
            word_sum(base_.data().subspan(leaf.arena_offset + at, bytes), sum_place);
      if (!target_sums_.empty()) target_sums_[index] += maker.target_sum();
    }
  }

  const HeldVersion& base_;
  const HeldVersion& target_;
  const patch::Layout& layout_;
  const PatchLimits& limits_;
  patch::PatchBuilder& builder_;
  patch::PatchWorth worth_;
  std::vector<WordSum> base_sums_;    // of the leaves; empty: proven before
  std::vector<WordSum> target_sums_;  // likewise
};

}  // namespace

std::span<const std::byte> HeldPatch::tensor_bytes(const HeldVersion& version,
                                                   std::uint32_t tensor) {
  const auto pieces = version.plan()->tensor_pieces(tensor);
  if (pieces.empty()) return {};
  return version.data().subspan(
      version.plan()->arena_offset(pieces.front()),
      pieces.back().tensor_offset + pieces.back().bytes - pieces.front().tensor_offset);
}

bool HeldPatch::is_known(const HeldVersion& base, const HeldVersion& target,
                         const ReceivedChanges* changes) {
  if (have_same_content(base, target)) return true;
  if (changes == nullptr) return false;
  if (changes->patch) return changes->patch_base == base.digests().root;
  // Who has received them has proven each block with the words of the base that it touches.
  return changes->base == base.version();
}

HeldPatch::HeldPatch(std::shared_ptr<const HeldVersion> base,
                     std::shared_ptr<const HeldVersion> target,
                     std::shared_ptr<const SealedMemory> memory)
    : base_(std::move(base)),
      target_(std::move(target)),
      layout_(*target_->manifest()),
      memory_(std::move(memory)) {}

Result<> HeldPatch::read(unsigned threads) {
  const auto helpers = helpers_for(threads);
  reader_.emplace(WSYNC_TRY(patch::read_mapped(layout_, memory_->bytes(), helpers.get())));
  return {};
}

Result<> HeldPatch::judge(const PatchLimits& limits) const {
  if (reader_->index().link().target != target_->digests().root)
    return fail(ErrorCode::kRefused, "the patch leads to another content than that of its version");
  patch::SumLink link(layout_, base_->digests());
  patch::PatchWorth worth(layout_.manifest().total_bytes(), limits.max_bytes, limits.value_cost);
  for (const patch::BlockView& block : reader_->blocks()) {
    link.add(block);
    worth.add(block);
  }
  WSYNC_TRY(link.check(target_->digests()));
  return worth.check();
}

Result<std::shared_ptr<const HeldPatch>> HeldPatch::make(std::shared_ptr<const HeldVersion> base,
                                                         std::shared_ptr<const HeldVersion> target,
                                                         const PatchLimits& limits,
                                                         const ReceivedChanges* changes) {
  WSYNC_CHECK(base->identity().layout == target->identity().layout, "both have the same layout");
  const bool is_known = HeldPatch::is_known(*base, *target, changes);
  if (is_known && changes != nullptr && changes->patch && !have_same_content(*base, *target)) {
    std::shared_ptr<HeldPatch> sent(
        new HeldPatch(std::move(base), std::move(target), changes->patch));
    WSYNC_TRY(sent->read(limits.threads));
    WSYNC_TRY(sent->judge(limits));
    fail_point("patch_read");
    return std::shared_ptr<const HeldPatch>(std::move(sent));
  }
  const patch::Layout layout(*target->manifest());
  auto builder = WSYNC_TRY(patch::PatchBuilder::create(layout, patch::kPatchBucketBytes));
  Comparison comparison(*base, *target, layout, limits, builder);
  // Bytes that nobody has read yet are proven while they are compared.
  if (!is_known) {
    WSYNC_TRY(comparison.sample());
    WSYNC_TRY(comparison.run());
  } else if (!have_same_content(*base, *target)) {
    WSYNC_TRY(comparison.take(*changes));
  }
  return share(std::move(base), std::move(target), builder, limits);
}

Result<std::shared_ptr<const HeldPatch>> HeldPatch::share(std::shared_ptr<const HeldVersion> base,
                                                          std::shared_ptr<const HeldVersion> target,
                                                          patch::PatchBuilder& builder,
                                                          const PatchLimits& limits) {
  const patch::Patch patch =
      WSYNC_TRY(builder.finish(base->digests().root, target->digests().root));
  if (patch.bytes() > limits.max_bytes)
    return fail(ErrorCode::kRefused, fmt::format("the patch has {} bytes, at most {} are worth one",
                                                 patch.bytes(), limits.max_bytes));
  auto memory = WSYNC_TRY(patch::share_patch(patch));
  std::shared_ptr<HeldPatch> held(
      new HeldPatch(std::move(base), std::move(target), std::move(memory)));
  WSYNC_TRY(held->read(limits.threads));
  return std::shared_ptr<const HeldPatch>(std::move(held));
}

Result<std::shared_ptr<const HeldPatch>> HeldPatch::make_back(const HeldPatch& forward,
                                                              const HeldVersion& base,
                                                              const PatchLimits& limits) {
  WSYNC_CHECK(base.digests().root == forward.base().digests().root,
              "the bytes are those of the base");
  const patch::Layout& layout = forward.layout();
  auto builder = WSYNC_TRY(patch::PatchBuilder::create(layout, patch::kPatchBucketBytes));
  patch::BlockApplier applier(layout);
  for (std::span<const patch::BlockView> rest = forward.reader().blocks(); !rest.empty();) {
    if (limits.stop.stop_requested())
      return fail(ErrorCode::kCancelled, "the patch is no longer needed");
    const auto blocks = rest.first(std::min(rest.size(), kBlocksAtOnce));
    rest = rest.subspan(blocks.size());
    std::vector<const std::byte*> begins;
    for (const patch::BlockView& block : blocks)
      begins.push_back(tensor_bytes(base, block.place.tensor).data() +
                       patch::Layout::offset(block.place));
    WSYNC_TRY(applier.make_reverse(blocks, begins,
                                   [&](patch::Block back) { builder.add(std::move(back)); }));
  }
  return share(forward.target().with_memory(NoMemory{}), base.with_memory(NoMemory{}), builder,
               limits);
}

}  // namespace wsync::staging
