// Moving the buckets of a version between processes. A BucketSource offers versions; a BucketSink
// brings one version over and says how far it is. Backends: memfd/ (same host: the arena itself is
// handed over, nothing is copied) and tcp/ (several streams, received straight into the caller's
// arena; a source may offer a version that is still arriving, which makes relay chains).
//
// Thread: every method is called by the owner's loop thread; every callback comes back on it
// through the Post given at creation. After cancel() or destruction no callback comes.
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

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/shared_memory.h"
#include "shared/base/thread_pool.h"
#include "shared/base/unique_fd.h"
#include "shared/transport/limits.h"
#include "shared/weights/version.h"

namespace wsync::transport {

using wsync::Post;

// Where a bucket lies in the arena's data.
struct BucketWindow {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const BucketWindow&, const BucketWindow&) = default;
};

// The fence of the round, as in the control messages and in the arena's header.
struct StreamFence {
  std::uint64_t epoch = 0;
  std::array<std::uint64_t, 2> run_id{};
  friend bool operator==(const StreamFence&, const StreamFence&) = default;
  friend auto operator<=>(const StreamFence&, const StreamFence&) = default;
};

// Names the bytes that both ends mean.
struct StreamKey {
  StreamFence fence;
  Version version;
  Digest layout;
  friend bool operator==(const StreamKey&, const StreamKey&) = default;
};

// A version that others may take.
struct Offer {
  StreamKey key;
  std::vector<BucketWindow> buckets;
  std::span<const std::byte> data;
  bool complete = true;  // false: buckets are told one by one with bucket_ready()
  // Keeps `data` mapped and unwritten by anyone else; dropped when the last byte has left.
  std::shared_ptr<const void> hold;
  // memfd: a fresh read-only descriptor of the arena. tcp does not use it.
  std::function<Result<UniqueFd>()> share;
};

struct SourceCounters {
  std::uint64_t wire_bytes = 0;     // sent, framing included (memfd: bytes of messages, no data)
  std::uint64_t buckets = 0;        // sent completely
  std::uint64_t connections = 0;    // accepted
  std::uint64_t refused = 0;        // requests answered with a failure
  std::uint64_t garbage_peers = 0;  // connections closed because what they sent made no sense
};

class BucketSource {
 public:
  virtual ~BucketSource() = default;
  // What a sink is told as FetchRequest::source.
  [[nodiscard]] virtual std::string address() const = 0;
  // Offers a version, in place of an earlier offer of the same version.
  virtual void offer(Offer offer) = 0;
  // A bucket of an incomplete offer has arrived and was verified; its digest travels on with it.
  virtual void bucket_ready(Version version, std::uint64_t bucket, const Digest& digest) = 0;
  // No longer offered: who still waits for it is told `reason`.
  virtual void withdraw(Version version, const std::string& reason) = 0;
  // A consistent copy.
  [[nodiscard]] virtual SourceCounters counters() const = 0;
};

// A version that a sink shall bring over.
struct FetchRequest {
  std::string source;  // BucketSource::address() of the peer
  StreamKey key;
  Digest content;                     // memfd: what the arena's header must say; zero = any
  std::uint64_t data_bytes = 0;       // of the arena
  std::vector<BucketWindow> buckets;  // all of them
  std::vector<bool> have;             // empty = none; true = already there and verified
  // tcp: data of the staging arena, data_bytes long, written to until done, failure or cancel().
  std::span<std::byte> into;
  std::shared_ptr<const void> hold;  // keeps `into` alive
  // Silence of the source longer than this is a loss.
  std::chrono::milliseconds stall_deadline{limits::kStreamStallMs};
};

struct StreamFailure {
  Error error;
  std::uint64_t first_missing = 0;  // lowest bucket that is not there; where to attach again
};

struct SinkCallbacks {
  // The bucket is there and its digest was checked (memfd: the mapped arena vouches, zero digest).
  std::function<void(std::uint64_t bucket, const Digest& digest)> on_bucket;
  // Every bucket is there. memfd: with the mapped arena, whose read lease is held.
  std::function<void(std::optional<ArenaView> view)> on_done;
  // The transfer is over without success. Buckets reported before stay good.
  std::function<void(StreamFailure failure)> on_failure;
};

class BucketSink {
 public:
  virtual ~BucketSink() = default;
  // Begins; an error means that nothing was begun and no callback comes. One transfer at a time:
  // kBusy while another is under way.
  [[nodiscard]] virtual Result<> receive(FetchRequest wanted, SinkCallbacks callbacks) = 0;
  // Ends a transfer without a callback. When it returns, nothing writes to FetchRequest::into any
  // more.
  virtual void cancel() = 0;
};

}  // namespace wsync::transport
