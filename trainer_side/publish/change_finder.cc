#include "trainer_side/publish/change_finder.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "shared/base/fail_point.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/patch/format.h"
#include "shared/weights/patch/leaf_changes.h"
#include "shared/weights/patch/mapped_patch.h"

namespace wsync::publish {
namespace {

std::uint64_t max_bytes_of(const patch::Layout& layout) {
  return static_cast<std::uint64_t>(patch::kPatchShareMax *
                                    static_cast<double>(layout.manifest().total_bytes()));
}

}  // namespace

ChangeFinder::ChangeFinder(std::shared_ptr<const Snapshot> base,
                           std::optional<patch::PatchBuilder> builder, std::uint64_t value_cost)
    : base_(std::move(base)),
      layout_(*base_->blocks()),
      builder_(std::move(builder)),
      worth_(layout_.manifest().total_bytes(), max_bytes_of(layout_), value_cost),
      link_(layout_, base_->digests()) {
  if (!builder_) leaves_.resize(base_->digests().leaves.size());
}

std::unique_ptr<ChangeFinder> ChangeFinder::create(std::shared_ptr<const Snapshot> base,
                                                   const WeightSource& source,
                                                   std::span<const std::byte> written,
                                                   std::uint64_t value_cost) {
  auto builder = patch::PatchBuilder::create(*base->blocks(), patch::kPatchBucketBytes);
  if (!builder) {
    log_debug("no patch is made beside the snapshot: {}", builder.error().message());
    return nullptr;
  }
  auto finder = std::unique_ptr<ChangeFinder>(
      new ChangeFinder(std::move(base), std::move(*builder), value_cost));
  const auto judged = finder->sample(source, written);
  if (judged) return finder;
  log_debug("no patch is made beside the snapshot: {}", judged.error().message());
  return nullptr;
}

std::unique_ptr<ChangeFinder> ChangeFinder::create_for_buckets(std::shared_ptr<const Snapshot> base,
                                                               const WeightSource& source) {
  auto finder = std::unique_ptr<ChangeFinder>(new ChangeFinder(std::move(base), std::nullopt, 0));
  const auto judged = finder->sample(source, {});
  if (judged) return finder;
  log_debug("the snapshot is copied: {}", judged.error().message());
  return nullptr;
}

Result<> ChangeFinder::sample(const WeightSource& source,
                              std::span<const std::byte> written) const {
  return worth_.sample(layout_,
                       [&](std::uint32_t tensor, std::uint64_t offset,
                           std::uint64_t bytes) -> std::optional<patch::PatchWorth::Pair> {
                         const std::uint64_t at = arena_offset(tensor, offset);
                         auto target = source.view(tensor, offset, bytes);
                         if (!target && !written.empty()) target = written.subspan(at, bytes);
                         if (!target) return std::nullopt;
                         return patch::PatchWorth::Pair{.base = base_->data().subspan(at, bytes),
                                                        .target = *target};
                       });
}

std::optional<patch::Block> ChangeFinder::make(patch::BlockMaker& maker,
                                               const patch::BlockPlace& place,
                                               std::span<const std::byte> target) const {
  const std::uint64_t at = arena_offset(place.tensor, patch::Layout::offset(place));
  return maker.make(layout_, place, base_->data().subspan(at, target.size()), target);
}

std::uint64_t ChangeFinder::arena_offset(std::uint32_t tensor, std::uint64_t offset) const {
  return base_->plan()->arena_offset(base_->plan()->tensor_pieces(tensor).front()) + offset;
}

WordSum ChangeFinder::compare(patch::BlockMaker& maker, std::uint32_t tensor, std::uint64_t offset,
                              std::span<const std::byte> target) {
  WordSum sum;
  for (std::uint64_t at = 0; at < target.size() && is_comparing(); at += patch::kBlockBytes) {
    const patch::BlockPlace place{
        .tensor = tensor, .block = static_cast<std::uint32_t>((offset + at) / patch::kBlockBytes)};
    auto block =
        make(maker, place,
             target.subspan(at, std::min<std::uint64_t>(patch::kBlockBytes, target.size() - at)));
    sum += maker.target_sum();
    if (!block || (planted("snapshot_patch_skips_block") && place.block == 1)) continue;
    worth_.add(block->view());
    link_.add(block->view());
    if (builder_)
      builder_->add(std::move(*block));
    else
      leaves_[base_->digests().first_leaf[tensor] + (offset + at) / limits::kLeafBytes].push_back(
          std::move(*block));
  }
  return sum;
}

Result<std::shared_ptr<const SealedMemory>> ChangeFinder::finish(const ContentDigests& target) {
  const ContentDigests& base = base_->digests();
  if (base.root == target.root) return nullptr;
  if (const auto worth = worth_.check(); !worth) {
    log_debug("no patch is made beside the snapshot: {}", worth.error().message());
    return nullptr;
  }
  fail_point("patch_compared");
  if (!planted("snapshot_patch_skips_block")) WSYNC_TRY(link_.check(target));
  const patch::Patch patch = WSYNC_TRY(builder_->finish(base.root, target.root));
  auto memory = patch::share_patch(patch);
  fail_point("patch_made");
  return memory;
}

Result<patch::ChangedBuckets> ChangeFinder::finish_buckets(const ContentDigests& target) {
  WSYNC_TRY(worth_.check());
  fail_point("patch_compared");
  if (!planted("snapshot_patch_skips_block")) WSYNC_TRY(link_.check(target));
  const LeafTable& table = *base_->leaves();
  patch::ChangedBuckets buckets;
  for (std::size_t bucket = 0; bucket < table.bucket_count(); ++bucket) {
    std::vector<patch::Block> blocks;
    for (std::size_t i = 0; i < table.bucket(bucket).size(); ++i)
      std::ranges::move(std::exchange(leaves_[table.first(bucket) + i], {}),
                        std::back_inserter(blocks));
    buckets.push_back(std::make_shared<const Bytes>(patch::write_leaf_changes(blocks)));
  }
  fail_point("patch_made");
  return buckets;
}

}  // namespace wsync::publish
