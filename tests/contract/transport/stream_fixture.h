// What the tests of the data transports share: a version in an arena, and a receiver that writes
// down what it is told.
#pragma once

#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "shared/base/shared_memory.h"
#include "shared/base/stream_copy.h"
#include "shared/base/units.h"
#include "shared/transport/make_transport.h"
#include "shared/transport/stream.h"
#include "tests/support/bytes.h"
#include "tests/support/owner_loop.h"

namespace wsync::transport {

// The kinds of this build whose sinks write into their own memory.
inline std::vector<TransportTraits> kinds_that_copy() {
  std::vector<TransportTraits> kinds;
  for (const TransportTraits& traits : transport_kinds())
    if (!traits.maps_source) kinds.push_back(traits);
  return kinds;
}

// Of every source in these tests; TransportOptions::secret.
inline constexpr PairSecret kTestSecret{std::byte{1}, std::byte{2}, std::byte{3}};

// A complete version of random bytes, or of those of another one with some changes. It is cut into
// buckets of 1 MiB with a short last one.
class TestVersion {
 public:
  static constexpr std::uint64_t kBucketBytes = limits::kMiB;

  explicit TestVersion(std::uint64_t step, std::uint64_t bytes = 8 * limits::kMiB + 300,
                       const std::string& name = "wsync-test")
      : TestVersion(
            step, bytes,
            [step](std::span<std::byte> out) {
              std::mt19937_64 random(step);
              fill_random(random, out);
            },
            name) {}
  // One byte in `every` differs from the base.
  TestVersion(std::uint64_t step, const TestVersion& base, std::uint64_t every)
      : TestVersion(
            step, base.data().size(),
            [&base, every](std::span<std::byte> out) {
              std::ranges::copy(base.data(), out.begin());
              for (std::size_t at = every / 2; at < out.size(); at += every)
                out[at] ^= std::byte{1};
            },
            "wsync-test") {}

  using Fill = std::function<void(std::span<std::byte> out)>;
  TestVersion(std::uint64_t step, std::uint64_t bytes, const Fill& fill, const std::string& name,
              std::uint64_t bucket_bytes = kBucketBytes)
      : key_{.fence = {.epoch = 5, .run_id = {1, 2}},
             .version = {.epoch = 1, .step = step},
             .layout = {.low = 11, .high = 22}} {
    auto arena = SharedArena::create({.name = name, .data_bytes = bytes});
    EXPECT_TRUE(arena.has_value()) << arena.error().message();
    arena_ = std::make_shared<SharedArena>(std::move(*arena));
    auto lease = arena_->try_write_lease({.fence_epoch = key_.fence.epoch,
                                          .fence_run_id = key_.fence.run_id,
                                          .version_epoch = key_.version.epoch,
                                          .version_step = key_.version.step,
                                          .layout = key_.layout,
                                          .bucket_bytes = bucket_bytes});
    EXPECT_TRUE(lease.has_value());
    fill(lease->data());
    std::move(*lease).complete(digest_of(arena_->data()));
    for (std::uint64_t at = 0; at < bytes; at += bucket_bytes)
      buckets_.push_back({.offset = at, .bytes = std::min(bucket_bytes, bytes - at)});
    // The bytes are those of one tensor.
    const auto manifest = std::make_shared<const Manifest>(
        Manifest::create({{.name = "t", .dtype = DType::kU8, .shape = {bytes}}}).value());
    leaves_ = std::make_shared<const LeafTable>(
        *manifest, BucketPlan::create(*manifest, bucket_bytes).value());
    blocks_ = std::make_shared<const patch::Layout>(manifest);
    for (const LeafPlace& leaf : leaves_->all())
      sums_->push_back(word_sum(data().subspan(leaf.arena_offset, leaf.bytes), leaf.place));
  }

  [[nodiscard]] const StreamKey& key() const { return key_; }
  [[nodiscard]] const std::vector<BucketWindow>& buckets() const { return buckets_; }
  [[nodiscard]] std::span<const std::byte> data() const { return arena_->data(); }
  [[nodiscard]] std::span<const std::byte> bucket(std::uint64_t i) const {
    return data().subspan(buckets_[i].offset, buckets_[i].bytes);
  }
  [[nodiscard]] const std::shared_ptr<const LeafTable>& leaves() const { return leaves_; }
  [[nodiscard]] const std::shared_ptr<const patch::Layout>& blocks() const { return blocks_; }
  [[nodiscard]] const std::vector<WordSum>& sums() const { return *sums_; }
  // Those of the leaves of a bucket.
  [[nodiscard]] std::vector<WordSum> sums(std::uint64_t bucket) const {
    const auto all =
        std::span(*sums_).subspan(leaves_->first(bucket), leaves_->bucket(bucket).size());
    return {all.begin(), all.end()};
  }
  // What is sent behind the bucket.
  [[nodiscard]] Digest digest(std::uint64_t i) const { return bucket_digest(sums(i)); }
  [[nodiscard]] SharedArena& arena() const { return *arena_; }

  [[nodiscard]] Offer offer() const {
    auto lease = arena_->try_read_lease();
    EXPECT_TRUE(lease.has_value());
    return {.key = key_,
            .buckets = buckets_,
            .data = data(),
            .leaves = leaves_,
            .sums = *sums_,
            .blocks = blocks_,
            .hold = std::make_shared<Held>(arena_, sums_, std::move(*lease)),
            .share = [arena = arena_] { return arena->share(); }};
  }

 private:
  // What a source reads on its own thread, also after the version itself has gone.
  using Held =
      std::tuple<std::shared_ptr<SharedArena>, std::shared_ptr<std::vector<WordSum>>, ReadLease>;

  StreamKey key_;
  std::shared_ptr<SharedArena> arena_;
  std::vector<BucketWindow> buckets_;
  std::shared_ptr<const LeafTable> leaves_;
  std::shared_ptr<const patch::Layout> blocks_;
  std::shared_ptr<std::vector<WordSum>> sums_ = std::make_shared<std::vector<WordSum>>();
};

// A sink with its staging memory, and everything that it reported.
struct Receiver {
  Receiver(std::unique_ptr<BucketSink> given, std::uint64_t bytes)
      : sink(std::move(given)), memory(std::make_shared<std::vector<std::byte>>(bytes)) {}

  [[nodiscard]] FetchRequest wanted(const TestVersion& version, const std::string& source) const {
    return {.source = source,
            .key = version.key(),
            .data_bytes = version.data().size(),
            .buckets = version.buckets(),
            .leaves = version.leaves(),
            .into = *memory,
            .hold = memory,
            .pair = derive_pair_key(kTestSecret,
                                    {.fence = version.key().fence, .receiver = "receiver"})};
  }
  [[nodiscard]] Result<> receive(FetchRequest wanted) {
    SinkCallbacks callbacks{.on_bucket =
                                [this](const ArrivedBucket& arrived) {
                                  buckets.push_back(arrived.bucket);
                                  if (arrived.changes) ++by_changes;
                                  payload_bytes += arrived.payload_bytes;
                                  for (const WordSum& sum : arrived.sums) received += sum;
                                  if (relay) relay(arrived);
                                  if (on_arrived) on_arrived(arrived);
                                },
                            .on_leaves =
                                [this](ArrivedLeaves arrived) {
                                  leaves.push_back(std::move(arrived));
                                  if (relay_leaves) relay_leaves(leaves.back());
                                },
                            .on_patch =
                                [this](std::shared_ptr<const SealedMemory> arrived) {
                                  EXPECT_EQ(done, 0);
                                  patch = std::move(arrived);
                                },
                            .on_done =
                                [this](std::optional<ArenaView> arrived) {
                                  ++done;
                                  view = std::move(arrived);
                                },
                            .on_failure = [this](StreamFailure why) { failure = std::move(why); }};
    return sink->receive(std::move(wanted), std::move(callbacks));
  }
  [[nodiscard]] bool is_over() const { return done > 0 || failure.has_value(); }
  [[nodiscard]] bool holds(const TestVersion& version) const {
    return same_bytes(view ? view->data() : std::span<const std::byte>(*memory), version.data());
  }
  [[nodiscard]] std::string failure_text() const {
    return failure ? failure->error.message() : "no failure";
  }

  std::unique_ptr<BucketSink> sink;
  std::shared_ptr<std::vector<std::byte>> memory;
  std::vector<std::uint64_t> buckets;
  std::size_t by_changes = 0;  // buckets of which only what changes has come
  std::uint64_t payload_bytes = 0;
  WordSum received;  // of all leaves
  std::vector<ArrivedLeaves> leaves;
  std::function<void(const ArrivedBucket&)> relay;
  std::function<void(const ArrivedLeaves&)> relay_leaves;
  std::function<void(const ArrivedBucket&)> on_arrived;
  int done = 0;
  std::optional<ArenaView> view;
  std::shared_ptr<const SealedMemory> patch;
  std::optional<StreamFailure> failure;
};

}  // namespace wsync::transport
