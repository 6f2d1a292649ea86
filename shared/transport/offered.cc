#include "shared/transport/offered.h"

#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "shared/transport/limits.h"

namespace wsync::transport {

Result<> Offered::judge_key(const StreamKey& asked) const {
  const StreamKey& ours = offer.key;
  if (asked.fence < ours.fence && !planted("stream_forgets_fence"))
    return fail(ErrorCode::kFenced,
                fmt::format("fence epoch {} is lower than {}, under which version {} is offered",
                            asked.fence.epoch, ours.fence.epoch, ours.version.to_string()));
  if (asked.layout != ours.layout)
    return fail(ErrorCode::kRefused,
                fmt::format("version {} has layout {}, asked for {}", ours.version.to_string(),
                            ours.layout.to_string(), asked.layout.to_string()));
  return {};
}

Result<> Offered::judge_bucket(const Frame& get) const {
  WSYNC_TRY(judge_key(get.key));
  if (get.bucket >= offer.buckets.size() || get.bytes != offer.buckets[get.bucket].bytes)
    return fail(
        ErrorCode::kRefused,
        fmt::format("bucket {} of {} bytes asked for, version {} is cut differently: {} "
                    "buckets; both ends need the same bucket_bytes",
                    get.bucket, get.bytes, offer.key.version.to_string(), offer.buckets.size()));
  if (!has_changes_alone()) return {};
  const auto elsewhere = [&](std::string_view why) {
    return fail(
        ErrorCode::kPeerLost,
        fmt::format("of version {} only what changes from {} is here, and {}: another "
                    "source has to send bucket {}",
                    offer.key.version.to_string(), offer.base.to_string(), why, get.bucket));
  };
  if (get.base != offer.base && !planted("changes_sent_to_another_base"))
    return elsewhere(get.base.none()
                         ? "no base was named"
                         : fmt::format("{} was named as the base", get.base.to_string()));
  if (!ready[get.bucket]) return {};
  if (!changes[get.bucket]) return elsewhere("not of this bucket");
  if (changes[get.bucket]->size() > get.changes_max)
    return elsewhere(fmt::format("of this bucket it is {} bytes, where at most {} are wanted",
                                 changes[get.bucket]->size(), get.changes_max));
  return {};
}

void Offered::set_ready(std::uint64_t bucket, const Digest& digest,
                        std::shared_ptr<const Bytes> bucket_changes,
                        std::span<const WordSum> bucket_sums) {
  if (bucket >= ready.size()) return;
  if (has_changes_alone())
    changes[bucket] = std::move(bucket_changes);
  else if (offer.data.empty() && offer.buckets[bucket].bytes != 0)
    return;
  // Those of an earlier arrival may be of other bytes.
  if (bucket < sums.size() && bucket_sums.size() == leaf_count(bucket)) sums[bucket].clear();
  add_leaves(bucket, 0, bucket_sums);
  ready[bucket] = true;
  digests[bucket] = digest;
}

void Offered::add_leaves(std::uint64_t bucket, std::size_t first, std::span<const WordSum> more) {
  if (bucket >= sums.size() || offer.data.empty()) return;
  std::vector<WordSum>& known = sums[bucket];
  if (first > known.size() || more.size() > leaf_count(bucket) ||
      first > leaf_count(bucket) - more.size())
    return;
  if (const std::size_t end = first + more.size(); end > known.size()) {
    const auto fresh = more.subspan(known.size() - first);
    known.insert(known.end(), fresh.begin(), fresh.end());
  }
}

std::optional<LeafRun> Offered::leaves_from(std::uint64_t bucket, std::size_t leaf) const {
  const std::size_t count = leaf_count(bucket);
  if (leaf >= count || offer.data.empty()) return std::nullopt;
  std::span<const WordSum> known = sums.empty() ? offer.sums : std::span(sums[bucket]);
  if (sums.empty() && !known.empty()) known = known.subspan(offer.leaves->first(bucket), count);
  if (leaf >= known.size()) return std::nullopt;
  const BucketWindow whole = offer.buckets[bucket];
  const auto leaves = offer.leaves->bucket(bucket);
  // A run begins where the one before ends, so that the bytes between leaves travel as well.
  const auto begin_of = [&](std::size_t index) {
    if (index == 0) return whole.offset;
    return index == count ? whole.offset + whole.bytes : leaves[index].arena_offset;
  };
  const std::uint64_t begin = begin_of(leaf);
  std::size_t end = leaf + 1;
  while (end < known.size() && begin_of(end + 1) - begin <= limits::kStreamLeavesBytes) ++end;
  return LeafRun{.window = {.offset = begin, .bytes = begin_of(end) - begin},
                 .sums = known.subspan(leaf, end - leaf)};
}

bool Offered::changes_from(const Offered& base, std::uint64_t bucket) const {
  return offer.blocks && offer.leaves && !offer.data.empty() && !base.offer.data.empty() &&
         base.offer.key.layout == offer.key.layout && bucket < base.offer.buckets.size() &&
         base.offer.buckets[bucket] == offer.buckets[bucket] && ready[bucket] &&
         (base.ready[bucket] || planted("changes_from_what_arrives"));
}

Digest Offered::digest_of_bucket(std::uint64_t bucket) const {
  if (digests[bucket]) return *digests[bucket];
  WSYNC_CHECK(offer.leaves && offer.leaves->all().size() == offer.sums.size(),
              "a complete offer has the sums of its leaves");
  return bucket_digest(
      offer.sums.subspan(offer.leaves->first(bucket), offer.leaves->bucket(bucket).size()));
}

Frame failure_frame(const Frame& request, const Error& error) {
  Frame failure = request;
  failure.type = FrameType::kFailure;
  failure.code = error.code();
  failure.bytes = failure_text(error).size();
  failure.base = {};
  failure.changes_max = 0;
  return failure;
}

std::string_view failure_text(const Error& error) {
  return std::string_view(error.message()).substr(0, limits::kStreamTextBytes);
}

Error not_offered(Version version) {
  return {ErrorCode::kNotFound, fmt::format("version {} is not offered here", version.to_string())};
}

}  // namespace wsync::transport
