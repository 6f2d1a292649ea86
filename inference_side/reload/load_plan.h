// LoadPlan: which bytes of the arena go where in the memory of one rank of a replica. It is
// computed only from the manifest, the bucket plan and the tensors of the rank. So the sidecar,
// which knows the bytes while staging, and the engine, which copies them while paused, have the
// same list of copy groups, and agree on the checksum of each.
//
// A copy group is the part of one tensor of the rank that lies in one bucket. Its bytes are
// consecutive in the rank's own tensor (row-major, dense) and may be strided in the bucket. Its
// checksum is a function of those bytes and of nothing else. A group is copied in chunks of
// CopyScratch::kBytes (the last one is shorter), in any order and by any threads; its checksum is
// computed from theirs.
//
// Thread: a LoadPlan is immutable; any number of threads may execute its chunks, each with a
// CopyScratch of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "inference_side/reload/shard.h"
#include "shared/base/error.h"
#include "shared/control/messages.h"
#include "shared/device/piece_digest.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/manifest.h"

namespace wsync::reload {

// One tensor of the rank, in the order of its EngineHello.
struct LoadTensor {
  std::uint32_t manifest_index = 0;
  std::uint64_t arena_offset = 0;  // of the whole tensor's first byte
  Shard shard;
};

struct CopyGroup {
  std::uint32_t tensor = 0;  // index into tensors()
  std::uint64_t bucket = 0;
  std::uint64_t begin = 0;  // first byte, in the rank's own tensor
  std::uint64_t bytes = 0;  // never 0
  friend bool operator==(const CopyGroup&, const CopyGroup&) = default;
};

// Rows of a group, for a device that copies many rows at once: ranges of equal length, `stride`
// bytes apart in the bucket, that are consecutive in the tensor of the rank.
struct GroupRows {
  std::uint64_t to = 0;    // first byte, in the rank's own tensor
  std::uint64_t from = 0;  // in the bucket
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 1;
  std::uint64_t stride = 0;  // 0 for a single row
  [[nodiscard]] std::uint64_t bytes() const noexcept { return row_bytes * rows; }
  friend bool operator==(const GroupRows&, const GroupRows&) = default;
};

// Gathers strided pieces before the streaming copy; small enough to stay in the cache. It allocates
// its memory when it is first used.
class CopyScratch {
 public:
  [[nodiscard]] std::span<std::byte> window();
  static constexpr std::uint64_t kBytes = std::uint64_t{512} * 1024;  // of a chunk

 private:
  std::unique_ptr<std::byte[]> memory_;
};

class LoadPlan {
 public:
  LoadPlan() = default;
  // kInvalidInput, naming the tensor, when `tensors` does not fit the manifest (check_layout has
  // the full list), or when `plan` is not a plan of this manifest. No tensors give an empty plan.
  [[nodiscard]] static Result<LoadPlan> make(const Manifest& manifest, const BucketPlan& plan,
                                             std::span<const control::EngineTensor> tensors);

  [[nodiscard]] std::span<const LoadTensor> tensors() const noexcept { return tensors_; }
  // In arena order, so bucket by bucket.
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

  // Copies a group out of its bucket with streaming stores and returns its checksum. `bucket` holds
  // at least bucket_bytes(group.bucket); `destination` is the rank's whole tensor, shard.bytes()
  // long. The bytes are visible to other threads when it returns.
  [[nodiscard]] std::uint64_t execute(const CopyGroup& group, std::span<const std::byte> bucket,
                                      std::span<std::byte> destination, CopyScratch& scratch) const;
  // The same for one chunk of the group; its index is below chunk_count(group). The checksum of the
  // group is computed from `chunk_sums` of all chunks in their order.
  [[nodiscard]] std::uint64_t execute_chunk(const CopyGroup& group, std::uint64_t index,
                                            std::span<const std::byte> bucket,
                                            std::span<std::byte> destination,
                                            CopyScratch& scratch) const;
  [[nodiscard]] static std::uint64_t chunk_count(const CopyGroup& group) noexcept {
    return (group.bytes + CopyScratch::kBytes - 1) / CopyScratch::kBytes;
  }
  [[nodiscard]] static std::uint64_t group_checksum(
      const CopyGroup& group, std::span<const std::uint64_t> chunk_sums) noexcept;
  // The checksum of a group, without copying.
  [[nodiscard]] std::uint64_t checksum(const CopyGroup& group, std::span<const std::byte> bucket,
                                       CopyScratch& scratch) const;
  // The rows that make up a group, in the order of the rank's bytes.
  [[nodiscard]] std::vector<GroupRows> rows(const CopyGroup& group) const;
  // The checksum that a GPU computes of a group: folded_sum() of its bytes, dense. Without copying.
  [[nodiscard]] std::uint64_t piece_checksum(const CopyGroup& group,
                                             std::span<const std::byte> bucket,
                                             CopyScratch& scratch) const;
  // The window of the arena that is `bucket`; the arena's data is at least arena_bytes() long.
  [[nodiscard]] std::span<const std::byte> bucket_of(std::span<const std::byte> arena,
                                                     std::uint64_t bucket) const;

 private:
  [[nodiscard]] Result<> prove_coverage(std::span<const control::EngineTensor> tensors) const;
  std::vector<LoadTensor> tensors_;
  std::vector<CopyGroup> groups_;
  std::vector<std::size_t> first_group_;  // bucket_count() + 1 of them
  std::vector<std::uint64_t> bucket_offsets_;
  std::vector<std::uint64_t> bucket_sizes_;
  std::uint64_t bytes_ = 0;
  std::uint64_t arena_bytes_ = 0;
};

// The checksum of each group, in the plan's order, over the arena's bytes.
[[nodiscard]] std::vector<std::uint64_t> expected_checksums(const LoadPlan& plan,
                                                            std::span<const std::byte> arena);

// The same as a GPU computes them: Prepare.checksums of kind cuda.
[[nodiscard]] std::vector<std::uint64_t> expected_piece_checksums(const LoadPlan& plan,
                                                                  std::span<const std::byte> arena);
// The checksum of one group of `bytes` bytes whose granules have this sum.
[[nodiscard]] std::uint64_t folded_sum(const device::PieceDigest& sum,
                                       std::uint64_t bytes) noexcept;

// Content digest of the bytes that a rank holds of one tensor, computed from the arena. The Digests
// message of an engine has to match it. Leaves of limits::kLeafBytes over the shard's row-major
// bytes; for a whole tensor it equals the tensor's content digest.
[[nodiscard]] Digest expected_digest(const LoadTensor& tensor, std::span<const std::byte> arena);

// The same for an engine on a GPU: the PieceDigest of those bytes, dense.
[[nodiscard]] Digest expected_piece_digest(const LoadTensor& tensor,
                                           std::span<const std::byte> arena);
// A PieceDigest in the form that Digests has.
[[nodiscard]] Digest as_digest(const device::PieceDigest& digest) noexcept;

// Proves that a load is complete before it may be committed: every group was executed, and its
// checksum is the expected one. Thread: confined to one.
class LoadCoverage {
 public:
  LoadCoverage() = default;
  explicit LoadCoverage(const LoadPlan& plan);
  // Group `index` lies in place, with its expected checksum. A second time changes nothing.
  void mark(std::size_t index);
  [[nodiscard]] bool complete() const noexcept { return marked_count_ == marked_.size(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  // kInternal naming the first hole unless complete.
  [[nodiscard]] Result<> check() const;

 private:
  std::vector<CopyGroup> groups_;
  std::vector<bool> marked_;
  std::size_t marked_count_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace wsync::reload
