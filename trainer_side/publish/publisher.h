// Publisher: the trainer's side of the data path. Copies weights from a source into an arena, and
// serves the bytes of the versions that are offered to the sidecars: to those of this host as a
// descriptor of the arena, to the others over TCP.
//
// Thread: the loop's. Snapshots are taken on a worker thread of its own, and bytes are served by
// the threads of the sources.
// Outlives: the loop outlives the publisher.
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

// How far a snapshot has come, in bytes. Thread: any.
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
  // `took`: from the opening of the source to the last byte; 0 when it has failed.
  using OnTaken = std::function<void(Result<std::shared_ptr<const Snapshot>> snapshot,
                                     std::chrono::nanoseconds took)>;

  // Binds data_address, unless versions travel by memfd alone. Errors: TcpSource::listen().
  [[nodiscard]] static Result<std::unique_ptr<Publisher>> create(
      Loop& loop, const config::TrainerConfig& config);
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  // Waits for the snapshot that is being taken; its on_taken is not called.
  ~Publisher();

  // Binds the socket at which sidecars of this host get arenas. Errors: MemfdSource::listen().
  [[nodiscard]] Result<> listen();
  // Where sidecars of other hosts get the bytes; empty: nowhere, because there is no TCP source.
  [[nodiscard]] std::string data_address() const;

  // Takes a snapshot after those that were asked for before. on_taken is called on the loop. Errors
  // of the snapshot: Snapshotter::take(), and those of the source. kBusy: too many are asked for.
  [[nodiscard]] Result<> snapshot(SnapshotOrder order, OnTaken on_taken);
  // Serves this version until it is withdrawn. Its arena is not written again before the last
  // reader has left it, whenever it is withdrawn.
  void offer(const std::shared_ptr<const Snapshot>& snapshot);
  // Sidecars that still ask for the version are told `reason`.
  void withdraw(const Version& version, const std::string& reason);

  [[nodiscard]] std::uint64_t arena_bytes() const noexcept { return snapshotter_->arena_bytes(); }
  // Bytes that the TCP source has put on the wire; 0 without one.
  [[nodiscard]] std::uint64_t tcp_wire_bytes() const;

 private:
  Publisher(Loop& loop, const config::TrainerConfig& config);

  Loop& loop_;
  const config::TrainerConfig config_;
  std::shared_ptr<Snapshotter> snapshotter_;  // shared with the worker's task
  // The sources before the worker: a snapshot that ends while this is destroyed is not offered.
  std::unique_ptr<transport::tcp::UvThread> bulk_thread_;
  std::unique_ptr<transport::memfd::MemfdSource> memfd_source_;
  std::unique_ptr<transport::tcp::TcpSource> tcp_source_;
  std::unique_ptr<Worker> worker_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what the worker posts
};

}  // namespace wsync::publish
