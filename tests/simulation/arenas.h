// The snapshot arenas of one simulated trainer, and who reads them. The real ArenaWait decides when
// another arena may be created.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "shared/base/clock.h"
#include "trainer_side/publish/arena_wait.h"

namespace wsync::simulation {

// Keeps an arena from being written, as the read lock of a process does. Whatever holds a copy
// reads the arena; the copies of a process end with it.
using Lease = std::shared_ptr<const int>;

// One arena's content as its trainer holds it.
struct TrainerHold {
  std::shared_ptr<const int> needed;  // the trainer still needs the snapshot
  Lease lease;
};

class Arenas {
 public:
  // At most `count` arenas, and further ones for readers that do not let go (ArenaWait).
  explicit Arenas(std::size_t count) : count_(count) {}

  // Begins to wait for an arena that nobody reads.
  void begin_wait(TimePoint now, TimePoint deadline) {
    wait_.emplace(static_cast<std::uint32_t>(count_), true, now, deadline);
  }
  // Returns the hold of an arena that nobody reads, or of a new one if one may be created.
  [[nodiscard]] std::optional<TrainerHold> take(TimePoint now) {
    drop_additional();
    for (Arena& arena : arenas_)
      if (arena.lease.expired()) return occupy(arena);
    if (!wait_->may_create(arenas_.size(), needed_here(), now)) return std::nullopt;
    if (arenas_.size() >= count_) ++additional_;
    return occupy(arenas_.emplace_back());
  }
  [[nodiscard]] bool is_over(TimePoint now) const { return wait_->is_over(now); }
  // Whether the trainer itself needs every arena that it may have. Only then may a snapshot wait in
  // vain.
  [[nodiscard]] bool all_needed_here() const { return needed_here() >= count_; }
  [[nodiscard]] std::size_t size() const noexcept { return arenas_.size(); }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  // How many were created above `count`.
  [[nodiscard]] std::size_t additional() const noexcept { return additional_; }

 private:
  struct Arena {
    std::weak_ptr<const int> needed;
    std::weak_ptr<const int> lease;
  };

  static TrainerHold occupy(Arena& arena) {
    TrainerHold hold{.needed = std::make_shared<const int>(0),
                     .lease = std::make_shared<const int>(0)};
    arena.needed = hold.needed;
    arena.lease = hold.lease;
    return hold;
  }
  [[nodiscard]] std::size_t needed_here() const {
    std::size_t needed = 0;
    for (const Arena& arena : arenas_) needed += arena.needed.expired() ? 0U : 1U;
    return needed;
  }
  void drop_additional() {
    std::size_t only_read = 0;
    for (const Arena& arena : arenas_)
      only_read += arena.needed.expired() && !arena.lease.expired() ? 1U : 0U;
    std::size_t surplus = wait_->surplus(arenas_.size(), only_read);
    std::erase_if(arenas_, [&surplus](const Arena& arena) {
      if (surplus == 0 || !arena.lease.expired()) return false;
      --surplus;
      return true;
    });
  }

  std::size_t count_;
  std::vector<Arena> arenas_;
  std::optional<publish::ArenaWait> wait_;
  std::size_t additional_ = 0;
};

}  // namespace wsync::simulation
