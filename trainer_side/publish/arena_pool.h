// ArenaPool: the arenas of a trainer. A snapshot gets one that nobody reads, or a new one.
//
// An arena that still has a reader is never overwritten. The kernel enforces this: readers hold
// read locks on the arena, and the write lock is granted only if there is none. The kernel also
// releases the locks of a killed process, so freeing an arena depends on no message that could be
// lost.
//
// A reader that hangs keeps its lock. Its arena then no longer counts towards the maximum, and
// another one is created for it, so that a hung process costs memory but stops nobody. When it has
// released the arena, the additional one is freed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/kinds.h"
#include "shared/base/shared_memory.h"
#include "shared/weights/version.h"
#include "trainer_side/publish/arena_wait.h"
#include "trainer_side/publish/writable_arena.h"

namespace wsync::publish {

class Snapshot;

struct ArenaPoolOptions {
  std::string name = "wsync-snapshot";  // of the arenas, as shown in /proc
  std::uint32_t arenas = 3;             // at most
  // Arenas that only other processes read, although this process needs their version no longer, do
  // not count: another one is created for each.
  bool additional_arenas = false;
  unsigned threads = 2;  // that touch the memory of a new one
  HugePages huge_pages = HugePages::kOff;
  std::optional<std::uint32_t> numa_node = std::nullopt;  // of the arenas, if possible
};

// Size of an arena for one layout.
struct ArenaSize {
  std::uint64_t data_bytes = 0;
  std::uint64_t leaves = 0;
  // Of the bytes that have memory (ArenaOrder::used); zero: all have.
  Digest used = {};
  friend bool operator==(const ArenaSize&, const ArenaSize&) = default;
};

// An arena that is wanted.
struct ArenaOrder {
  ArenaSize size;
  ArenaIdentity identity;  // of the version that will be written
  std::string what;        // that gets it, for sentences
  TimePoint deadline{};    // for a free one
  // Others wait for the version, so another arena is created if none is free. It counts as one that
  // a process reads which hangs, and only if these may be created.
  bool is_owed = false;
  // The longest wait, if it ends before the deadline.
  std::optional<std::chrono::nanoseconds> wait = std::nullopt;
  std::function<void()> on_wait = nullptr;  // called once if none is free at once
  // NUMA node of one that is created, unless the options set one.
  std::optional<std::uint32_t> numa_node = std::nullopt;
  // The bytes that have memory, as ArenaOptions::used; empty: all. use_only() sets it.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> used = {};
  std::stop_token stop = {};  // ends the wait with kCancelled
  // Counts while the memory of a new arena is touched; may be null.
  std::atomic<std::uint64_t>* done_bytes = nullptr;
  std::atomic<std::uint64_t>* total_bytes = nullptr;  // grows by that memory; may be null
  // Asks for an arena that has memory for these bytes alone. None: for the header and the sums.
  void use_only(std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges);
};

struct FoundArena {
  WritableArena arena;
  std::chrono::nanoseconds waited{};
  std::chrono::nanoseconds setup{};  // for the creation of an arena, until there are enough
};

[[nodiscard]] Version version_of(const ArenaIdentity& identity) noexcept;

// Thread: any, concurrently. Everything but bytes() may block for long, because it may create or
// free an arena.
class ArenaPool {
 public:
  explicit ArenaPool(ArenaPoolOptions options) : options_(std::move(options)) {}

  // Creates arenas now, until there are `count`.
  [[nodiscard]] Result<> reserve(const ArenaSize& size, std::uint32_t count);
  // Errors: kBusy if no arena is free in time, with the readers of each arena; kResourceExhausted
  // if there is no memory for one; kCancelled.
  [[nodiscard]] Result<FoundArena> wait_for(const ArenaOrder& order);
  // Makes an arena that nobody reads writable again, if there is one.
  void prepare_next();
  // Frees the arenas that nobody reads and that hold no snapshot in use.
  void release_unused();

  // The arena has this snapshot from now on.
  void put(const std::shared_ptr<SharedArena>& memory,
           const std::shared_ptr<const Snapshot>& snapshot);
  // Those in use.
  [[nodiscard]] std::vector<std::shared_ptr<const Snapshot>> snapshots() const;
  // While this exists, nobody gets the arena, also when its last reader has ended.
  [[nodiscard]] std::shared_ptr<void> claim(const std::shared_ptr<SharedArena>& memory);

  // Guards the headers of the arenas, because a snapshot may be renamed beside others that are
  // taken. Held for a short time; no function of the pool is called meanwhile.
  [[nodiscard]] std::mutex& names() const noexcept { return names_; }
  // Total size of all arenas. Thread: any.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_.load(); }

 private:
  struct Arena {
    ArenaSize size;                // its header may be written by another thread
    std::uint64_t used_bytes = 0;  // of its data
    std::shared_ptr<SharedArena> memory;
    // The last one in it; expired: not needed here any more.
    std::weak_ptr<const Snapshot> snapshot = {};
    // Of who writes it. The locks of one process on one descriptor do not exclude each other.
    std::weak_ptr<void> claim = {};
    [[nodiscard]] bool is_needed() const { return !snapshot.expired() || !claim.expired(); }
    // Whether nobody reads or writes it.
    [[nodiscard]] bool is_free() const {
      return !is_needed() && memory->try_write_lease({}).has_value();
    }
  };
  [[nodiscard]] Result<WritableArena> try_arena(const ArenaOrder& order, ArenaWait& wait,
                                                std::chrono::nanoseconds& setup);
  [[nodiscard]] bool may_create(const ArenaWait& wait) const;
  void drop_additional(const ArenaWait& wait, std::vector<Arena>& freed);
  [[nodiscard]] Result<std::shared_ptr<SharedArena>> make_arena(const ArenaOrder& order);
  [[nodiscard]] std::string who_reads() const;
  void say_fallback(const Error& why);
  void count_bytes();

  const ArenaPoolOptions options_;
  mutable std::mutex mutex_;  // guards arenas_; may be held for long
  std::vector<Arena> arenas_;
  mutable std::mutex names_;  // if with mutex_ then after it
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<bool> said_fallback_ = false;
};

}  // namespace wsync::publish
