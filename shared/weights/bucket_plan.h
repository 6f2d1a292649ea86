// How the bytes of a model are cut into buckets, the unit of transfer, and where each bucket lies
// in an arena.
//
//   manifest order:  | tensor 0 | tensor 1                     | tensor 2 |
//   pieces:          |    0     |  1        |  2       |   3   |    4     |
//   buckets:         | bucket 0             | bucket 1 | bucket 2         |
//
// Both sides compute the plan from the manifest and bucket_bytes, so it is never sent.
//
// Of a version whose parts are served by several processes (parts.h), the plan of the transfer is
// cut between parts as well, so that each bucket has one source. Arenas are laid out as without.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/manifest.h"

namespace wsync {

class Parts;

// Consecutive bytes of one tensor in one bucket.
struct Piece {
  std::uint32_t tensor = 0;  // index in the manifest
  std::uint32_t bucket = 0;  // index in the plan
  // A multiple of limits::kLeafBytes, or with parts of kSumWordBytes.
  std::uint64_t tensor_offset = 0;
  std::uint64_t bytes = 0;  // > 0
  // In the bucket; a multiple of limits::kPieceAlignBytes, unless the plan is one of parts.
  std::uint64_t buffer_offset = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

// Immutable once created; may be read from any thread. The returned spans live as long as the plan.
class BucketPlan {
 public:
  BucketPlan() = default;  // no buckets
  // Cuts the tensors in manifest order. A tensor is cut only at multiples of limits::kLeafBytes.
  // Tensors of size zero get no piece. kInvalidInput unless bucket_bytes is a multiple of
  // limits::kPieceAlignBytes between limits::kBucketBytesMin and kBucketBytesMax.
  [[nodiscard]] static Result<BucketPlan> create(const Manifest& manifest,
                                                 std::uint64_t bucket_bytes);
  // The plan of a transfer whose parts have sources of their own. A tensor is cut between parts as
  // well. A bucket of another part than the first has one piece, because its source may have the
  // tensors in another order. `parts`: of this manifest. Errors as above, and kResourceExhausted if
  // there would be more than limits::kPartBucketCount buckets.
  [[nodiscard]] static Result<BucketPlan> create(const Manifest& manifest,
                                                 std::uint64_t bucket_bytes, const Parts& parts);

  [[nodiscard]] std::size_t bucket_count() const noexcept { return buckets_.size(); }
  // Returns the pieces of one bucket, in buffer order.
  [[nodiscard]] std::span<const Piece> bucket(std::size_t index) const;
  // Size of a bucket in a buffer in bytes, including the padding between its pieces; at most
  // bucket_bytes().
  [[nodiscard]] std::uint64_t bucket_size(std::size_t index) const { return buckets_[index].bytes; }
  // The maximum bucket size given to create().
  [[nodiscard]] std::uint64_t bucket_bytes() const noexcept { return bucket_bytes_; }
  // The part that has this bucket; 0 if the plan has no parts.
  [[nodiscard]] std::uint32_t bucket_part(std::size_t index) const { return buckets_[index].part; }
  // Size of the largest bucket, which a buffer must be able to hold. 0 if there are no buckets.
  [[nodiscard]] std::uint64_t largest_bucket() const noexcept { return largest_bucket_; }

  // All pieces. Manifest order and bucket order are the same.
  [[nodiscard]] std::span<const Piece> pieces() const noexcept { return pieces_; }
  // Returns the pieces of one tensor, in the order of their bytes; empty for a tensor of size zero.
  [[nodiscard]] std::span<const Piece> tensor_pieces(std::uint32_t tensor) const;

  // The arena holds the tensors one after the other. Each begins at a multiple of
  // limits::kPieceAlignBytes; a tensor of at least limits::kPageAlignedTensorBytes begins at a
  // multiple of kPageAlignBytes. A bucket is a window of the arena, from its first piece to the end
  // of its last. The place of a tensor does not depend on bucket_bytes.
  [[nodiscard]] std::uint64_t bucket_offset(std::size_t index) const {
    return buckets_[index].arena_offset;
  }
  [[nodiscard]] std::uint64_t arena_offset(const Piece& piece) const {
    return buckets_[piece.bucket].arena_offset + piece.buffer_offset;
  }
  // Size of the whole arena in bytes, a multiple of limits::kPieceAlignBytes. 0 if there are no
  // buckets.
  [[nodiscard]] std::uint64_t arena_bytes() const noexcept { return arena_bytes_; }

 private:
  struct Bucket {
    std::size_t first_piece = 0;
    std::size_t piece_count = 0;
    std::uint64_t bytes = 0;
    std::uint64_t arena_offset = 0;
    std::uint32_t part = 0;
  };
  BucketPlan(const Manifest& manifest, std::uint64_t bucket_bytes, const Parts* parts);
  void cut(std::uint32_t tensor, std::uint64_t bytes, const Parts* parts);
  // Bytes [begin, end) of a tensor that begins at `base`.
  void add(std::uint32_t tensor, std::uint64_t base, std::uint64_t begin, std::uint64_t end,
           std::uint32_t part);

  std::uint64_t bucket_bytes_ = 0;
  std::uint64_t largest_bucket_ = 0;
  std::uint64_t arena_bytes_ = 0;
  std::vector<Piece> pieces_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> first_piece_;  // of each tensor, and one end entry
};

}  // namespace wsync
