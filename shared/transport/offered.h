// What a source knows about one offered version. Not synchronised.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shared/transport/frame.h"
#include "shared/transport/stream.h"

namespace wsync::transport {

// Consecutive leaves of a bucket.
struct LeafRun {
  BucketWindow window;            // in the arena's data
  std::span<const WordSum> sums;  // of these leaves
};

struct Offered {
  explicit Offered(Offer given)
      : offer(std::move(given)),
        ready(offer.buckets.size(), offer.complete && !has_changes_alone()),
        digests(offer.buckets.size()),
        sums(offer.complete ? 0 : offer.buckets.size()),
        changes(has_changes_alone() ? offer.buckets.size() : 0) {}

  // Checks that a request means these bytes. kFenced if its fence is lower; kRefused if its layout
  // differs.
  [[nodiscard]] Result<> judge_key(const StreamKey& asked) const;
  // Like judge_key(); also checks that the bucket exists with this size. kRefused if not. kPeerLost
  // if only the changes of the version are here, and they are not what is asked for. Then the
  // bucket may still be made with the base (StreamOffers::judge()).
  [[nodiscard]] Result<> judge_bucket(const Frame& get) const;

  // Whether the version is held as its changes alone.
  [[nodiscard]] bool has_changes_alone() const noexcept {
    return offer.data.empty() && !offer.base.none();
  }
  // The bucket is complete; see BucketSource::bucket_ready(). Ignored if there is none, or if the
  // offer is one without memory.
  void set_ready(std::uint64_t bucket, const Digest& digest,
                 std::shared_ptr<const Bytes> bucket_changes,
                 std::span<const WordSum> bucket_sums = {});

  // The sums of leaves of this bucket, `first` and those behind it, which may be read now. Ignored
  // if those before it are missing, if the bucket has no such leaves, or if the offer has no
  // memory.
  void add_leaves(std::uint64_t bucket, std::size_t first, std::span<const WordSum> more);
  // The leaves of this bucket, from this one on, that can be sent together: at most
  // limits::kStreamLeavesBytes, or one leaf. std::nullopt if it may not be read yet, or if its sum
  // is not known.
  [[nodiscard]] std::optional<LeafRun> leaves_from(std::uint64_t bucket, std::size_t leaf) const;
  // Number of leaves of a bucket.
  [[nodiscard]] std::size_t leaf_count(std::uint64_t bucket) const {
    return offer.leaves ? offer.leaves->bucket(bucket).size() : 0;
  }

  // Whether the changes of this bucket from `base` can be told: both are of one layout, cut alike,
  // and have the bucket.
  [[nodiscard]] bool changes_from(const Offered& base, std::uint64_t bucket) const;

  // What is sent behind a bucket that is ready.
  [[nodiscard]] Digest digest_of_bucket(std::uint64_t bucket) const;

  Offer offer;
  std::vector<bool> ready;
  // Digests of the buckets that were received here. Those of a complete offer are computed from its
  // sums.
  std::vector<std::optional<Digest>> digests;
  // Of each bucket, the sums of its first leaves, which may be read. A complete offer has all sums
  // itself, so this is empty then.
  std::vector<std::vector<WordSum>> sums;
  // Of the buckets that are ready, if the version is held as its changes alone; else empty.
  std::vector<std::shared_ptr<const Bytes>> changes;
};

// Returns the answer to a request that cannot be served.
[[nodiscard]] Frame failure_frame(const Frame& request, const Error& error);
// Returns the failure's sentence, truncated to its limit. failure_frame() counts its bytes.
[[nodiscard]] std::string_view failure_text(const Error& error);
// Returns kNotFound: the version is not offered.
[[nodiscard]] Error not_offered(Version version);

}  // namespace wsync::transport
