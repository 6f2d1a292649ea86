// How the bytes of a model are cut into buckets, the unit of transfer, and where each bucket lies
// in an arena.
//
//   manifest order:  | tensor 0 | tensor 1                     | tensor 2 |
//   pieces:          |    0     |  1        |  2       |   3   |    4     |
//   buckets:         | bucket 0             | bucket 1 | bucket 2         |
//
// Both sides compute the plan from the manifest and bucket_bytes, so it is never sent.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/manifest.h"

namespace wsync {

// Consecutive bytes of one tensor in one bucket.
struct Piece {
  std::uint32_t tensor = 0;         // index in the manifest
  std::uint32_t bucket = 0;         // index in the plan
  std::uint64_t tensor_offset = 0;  // a multiple of limits::kLeafBytes
  std::uint64_t bytes = 0;          // > 0
  std::uint64_t buffer_offset = 0;  // in the bucket; a multiple of limits::kPieceAlignBytes
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

  [[nodiscard]] std::size_t bucket_count() const noexcept { return buckets_.size(); }
  // Returns the pieces of one bucket, in buffer order.
  [[nodiscard]] std::span<const Piece> bucket(std::size_t index) const;
  // Size of a bucket in a buffer in bytes, including the padding between its pieces; at most
  // bucket_bytes().
  [[nodiscard]] std::uint64_t bucket_size(std::size_t index) const { return buckets_[index].bytes; }
  // The maximum bucket size given to create().
  [[nodiscard]] std::uint64_t bucket_bytes() const noexcept { return bucket_bytes_; }
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
  };
  void cut(std::uint32_t tensor, std::uint64_t bytes);

  std::uint64_t bucket_bytes_ = 0;
  std::uint64_t largest_bucket_ = 0;
  std::uint64_t arena_bytes_ = 0;
  std::vector<Piece> pieces_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> first_piece_;  // of each tensor, and one end entry
};

}  // namespace wsync
