// Publisher: the trainer's side of the data path. It takes snapshots of the weights, one after the
// other, and has the versions that are served of them.
//
// Thread: the loop's. Snapshots are taken on a separate worker thread. The loop must outlive the
// publisher.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
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
#include "trainer_side/publish/served_versions.h"
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
  std::function<void(std::uint64_t bucket, const std::vector<WordSum>& sums)> on_bucket;
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
  // From the opening of the source to the last byte; nothing after a failure. The loop may hear of
  // it later.
  struct TakingTime {
    TimePoint begin, end;
    [[nodiscard]] std::chrono::nanoseconds took() const { return end - begin; }
  };
  using OnTaken =
      std::function<void(Result<std::shared_ptr<Snapshot>> snapshot, const TakingTime& time)>;

  // Errors as ServedVersions::create().
  [[nodiscard]] static Result<std::unique_ptr<Publisher>> create(
      Loop& loop, const config::TrainerConfig& config);
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  // Waits for the current snapshot; its on_taken is not called.
  ~Publisher();

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
  [[nodiscard]] ServedVersions& versions() noexcept { return *versions_; }
  [[nodiscard]] const ServedVersions& versions() const noexcept { return *versions_; }
  [[nodiscard]] const std::shared_ptr<Snapshotter>& snapshotter() const noexcept {
    return snapshotter_;
  }
  // Of all arenas, and of the changes that are held in place of versions.
  [[nodiscard]] std::uint64_t arena_bytes() const {
    return snapshotter_->arena_bytes() + versions_->changes_bytes();
  }

 private:
  Publisher(Loop& loop, const config::TrainerConfig& config);
  void count_idle_time();
  void release_unused();

  Loop& loop_;
  const config::TrainerConfig config_;
  std::shared_ptr<Snapshotter> snapshotter_;  // shared with the worker's task
  // Declared before the worker: a snapshot that ends during destruction is not offered.
  std::unique_ptr<ServedVersions> versions_;
  std::unique_ptr<Worker> worker_;
  Timer idle_;  // fires when no snapshot has needed an arena for idle_release
  bool has_begun_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what the worker posts
};

}  // namespace wsync::publish
