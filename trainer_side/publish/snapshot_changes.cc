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

Error changed_while_compared(const Error& why) {
  return {ErrorCode::kDigestMismatch,
          fmt::format("the weights were changed while they were compared ({})", why.message())};
}

}  // namespace

Result<std::shared_ptr<Snapshot>> Snapshotter::take_changes(WeightSource& source,
                                                            const SnapshotRequest& request,
                                                            const ArenaLayout& layout,
                                                            const ArenaIdentity& identity) {
  auto base = request.base.lock();
  if (!base || !base->is_complete() || base->plan() != layout.plan || !source.is_on_host())
    return nullptr;
  const auto changes = ChangeFinder::create_for_buckets(base, source);
  if (!changes) return nullptr;
  const TimePoint begun = now();
  SnapshotRequest compared = request;
  compared.on_bucket = nullptr;
  LeafCopier copier(source, layout, nullptr, compared, changes.get());
  auto digests = copier.run(std::max(1U, options_.threads));
  const auto copy_instead = [&](const Error& why) -> Result<std::shared_ptr<Snapshot>> {
    if (request.done_bytes != nullptr) *request.done_bytes = 0;
    log_debug("step {} is copied: {}", request.version.step, why.message());
    return nullptr;
  };
  // Also if the source has failed so: the copy says it again.
  if (!digests && digests.error().code() == ErrorCode::kRefused)
    return copy_instead(digests.error());
  if (!digests)
    return fail(
        digests.error().with_context(fmt::format("snapshot of step {}", request.version.step)));
  auto buckets = changes->finish_buckets(*digests);
  if (!buckets)
    return copy_instead(buckets.error().code() == ErrorCode::kDigestMismatch
                            ? changed_while_compared(buckets.error())
                            : buckets.error());
  WSYNC_TRY(source.check(digests->root));
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
  const std::lock_guard lock(arenas_mutex_);
  for (const Arena& arena : arenas_) {
    auto snapshot = arena.snapshot.lock();
    const std::lock_guard names(names_mutex_);
    if (snapshot && snapshot->version() == version) return snapshot;
  }
  return nullptr;
}

std::shared_ptr<void> Snapshotter::claim(const std::shared_ptr<SharedArena>& memory) {
  auto claim = std::make_shared<int>();
  const std::lock_guard lock(arenas_mutex_);
  for (Arena& arena : arenas_)
    if (arena.memory == memory) arena.claim = claim;
  return claim;
}

Result<WriteLease> Snapshotter::wait_for_readers(SharedArena& memory, const ArenaIdentity& identity,
                                                 TimePoint deadline) const {
  for (;;) {
    {
      const std::lock_guard names(names_mutex_);
      auto lease = memory.try_write_lease(identity);
      if (lease || lease.error().code() != ErrorCode::kBusy || now() >= deadline) return lease;
    }
    std::this_thread::sleep_for(kReaderPoll);
  }
}

Result<std::shared_ptr<Snapshot>> Snapshotter::complete(Snapshot::Described described,
                                                        const std::shared_ptr<SharedArena>& arena,
                                                        WriteLease lease) {
  {
    const std::lock_guard lock(names_mutex_);
    std::move(lease).complete(described.digests.root, described.digests.leaves);
  }
  auto read = WSYNC_TRY(arena->try_read_lease());
  auto snapshot = std::make_shared<Snapshot>(std::move(described), arena, std::move(read), nullptr);
  const std::lock_guard lock(arenas_mutex_);
  std::ranges::find(arenas_, arena, &Arena::memory)->snapshot = snapshot;
  return snapshot;
}

// The arena of the base is being read, so the version gets another one.
Result<std::shared_ptr<Snapshot>> Snapshotter::copy_beside(const Snapshot::Described& described,
                                                           const patch::VersionChanges& changes,
                                                           const Snapshot& base) {
  SnapshotRequest request;
  request.version = base.version();
  request.deadline = now();
  Snapshot::Times times;
  const ArenaSize size{.data_bytes = described.layout.plan->arena_bytes(),
                       .leaves = described.layout.leaves->all().size()};
  auto arena = WSYNC_TRY(wait_for_arena(size, described.identity, request, times));
  WSYNC_TRY(arena.lease().unprotect());
  WSYNC_TRY(patch::copy_with_changes(changes, base.data(), arena.data(), described.digests.leaves,
                                     std::max(1U, options_.threads), {}));
  return complete(described, arena.arena(), std::move(arena.lease()));
}

Result<Snapshotter::Exchanged> Snapshotter::exchange(std::shared_ptr<const Snapshot> newer,
                                                     TimePoint deadline) {
  const Snapshot::Described to = newer->described_;
  const Snapshot::Described from = newer->base_->described_;
  patch::VersionChanges changes = *newer->changes_;
  const std::shared_ptr<SharedArena> memory = newer->base_->arena_;
  const std::weak_ptr<const Snapshot> readers = newer->base_;
  Exchanged exchanged{.bytes = changes.bytes()};
  const auto claimed = claim(memory);
  newer.reset();

  auto lease = wait_for_readers(*memory, to.identity, deadline);
  if (lease) {
    WSYNC_TRY(lease->unprotect());
    auto back = WSYNC_TRY(
        patch::change_in_place(changes, lease->data(), std::max(1U, options_.threads), {}));
    exchanged.in_place = true;
    exchanged.newer = WSYNC_TRY(complete(to, memory, std::move(*lease)));
    changes.base =
        planted("older_snapshot_names_itself") ? changes.base : exchanged.newer->version();
    changes.buckets = std::move(back);
    exchanged.older = std::make_shared<Snapshot>(from, std::move(changes), exchanged.newer);
    return exchanged;
  }
  // Somebody reads it, so it has its content.
  exchanged.older = readers.lock();
  if (!exchanged.older) {
    auto read = WSYNC_TRY(memory->try_read_lease());
    auto older = std::make_shared<Snapshot>(from, memory, std::move(read), nullptr);
    const std::lock_guard lock(arenas_mutex_);
    std::ranges::find(arenas_, memory, &Arena::memory)->snapshot = older;
    exchanged.older = std::move(older);
  }
  auto beside = copy_beside(to, changes, *exchanged.older);
  if (beside) {
    exchanged.newer = std::move(*beside);
    return exchanged;
  }
  exchanged.failure = beside.error();
  exchanged.newer = std::make_shared<Snapshot>(to, std::move(changes), exchanged.older);
  return exchanged;
}

}  // namespace wsync::publish
