#include "shared/transport/memfd/sealed_changes.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/base/thread_pool.h"
#include "shared/transport/frame.h"
#include "shared/transport/limits.h"
#include "shared/weights/content_digest.h"
#include "shared/weights/patch/leaf_changes.h"

namespace wsync::transport::memfd {
namespace {

Result<std::vector<WordSum>> sums_with(const FetchRequest& wanted, std::uint64_t bucket,
                                       std::span<const std::byte> changes) {
  const FetchBase& base = *wanted.base;
  const auto leaves = wanted.leaves->bucket(bucket);
  const auto blocks = WSYNC_TRY(patch::read_leaf_changes(*base.blocks, leaves, changes));
  return patch::sum_leaf_changes(*base.blocks, leaves, blocks, base.data,
                                 base.sums.subspan(wanted.leaves->first(bucket), leaves.size()));
}

// Takes so many bytes from the front. kInvalidInput if there are fewer.
Result<std::span<const std::byte>> take(std::span<const std::byte>& bytes, std::uint64_t count,
                                        std::uint64_t bucket) {
  if (bytes.size() < count)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("sealed changes: bucket {} needs {} more bytes, found {}", bucket,
                            count, bytes.size()));
  const auto taken = bytes.first(count);
  bytes = bytes.subspan(count);
  return taken;
}

struct SealedBucket {
  std::span<const std::byte> changes;
  Digest promised;  // of the bucket with its changes
};

// Takes the next bucket from the front.
Result<SealedBucket> take_bucket(const FetchRequest& wanted, std::uint64_t bucket,
                                 std::span<const std::byte>& bytes) {
  const auto head = WSYNC_TRY(take(bytes, kFrameBytes, bucket));
  const Frame frame = WSYNC_TRY(decode_frame(head.first<kFrameBytes>()));
  if (frame.type != FrameType::kChanges || frame.key != wanted.key || frame.bucket != bucket ||
      frame.base != wanted.base->version)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("sealed changes: expected bucket {} of version {} from {}, found "
                    "bucket {} of {} from {}",
                    bucket, wanted.key.version.to_string(), wanted.base->version.to_string(),
                    frame.bucket, frame.key.version.to_string(), frame.base.to_string()));
  const auto changes = WSYNC_TRY(take(bytes, frame.bytes, bucket));
  const auto trailer = WSYNC_TRY(take(bytes, kTrailerBytes, bucket));
  return SealedBucket{.changes = changes,
                      .promised = decode_trailer(trailer.first<kTrailerBytes>())};
}

Result<ArrivedBucket> prove(const FetchRequest& wanted, std::uint64_t bucket,
                            const SealedBucket& sealed) {
  auto sums = WSYNC_TRY(sums_with(wanted, bucket, sealed.changes));
  const Digest computed = bucket_digest(sums);
  if (computed != sealed.promised && !planted("sealed_changes_not_proven"))
    return fail(ErrorCode::kDigestMismatch,
                fmt::format("bucket {} has digest {} with its changes, its source says {}", bucket,
                            computed.to_string(), sealed.promised.to_string()));
  return ArrivedBucket{
      .bucket = bucket,
      .digest = sealed.promised,
      .sums = std::move(sums),
      .changes = std::make_shared<const Bytes>(sealed.changes.begin(), sealed.changes.end()),
      .payload_bytes = sealed.changes.size()};
}

}  // namespace

std::uint64_t changes_wanted(const FetchRequest& wanted) {
  return std::max(
      limits::kStreamChangesSmallBytes,
      static_cast<std::uint64_t>(wanted.base->max_share * static_cast<double>(wanted.data_bytes)));
}

std::uint64_t changes_bytes(const Offered& offered) {
  std::uint64_t bytes = 0;
  for (const auto& changes : offered.changes) bytes += changes ? changes->size() : 0;
  return bytes;
}

Result<SealedMemory> seal_changes(const Offered& offered) {
  const std::size_t buckets = offered.changes.size();
  std::vector<std::array<std::byte, kFrameBytes>> frames(buckets);
  std::vector<std::array<std::byte, kTrailerBytes>> trailers(buckets);
  std::vector<std::span<const std::byte>> parts;
  parts.reserve(3 * buckets);
  for (std::size_t i = 0; i < buckets; ++i) {
    WSYNC_CHECK(offered.ready[i] && offered.changes[i], "each bucket is here as its changes");
    frames[i] = encode_frame({.type = FrameType::kChanges,
                              .key = offered.offer.key,
                              .bucket = i,
                              .bytes = offered.changes[i]->size(),
                              .base = offered.offer.base});
    trailers[i] = encode_trailer(offered.digest_of_bucket(i));
    parts.emplace_back(frames[i]);
    parts.emplace_back(*offered.changes[i]);
    parts.emplace_back(trailers[i]);
  }
  return SealedMemory::create("wsync-changes", parts);
}

Result<std::vector<ArrivedBucket>> read_changes(const FetchRequest& wanted,
                                                std::span<const std::byte> bytes,
                                                unsigned threads) {
  const std::size_t buckets = wanted.buckets.size();
  std::vector<SealedBucket> sealed;
  for (std::uint64_t bucket = 0; bucket < buckets; ++bucket)
    sealed.push_back(WSYNC_TRY(take_bucket(wanted, bucket, bytes)));
  if (!bytes.empty())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("sealed changes: {} bytes are left over", bytes.size()));
  // None: another one was wrong before its turn.
  std::vector<std::optional<Result<ArrivedBucket>>> proven(buckets);
  std::atomic<bool> is_over = false;
  const auto helpers = helpers_for(threads);
  for_each_index(helpers.get(), buckets, [&](std::size_t bucket) {
    if (is_over) return;
    proven[bucket] = prove(wanted, bucket, sealed[bucket]);
    if (!proven[bucket]->has_value()) is_over = true;
  });
  for (const auto& bucket : proven)
    if (bucket && !bucket->has_value()) return fail(bucket->error());
  std::vector<ArrivedBucket> arrived;
  for (auto& bucket : proven) arrived.push_back(std::move(**bucket));
  return arrived;
}

}  // namespace wsync::transport::memfd
