#include "trainer_side/publish/snapshot.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <unistd.h>
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

constexpr std::chrono::seconds kLogWaitAfter{2};     // for an arena
constexpr std::chrono::milliseconds kLeaseRetry{2};  // the kernel does not notify of a free lock

ArenaSize size_of(const SharedArena& arena) {
  return {.data_bytes = arena.data_bytes(), .leaves = arena.leaf_sums()};
}

ArenaSize size_of(const ArenaLayout& layout) {
  return {.data_bytes = layout.plan->arena_bytes(), .leaves = layout.leaves->all().size()};
}

Version version_of(const ArenaIdentity& identity) {
  return {.epoch = static_cast<std::uint32_t>(identity.version_epoch),
          .step = identity.version_step};
}

std::string snapshot_name(const Version& version) {
  if (version.epoch != 0) return "snapshot of version " + version.to_string();
  return version.none() ? std::string("snapshot")
                        : fmt::format("snapshot of step {}", version.step);
}

}  // namespace

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

Snapshotter::Snapshotter(SnapshotterOptions options) : options_(std::move(options)) {}

Result<> Snapshotter::reserve(const Manifest& manifest, std::uint64_t bucket_bytes,
                              std::uint32_t count) {
  const auto plan = WSYNC_TRY(BucketPlan::create(manifest, bucket_bytes));
  const ArenaSize size{.data_bytes = plan.arena_bytes(), .leaves = leaf_count(manifest)};
  const std::lock_guard lock(arenas_mutex_);
  while (arenas_.size() < std::min(count, options_.arenas)) {
    auto memory = WSYNC_TRY(make_arena(size, {}));
    arenas_.push_back({.memory = std::move(memory), .snapshot = {}, .claim = {}});
    count_bytes();
  }
  return {};
}

void Snapshotter::rename(Snapshot& snapshot, std::uint64_t fence_epoch,
                         const std::array<std::uint64_t, 2>& fence_run_id, const Version& version) {
  const std::lock_guard lock(names_mutex_);
  ArenaIdentity& identity = snapshot.described_.identity;
  identity.fence_epoch = fence_epoch;
  identity.fence_run_id = fence_run_id;
  identity.version_epoch = version.epoch;
  identity.version_step = version.step;
  if (snapshot.arena_) snapshot.arena_->rename(identity);
}

Result<ArenaLayout> Snapshotter::layout_of(const Manifest& manifest, std::uint64_t bucket_bytes) {
  const std::lock_guard lock(arenas_mutex_);
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

Result<WritableArena> Snapshotter::begin(const Manifest& manifest, const SnapshotRequest& request) {
  const ArenaSize size = size_of(WSYNC_TRY(layout_of(manifest, request.bucket_bytes)));
  Snapshot::Times times;
  auto writable = wait_for_arena(size, {}, request, times);
  if (!writable) return writable;
  WSYNC_TRY(writable->lease().unprotect());
  return writable;
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
  const ArenaSize size = size_of(layout);
  std::optional<WritableArena> written = source.take_arena();
  const bool is_written = written.has_value();
  if (!is_written && request.as_changes) {
    auto taken = WSYNC_TRY(take_changes(source, request, layout, identity));
    if (taken) return taken;
  }
  if (is_written) {
    WSYNC_CHECK(size_of(*written->arena()) == size, "what was written has the layout that it had");
    const std::lock_guard lock(names_mutex_);
    written->lease().set_identity(identity);
  } else {
    SnapshotRequest placed = request;
    if (options_.near_gpus) placed.numa_node = source.numa_node();
    auto free = wait_for_arena(size, identity, placed, times);
    if (!free) return fail(free.error().with_context(snapshot_name(request.version)));
    written.emplace(std::move(*free));
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
  if (!is_summed && request.on_copy)
    request.on_copy({.identity = identity,
                     .manifest = manifest,
                     .layout = layout,
                     .data = written->data(),
                     .hold = written->hold()});
  std::unique_ptr<ChangeFinder> changes;
  if (auto base = request.base.lock(); base != nullptr && base->is_complete() &&
                                       base->plan() == layout.plan && request.value_cost != 0)
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
  {
    const std::lock_guard lock(names_mutex_);
    std::move(written->lease()).complete(digests->root, digests->leaves);
  }
  // The write lease has ended, but the claim has not. So nobody can write the arena before the
  // snapshot has its read lease.
  auto lease = WSYNC_TRY(written->arena()->try_read_lease());
  auto snapshot =
      std::make_shared<Snapshot>(Snapshot::Described{.identity = identity,
                                                     .manifest = manifest,
                                                     .layout = layout,
                                                     .digests = std::move(*digests),
                                                     .times = times,
                                                     .bucket_times = copier.bucket_times()},
                                 written->arena(), std::move(lease), std::move(patch));
  const std::lock_guard lock(arenas_mutex_);
  std::ranges::find(arenas_, written->arena(), &Arena::memory)->snapshot = snapshot;
  return snapshot;
}

Result<WritableArena> Snapshotter::wait_for_arena(const ArenaSize& size,
                                                  const ArenaIdentity& identity,
                                                  const SnapshotRequest& request,
                                                  Snapshot::Times& times) {
  const TimePoint begun = now();
  const TimePoint deadline = request.arena_wait
                                 ? std::min(request.deadline, begun + *request.arena_wait)
                                 : request.deadline;
  ArenaWait wait(options_.arenas, options_.additional_arenas, begun, deadline);
  bool is_first = true;
  bool is_logged = false;
  std::mutex mutex;
  std::condition_variable_any stopped;
  for (;;) {
    auto writable = try_arena(size, identity, request, wait, times);
    if (writable || writable.error().code() != ErrorCode::kBusy) {
      times.wait = now() - begun - times.setup;
      return writable;
    }
    if (std::exchange(is_first, false) && request.on_wait) request.on_wait();
    if (!is_logged && now() - begun > kLogWaitAfter) {
      is_logged = true;
      const std::lock_guard lock(arenas_mutex_);
      log_warning("the {} waits for a free arena: all {} are being read: {}",
                  snapshot_name(request.version), arenas_.size(), who_reads());
    }
    if (wait.is_over(now())) {
      const std::lock_guard lock(arenas_mutex_);
      return fail(
          ErrorCode::kBusy,
          fmt::format("all {} arenas are still being read: {}{}", arenas_.size(), who_reads(),
                      wait.full()
                          ? "; an additional one cannot be created: " + wait.full()->message()
                          : ""));
    }
    std::unique_lock lock(mutex);
    stopped.wait_for(lock, request.stop, kLeaseRetry, [] { return false; });
    if (request.stop.stop_requested())
      return fail(ErrorCode::kCancelled, "stopped while waiting for a free arena");
  }
}

// Returns an arena of the right size without readers; otherwise a new one if one may be created;
// otherwise kBusy. Taking the write lease is the only valid test, because an arena that seemed free
// may get a reader a moment later.
Result<WritableArena> Snapshotter::try_arena(const ArenaSize& size, const ArenaIdentity& identity,
                                             const SnapshotRequest& request, ArenaWait& wait,
                                             Snapshot::Times& times) {
  // Freed after the lock is released, because freeing takes long and the loop may wait for the
  // lock.
  std::vector<Arena> freed;
  const std::lock_guard lock(arenas_mutex_);
  std::unique_lock names(names_mutex_);
  // Arenas of an earlier layout are freed as soon as they have no readers.
  std::erase_if(arenas_, [&](Arena& arena) {
    const bool is_old = size_of(*arena.memory) != size && arena.claim.expired() &&
                        arena.memory->try_write_lease({}).has_value();
    if (is_old) freed.push_back(arena);
    return is_old;
  });
  drop_additional(wait, freed);
  const auto claimed = [](Arena& arena, WriteLease lease) {
    auto claim = std::make_shared<int>();
    if (!planted("draft_not_claimed")) arena.claim = claim;
    return WritableArena(arena.memory, std::move(lease), std::move(claim));
  };
  for (Arena& arena : arenas_) {
    if (size_of(*arena.memory) != size || !arena.claim.expired()) continue;
    auto lease = arena.memory->try_write_lease(identity);
    if (lease) return claimed(arena, std::move(*lease));
    if (lease.error().code() != ErrorCode::kBusy) return fail(std::move(lease).error());
  }
  if (!may_create(wait)) return fail(ErrorCode::kBusy, "no arena is free");
  names.unlock();
  const TimePoint begun = now();
  auto made = make_arena(size, request);
  if (!made && arenas_.size() >= options_.arenas) {
    wait.note_full(made.error());
    return fail(ErrorCode::kBusy, "no arena is free");
  }
  auto memory = WSYNC_TRY(std::move(made));
  times.setup += now() - begun;
  if (arenas_.size() >= options_.arenas)
    log_info(
        "memory for one more version was taken, because processes still read the others ({}); it "
        "is "
        "given back when they have read them, and nothing needs to be done unless this is said at "
        "every publish: then raise `arenas`, or look why these processes are slow",
        who_reads());
  names.lock();
  arenas_.push_back({.memory = std::move(memory), .snapshot = {}, .claim = {}});
  count_bytes();
  auto lease = WSYNC_TRY(arenas_.back().memory->try_write_lease(identity));
  return claimed(arenas_.back(), std::move(lease));
}

bool Snapshotter::may_create(const ArenaWait& wait) const {
  const auto needed_here =
      std::ranges::count_if(arenas_, [](const Arena& arena) { return arena.is_needed(); });
  return wait.may_create(arenas_.size(), static_cast<std::size_t>(needed_here), now());
}

void Snapshotter::prepare_next() {
  const std::lock_guard lock(arenas_mutex_);
  for (const Arena& arena : arenas_) {
    if (arena.is_needed() || !arena.memory->is_protected()) continue;
    std::unique_lock names(names_mutex_);
    const auto lease = arena.memory->try_write_lease({});
    names.unlock();
    if (!lease) continue;
    if (const auto prepared = lease->unprotect(); !prepared)
      log_debug("an arena is made writable later: {}", prepared.error().message());
    return;
  }
}

void Snapshotter::release_unused() {
  std::vector<Arena> freed;  // after the lock, as in try_arena()
  const std::lock_guard lock(arenas_mutex_);
  const std::lock_guard names(names_mutex_);
  const auto unused =
      std::ranges::partition(arenas_, [](const Arena& arena) { return !arena.is_free(); });
  freed.assign(unused.begin(), unused.end());
  arenas_.erase(unused.begin(), unused.end());
  count_bytes();
}

// Takes out arenas without a reader, if there are more than the maximum and those that only other
// processes read.
void Snapshotter::drop_additional(const ArenaWait& wait, std::vector<Arena>& freed) {
  if (wait.surplus(arenas_.size(), 0) > 0) {
    const auto unused =
        std::ranges::stable_partition(arenas_, [](const Arena& arena) { return !arena.is_free(); });
    const auto only_read = std::ranges::count_if(
        arenas_.begin(), unused.begin(), [](const Arena& arena) { return !arena.is_needed(); });
    const std::size_t surplus = wait.surplus(arenas_.size(), static_cast<std::size_t>(only_read));
    const auto first = std::ranges::prev(
        arenas_.end(), static_cast<std::ptrdiff_t>(std::min(surplus, unused.size())));
    freed.insert(freed.end(), first, arenas_.end());
    arenas_.erase(first, arenas_.end());
  }
  count_bytes();
}

Result<std::shared_ptr<SharedArena>> Snapshotter::make_arena(const ArenaSize& size,
                                                             const SnapshotRequest& request) {
  const ArenaOptions options{
      .name = options_.name,
      .data_bytes = size.data_bytes,
      .leaf_sums = size.leaves,
      .huge_pages = options_.huge_pages,
      .threads = options_.threads,
      .numa_node = options_.numa_node ? options_.numa_node : request.numa_node,
      .on_fallback = [this](const Error& why) { say_fallback(why); },
      .stop = request.stop,
      .done_bytes = request.done_bytes};
  // Touching the memory takes as long as several copies, so it counts as progress.
  if (request.total_bytes != nullptr) *request.total_bytes += options.file_bytes();
  auto arena = SharedArena::create(options);
  if (arena) return std::make_shared<SharedArena>(std::move(*arena));
  if (request.total_bytes != nullptr) *request.total_bytes -= options.file_bytes();
  if (request.done_bytes != nullptr) *request.done_bytes = 0;
  return fail(arena.error());
}

void Snapshotter::say_fallback(const Error& why) {
  if (!said_fallback_.exchange(true))
    log_warning(
        "arenas get other memory than the keys memory.* ask for: {}; pinning them and publishing "
        "may be slower",
        why.message());
}

void Snapshotter::count_bytes() {
  std::uint64_t bytes = 0;
  for (const Arena& arena : arenas_) bytes += arena.memory->data_bytes();
  arena_bytes_ = bytes;
}

std::string Snapshotter::who_reads() const {
  std::string sentence;
  for (const Arena& arena : arenas_) {
    const std::vector<int> others = arena.memory->holders();
    std::unique_lock names(names_mutex_);
    const Version version = version_of(arena.memory->identity());
    names.unlock();
    sentence += fmt::format("{}{} by {}", sentence.empty() ? "" : ", ",
                            version.epoch == 0 ? fmt::format("step {}", version.step)
                                               : "version " + version.to_string(),
                            others.empty() ? fmt::format("this process ({})", ::getpid())
                                           : fmt::format("process {}", fmt::join(others, ", ")));
  }
  return sentence;
}

}  // namespace wsync::publish
