#include "trainer_side/publish/publisher.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "shared/base/log.h"
#include "shared/base/units.h"
#include "shared/config/trainer_config.h"

namespace wsync::publish {
namespace {

// More threads do not copy faster: a few of them saturate the memory.
constexpr unsigned kSnapshotThreadsAuto = 16;

}  // namespace

unsigned Publisher::threads(std::uint32_t configured) {
  if (configured != 0) return configured;
  return std::clamp(std::thread::hardware_concurrency(), 1U, kSnapshotThreadsAuto);
}

Result<std::unique_ptr<Publisher>> Publisher::create(Loop& loop,
                                                     const config::TrainerConfig& config) {
  auto publisher = std::unique_ptr<Publisher>(new Publisher(loop, config));
  publisher->versions_ =
      WSYNC_TRY(ServedVersions::create(loop, config, publisher->snapshotter_, *publisher->worker_));
  return publisher;
}

Publisher::Publisher(Loop& loop, const config::TrainerConfig& config)
    : loop_(loop),
      config_(config),
      snapshotter_(std::make_shared<Snapshotter>(
          // One more for a version that is being written to a directory.
          SnapshotterOptions{.arenas = config.arenas + (config.directory.publish.empty() ? 0U : 1U),
                             .additional_arenas = true,
                             .threads = threads(config.snapshot_threads),
                             .huge_pages = config.memory.huge_pages,
                             .numa_node = config.memory.numa_node,
                             .near_gpus = config.memory.near_gpus})),
      worker_(std::make_unique<Worker>(loop, WorkerOptions{.name = "snapshot"})),
      idle_(loop, [this] { release_unused(); }) {}

Publisher::~Publisher() {
  // The worker still posts the end of a running snapshot; that task must not use this object.
  *alive_ = false;
  worker_->stop();
}

Result<> Publisher::snapshot(SnapshotOrder order, OnTaken on_taken) {
  SnapshotRequest request;
  request.fence_epoch = order.fence.epoch;
  request.fence_run_id = order.fence.run_id;
  request.version = order.version;
  request.bucket_bytes = config_.bucket_bytes;
  request.deadline = order.deadline;
  request.copy_deadline = order.deadline;
  request.arena_wait = order.arena_wait;
  // The worker's thread may not touch this object. The loop outlives the worker.
  if (order.on_wait)
    request.on_wait = [loop = &loop_, alive = alive_, on_wait = std::move(order.on_wait)] {
      loop->post([alive, on_wait] {
        if (*alive) on_wait();
      });
    };
  if (order.on_copy)
    request.on_copy = [loop = &loop_, alive = alive_,
                       on_copy = std::move(order.on_copy)](const CopiedSnapshot& snapshot) {
      loop->post([alive, on_copy, snapshot] {
        if (*alive) on_copy(snapshot);
      });
    };
  if (order.on_bucket)
    request.on_bucket = [loop = &loop_, alive = alive_, on_bucket = std::move(order.on_bucket)](
                            std::uint64_t bucket, const std::vector<WordSum>& sums) {
      loop->post([alive, on_bucket, bucket, sums] {
        if (*alive) on_bucket(bucket, sums);
      });
    };
  request.value_cost = order.value_cost;
  request.as_changes = order.as_changes;
  request.stop = std::move(order.stop);
  request.done_bytes = &order.progress->done;
  request.total_bytes = &order.progress->total;
  struct Taken {
    Result<std::shared_ptr<Snapshot>> snapshot;
    TakingTime time;
  };
  auto taken = std::make_shared<Taken>();
  // The task owns the progress, to which `request` points, and the snapshotter, because it may run
  // while the publisher is being destroyed.
  if (!std::exchange(has_begun_, true)) count_idle_time();
  return worker_->submit(
      [open = std::move(order.open), progress = std::move(order.progress), request, taken,
       base = order.base, snapshotter = snapshotter_]() mutable {
        const TimePoint begun = now();
        Result<std::unique_ptr<WeightSource>> source = open();
        if (!source) {
          taken->snapshot = fail(source.error());
          return;
        }
        if (!base.none()) request.base = snapshotter->find(base);
        taken->snapshot = snapshotter->take(**source, request);
        taken->time = {.begin = begun, .end = now()};
      },
      [this, alive = alive_, taken, on_taken = std::move(on_taken)] {
        if (!*alive) return;
        // One that is held as its changes needs no arena.
        if (!taken->snapshot || (*taken->snapshot)->is_complete()) count_idle_time();
        on_taken(std::move(taken->snapshot), taken->time);
      });
}

void Publisher::prepare_next() {
  const auto submitted =
      worker_->submit([snapshotter = snapshotter_] { snapshotter->prepare_next(); }, [] {});
  if (!submitted) log_debug("no arena is prepared: {}", submitted.error().message());
}

void Publisher::count_idle_time() {
  if (config_.idle_release.count() != 0) idle_.start(config_.idle_release);
}

// On the worker, because it takes long, and because snapshots use the arenas there.
void Publisher::release_unused() {
  const auto submitted = worker_->submit(
      [snapshotter = snapshotter_, before = snapshotter_->arena_bytes()] {
        snapshotter->release_unused();
        if (const std::uint64_t after = snapshotter->arena_bytes(); after < before)
          log_info("{} MiB of free arenas were given back (idle_release)",
                   (before - after) / limits::kMiB);
      },
      [] {});
  if (!submitted) log_debug("free arenas are looked for later: {}", submitted.error().message());
  count_idle_time();  // others may still read an arena now
}

void Publisher::rename(Snapshot& snapshot, const control::Fence& fence, const Version& version) {
  snapshotter_->rename(snapshot, fence.epoch, fence.run_id, version);
}

}  // namespace wsync::publish
