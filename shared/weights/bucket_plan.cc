#include "shared/weights/bucket_plan.h"

#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"

namespace wsync {
namespace {

constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

Result<BucketPlan> BucketPlan::create(const Manifest& manifest, std::uint64_t bucket_bytes) {
  if (bucket_bytes < limits::kBucketBytesMin || bucket_bytes > limits::kBucketBytesMax ||
      bucket_bytes % limits::kPieceAlignBytes != 0)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("a bucket of {} bytes; expected a multiple of {} from {} to {}", bucket_bytes,
                    limits::kPieceAlignBytes, limits::kBucketBytesMin, limits::kBucketBytesMax));
  BucketPlan plan;
  plan.bucket_bytes_ = bucket_bytes;
  plan.first_piece_.reserve(manifest.size() + 1);
  for (std::uint32_t tensor = 0; tensor < manifest.size(); ++tensor) {
    plan.first_piece_.push_back(plan.pieces_.size());
    plan.cut(tensor, manifest.byte_size(tensor));
  }
  plan.first_piece_.push_back(plan.pieces_.size());
  for (const Bucket& bucket : plan.buckets_)
    plan.largest_bucket_ = std::max(plan.largest_bucket_, bucket.bytes);
  plan.arena_bytes_ = align_up(plan.arena_bytes_, limits::kPieceAlignBytes);
  return plan;
}

// Appends one tensor to the layout. arena_bytes_ is the end of the part that has been laid out.
void BucketPlan::cut(std::uint32_t tensor, std::uint64_t bytes) {
  if (bytes == 0) return;
  const std::uint64_t begin =
      align_up(arena_bytes_, bytes < limits::kPageAlignedTensorBytes ? limits::kPieceAlignBytes
                                                                     : limits::kPageAlignBytes);
  for (std::uint64_t offset = 0; offset < bytes;) {
    const std::uint64_t at = begin + offset;
    const std::uint64_t used = buckets_.empty() ? bucket_bytes_ : at - buckets_.back().arena_offset;
    // Alignment may put `at` past the end of the bucket.
    const std::uint64_t space = used < bucket_bytes_ ? bucket_bytes_ - used : 0;
    std::uint64_t take = bytes - offset;
    if (take > space) take = space / limits::kLeafBytes * limits::kLeafBytes;
    if (take == 0) {  // a new bucket always has room for one leaf
      buckets_.push_back({.first_piece = pieces_.size(), .arena_offset = at});
      continue;
    }
    Bucket& bucket = buckets_.back();
    pieces_.push_back({.tensor = tensor,
                       .bucket = static_cast<std::uint32_t>(buckets_.size() - 1),
                       .tensor_offset = offset,
                       .bytes = take,
                       .buffer_offset = at - bucket.arena_offset});
    bucket.bytes = at + take - bucket.arena_offset;
    ++bucket.piece_count;
    offset += take;
  }
  arena_bytes_ = begin + bytes;
}

std::span<const Piece> BucketPlan::bucket(std::size_t index) const {
  return std::span(pieces_).subspan(buckets_[index].first_piece, buckets_[index].piece_count);
}

std::span<const Piece> BucketPlan::tensor_pieces(std::uint32_t tensor) const {
  return std::span(pieces_).subspan(first_piece_[tensor],
                                    first_piece_[tensor + 1] - first_piece_[tensor]);
}

}  // namespace wsync
