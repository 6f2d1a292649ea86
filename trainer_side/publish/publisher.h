// Publisher: the trainer's side of the data path. It copies weights from a source into an arena,
// and serves offered versions to the sidecars by every kind of transport that the configuration
// permits.
//
// Thread: the loop's. Snapshots are taken on a separate worker thread, and the threads of the
// sources serve the bytes. The loop must outlive the publisher.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "shared/config/trainer_config.h"
#include "shared/control/messages.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "shared/loop/worker.h"
#include "shared/transport/transport.h"
#include "trainer_side/publish/snapshot.h"

namespace wsync::publish {

// Progress of a snapshot, in bytes. Thread: any.
struct SnapshotProgress {
  std::atomic<std::uint64_t> done{0};
  std::atomic<std::uint64_t> total{0};  // 0 = not known yet
};

struct SnapshotOrder {
  // Opens the source. Called on the worker thread, where it may block.
  std::function<Result<std::unique_ptr<WeightSource>>()> open;
  control::Fence fence;
  Version version;
  TimePoint deadline{};  // of the wait for an arena, and of the copy
  // The longest wait for an arena; std::nullopt: until the deadline.
  std::optional<std::chrono::milliseconds> arena_wait;
  // Called on the loop if the snapshot must wait for an arena.
  std::function<void()> on_wait;
  // Called on the loop when the copy begins, or the sums of bytes that are in an arena already,
  // unless these are known as well. After it, on_bucket is called on the loop for each bucket that
  // is complete, before on_taken.
  std::function<void(const CopiedSnapshot&)> on_copy;
  std::function<void(std::uint64_t bucket, const Digest& digest)> on_bucket;
  // As in SnapshotRequest. The base is the snapshot of this version that is complete when it is
  // needed; none: there is no base.
  Version base;
  std::uint64_t value_cost = 0;
  bool as_changes = false;
  std::stop_token stop;
  std::shared_ptr<SnapshotProgress> progress;
};

class Publisher {
 public:
  // `took`: from the opening of the source to the last byte; 0 after a failure.
  using OnTaken = std::function<void(Result<std::shared_ptr<Snapshot>> snapshot,
                                     std::chrono::nanoseconds took)>;

  // Binds the addresses that other hosts can reach. Errors as make_transports() and
  // Transport::listen().
  [[nodiscard]] static Result<std::unique_ptr<Publisher>> create(
      Loop& loop, const config::TrainerConfig& config);
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  // Waits for the current snapshot; its on_taken is not called.
  ~Publisher();

  // Binds the addresses within this host, which may be taken over from another process. Call it
  // once, before offer(), transports() and copied_bytes(). Errors as Transport::listen().
  [[nodiscard]] Result<> listen();
  // The addresses that listen() has bound, the preferred kind first.
  [[nodiscard]] std::vector<control::TransportAddress> transports() const;

  // Takes a snapshot after all those requested earlier. on_taken is called on the loop. Errors of
  // the snapshot are those of Snapshotter::take() and of the source. Returns kBusy if too many are
  // requested.
  [[nodiscard]] Result<> snapshot(SnapshotOrder order, OnTaken on_taken);
  // As `snapshot_threads` of a configuration says.
  [[nodiscard]] static unsigned threads(std::uint32_t configured);
  // Prepares an arena for the next snapshot, if one is free, so that its snapshot takes less time.
  void prepare_next();
  // Gives the snapshot its fence and version, before offer().
  void rename(Snapshot& snapshot, const control::Fence& fence, const Version& version);
  // Serves the buckets of a snapshot that is being taken, by the kinds that copy, each when it is
  // complete. offer() follows with the complete snapshot, or withdraw().
  void offer_buckets(const CopiedSnapshot& snapshot);
  void bucket_complete(const Version& version, std::uint64_t bucket, const Digest& digest);
  // Serves this version until it is withdrawn. Even after that, its arena is not written again
  // before the last reader has released it. One that is held as its changes is served so, while its
  // base is served.
  void offer(const std::shared_ptr<const Snapshot>& snapshot);
  // The fleet is to serve this version from now on. If it is held as its changes, it becomes the
  // one in the arena of its base (Snapshotter::exchange()); who asks for either waits meanwhile. It
  // is tried again if both are being read and there is no memory. Does nothing for a version that
  // is complete or not served.
  void make_complete(const Version& version);
  // Sidecars that still request the version receive `reason`.
  void withdraw(const Version& version, const std::string& reason);

  [[nodiscard]] const std::shared_ptr<Snapshotter>& snapshotter() const noexcept {
    return snapshotter_;
  }
  // Of all arenas, and of the changes that are held in place of versions.
  [[nodiscard]] std::uint64_t arena_bytes() const noexcept;
  // What the keys of those who receive from here are made of; std::nullopt: no kind has keys.
  [[nodiscard]] const std::optional<transport::PairSecret>& secret() const noexcept {
    return secret_;
  }
  // Connections that were ended because of their peer. See Transport::refusals().
  [[nodiscard]] std::uint64_t refused_connections() const;
  // Bytes of weights that were sent as copies, framing included.
  [[nodiscard]] std::uint64_t copied_bytes() const;

 private:
  // Serves versions by one kind of transport.
  struct Server {
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<transport::BucketSource> source;  // null before listen()
  };
  // Two versions that change places, and which of them was withdrawn meanwhile.
  struct Exchanging {
    Version newer;
    Version older;
    bool is_newer_withdrawn = false;
    bool is_older_withdrawn = false;
  };
  Publisher(Loop& loop, const config::TrainerConfig& config);
  void release_unused();
  void serve(const Snapshot& snapshot, transport::Offer offer);
  // Who asks for the version waits for the next offer of it.
  void let_wait(const Snapshot& snapshot);
  void begin_exchange();
  void exchanged(Result<Snapshotter::Exchanged> outcome, std::chrono::nanoseconds took);

  Loop& loop_;
  const config::TrainerConfig config_;
  std::shared_ptr<Snapshotter> snapshotter_;  // shared with the worker's task
  // The sources are declared before the worker. A snapshot that ends during destruction is not
  // offered.
  std::vector<Server> servers_;
  std::map<Version, std::shared_ptr<const Snapshot>> served_;  // without those of exchanging_
  std::optional<Exchanging> exchanging_;
  Version wanted_;  // to be made complete; none: nothing is
  std::optional<transport::PairSecret> secret_;
  std::unique_ptr<Worker> worker_;
  Timer idle_;   // fires when no snapshot was requested for idle_release
  Timer retry_;  // of make_complete()
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what the worker posts
};

}  // namespace wsync::publish
