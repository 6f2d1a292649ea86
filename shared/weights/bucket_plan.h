// How a model's bytes are cut into buckets, the unit of transfer, and where each lies in an arena.
//
//   manifest order:  | tensor 0 | tensor 1                     | tensor 2 |
//   pieces:          |    0     |  1        |  2       |   3   |    4     |
//   buckets:         | bucket 0             | bucket 1 | bucket 2         |
//
// Both sides compute the plan from the manifest and bucket_bytes; it never travels.
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

// Immutable once made; safe to read from any thread. Spans it returns live as long as it does.
class BucketPlan {
 public:
  BucketPlan() = default;  // no buckets
  // Cuts the tensors in manifest order. A tensor is cut only at multiples of limits::kLeafBytes;
  // zero-size tensors get no piece. kInvalidInput unless bucket_bytes is a multiple of
  // limits::kPieceAlignBytes between limits::kBucketBytesMin and kBucketBytesMax.
  [[nodiscard]] static Result<BucketPlan> create(const Manifest& manifest,
                                                 std::uint64_t bucket_bytes);

  [[nodiscard]] std::size_t bucket_count() const noexcept { return buckets_.size(); }
  // The pieces of one bucket, in buffer order.
  [[nodiscard]] std::span<const Piece> bucket(std::size_t index) const;
  // Bytes of a bucket in a buffer, padding between its pieces included; at most bucket_bytes().
  [[nodiscard]] std::uint64_t bucket_size(std::size_t index) const { return buckets_[index].bytes; }
  // The bound given to create().
  [[nodiscard]] std::uint64_t bucket_bytes() const noexcept { return bucket_bytes_; }
  // The size of the largest bucket: what a buffer must hold. 0 without buckets.
  [[nodiscard]] std::uint64_t largest_bucket() const noexcept { return largest_bucket_; }

  // Every piece, in manifest and bucket order at once.
  [[nodiscard]] std::span<const Piece> pieces() const noexcept { return pieces_; }
  // The pieces of one tensor, in order of their bytes; empty for a zero-size tensor.
  [[nodiscard]] std::span<const Piece> tensor_pieces(std::uint32_t tensor) const;

  // The arena: the tensors one after the other, each at a multiple of limits::kPieceAlignBytes,
  // those of limits::kPageAlignedTensorBytes or more at one of kPageAlignBytes. A bucket is a
  // window of it, from its first piece to the end of its last; where a tensor lies does not depend
  // on bucket_bytes.
  [[nodiscard]] std::uint64_t bucket_offset(std::size_t index) const {
    return buckets_[index].arena_offset;
  }
  [[nodiscard]] std::uint64_t arena_offset(const Piece& piece) const {
    return buckets_[piece.bucket].arena_offset + piece.buffer_offset;
  }
  // Bytes of the whole arena, a multiple of limits::kPieceAlignBytes. 0 without buckets.
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
  std::vector<std::size_t> first_piece_;  // of each tensor; one entry more than tensors
};

// The proof, at run time, that every byte of every tensor arrived exactly once. Marks may come in
// any order. Not thread-safe.
class Coverage {
 public:
  // Expects every byte of every tensor. The manifest is borrowed and must outlive this object.
  explicit Coverage(const Manifest& manifest) : manifest_(&manifest) {}
  // Bytes [offset, offset + bytes) of a tensor have arrived.
  void mark(std::uint32_t tensor, std::uint64_t offset, std::uint64_t bytes);
  void mark(const Piece& piece) { mark(piece.tensor, piece.tensor_offset, piece.bytes); }
  // Success when every byte was marked exactly once; else kDigestMismatch naming the first tensor
  // (in manifest order) with the range that is missing, doubled or past its end.
  [[nodiscard]] Result<> complete();
  // Forgets every mark.
  void reset() noexcept { marks_.clear(); }

 private:
  struct Mark {
    std::uint32_t tensor = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    friend auto operator<=>(const Mark&, const Mark&) = default;
  };
  const Manifest* manifest_;
  std::vector<Mark> marks_;
};

}  // namespace wsync
