// LoadPlan: which bytes of the arena go to which place in the memory of one rank of a replica. It
// depends only on the manifest, the bucket plan and the tensors of the rank. The sidecar, which
// knows the bytes while staging, and the engine, which copies them while paused, therefore have the
// same list of copy groups.
//
// A copy group is the part of one tensor of the rank that lies in one bucket. Its bytes are
// consecutive in the rank's own tensor (row-major, dense) and may be strided in the bucket. Its sum
// is the SplitSum of these ranges of the whole tensor. A group is copied in chunks of about
// CopyScratch::kBytes, in any order and by any threads. The sum of the group is that of its chunks,
// and the sum of the rank's tensor is that of its groups. The sidecar adds the sums of the ranks of
// a replica, and compares them with those of the version (sum_check.h).
//
// Thread: a LoadPlan is immutable. Any number of threads may execute its chunks, each with its own
// CopyScratch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "inference_side/reload/shard.h"
#include "shared/base/error.h"
#include "shared/base/split_sum.h"
#include "shared/control/messages.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/manifest.h"

namespace wsync::reload {

// One tensor of the rank, in the order of its EngineHello.
struct LoadTensor {
  std::uint32_t manifest_index = 0;
  std::uint64_t arena_offset = 0;  // of the first byte of the whole tensor
  std::uint64_t seed = 0;          // of its name (seed_of)
  Shard shard;
};

// Every tensor of the manifest as a whole, in its order: what a rank takes that fits any layout.
[[nodiscard]] std::vector<control::EngineTensor> whole_tensors(const Manifest& manifest);

struct CopyGroup {
  std::uint32_t tensor = 0;  // index into tensors()
  std::uint64_t bucket = 0;
  std::uint64_t begin = 0;  // first byte, in the rank's own tensor
  std::uint64_t bytes = 0;  // never 0
  friend bool operator==(const CopyGroup&, const CopyGroup&) = default;
};

// Rows of a group, for a device that copies many rows at once: ranges of equal length that are
// `stride` bytes apart in the bucket and consecutive in the tensor of the rank.
struct GroupRows {
  std::uint64_t to = 0;        // first byte, in the rank's own tensor
  std::uint64_t from = 0;      // in the bucket
  std::uint64_t position = 0;  // of the first byte, in the whole tensor; rows are `stride` apart
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 1;
  std::uint64_t stride = 0;  // 0 for a single row
  [[nodiscard]] std::uint64_t bytes() const noexcept { return row_bytes * rows; }
  friend bool operator==(const GroupRows&, const GroupRows&) = default;
};

// Scratch memory that gathers strided pieces before the streaming copy. It is small enough to stay
// in the cache, and is allocated at first use.
class CopyScratch {
 public:
  [[nodiscard]] std::span<std::byte> window();
  static constexpr std::uint64_t kBytes =
      std::uint64_t{512} * 1024;  // a chunk may be a word longer

 private:
  std::unique_ptr<std::byte[]> memory_;
};

class LoadPlan {
 public:
  LoadPlan() = default;
  // Returns kInvalidInput, with the name of the tensor, if `tensors` do not fit the manifest
  // (check_layout returns the full list), or if `plan` is not a plan of this manifest. An empty
  // list of tensors gives an empty plan.
  [[nodiscard]] static Result<LoadPlan> make(const Manifest& manifest, const BucketPlan& plan,
                                             std::span<const control::EngineTensor> tensors);

  [[nodiscard]] std::span<const LoadTensor> tensors() const noexcept { return tensors_; }
  // In arena order, and therefore ordered by bucket.
  [[nodiscard]] std::span<const CopyGroup> groups() const noexcept { return groups_; }
  // The groups of one bucket: their indices are [first_group(bucket), first_group(bucket + 1)).
  [[nodiscard]] std::size_t first_group(std::uint64_t bucket) const { return first_group_[bucket]; }
  [[nodiscard]] std::uint64_t bucket_count() const noexcept { return bucket_offsets_.size(); }
  // Total size of the rank's tensors.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t bucket_offset(std::uint64_t bucket) const {
    return bucket_offsets_[bucket];
  }
  [[nodiscard]] std::uint64_t bucket_bytes(std::uint64_t bucket) const {
    return bucket_sizes_[bucket];
  }
  // Size of an arena of this version.
  [[nodiscard]] std::uint64_t arena_bytes() const noexcept { return arena_bytes_; }

  // Copies a group out of its bucket with streaming stores and returns its sum. `bucket` must
  // have at least bucket_bytes(group.bucket) bytes. `destination` is the rank's whole tensor,
  // shard.bytes() long. The copied bytes are visible to other threads when this returns.
  [[nodiscard]] SplitSum execute(const CopyGroup& group, std::span<const std::byte> bucket,
                                 std::span<std::byte> destination, CopyScratch& scratch) const;
  // The same for one chunk of the group. Its index must be below chunk_count(group). The sum of the
  // group is that of its chunks, in any order.
  [[nodiscard]] SplitSum execute_chunk(const CopyGroup& group, std::uint64_t index,
                                       std::span<const std::byte> bucket,
                                       std::span<std::byte> destination,
                                       CopyScratch& scratch) const;
  [[nodiscard]] static std::uint64_t chunk_count(const CopyGroup& group) noexcept {
    return (group.bytes + CopyScratch::kBytes - 1) / CopyScratch::kBytes;
  }
  // Reads a chunk, and returns its sum as execute_chunk() does. Its bytes are passed to `on_part`
  // in their order, in parts of at most kPartBytes: `at` is the place of the first one in the
  // rank's own tensor. A part is valid during the call. No part begins or ends within an element:
  // ranges hold whole elements, and a bucket ends within a tensor only at a multiple of kLeafBytes.
  using OnPart = std::function<void(std::uint64_t at, std::span<const std::byte> part)>;
  static constexpr std::uint64_t kPartBytes = std::uint64_t{16} * 1024;
  [[nodiscard]] SplitSum read_chunk(const CopyGroup& group, std::uint64_t index,
                                    std::span<const std::byte> bucket, CopyScratch& scratch,
                                    const OnPart& on_part) const;
  // The sum of a group, without copying.
  [[nodiscard]] SplitSum sum(const CopyGroup& group, std::span<const std::byte> bucket) const;
  // The rows that make up a group, in the order of the rank's bytes.
  [[nodiscard]] std::vector<GroupRows> rows(const CopyGroup& group) const;
  // The bytes of the arena that form `bucket`. The arena's data must be at least arena_bytes()
  // long.
  [[nodiscard]] std::span<const std::byte> bucket_of(std::span<const std::byte> arena,
                                                     std::uint64_t bucket) const;

 private:
  // Where chunk `index` of a group begins, in the rank's own tensor; behind the last one: its end.
  // No chunk begins within a word of the tensor, except where a range does.
  [[nodiscard]] std::uint64_t chunk_begin(const CopyGroup& group, std::uint64_t index) const;
  [[nodiscard]] Result<> prove_coverage(std::span<const control::EngineTensor> tensors) const;
  std::vector<LoadTensor> tensors_;
  std::vector<CopyGroup> groups_;
  std::vector<std::size_t> first_group_;  // bucket_count() + 1 entries
  std::vector<std::uint64_t> bucket_offsets_;
  std::vector<std::uint64_t> bucket_sizes_;
  std::uint64_t bytes_ = 0;
  std::uint64_t arena_bytes_ = 0;
};

// The sum of the bytes of one tensor that a rank holds, computed from the arena.
[[nodiscard]] SplitSum expected_sum(const LoadTensor& tensor, std::span<const std::byte> arena);
// Its edges alone: of the words that a range of the rank cuts. It reads nothing else.
[[nodiscard]] WordSum expected_edges(const LoadTensor& tensor, std::span<const std::byte> arena);
// Adds the indexes of those words in the tensor to `words`, in ascending order. A word that two
// ranges cut comes twice.
void add_cut_words(const LoadTensor& tensor, std::vector<std::uint64_t>& words);

// Content digest of the bytes of one tensor that a rank holds, computed from the arena. The Digests
// message of an engine must match it. The sum covers the shard's row-major bytes, from position 0
// on. For a whole tensor the result equals the tensor's content digest.
[[nodiscard]] Digest expected_digest(const LoadTensor& tensor, std::span<const std::byte> arena);

// Proves that a load is complete before it may be committed: every group was executed. Thread:
// confined to one thread.
class LoadCoverage {
 public:
  LoadCoverage() = default;
  explicit LoadCoverage(const LoadPlan& plan);
  // Group `index` is in place. A repeated call changes nothing.
  void mark(std::size_t index);
  [[nodiscard]] bool complete() const noexcept { return marked_count_ == marked_.size(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  // Returns kInternal, with the first missing group, unless the load is complete.
  [[nodiscard]] Result<> check() const;

 private:
  std::vector<CopyGroup> groups_;
  std::vector<bool> marked_;
  std::size_t marked_count_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace wsync::reload
