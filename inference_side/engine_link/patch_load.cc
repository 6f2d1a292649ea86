#include "inference_side/engine_link/patch_load.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <sys/stat.h>
#include <utility>

#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/sealed_memory.h"
#include "shared/weights/patch/block_applier.h"
#include "shared/weights/patch/mapped_patch.h"
#include "shared/weights/patch/tensor_part.h"

namespace wsync::engine {
namespace {

constexpr std::size_t kBlocksInRun = 16;  // 4 MiB of weights
// Of dense ones, whose memory need not be fetched ahead. Fewer are shared more evenly.
constexpr std::size_t kDenseInRun = 2;
constexpr std::uint64_t kMappedByOne = 12 * limits::kMiB;
// Fewer values are over before the memory of the first ones has come.
constexpr std::size_t kValuesInRun = 2048;

// The first blocks of these, as one thread writes them.
std::span<const patch::BlockView> first_run(std::span<const patch::BlockView> blocks) {
  std::size_t count = 0;
  std::size_t dense = 0;
  std::size_t values = 0;
  while (count < blocks.size() && dense < kDenseInRun &&
         (count < kBlocksInRun || values < kValuesInRun)) {
    if (blocks[count].dense) ++dense;
    values += blocks[count++].elements;
  }
  return blocks.first(count);
}

}  // namespace

PatchLoad::PatchLoad(std::shared_ptr<const EngineLayout> layout, MappedRegion memory)
    : engine_layout_(std::move(layout)),
      memory_(std::move(memory)),
      layout_(*engine_layout_->manifest) {}

Result<std::unique_ptr<PatchLoad>> PatchLoad::open(int fd, std::uint64_t bytes,
                                                   const PreparedVersion& prepared,
                                                   ThreadPool* helpers) {
  // A second thread is not worth its start for a small patch.
  const bool is_large = helpers != nullptr && bytes > kMappedByOne;
  auto memory = WSYNC_TRY(SealedMemory::map(fd, bytes, is_large ? 2 : 1));
  auto load = std::unique_ptr<PatchLoad>(new PatchLoad(prepared.layout, std::move(memory)));
  struct stat status{};
  if (::fstat(fd, &status) != 0) return fail_errno("stat of the memory of a patch", errno);
  load->device_ = status.st_dev;
  load->inode_ = status.st_ino;
  auto reader = WSYNC_TRY(patch::read_mapped(load->layout_, load->memory_.bytes(), helpers));
  load->reader_ = std::make_unique<const patch::PatchReader>(std::move(reader));
  fail_point("patch_opened");
  return load;
}

bool PatchLoad::is_of(int fd) const noexcept {
  struct stat status{};
  return ::fstat(fd, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

bool PatchLoad::changes_layer(std::size_t layer) const {
  return std::ranges::any_of(engine_layout_->layers[layer], [this](std::uint32_t tensor) {
    const std::uint32_t index = engine_layout_->plan.tensors()[tensor].manifest_index;
    return !reader_->blocks(index, 0, layout_.block_count(index)).empty();
  });
}

Result<PatchLoad::Targets> PatchLoad::targets(const EngineDescription& description) const {
  const auto tensors = engine_layout_->plan.tensors();
  Targets targets;
  for (std::uint32_t t = 0; t < tensors.size(); ++t) {
    const std::uint32_t index = tensors[t].manifest_index;
    std::vector<patch::PartRange> ranges;
    for (const control::DimRange& range : description.tensors[t].description.ranges)
      ranges.push_back({.dim = range.dim, .begin = range.begin, .length = range.length});
    targets.parts.push_back(
        WSYNC_TRY(patch::TensorPart::create(engine_layout_->manifest->tensor(index), ranges)));
    const patch::TensorPart& part = targets.parts.back();
    targets.blocks.emplace_back();
    if (part.bytes() == 0) continue;
    auto& blocks = targets.blocks.back();
    blocks = reader_->blocks(index, 0, layout_.block_count(index));
    // Blocks that lie before or behind the part.
    const auto first_run = part.run_from(0);
    while (!blocks.empty() && patch::Layout::offset(blocks.front().place) +
                                      layout_.block_bytes(blocks.front().place) <=
                                  first_run->begin)
      blocks = blocks.subspan(1);
    while (!blocks.empty() && !part.run_from(patch::Layout::offset(blocks.back().place)))
      blocks = blocks.first(blocks.size() - 1);
  }
  return targets;
}

Result<PatchedSums> PatchLoad::apply(DeviceWeights& weights, const EngineDescription& description,
                                     ThreadPool* helpers, TimePoint deadline) {
  const Targets all = WSYNC_TRY(targets(description));
  std::vector<RankBlock> blocks;
  for (std::uint32_t t = 0; t < all.blocks.size(); ++t)
    for (const patch::BlockView& block : all.blocks[t])
      blocks.push_back({.tensor = t, .view = &block});
  return weights.patch({.layout = &layout_, .parts = all.parts, .blocks = blocks}, helpers,
                       deadline);
}

std::vector<PatchLoad::BlockRun> PatchLoad::runs_of(const Targets& targets) {
  std::vector<BlockRun> runs;
  for (std::uint32_t t = 0; t < targets.blocks.size(); ++t)
    for (std::uint64_t first = 0; first < targets.blocks[t].size(); first += runs.back().count)
      runs.push_back({.tensor = t,
                      .first = first,
                      .count = first_run(targets.blocks[t].subspan(first)).size()});
  return runs;
}

Result<> PatchLoad::sum_ahead(const EngineDescription& description, ThreadPool* helpers) {
  targets_ = WSYNC_TRY(targets(description));
  for (const auto& blocks : targets_->blocks) replaced_.emplace_back(blocks.size());
  const std::vector<BlockRun> runs = runs_of(*targets_);
  const patch::BlockApplier applier(layout_);
  for_each_index(helpers, runs.size(), [&](std::size_t i) {
    const auto [t, first, count] = runs[i];
    for (std::uint64_t block = first; block < first + count; ++block)
      replaced_[t][block] = applier
                                .sum_of_replaced(targets_->blocks[t][block], targets_->parts[t],
                                                 description.tensors[t].destination)
                                .value_or(WordSum{});
  });
  return {};
}

Result<PatchedSums> PatchLoad::apply(const EngineDescription& description, ThreadPool* helpers,
                                     TimePoint deadline, std::span<const std::uint64_t> read) {
  const Targets all = targets_ ? *std::move(targets_) : WSYNC_TRY(targets(description));
  const auto& parts = all.parts;
  const std::vector<BlockRun> runs = runs_of(all);
  PatchedSums sums{.before = std::vector<SplitSum>(parts.size()),
                   .after = std::vector<SplitSum>(parts.size()),
                   .read_before = std::vector<SplitSum>(read.size()),
                   .read_after = std::vector<SplitSum>(read.size())};
  std::mutex mutex;  // guards `sums`
  std::atomic<bool> is_late = false;
  std::atomic<std::size_t> next = 0;
  const std::size_t threads = helpers == nullptr ? 1 : helpers->size() + 1;
  for_each_index(helpers, threads, [&](std::size_t /*thread*/) {
    patch::BlockApplier applier(layout_);
    std::vector<patch::PartSums> of_blocks;
    for (std::size_t i = next++; i < runs.size() && !is_late; i = next++) {
      const auto [t, first, count] = runs[i];
      patch::PartSums total;
      patch::PartSums of_read;
      const auto blocks = all.blocks[t].subspan(first, count);
      const auto replaced = replaced_.empty()
                                ? std::span<const WordSum>()
                                : std::span<const WordSum>(replaced_[t]).subspan(first, count);
      of_blocks.resize(blocks.size());
      applier.apply_to_part(blocks, parts[t], description.tensors[t].destination, of_blocks,
                            replaced);
      for (std::size_t k = 0; k < blocks.size(); ++k) {
        const patch::PartSums& one = of_blocks[k];
        total.before += one.before;
        total.after += one.after;
        total.written_bytes += one.written_bytes;
        if (read.empty() || blocks[k].place.block >= read[t]) continue;
        of_read.before += one.before;
        of_read.after += one.after;
      }
      fail_point("patch_run");
      const std::lock_guard lock(mutex);
      sums.before[t] += total.before;
      sums.after[t] += total.after;
      if (!read.empty()) {
        sums.read_before[t] += of_read.before;
        sums.read_after[t] += of_read.after;
      }
      sums.written_bytes += total.written_bytes;
      if (now() > deadline) is_late = true;
    }
  });
  if (is_late)
    return fail(ErrorCode::kDeadline, "the deadline passed while the patch was being written");
  fail_point("patch_written");
  return sums;
}

}  // namespace wsync::engine
