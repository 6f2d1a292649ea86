#include "shared/weights/bucket_plan.h"

#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/parts.h"

namespace wsync {
namespace {

constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

Result<> check_bucket_bytes(std::uint64_t bucket_bytes) {
  if (bucket_bytes >= limits::kBucketBytesMin && bucket_bytes <= limits::kBucketBytesMax &&
      bucket_bytes % limits::kPieceAlignBytes == 0)
    return {};
  return fail(
      ErrorCode::kInvalidInput,
      fmt::format("a bucket of {} bytes; expected a multiple of {} from {} to {}", bucket_bytes,
                  limits::kPieceAlignBytes, limits::kBucketBytesMin, limits::kBucketBytesMax));
}

}  // namespace

Result<BucketPlan> BucketPlan::create(const Manifest& manifest, std::uint64_t bucket_bytes) {
  WSYNC_TRY(check_bucket_bytes(bucket_bytes));
  return BucketPlan(manifest, bucket_bytes, nullptr);
}

Result<BucketPlan> BucketPlan::create(const Manifest& manifest, std::uint64_t bucket_bytes,
                                      const Parts& parts) {
  WSYNC_TRY(check_bucket_bytes(bucket_bytes));
  BucketPlan plan(manifest, bucket_bytes, &parts);
  if (plan.bucket_count() > limits::kPartBucketCount)
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format("the {} parts of the model make {} transfer buckets of at most {} bytes, "
                    "at most {} are allowed: raise bucket_bytes, or cut fewer tensors "
                    "between hosts",
                    parts.count(), plan.bucket_count(), bucket_bytes, limits::kPartBucketCount));
  return plan;
}

BucketPlan::BucketPlan(const Manifest& manifest, std::uint64_t bucket_bytes, const Parts* parts)
    : bucket_bytes_(bucket_bytes) {
  first_piece_.reserve(manifest.size() + 1);
  for (std::uint32_t tensor = 0; tensor < manifest.size(); ++tensor) {
    first_piece_.push_back(pieces_.size());
    cut(tensor, manifest.byte_size(tensor), parts);
  }
  first_piece_.push_back(pieces_.size());
  for (const Bucket& bucket : buckets_) largest_bucket_ = std::max(largest_bucket_, bucket.bytes);
  arena_bytes_ = align_up(arena_bytes_, limits::kPieceAlignBytes);
}

// Appends one tensor to the layout. arena_bytes_ is the end of the part that has been laid out.
void BucketPlan::cut(std::uint32_t tensor, std::uint64_t bytes, const Parts* parts) {
  if (bytes == 0) return;
  const std::uint64_t base =
      align_up(arena_bytes_, bytes < limits::kPageAlignedTensorBytes ? limits::kPieceAlignBytes
                                                                     : limits::kPageAlignBytes);
  std::uint64_t begin = 0;
  if (parts != nullptr)
    for (const PartRange& range : parts->of_tensor(tensor)) {
      if (range.begin > begin) add(tensor, base, begin, range.begin, 0);
      add(tensor, base, range.begin, range.end, range.part);
      begin = range.end;
    }
  if (begin < bytes) add(tensor, base, begin, bytes, 0);
  arena_bytes_ = base + bytes;
}

void BucketPlan::add(std::uint32_t tensor, std::uint64_t base, std::uint64_t begin,
                     std::uint64_t end, std::uint32_t part) {
  bool is_first = true;
  for (std::uint64_t offset = begin; offset < end;) {
    const std::uint64_t at = base + offset;
    const bool continues =
        !buckets_.empty() && buckets_.back().part == part && !(part != 0 && is_first);
    const std::uint64_t used = continues ? at - buckets_.back().arena_offset : bucket_bytes_;
    // Alignment may put `at` past the end of the bucket.
    const std::uint64_t space = used < bucket_bytes_ ? bucket_bytes_ - used : 0;
    std::uint64_t take = end - offset;
    if (take > space) {
      const std::uint64_t leaf_end = (offset + space) / limits::kLeafBytes * limits::kLeafBytes;
      take = leaf_end > offset ? leaf_end - offset : 0;
    }
    if (take == 0) {  // a new bucket always has room for one leaf
      buckets_.push_back({.first_piece = pieces_.size(), .arena_offset = at, .part = part});
      is_first = false;
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
}

std::span<const Piece> BucketPlan::bucket(std::size_t index) const {
  return std::span(pieces_).subspan(buckets_[index].first_piece, buckets_[index].piece_count);
}

std::span<const Piece> BucketPlan::tensor_pieces(std::uint32_t tensor) const {
  return std::span(pieces_).subspan(first_piece_[tensor],
                                    first_piece_[tensor + 1] - first_piece_[tensor]);
}

}  // namespace wsync
