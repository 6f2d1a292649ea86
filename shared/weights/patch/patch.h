// A patch in memory: PatchBuilder makes it of blocks, PatchReader reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/base/thread_pool.h"
#include "shared/weights/patch/block.h"
#include "shared/weights/patch/index.h"

namespace wsync::patch {

// The bytes of a patch.
struct Patch {
  Bytes index;
  std::vector<Bytes> buckets;
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    std::uint64_t sum = index.size();
    for (const Bytes& bucket : buckets) sum += bucket.size();
    return sum;
  }
  friend bool operator==(const Patch&, const Patch&) = default;
};

// Collects blocks in any order. The patch depends on the blocks alone.
// Thread: any for add(); the other functions when no thread adds.
class PatchBuilder {
 public:
  // The layout is borrowed and must outlive this object. `bucket_bytes`: limit of a bucket's bytes.
  // kInvalidInput unless it is between limits::kBucketBytesMin and kBucketBytesMax.
  [[nodiscard]] static Result<PatchBuilder> create(const Layout& layout,
                                                   std::uint64_t bucket_bytes);
  void add(Block block);
  // Makes the patch from content `base` to content `target`, and leaves no blocks here.
  // kInvalidInput if a block was added twice, and if there are no blocks although the contents
  // differ, or blocks although they are equal.
  [[nodiscard]] Result<Patch> finish(const Digest& base, const Digest& target);

 private:
  PatchBuilder(const Layout& layout, std::uint64_t bucket_bytes)
      : layout_(&layout), bucket_bytes_(bucket_bytes), blocks_(std::make_unique<Blocks>()) {}
  struct Blocks {
    std::mutex mutex;
    std::vector<Block> list;
  };
  const Layout* layout_;
  std::uint64_t bucket_bytes_;
  std::unique_ptr<Blocks> blocks_;
};

// A patch that was read and checked, whole. Immutable; may be read from any thread.
class PatchReader {
 public:
  // Reads the index and all buckets, which are borrowed and must outlive this object, as must the
  // layout. Errors as Index::parse(), Index::check() and parse_bucket(), and kInvalidInput for
  // another number of buckets. `helpers` (may be null): threads that read buckets together with the
  // calling one.
  [[nodiscard]] static Result<PatchReader> open(const Layout& layout,
                                                std::span<const std::byte> index,
                                                std::span<const std::span<const std::byte>> buckets,
                                                ThreadPool* helpers = nullptr);
  [[nodiscard]] static Result<PatchReader> open(const Layout& layout, const Patch& patch);

  [[nodiscard]] const Index& index() const noexcept { return index_; }
  // All blocks, in ascending order of their places.
  [[nodiscard]] std::span<const BlockView> blocks() const noexcept { return blocks_; }
  // The blocks of a tensor with the numbers [first, end).
  [[nodiscard]] std::span<const BlockView> blocks(std::uint32_t tensor, std::uint32_t first,
                                                  std::uint32_t end) const;

 private:
  PatchReader(Index index, std::vector<BlockView> blocks)
      : index_(std::move(index)), blocks_(std::move(blocks)) {}
  Index index_;
  std::vector<BlockView> blocks_;
};

}  // namespace wsync::patch
