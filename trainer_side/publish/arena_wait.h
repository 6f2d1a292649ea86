// ArenaWait: how long a snapshot waits for a free arena, and when another arena may be created for
// it. The snapshotter asks the kernel which arenas are free; this class decides the rest.
//
// Thread: confined to one thread. Pure: no I/O, and the time is an argument.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "shared/base/clock.h"
#include "shared/base/error.h"

namespace wsync::publish {

class ArenaWait {
 public:
  // `arenas`: maximum number of arenas. `additional`: arenas that only other processes read,
  // although this process needs their version no longer, do not count towards the maximum. The wait
  // begins at `begun` and ends at `deadline`.
  ArenaWait(std::uint32_t arenas, bool additional, TimePoint begun, TimePoint deadline) noexcept;

  // Whether an arena may be created now, as none of the existing ones is free. `existing`: their
  // number; `needed_here`: number of those whose snapshot this process still needs.
  [[nodiscard]] bool may_create(std::size_t existing, std::size_t needed_here,
                                TimePoint now) const noexcept;
  // An arena above the maximum could not be created. The snapshot waits for a reader instead.
  void note_full(Error why) { full_ = std::move(why); }
  // Why no arena above the maximum could be created; std::nullopt if none was tried.
  [[nodiscard]] const std::optional<Error>& full() const noexcept { return full_; }
  // How many of `existing` arenas must be freed, if they have no reader, before one is chosen.
  // `only_read`: number of those that only other processes read. An arena that was created because
  // of a reader that hangs is kept as long as it hangs, so that no later snapshot waits for one.
  [[nodiscard]] std::size_t surplus(std::size_t existing, std::size_t only_read) const noexcept {
    return existing > arenas_ + only_read ? existing - arenas_ - only_read : 0;
  }
  [[nodiscard]] bool is_over(TimePoint now) const noexcept { return now >= deadline_; }

 private:
  std::size_t arenas_;
  TimePoint deadline_;
  TimePoint may_grow_;  // from then on, arenas that only others read do not count
  std::optional<Error> full_;
};

}  // namespace wsync::publish
