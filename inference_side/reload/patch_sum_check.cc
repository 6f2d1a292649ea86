#include "inference_side/reload/patch_sum_check.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "inference_side/reload/part_relation.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/weights/patch/block_applier.h"

namespace wsync::reload {
namespace {

using patch::PartSums;
using patch::TensorPart;

// One rank's part of a tensor that the patch changes.
struct PatchedPart {
  std::uint32_t rank = 0;
  const LoadTensor* tensor = nullptr;
  const control::EngineTensor* ranges = nullptr;
  PartSums sums;
};

bool same(const PartSums& a, const PartSums& b) {
  return (a.before == b.before || planted("patch_before_not_compared")) && a.after == b.after;
}

// The parts of one tensor.
class PatchedTensorParts {
 public:
  // `parts` is not empty.
  PatchedTensorParts(const AppliedPatch& patch, std::uint32_t index, std::vector<PatchedPart> parts)
      : patch_(patch),
        index_(index),
        blocks_(patch.reader->blocks(index, 0, patch.layout->block_count(index))),
        parts_(std::move(parts)),
        applier_(*patch.layout) {
    for (const patch::BlockView& block : blocks_) {
      total_.before.words += block.before;
      total_.after.words += block.after;
    }
  }

  [[nodiscard]] SumCheck check() { return is_equal() ? SumCheck{} : compare_with_held(); }

 private:
  [[nodiscard]] std::uint64_t tensor_bytes() const { return patch_.layout->tensor(index_).bytes; }
  [[nodiscard]] TensorPart part_of(const PatchedPart& part) const {
    std::vector<patch::PartRange> ranges;
    for (const control::DimRange& range : part.ranges->ranges)
      ranges.push_back({.dim = range.dim, .begin = range.begin, .length = range.length});
    auto made = TensorPart::create(patch_.layout->manifest().tensor(index_), ranges);
    WSYNC_CHECK(made.has_value(), "the load plan has checked the ranges");
    return std::move(*made);
  }
  [[nodiscard]] std::span<const std::byte> bytes_of(std::span<const std::byte> tensor,
                                                    const patch::BlockView& block) const {
    return tensor.subspan(patch::Layout::offset(block.place),
                          patch_.layout->block_bytes(block.place));
  }

  // Whether the sums say that the parts were those of the base and are those of the target.
  [[nodiscard]] bool is_equal() {
    std::vector<const PatchedPart*> different;  // one of equal parts, of those that are not whole
    std::uint64_t bytes = 0;
    for (const PatchedPart& part : parts_) {
      const std::uint64_t own = part.tensor->shard.bytes();
      if (own == tensor_bytes() || own == 0) {
        if (!same(part.sums, own == 0 ? PartSums{} : total_)) return false;
        continue;
      }
      bool repeats = false;
      for (const PatchedPart* other : different) {
        const PartRelation relation = relation_of(*part.ranges, *other->ranges);
        if (relation == PartRelation::kOverlapping) return false;
        if (relation != PartRelation::kEqual) continue;
        if (!same(part.sums, other->sums)) return false;
        repeats = true;
        break;
      }
      if (repeats && !planted("patch_sums_counted_twice")) continue;
      different.push_back(&part);
      bytes += repeats ? 0 : own;
    }
    return different.empty() || (bytes == tensor_bytes() && make_up(different));
  }

  // Whether the sums of these parts, which make up the tensor without overlap, make up its sums.
  [[nodiscard]] bool make_up(const std::vector<const PatchedPart*>& parts) {
    PartSums sum;
    bool is_cut = false;
    for (const PatchedPart* part : parts) {
      sum.before.words += part->sums.before.words;
      sum.after.words += part->sums.after.words;
      std::vector<std::uint64_t> words;
      add_cut_words(*part->tensor, words);
      is_cut = is_cut || !words.empty();
      if (words.empty() &&
          (part->sums.before.edges != WordSum{} || part->sums.after.edges != WordSum{}))
        return false;
    }
    if (is_cut && !add_cut(parts, sum)) return false;
    return same(sum, total_);
  }

  // Adds the touched words that no part holds as a whole. Returns false if the share of a rank in
  // them is another one.
  [[nodiscard]] bool add_cut(const std::vector<const PatchedPart*>& parts, PartSums& sum) {
    if (!patch_.base) return false;
    std::vector<TensorPart> made;
    made.reserve(parts.size());
    for (const PatchedPart* part : parts) made.push_back(part_of(*part));
    const auto base = patch_.base(index_);
    const auto target = patch_.target(index_);
    for (const patch::BlockView& block : blocks_) {
      sum.before.words += applier_.sum_of_cut_words(block, made, bytes_of(base, block));
      sum.after.words += applier_.sum_of_cut_words(block, made, bytes_of(target, block));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const PartSums share = share_of(made[i]);
      if (share.before.edges != parts[i]->sums.before.edges ||
          share.after.edges != parts[i]->sums.after.edges)
        return false;
    }
    return true;
  }

  // What a part must have, computed from the held versions.
  [[nodiscard]] PartSums share_of(const TensorPart& part) {
    PartSums share;
    const auto base = patch_.base ? patch_.base(index_) : std::span<const std::byte>();
    const auto target = patch_.target(index_);
    for (const patch::BlockView& block : blocks_) {
      if (patch_.base) share.before += applier_.share_of_part(block, part, bytes_of(base, block));
      share.after += applier_.share_of_part(block, part, bytes_of(target, block));
    }
    return share;
  }

  [[nodiscard]] SumCheck compare_with_held() {
    SumCheck check;
    const std::string& name = patch_.layout->manifest().tensor(index_).name;
    for (const PatchedPart& part : parts_) {
      PartSums share = share_of(part_of(part));
      // What cannot be told of one rank is told of all of them below.
      if (!patch_.base) share.before = part.sums.before;
      for (const patch::BlockView& block : blocks_)
        check.read_bytes += patch_.layout->block_bytes(block.place);
      if (same(share, part.sums)) continue;
      const bool was_base = share.before == part.sums.before;
      check.mismatch = SumMismatch{
          .tensor = name,
          .rank = part.rank,
          .why = fmt::format("tensor {}: the words that the patch changes {} in the memory of rank "
                             "{}",
                             name,
                             was_base ? "are not those of the new version"
                                      : "were not those of the version before",
                             part.rank)};
      break;
    }
    if (!check.mismatch && !patch_.base)
      check.mismatch = SumMismatch{
          .tensor = name,
          .rank = parts_.front().rank,
          .why = fmt::format("tensor {}: the words that the patch changes were not those of the "
                             "version before in the memory of some rank",
                             name)};
    return check;
  }

  const AppliedPatch& patch_;
  std::uint32_t index_;
  std::span<const patch::BlockView> blocks_;
  std::vector<PatchedPart> parts_;
  PartSums total_;  // of the blocks
  patch::BlockApplier applier_;
};

}  // namespace

bool needs_bytes_of_base(std::span<const PatchedRank> ranks) {
  struct Part {
    const LoadTensor* tensor;
    const control::EngineTensor* ranges;
  };
  std::map<std::uint32_t, std::vector<Part>> different;  // by tensor: one of equal parts
  for (const PatchedRank& rank : ranks)
    for (std::size_t t = 0; t < rank.tensors.size(); ++t) {
      const LoadTensor& tensor = rank.tensors[t];
      const std::uint64_t own = tensor.shard.bytes();
      if (own == tensor.shard.tensor_bytes() || own == 0) continue;
      std::vector<std::uint64_t> words;
      add_cut_words(tensor, words);
      if (!words.empty()) return true;
      std::vector<Part>& parts = different[tensor.manifest_index];
      bool repeats = false;
      for (const Part& other : parts) {
        const PartRelation relation = relation_of(rank.ranges[t], *other.ranges);
        if (relation == PartRelation::kOverlapping) return true;
        repeats = repeats || relation == PartRelation::kEqual;
      }
      if (!repeats) parts.push_back({.tensor = &tensor, .ranges = &rank.ranges[t]});
    }
  return std::ranges::any_of(different, [](const auto& entry) {
    std::uint64_t bytes = 0;
    for (const Part& part : entry.second) bytes += part.tensor->shard.bytes();
    return bytes != entry.second.front().tensor->shard.tensor_bytes();
  });
}

SumCheck check_patch_sums(const AppliedPatch& patch, std::span<const PatchedRank> ranks) {
  SumCheck check;
  std::vector<std::vector<PatchedPart>> parts(patch.layout->manifest().size());
  std::vector<bool> changes(parts.size());
  for (const patch::TensorEntry& entry : patch.reader->index().tensors())
    changes[entry.tensor] = true;
  for (const PatchedRank& rank : ranks)
    for (std::size_t t = 0; t < rank.tensors.size(); ++t) {
      const std::uint32_t index = rank.tensors[t].manifest_index;
      const PartSums sums{.before = rank.before[t], .after = rank.after[t]};
      if (changes[index])
        parts[index].push_back({.rank = rank.rank,
                                .tensor = &rank.tensors[t],
                                .ranges = &rank.ranges[t],
                                .sums = sums});
      else if (sums.before != SplitSum{} || sums.after != SplitSum{})
        check.mismatch = SumMismatch{
            .tensor = patch.layout->manifest().tensor(index).name,
            .rank = rank.rank,
            .why = fmt::format("tensor {}: rank {} has changed it, but the patch does not",
                               patch.layout->manifest().tensor(index).name, rank.rank)};
    }
  if (check.mismatch) return check;
  for (std::uint32_t index = 0; index < parts.size(); ++index) {
    if (parts[index].empty()) continue;
    SumCheck one = PatchedTensorParts(patch, index, std::move(parts[index])).check();
    check.read_bytes += one.read_bytes;
    check.mismatch = std::move(one.mismatch);
    if (check.mismatch) break;
  }
  return check;
}

}  // namespace wsync::reload
