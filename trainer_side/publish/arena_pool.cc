#include "trainer_side/publish/arena_pool.h"

#include <algorithm>
#include <condition_variable>
#include <optional>
#include <unistd.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/weights/version.h"

namespace wsync::publish {
namespace {

constexpr std::chrono::seconds kLogWaitAfter{2};     // for an arena
constexpr std::chrono::milliseconds kLeaseRetry{2};  // the kernel does not notify of a free lock

}  // namespace

Version version_of(const ArenaIdentity& identity) noexcept {
  return {.epoch = static_cast<std::uint32_t>(identity.version_epoch),
          .step = identity.version_step};
}

Result<> ArenaPool::reserve(const ArenaSize& size, std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  while (arenas_.size() < std::min(count, options_.arenas)) {
    auto memory = WSYNC_TRY(make_arena({.size = size}));
    arenas_.push_back({.size = size, .used_bytes = size.data_bytes, .memory = std::move(memory)});
    count_bytes();
  }
  return {};
}

Result<FoundArena> ArenaPool::wait_for(const ArenaOrder& order) {
  const TimePoint begun = now();
  const TimePoint deadline =
      order.wait ? std::min(order.deadline, begun + *order.wait) : order.deadline;
  ArenaWait wait(options_.arenas, options_.additional_arenas, begun, deadline);
  std::chrono::nanoseconds setup{};
  bool is_first = true;
  bool is_logged = false;
  std::mutex mutex;
  std::condition_variable_any stopped;
  for (;;) {
    auto found = try_arena(order, wait, setup);
    if (found)
      return FoundArena{
          .arena = std::move(*found), .waited = now() - begun - setup, .setup = setup};
    if (found.error().code() != ErrorCode::kBusy) return fail(std::move(found).error());
    if (std::exchange(is_first, false) && order.on_wait) order.on_wait();
    if (!is_logged && now() - begun > kLogWaitAfter) {
      is_logged = true;
      const std::lock_guard lock(mutex_);
      log_warning("the {} waits for a free arena: all {} are being read: {}", order.what,
                  arenas_.size(), who_reads());
    }
    if (wait.is_over(now())) {
      const std::lock_guard lock(mutex_);
      return fail(
          ErrorCode::kBusy,
          fmt::format("all {} arenas are still being read: {}{}", arenas_.size(), who_reads(),
                      wait.full()
                          ? "; an additional one cannot be created: " + wait.full()->message()
                          : ""));
    }
    std::unique_lock lock(mutex);
    stopped.wait_for(lock, order.stop, kLeaseRetry, [] { return false; });
    if (order.stop.stop_requested())
      return fail(ErrorCode::kCancelled, "stopped while waiting for a free arena");
  }
}

// Returns an arena of the right size without readers; otherwise a new one if one may be created;
// otherwise kBusy. Taking the write lease is the only valid test, because an arena that seemed free
// may get a reader a moment later.
Result<WritableArena> ArenaPool::try_arena(const ArenaOrder& order, ArenaWait& wait,
                                           std::chrono::nanoseconds& setup) {
  // Freed after the lock is released, because freeing takes long and the loop may wait for the
  // lock.
  std::vector<Arena> freed;
  const std::lock_guard lock(mutex_);
  std::unique_lock names(names_);
  // Arenas of an earlier layout are freed as soon as they have no readers.
  std::erase_if(arenas_, [&](Arena& arena) {
    const bool is_old = arena.size != order.size && arena.claim.expired() &&
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
    if (arena.size != order.size || !arena.claim.expired()) continue;
    auto lease = arena.memory->try_write_lease(order.identity);
    if (lease) return claimed(arena, std::move(*lease));
    if (lease.error().code() != ErrorCode::kBusy) return fail(std::move(lease).error());
  }
  const bool is_owed = order.is_owed && options_.additional_arenas;
  if (!is_owed && !may_create(wait)) return fail(ErrorCode::kBusy, "no arena is free");
  names.unlock();
  const TimePoint begun = now();
  auto made = make_arena(order);
  if (!made && arenas_.size() >= options_.arenas) {
    wait.note_full(made.error());
    return fail(ErrorCode::kBusy, "no arena is free");
  }
  auto memory = WSYNC_TRY(std::move(made));
  setup += now() - begun;
  if (arenas_.size() >= options_.arenas)
    log_info(
        "memory for one more version was taken, because processes still read the others ({}); it "
        "is "
        "given back when they have read them, and nothing needs to be done unless this is said at "
        "every publish: then raise `arenas`, or look why these processes are slow",
        who_reads());
  names.lock();
  std::uint64_t used_bytes = order.used.empty() ? order.size.data_bytes : 0;
  for (const auto& [offset, bytes] : order.used) used_bytes += bytes;
  arenas_.push_back({.size = order.size, .used_bytes = used_bytes, .memory = std::move(memory)});
  count_bytes();
  auto lease = WSYNC_TRY(arenas_.back().memory->try_write_lease(order.identity));
  return claimed(arenas_.back(), std::move(lease));
}

void ArenaOrder::use_only(std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges) {
  if (ranges.empty()) ranges.emplace_back(0, 0);
  Digester digester;
  for (const auto& [offset, bytes] : ranges) {
    digester.update(offset);
    digester.update(bytes);
  }
  size.used = digester.finish();
  used = std::move(ranges);
}

bool ArenaPool::may_create(const ArenaWait& wait) const {
  const auto needed_here =
      std::ranges::count_if(arenas_, [](const Arena& arena) { return arena.is_needed(); });
  return wait.may_create(arenas_.size(), static_cast<std::size_t>(needed_here), now());
}

void ArenaPool::prepare_next() {
  const std::lock_guard lock(mutex_);
  for (const Arena& arena : arenas_) {
    if (arena.is_needed() || !arena.memory->is_protected()) continue;
    std::unique_lock names(names_);
    const auto lease = arena.memory->try_write_lease({});
    names.unlock();
    if (!lease) continue;
    if (const auto prepared = lease->unprotect(); !prepared)
      log_debug("an arena is made writable later: {}", prepared.error().message());
    return;
  }
}

void ArenaPool::release_unused() {
  std::vector<Arena> freed;  // after the lock, as in try_arena()
  const std::lock_guard lock(mutex_);
  const std::lock_guard names(names_);
  const auto unused =
      std::ranges::partition(arenas_, [](const Arena& arena) { return !arena.is_free(); });
  freed.assign(unused.begin(), unused.end());
  arenas_.erase(unused.begin(), unused.end());
  count_bytes();
}

// Takes out arenas without a reader, if there are more than the maximum and those that only other
// processes read.
void ArenaPool::drop_additional(const ArenaWait& wait, std::vector<Arena>& freed) {
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

Result<std::shared_ptr<SharedArena>> ArenaPool::make_arena(const ArenaOrder& order) {
  const ArenaOptions options{.name = options_.name,
                             .data_bytes = order.size.data_bytes,
                             .leaf_sums = order.size.leaves,
                             .huge_pages = options_.huge_pages,
                             .threads = options_.threads,
                             .numa_node = options_.numa_node ? options_.numa_node : order.numa_node,
                             .on_fallback = [this](const Error& why) { say_fallback(why); },
                             .used = order.used,
                             .stop = order.stop,
                             .done_bytes = order.done_bytes};
  // Touching the memory takes as long as several copies, so it counts as progress.
  std::uint64_t touched = options.file_bytes();
  if (!order.used.empty()) {
    touched = 0;
    for (const auto& [offset, bytes] : order.used) touched += bytes;
  }
  if (order.total_bytes != nullptr) *order.total_bytes += touched;
  auto arena = SharedArena::create(options);
  if (arena) return std::make_shared<SharedArena>(std::move(*arena));
  if (order.total_bytes != nullptr) *order.total_bytes -= touched;
  if (order.done_bytes != nullptr) *order.done_bytes = 0;
  return fail(arena.error());
}

void ArenaPool::say_fallback(const Error& why) {
  if (!said_fallback_.exchange(true))
    log_warning(
        "arenas get other memory than the keys memory.* ask for: {}; pinning them and publishing "
        "may be slower",
        why.message());
}

void ArenaPool::count_bytes() {
  std::uint64_t bytes = 0;
  for (const Arena& arena : arenas_) bytes += arena.used_bytes;
  bytes_ = bytes;
}

std::string ArenaPool::who_reads() const {
  std::string sentence;
  for (const Arena& arena : arenas_) {
    const std::vector<int> others = arena.memory->holders();
    std::unique_lock names(names_);
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

void ArenaPool::put(const std::shared_ptr<SharedArena>& memory,
                    const std::shared_ptr<const Snapshot>& snapshot) {
  const std::lock_guard lock(mutex_);
  std::ranges::find(arenas_, memory, &Arena::memory)->snapshot = snapshot;
}

std::vector<std::shared_ptr<const Snapshot>> ArenaPool::snapshots() const {
  std::vector<std::shared_ptr<const Snapshot>> found;
  const std::lock_guard lock(mutex_);
  for (const Arena& arena : arenas_)
    if (auto snapshot = arena.snapshot.lock()) found.push_back(std::move(snapshot));
  return found;
}

std::shared_ptr<void> ArenaPool::claim(const std::shared_ptr<SharedArena>& memory) {
  auto claim = std::make_shared<int>();
  const std::lock_guard lock(mutex_);
  std::ranges::find(arenas_, memory, &Arena::memory)->claim = claim;
  return claim;
}

}  // namespace wsync::publish
