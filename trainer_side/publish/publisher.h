// Publisher: the trainer's side of the data path. It copies weights from a source into an arena,
// and serves offered versions to the sidecars. Sidecars of this host receive a descriptor of the
// arena; all others read over TCP.
//
// Thread: the loop's. Snapshots are taken on a separate worker thread, and the threads of the
// sources serve the bytes. The loop must outlive the publisher.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "shared/config/trainer_config.h"
#include "shared/control/messages.h"
#include "shared/loop/loop.h"
#include "shared/loop/worker.h"
#include "shared/transport/memfd/memfd_source.h"
#include "shared/transport/tcp/tcp_source.h"
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
  std::stop_token stop;
  std::shared_ptr<SnapshotProgress> progress;
};

class Publisher {
 public:
  // `took`: from the opening of the source to the last byte; 0 after a failure.
  using OnTaken = std::function<void(Result<std::shared_ptr<const Snapshot>> snapshot,
                                     std::chrono::nanoseconds took)>;

  // Binds data_address, unless versions are sent by memfd only. Errors as TcpSource::listen().
  [[nodiscard]] static Result<std::unique_ptr<Publisher>> create(
      Loop& loop, const config::TrainerConfig& config);
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  // Waits for the current snapshot; its on_taken is not called.
  ~Publisher();

  // Binds the socket through which sidecars of this host receive arenas. Errors as
  // MemfdSource::listen().
  [[nodiscard]] Result<> listen();
  // The address from which sidecars of other hosts read; empty if there is no TCP source.
  [[nodiscard]] std::string data_address() const;

  // Takes a snapshot after all those requested earlier. on_taken is called on the loop. Errors of
  // the snapshot are those of Snapshotter::take() and of the source. Returns kBusy if too many are
  // requested.
  [[nodiscard]] Result<> snapshot(SnapshotOrder order, OnTaken on_taken);
  // Serves this version until it is withdrawn. Even after that, its arena is not written again
  // before the last reader has released it.
  void offer(const std::shared_ptr<const Snapshot>& snapshot);
  // Sidecars that still request the version receive `reason`.
  void withdraw(const Version& version, const std::string& reason);

  [[nodiscard]] std::uint64_t arena_bytes() const noexcept { return snapshotter_->arena_bytes(); }
  // Bytes that the TCP source has sent; 0 without one.
  [[nodiscard]] std::uint64_t tcp_wire_bytes() const;

 private:
  Publisher(Loop& loop, const config::TrainerConfig& config);

  Loop& loop_;
  const config::TrainerConfig config_;
  std::shared_ptr<Snapshotter> snapshotter_;  // shared with the worker's task
  // The sources are declared before the worker. A snapshot that ends during destruction is not
  // offered.
  std::unique_ptr<transport::tcp::UvThread> bulk_thread_;
  std::unique_ptr<transport::memfd::MemfdSource> memfd_source_;
  std::unique_ptr<transport::tcp::TcpSource> tcp_source_;
  std::unique_ptr<Worker> worker_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what the worker posts
};

}  // namespace wsync::publish
