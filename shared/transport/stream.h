// Transfers the buckets of a version between processes. A BucketSource offers versions. A
// BucketSink fetches one version and reports its progress. Each kind of transport (traits.h) has
// its own. A source of copies may offer a version that is still arriving or being written, which
// allows relay chains, and transfers during a snapshot.
//
// Thread: the owner's loop thread calls every method. Every callback runs on that thread, through
// the Post given at creation. After cancel() or destruction no callback runs.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/sealed_memory.h"
#include "shared/base/shared_memory.h"
#include "shared/base/thread_pool.h"
#include "shared/base/unique_fd.h"
#include "shared/transport/limits.h"
#include "shared/transport/pair_key.h"
#include "shared/weights/leaf_table.h"
#include "shared/weights/patch/layout.h"
#include "shared/weights/version.h"

namespace wsync::transport {

using wsync::Post;

// Position of a bucket in the arena's data.
struct BucketWindow {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const BucketWindow&, const BucketWindow&) = default;
};

// Identifies the bytes that both ends mean.
struct StreamKey {
  StreamFence fence;
  Version version;
  Digest layout;
  friend bool operator==(const StreamKey&, const StreamKey&) = default;
};

// A version that others may fetch.
struct Offer {
  StreamKey key;
  std::vector<BucketWindow> buckets;
  // Of its arena. Empty without `base`: the version has no memory yet, so every request waits for
  // another offer of it. Empty with `base`: it is held as its changes alone.
  std::span<const std::byte> data;
  // The version that the changes of bucket_ready() lead from, if there is no `data`.
  Version base = {};
  // Its leaves. A source of copies sends what changes in those of a bucket to a sink that has the
  // base, if that is offered as well; for this it needs them and the blocks. A complete offer also
  // has their sums in the same order, which live as long as `hold`; a digest of each bucket's sums
  // is sent with it. Kinds that map the source use none of them.
  std::shared_ptr<const LeafTable> leaves = nullptr;
  std::span<const WordSum> sums = {};
  std::shared_ptr<const patch::Layout> blocks = nullptr;
  // false: bucket_ready() reports the buckets one by one. Always so for one that is held as its
  // changes alone.
  bool complete = true;
  // Of an incomplete offer: a version from which too much has changed, as its own source has found.
  // A sink that holds that version gets leaves as they arrive. One that takes changes alone learns
  // at once that it needs memory.
  Version unlike = {};
  // Keeps `data` mapped and prevents others from writing it. Released when the last byte is sent,
  // on any thread. withdraw() releases it at once if nothing is being sent. A source of copies may
  // hold it for limits::kStreamLinkHoldMs more, to tell receivers that are behind what has changed.
  std::shared_ptr<const void> hold;
  // Returns a new read-only descriptor of the arena. Only kinds that map the source use it.
  std::function<Result<UniqueFd>()> share;
  // Called once, on the owner's thread, when a sink wants to map a version that is held as its
  // changes alone: it waits until the version is offered with its memory. Only kinds that map the
  // source call it. May be empty.
  std::function<void()> on_memory_wanted = nullptr;
  // A patch to this version (shared/weights/patch/mapped_patch.h) from the one before, or null.
  // Kinds that map the source send it to a sink that names a base.
  std::shared_ptr<const SealedMemory> patch = nullptr;
};

// Leaves of a bucket that has not arrived as a whole. They are in their place and were checked.
struct ArrivedLeaves {
  std::uint64_t bucket = 0;
  std::size_t first = 0;      // index of the first one in its bucket
  std::vector<WordSum> sums;  // of this leaf and those behind it
  Version unlike = {};        // as Offer::unlike; 0.0: not known
};

struct SourceCounters {
  std::uint64_t wire_bytes = 0;     // sent, including framing (memfd: messages only, no data)
  std::uint64_t buckets = 0;        // sent completely
  std::uint64_t changes = 0;        // of these, buckets of which only what changes was sent
  std::uint64_t connections = 0;    // accepted
  std::uint64_t refused = 0;        // requests answered with a failure
  std::uint64_t garbage_peers = 0;  // connections closed because they sent malformed data
};

class BucketSource {
 public:
  virtual ~BucketSource() = default;
  // Returns the value that a sink needs as FetchRequest::source.
  [[nodiscard]] virtual std::string address() const = 0;
  // Offers a version. Replaces an earlier offer of the same version.
  virtual void offer(Offer offer) = 0;
  // Reports that a bucket of an incomplete offer is complete: it has arrived and was verified, or
  // was written here. Its digest is sent together with it.
  //
  // `changes`: of an offer that is held as its changes alone, the leaf changes of this bucket
  // (shared/weights/patch/leaf_changes.h) from Offer::base. A sink that names that base, and wants
  // as many bytes, gets these. Any other request for a bucket of such an offer gets the bucket that
  // is made of the base and them, or what changes from another version, while the base is offered
  // with its memory. Otherwise it is answered with kPeerLost, so that its sink looks for another
  // source. A kind that maps the source sends all of them to a sink that wants them alone. Other
  // offers ignore them.
  //
  // `sums`: of its leaves, if it has data. A source of copies needs them to send the bucket to a
  // sink that takes leaves one by one; without them it sends the bucket as a whole.
  virtual void bucket_ready(Version version, std::uint64_t bucket, const Digest& digest,
                            std::shared_ptr<const Bytes> changes = nullptr,
                            std::vector<WordSum> sums = {}) = 0;
  // The same for a bucket of which the sums of all leaves are known: its digest follows from them.
  void bucket_summed(Version version, std::uint64_t bucket, std::span<const WordSum> sums) {
    bucket_ready(version, bucket, bucket_digest(sums), nullptr, {sums.begin(), sums.end()});
  }
  // Reports that leaves of a bucket of an incomplete offer have arrived and were verified, or were
  // written here. They must come in order, and before the bucket itself. A source of copies sends
  // them at once to a sink that takes leaves one by one, unless it can compare the bucket with the
  // sink's base when all of it is here. Offers that are complete, or that have no data or no
  // leaves, ignore them, and so does a kind that maps the source.
  virtual void leaves_ready(Version /*version*/, ArrivedLeaves /*leaves*/) {}
  // Ends an offer. Sinks that still wait for it get `reason`.
  virtual void withdraw(Version version, const std::string& reason) = 0;
  // A fence is in force. offer() does the same with its own. A kind with keys admits no receiver
  // whose key is of a lower one, and closes the connections of those that are.
  virtual void raise_fence(const StreamFence& /*fence*/) {}
  // Returns a consistent copy.
  [[nodiscard]] virtual SourceCounters counters() const = 0;
};

// A version that a sink holds, of the same layout as the one that it fetches. A kind that copies
// asks for the changes from it. A kind that maps its source needs only the version, and may get a
// patch, perhaps from another one.
struct FetchBase {
  Version version;
  std::span<const std::byte> data;   // of its arena
  std::shared_ptr<const void> hold;  // keeps `data` alive
  std::shared_ptr<const patch::Layout> blocks;
  // Of a bucket's bytes: larger changes are not wanted. Of a version that comes as changes alone,
  // what the buckets that have arrived have left counts as well, because one bucket may have
  // changed as a whole.
  double max_share = 0;
  // The sums of all its leaves, in order; they live as long as `hold`. Only needed, and only used,
  // to fetch a version as its changes alone.
  std::span<const WordSum> sums = {};
};

// A version that a sink fetches.
struct FetchRequest {
  std::string source;  // BucketSource::address() of the peer
  StreamKey key;
  Digest content;                     // expected in the header of a mapped arena; zero: any
  std::uint64_t data_bytes = 0;       // size of the arena's data
  std::vector<BucketWindow> buckets;  // all buckets of the version
  // Its leaves. A kind that copies needs them, to sum what arrives.
  std::shared_ptr<const LeafTable> leaves = nullptr;
  std::vector<bool> have;  // empty: none; true: already present and verified
  // Buckets that are asked for in full, whatever the base: somebody may be reading leaves of them,
  // and to apply changes would overwrite these for a moment. Empty: none.
  std::vector<bool> in_full = {};
  // All buckets in the order in which a kind that copies asks for them. Empty: in their own.
  std::vector<std::uint64_t> order = {};
  // Data of the staging arena, data_bytes long. It is written to until done, failure or cancel().
  // Empty for a kind that maps the source.
  //
  // A request with an empty one is for the changes alone if `base` has sums; a kind that copies
  // takes no other one. Every bucket must come as changes from `base`. They are proven against it,
  // and nothing is written. If one cannot come so, the transfer ends with
  // StreamFailure::needs_memory, but a kind that maps the source gives its arena if there is one.
  std::span<std::byte> into;
  std::shared_ptr<const void> hold;  // keeps `into` alive
  std::optional<FetchBase> base = std::nullopt;
  std::optional<PairKey> pair = std::nullopt;  // a kind with keys needs it
  // The source is lost if it is silent for longer than this.
  std::chrono::milliseconds stall_deadline{limits::kStreamStallMs};
  // Whether only what changes is fetched.
  [[nodiscard]] bool wants_changes_alone() const noexcept {
    return into.empty() && base && !base->sums.empty();
  }
};

struct StreamFailure {
  Error error;
  std::uint64_t first_missing = 0;  // lowest missing bucket, where the next attempt resumes
  // The version was asked for as its changes alone, and cannot come so: a bucket or leaves came in
  // full, its changes do not fit the base, or the source says that it needs memory. The error is
  // kRefused. Begin again with memory.
  bool needs_memory = false;
  Version unlike = {};  // with needs_memory, as Offer::unlike; 0.0: for another reason
};

// A bucket that has arrived and was checked.
struct ArrivedBucket {
  std::uint64_t bucket = 0;
  // bucket_digest() of its sums. Of a mapped arena, zero and none: its header has the sums.
  Digest digest;
  // Of its leaves: of the bytes that are in `into` now, or, of changes alone, of those that the
  // base has with them.
  std::vector<WordSum> sums;
  // Leaf changes (shared/weights/patch/leaf_changes.h), if only what differs from the base has
  // travelled; else null.
  std::shared_ptr<const Bytes> changes;
  std::uint64_t payload_bytes = 0;  // that have travelled
};

struct SinkCallbacks {
  std::function<void(const ArrivedBucket& arrived)> on_bucket;
  // Leaves of a large bucket, in order, except the last ones: on_bucket follows in their place. Not
  // of what comes as changes, nor from a source that sends whole buckets. May be empty.
  std::function<void(ArrivedLeaves arrived)> on_leaves = nullptr;
  // The source has a patch to this version. It is not read yet: it may be damaged, or lead from a
  // version that is not held here. Called before on_done, by kinds that map the source. May be
  // empty.
  std::function<void(std::shared_ptr<const SealedMemory> patch)> on_patch = nullptr;
  // All buckets have arrived. `view`: the mapped arena, with its read lease held; std::nullopt if
  // the bytes are in FetchRequest::into.
  std::function<void(std::optional<ArenaView> view)> on_done;
  // The transfer ended without success. Buckets that were reported before remain valid.
  std::function<void(StreamFailure failure)> on_failure;
};

class BucketSink {
 public:
  virtual ~BucketSink() = default;
  // Begins a transfer. An error means that nothing has begun and no callback will run. One transfer
  // at a time: kBusy if another is active. kInvalidInput for a request that cannot be; kPeerLost if
  // no process serves the address (a kind may also report this by on_failure).
  [[nodiscard]] virtual Result<> receive(FetchRequest wanted, SinkCallbacks callbacks) = 0;
  // Ends the transfer without a callback. After it returns, nothing writes to FetchRequest::into.
  virtual void cancel() = 0;
  // Connects to a source and keeps the connection. Its end is reported by
  // SinkOptions::on_source_lost (transport.h). A connection to another source is closed. A kind
  // that keeps no connection between transfers does nothing. kPeerLost if no process serves the
  // address.
  [[nodiscard]] virtual Result<> watch(const std::string& /*source*/) { return {}; }
  // Ends that connection and an active transfer, without a callback.
  virtual void unwatch() { cancel(); }
};

}  // namespace wsync::transport
