#include "shared/weights/patch/patch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/weights/patch/bucket.h"
#include "shared/weights/patch/directory.h"
#include "shared/weights/patch/format.h"

namespace wsync::patch {
namespace {

// A bucket that grows.
struct OpenBucket {
  Bytes directory;
  std::vector<Block> blocks;
  std::uint64_t payload_bytes = 0;
  BucketEntry entry;

  [[nodiscard]] bool has_room(const Block& block, std::uint64_t limit) const {
    return blocks.empty() ||
           directory.size() + kEntryBytesMax + payload_bytes + block.payload.size() <= limit;
  }
  void add(Block block) {
    put_entry(directory, block, blocks.empty() ? std::nullopt : std::optional(entry.last));
    if (blocks.empty()) entry.first = block.place;
    entry.last = block.place;
    entry.elements += block.elements;
    payload_bytes += block.payload.size();
    blocks.push_back(std::move(block));
  }
  // Leaves an empty bucket.
  std::pair<BucketEntry, Bytes> close() {
    entry.blocks = static_cast<std::uint32_t>(blocks.size());
    entry.directory_bytes = static_cast<std::uint32_t>(directory.size());
    Bytes bytes = std::move(directory);
    bytes.reserve(bytes.size() + payload_bytes);
    for (Block& block : blocks) {
      bytes.insert(bytes.end(), block.payload.begin(), block.payload.end());
      block.payload = Bytes();
    }
    entry.bytes = bytes.size();
    entry.digest = digest_of(bytes);
    const BucketEntry closed = entry;
    *this = OpenBucket();
    return {closed, std::move(bytes)};
  }
};

}  // namespace

Result<PatchBuilder> PatchBuilder::create(const Layout& layout, std::uint64_t bucket_bytes) {
  if (bucket_bytes < limits::kBucketBytesMin || bucket_bytes > limits::kBucketBytesMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a bucket of a patch has {} to {} bytes at most, found {}",
                            limits::kBucketBytesMin, limits::kBucketBytesMax, bucket_bytes));
  return PatchBuilder(layout, bucket_bytes);
}

void PatchBuilder::add(Block block) {
  WSYNC_CHECK(layout_->block_bytes(block.place) != 0, "a block of the layout");
  const std::scoped_lock lock(blocks_->mutex);
  blocks_->list.push_back(std::move(block));
}

Result<Patch> PatchBuilder::finish(const Digest& base, const Digest& target) {
  std::vector<Block> blocks = std::exchange(blocks_->list, {});
  std::ranges::sort(blocks, {}, &Block::place);
  if (const auto twice = std::ranges::adjacent_find(blocks, {}, &Block::place);
      twice != blocks.end())
    return fail(ErrorCode::kInvalidInput, fmt::format("{}: it was added to the patch twice",
                                                      layout_->describe(twice->place)));
  if (blocks.empty() != (base == target))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a patch from {} to {} cannot have {}", base.to_string(),
                            target.to_string(), counted(blocks.size(), "block")));
  Patch patch;
  std::vector<BucketEntry> entries;
  std::vector<TensorEntry> tensors;
  OpenBucket bucket;
  const auto close = [&] {
    auto [entry, bytes] = bucket.close();
    entries.push_back(entry);
    patch.buckets.push_back(std::move(bytes));
  };
  for (Block& block : blocks) {
    if (tensors.empty() || tensors.back().tensor != block.place.tensor)
      tensors.push_back({.tensor = block.place.tensor, .blocks = 0});
    ++tensors.back().blocks;
    if (!bucket.has_room(block, bucket_bytes_)) close();
    bucket.add(std::move(block));
  }
  if (!bucket.blocks.empty()) close();
  const Link link{.layout = layout_->manifest().layout_digest(),
                  .base = base,
                  .target = target,
                  .model_bytes = layout_->manifest().total_bytes()};
  patch.index = Index(link, std::move(entries), std::move(tensors)).encode();
  return patch;
}

Result<PatchReader> PatchReader::open(const Layout& layout, std::span<const std::byte> index_bytes,
                                      std::span<const std::span<const std::byte>> buckets,
                                      ThreadPool* helpers) {
  auto index = WSYNC_TRY(Index::parse(index_bytes));
  WSYNC_TRY(index.check(layout));
  if (buckets.size() != index.buckets().size())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the patch has {}, found {}", counted(index.buckets().size(), "bucket"),
                            buckets.size()));
  std::vector<Result<std::vector<BlockView>>> views(buckets.size());
  for_each_index(helpers, buckets.size(),
                 [&](std::size_t i) { views[i] = parse_bucket(index, layout, i, buckets[i]); });
  std::vector<BlockView> blocks;
  for (auto& read : views) {
    if (!read) return fail(read.error());
    blocks.insert(blocks.end(), read->begin(), read->end());
  }
  return PatchReader(std::move(index), std::move(blocks));
}

Result<PatchReader> PatchReader::open(const Layout& layout, const Patch& patch) {
  const std::vector<std::span<const std::byte>> buckets(patch.buckets.begin(), patch.buckets.end());
  return open(layout, patch.index, buckets);
}

std::span<const BlockView> PatchReader::blocks(std::uint32_t tensor, std::uint32_t first,
                                               std::uint32_t end) const {
  const auto at = [this](const BlockPlace& place) {
    return std::ranges::lower_bound(blocks_, place, {}, &BlockView::place) - blocks_.begin();
  };
  const auto begin = at({.tensor = tensor, .block = first});
  return std::span(blocks_).subspan(
      static_cast<std::size_t>(begin),
      static_cast<std::size_t>(at({.tensor = tensor, .block = end}) - begin));
}

}  // namespace wsync::patch
