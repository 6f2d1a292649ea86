// Limits of the streams that carry weights.
#pragma once

#include <cstdint>

#include "shared/base/units.h"

namespace wsync::limits {

inline constexpr std::uint64_t kStreamCountDefault = 4;  // TCP connections of one transfer
inline constexpr std::uint64_t kStreamCountMax = 64;
inline constexpr std::uint64_t kStreamRequestsAhead = 2;    // open requests per connection
inline constexpr std::uint64_t kStreamRequestsPending = 8;  // a source closes a peer that has more
inline constexpr std::uint64_t kStreamConnectionCount = 512;  // per source
// Of a larger bucket no changes are made: the thread that sends would keep others waiting.
inline constexpr std::uint64_t kStreamChangesBucketBytes = 1 * kGiB;
// Changes of so many bytes are always wanted: those of a bucket of a few bytes are larger than it.
inline constexpr std::uint64_t kStreamChangesSmallBytes = 64 * kKiB;
// Of a version that comes as changes alone, those of a bucket may be larger than the bucket: all of
// its elements may have changed, and each of its blocks has an entry.
[[nodiscard]] constexpr std::uint64_t stream_changes_bytes_max(std::uint64_t bucket_bytes) {
  return 2 * bucket_bytes + kStreamChangesSmallBytes;
}
// A source keeps changes from at most so many versions, for receivers that are behind, and at most
// this share of a model in all: that of the largest patch (patch::kPatchShareMax). For what leads
// over a version that is withdrawn, its memory is held for at most so long.
inline constexpr std::uint64_t kStreamLinkBases = 4;
inline constexpr double kStreamLinksShare = 0.07;
[[nodiscard]] constexpr std::uint64_t stream_links_bytes_max(std::uint64_t model_bytes) {
  return static_cast<std::uint64_t>(kStreamLinksShare * static_cast<double>(model_bytes));
}
inline constexpr std::int64_t kStreamLinkHoldMs = 100;
inline constexpr std::uint64_t kStreamSliceBytes =
    1 * kMiB;  // digested, then written while in cache
// A larger bucket is sent leaf by leaf to a sink that takes it so: at most so many bytes at a time,
// or one leaf. Each sink of a chain adds the time of so many bytes on every connection.
inline constexpr std::uint64_t kStreamLeavesBytes = 1 * kMiB;
inline constexpr std::uint64_t kStreamTextBytes = 4 * kKiB;  // reason of a failure
inline constexpr std::int64_t kStreamWaitingMs = 500;        // keep-alive while a bucket is missing
inline constexpr std::int64_t kStreamStallMs = 5'000;      // a peer that stalls for longer is lost
inline constexpr std::int64_t kStreamOfferWaitMs = 5'000;  // for a version that is not offered yet

static_assert(kStreamRequestsAhead <= kStreamRequestsPending);
static_assert(kStreamStallMs >= 5 * kStreamWaitingMs,
              "a few late signs of life are not a lost source");

}  // namespace wsync::limits
