#include "trainer_side/publish/snapshot.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/base/weight_limits.h"
#include "trainer_side/publish/change_finder.h"
#include "trainer_side/publish/leaf_copier.h"

namespace wsync::publish {
namespace {

ArenaSize size_of(const SharedArena& arena) {
  return {.data_bytes = arena.data_bytes(), .leaves = arena.leaf_sums()};
}

ArenaSize size_of(const ArenaLayout& layout) {
  return {.data_bytes = layout.plan->arena_bytes(), .leaves = layout.leaves->all().size()};
}

}  // namespace

std::string snapshot_name(const Version& version) {
  if (version.epoch != 0) return "snapshot of version " + version.to_string();
  return version.none() ? std::string("snapshot")
                        : fmt::format("snapshot of step {}", version.step);
}

Snapshot::Snapshot(Described described, std::shared_ptr<SharedArena> arena, ReadLease lease,
                   std::shared_ptr<const SealedMemory> patch)
    : arena_(std::move(arena)),
      lease_(std::move(lease)),
      described_(std::move(described)),
      patch_(std::move(patch)) {
  described_.identity = arena_->identity();
}

Snapshot::Snapshot(Described described, patch::VersionChanges changes,
                   std::shared_ptr<const Snapshot> base)
    : described_(std::move(described)), changes_(std::move(changes)), base_(std::move(base)) {}

Version Snapshot::version() const noexcept { return version_of(described_.identity); }

Result<UniqueFd> Snapshot::share() const {
  if (arena_) return arena_->share();
  return fail(ErrorCode::kNotFound, fmt::format("only what changes from {} is held of version {}",
                                                changes_->base.to_string(), version().to_string()));
}

Snapshotter::Snapshotter(SnapshotterOptions options)
    : options_(std::move(options)),
      arenas_({.name = options_.name,
               .arenas = options_.arenas,
               .additional_arenas = options_.additional_arenas,
               .threads = options_.threads,
               .huge_pages = options_.huge_pages,
               .numa_node = options_.numa_node}) {}

Result<> Snapshotter::reserve(const Manifest& manifest, std::uint64_t bucket_bytes,
                              std::uint32_t count) {
  const auto plan = WSYNC_TRY(BucketPlan::create(manifest, bucket_bytes));
  return arenas_.reserve({.data_bytes = plan.arena_bytes(), .leaves = leaf_count(manifest)}, count);
}

void Snapshotter::rename(Snapshot& snapshot, std::uint64_t fence_epoch,
                         const std::array<std::uint64_t, 2>& fence_run_id, const Version& version) {
  const std::lock_guard lock(arenas_.names());
  ArenaIdentity& identity = snapshot.described_.identity;
  identity.fence_epoch = fence_epoch;
  identity.fence_run_id = fence_run_id;
  identity.version_epoch = version.epoch;
  identity.version_step = version.step;
  if (snapshot.arena_) snapshot.arena_->rename(identity);
}

Result<ArenaLayout> Snapshotter::layout_of(const Manifest& manifest, std::uint64_t bucket_bytes) {
  const std::lock_guard lock(layout_mutex_);
  if (!layout_.plan || layout_digest_ != manifest.layout_digest() ||
      layout_.plan->bucket_bytes() != bucket_bytes) {
    auto plan = WSYNC_TRY(BucketPlan::create(manifest, bucket_bytes));
    layout_.plan = std::make_shared<const BucketPlan>(std::move(plan));
    layout_.leaves = std::make_shared<const LeafTable>(manifest, *layout_.plan);
    layout_.blocks =
        std::make_shared<const patch::Layout>(std::make_shared<const Manifest>(manifest));
    layout_digest_ = manifest.layout_digest();
  }
  return layout_;
}

ArenaOrder Snapshotter::order_of(const ArenaLayout& layout, const ArenaIdentity& identity,
                                 const SnapshotRequest& request) {
  return {.size = size_of(layout),
          .identity = identity,
          .what = snapshot_name(request.version),
          .deadline = request.deadline,
          .wait = request.arena_wait,
          .on_wait = request.on_wait,
          .numa_node = request.numa_node,
          .stop = request.stop,
          .done_bytes = request.done_bytes,
          .total_bytes = request.total_bytes};
}

Result<WritableArena> Snapshotter::begin(const Manifest& manifest, const SnapshotRequest& request) {
  const ArenaLayout layout = WSYNC_TRY(layout_of(manifest, request.bucket_bytes));
  auto found = WSYNC_TRY(arenas_.wait_for(order_of(layout, {}, request)));
  WSYNC_TRY(found.arena.lease().unprotect());
  return std::move(found.arena);
}

Result<std::shared_ptr<Snapshot>> Snapshotter::take(WeightSource& source,
                                                    const SnapshotRequest& request) {
  const auto& manifest = source.manifest();
  const ArenaLayout layout = WSYNC_TRY(layout_of(*manifest, request.bucket_bytes));
  const BucketPlan& plan = *layout.plan;
  const ArenaIdentity identity{.fence_epoch = request.fence_epoch,
                               .fence_run_id = request.fence_run_id,
                               .version_epoch = request.version.epoch,
                               .version_step = request.version.step,
                               .layout = manifest->layout_digest(),
                               .bucket_bytes = request.bucket_bytes};
  Snapshot::Times times;
  if (request.total_bytes != nullptr) *request.total_bytes = plan.arena_bytes();
  std::optional<WritableArena> written = source.take_arena();
  const bool is_written = written.has_value();
  const auto parted = source.parted();
  if (!is_written && request.as_changes && !parted) {
    auto taken = WSYNC_TRY(take_changes(source, request, layout, identity));
    if (taken) return taken;
  }
  if (is_written) {
    WSYNC_CHECK(size_of(*written->arena()) == size_of(layout),
                "what was written has the layout that it had");
    const std::lock_guard lock(arenas_.names());
    written->lease().set_identity(identity);
  } else {
    ArenaOrder order = order_of(layout, identity, request);
    if (parted) order.use_only(parted->own_ranges());
    if (options_.near_gpus) order.numa_node = source.numa_node();
    auto found = arenas_.wait_for(order);
    if (!found) return fail(found.error().with_context(snapshot_name(request.version)));
    written.emplace(std::move(found->arena));
    times.wait = found->waited;
    times.setup = found->setup;
  }

  const TimePoint begun = now();
  // Before the arena is given away on any path, nothing of the source may write it any more.
  struct Finish {
    ~Finish() {
      if (source != nullptr) source->finish();
    }
    WeightSource* source = nullptr;
  } finish;
  if (!is_written) {
    WSYNC_TRY(written->lease().unprotect());
    finish.source = &source;
    if (const Result<> started = source.start(*written, plan); !started)
      return fail(started.error().with_context(snapshot_name(request.version)));
  }
  const bool is_summed = is_written && source.is_summed();
  // A version with parts is served when it is complete.
  if (!is_summed && request.on_copy && !parted)
    request.on_copy({.identity = identity,
                     .manifest = manifest,
                     .layout = layout,
                     .data = written->data(),
                     .hold = written->hold()});
  std::unique_ptr<ChangeFinder> changes;
  if (auto base = request.base.lock(); base != nullptr && base->is_complete() &&
                                       base->plan() == layout.plan && request.value_cost != 0 &&
                                       !parted && !base->parted())
    changes = ChangeFinder::create(std::move(base), source,
                                   is_written ? written->data() : std::span<const std::byte>(),
                                   request.value_cost);
  LeafCopier copier(source, layout, &written->lease(), request, changes.get());
  auto digests = copier.run(is_summed && !changes ? 1 : std::max(1U, options_.threads));
  if (!digests) return fail(digests.error().with_context(snapshot_name(request.version)));
  if (const Result<> good = source.check(digests->root); !good)
    return fail(good.error().with_context(snapshot_name(request.version)));
  std::shared_ptr<const SealedMemory> patch;
  if (changes) {
    auto made = changes->finish(*digests);
    if (made)
      patch = std::move(*made);
    else if (made.error().code() == ErrorCode::kDigestMismatch)
      log_warning(
          "{}: the weights were changed while they were copied, so the version is a mixture, and "
          "engines load all of it; change them only after the publish has returned ({})",
          snapshot_name(request.version), made.error().message());
    else
      log_info("{}: engines load all of it, because there is no memory for a patch: {}",
               snapshot_name(request.version), made.error().message());
  }
  times.copy = now() - begun;
  return complete({.identity = identity,
                   .manifest = manifest,
                   .layout = layout,
                   .digests = std::move(*digests),
                   .times = times,
                   .bucket_times = copier.bucket_times(),
                   .parted = parted},
                  *written, std::move(patch));
}

Result<std::shared_ptr<Snapshot>> Snapshotter::complete(Snapshot::Described described,
                                                        WritableArena& arena,
                                                        std::shared_ptr<const SealedMemory> patch) {
  {
    const std::lock_guard lock(arenas_.names());
    std::move(arena.lease()).complete(described.digests.root, described.digests.leaves);
  }
  // The write lease has ended, but the claim has not. So nobody can write the arena before the
  // snapshot has its read lease.
  auto lease = WSYNC_TRY(arena.arena()->try_read_lease());
  auto snapshot = std::make_shared<Snapshot>(std::move(described), arena.arena(), std::move(lease),
                                             std::move(patch));
  arenas_.put(arena.arena(), snapshot);
  return snapshot;
}

}  // namespace wsync::publish
