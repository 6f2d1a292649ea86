// Snapshots that are held as what changes from another one.
#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "trainer_side/publish/change_finder.h"
#include "trainer_side/publish/leaf_copier.h"
#include "trainer_side/publish/snapshot.h"

namespace wsync::publish {
namespace {

constexpr std::chrono::milliseconds kReaderPoll{2};  // the kernel does not notify of a free lock

}  // namespace

bool ChangesBackoff::may_compare() {
  const std::lock_guard lock(mutex_);
  if (to_skip_ == 0) return true;
  --to_skip_;
  return false;
}

void ChangesBackoff::note_too_much() {
  const std::lock_guard lock(mutex_);
  to_skip_ = next_skip_;
  next_skip_ = std::clamp(2 * next_skip_, 1U, kSkippedMax);
}

void ChangesBackoff::note_little() {
  const std::lock_guard lock(mutex_);
  next_skip_ = 0;
}

Result<std::shared_ptr<Snapshot>> Snapshotter::take_changes(WeightSource& source,
                                                            const SnapshotRequest& request,
                                                            const ArenaLayout& layout,
                                                            const ArenaIdentity& identity) {
  auto base = request.base.lock();
  if (!base || !base->is_complete() || base->parted() || base->plan() != layout.plan ||
      !source.is_on_host())
    return nullptr;
  const auto changes = ChangeFinder::create_for_buckets(base, source);
  if (!changes || !backoff_.may_compare()) return nullptr;
  const TimePoint begun = now();
  SnapshotRequest compared = request;
  compared.on_bucket = nullptr;
  LeafCopier copier(source, layout, nullptr, compared, changes.get());
  auto digests = copier.run(std::max(1U, options_.threads));
  auto buckets = digests ? changes->finish_buckets(*digests)
                         : Result<patch::ChangedBuckets>(fail(digests.error()));
  if (!buckets) {
    if (request.done_bytes != nullptr) *request.done_bytes = 0;
    const ErrorCode code = buckets.error().code();
    if (digests && code == ErrorCode::kDigestMismatch)
      log_warning(
          "step {}: the weights were changed while they were compared, so they are copied; change "
          "them only after the publish has returned ({})",
          request.version.step, buckets.error().message());
    else if (code != ErrorCode::kRefused)
      return fail(buckets.error().with_context(snapshot_name(request.version)));
    else
      backoff_.note_too_much();  // or the source has failed so: the copy says it again
    return nullptr;
  }
  backoff_.note_little();
  if (const Result<> good = source.check(digests->root); !good)
    return fail(good.error().with_context(snapshot_name(request.version)));
  ArenaIdentity named = identity;
  named.content = digests->root;
  const Snapshot::Times times{.wait = {}, .setup = {}, .copy = now() - begun};
  return std::make_shared<Snapshot>(Snapshot::Described{.identity = named,
                                                        .manifest = source.manifest(),
                                                        .layout = layout,
                                                        .digests = std::move(*digests),
                                                        .times = times,
                                                        .bucket_times = copier.bucket_times()},
                                    patch::VersionChanges{.base = base->version(),
                                                          .leaves = layout.leaves,
                                                          .blocks = layout.blocks,
                                                          .buckets = std::move(*buckets)},
                                    base);
}

std::shared_ptr<const Snapshot> Snapshotter::find(const Version& version) const {
  for (auto& snapshot : arenas_.snapshots()) {
    const std::lock_guard names(arenas_.names());
    if (snapshot->version() == version) return std::move(snapshot);
  }
  return nullptr;
}

Result<WriteLease> Snapshotter::wait_for_readers(SharedArena& memory, const ArenaIdentity& identity,
                                                 TimePoint deadline) const {
  for (;;) {
    {
      const std::lock_guard names(arenas_.names());
      auto lease = memory.try_write_lease(identity);
      if (lease) (void)Snapshot::ended_.load(std::memory_order_acquire);
      if (lease || lease.error().code() != ErrorCode::kBusy || now() >= deadline) return lease;
    }
    std::this_thread::sleep_for(kReaderPoll);
  }
}

Result<std::shared_ptr<Snapshot>> Snapshotter::complete_beside(const Snapshot& newer) {
  const Snapshot::Described& described = newer.described_;
  SnapshotRequest request;
  request.version = version_of(described.identity);
  request.deadline = now();
  ArenaOrder order = order_of(described.layout, described.identity, request);
  // Snapshots that are taken meanwhile may have all others, for as long as the fleet waits.
  order.is_owed = true;
  auto found = WSYNC_TRY(arenas_.wait_for(order));
  WSYNC_TRY(found.arena.lease().unprotect());
  WSYNC_TRY(patch::copy_with_changes(*newer.changes_, newer.base_->data(), found.arena.data(),
                                     described.digests.leaves, std::max(1U, options_.threads), {}));
  return complete(described, found.arena, nullptr);
}

Result<Snapshotter::Exchanged> Snapshotter::exchange(std::shared_ptr<const Snapshot> newer,
                                                     TimePoint deadline) {
  Snapshot::Described to = newer->described_;
  const Snapshot::Described from = newer->base_->described_;
  if (planted("arena_keeps_the_sums_of_its_base")) to.digests.leaves = from.digests.leaves;
  patch::VersionChanges changes = *newer->changes_;
  const std::shared_ptr<SharedArena> memory = newer->base_->arena_;
  const std::weak_ptr<const Snapshot> readers = newer->base_;
  Exchanged exchanged{.bytes = changes.bytes()};
  auto claim = arenas_.claim(memory);
  newer.reset();

  auto lease = wait_for_readers(*memory, to.identity, deadline);
  if (lease) {
    WritableArena arena(memory, std::move(*lease), std::move(claim));
    if (const Result<> writable = arena.lease().unprotect(); !writable) {
      exchanged.failure = writable.error();
      exchanged.older = WSYNC_TRY(complete(from, arena, nullptr));
      exchanged.newer = std::make_shared<Snapshot>(to, std::move(changes), exchanged.older);
      return exchanged;
    }
    auto back = WSYNC_TRY(
        patch::change_in_place(changes, arena.data(), std::max(1U, options_.threads), {}));
    exchanged.newer = WSYNC_TRY(complete(to, arena, nullptr));
    if (!planted("older_snapshot_leads_from_itself")) changes.base = exchanged.newer->version();
    changes.buckets = std::move(back);
    exchanged.older = std::make_shared<Snapshot>(from, std::move(changes), exchanged.newer);
    return exchanged;
  }
  // Somebody reads it, so it has its content.
  exchanged.failure = lease.error();
  exchanged.older = readers.lock();
  if (!exchanged.older) {
    auto read = WSYNC_TRY(memory->try_read_lease());
    exchanged.older = std::make_shared<Snapshot>(from, memory, std::move(read), nullptr);
    arenas_.put(memory, exchanged.older);
  }
  exchanged.newer = std::make_shared<Snapshot>(to, std::move(changes), exchanged.older);
  return exchanged;
}

}  // namespace wsync::publish
