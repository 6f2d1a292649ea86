#include "trainer_side/publish/arena_wait.h"

#include <algorithm>
#include <limits>

namespace wsync::publish {
namespace {

// A reader that works gives back an arena that nobody needs any more in this time. Creating another
// one at once would only cost memory.
constexpr std::chrono::milliseconds kReleaseTime{500};

}  // namespace

ArenaWait::ArenaWait(std::uint32_t arenas, bool additional, TimePoint begun,
                     TimePoint deadline) noexcept
    : arenas_(arenas),
      deadline_(deadline),
      may_grow_(TimePoint{std::numeric_limits<std::int64_t>::max()}) {
  const std::chrono::nanoseconds time = deadline - begun;
  if (additional && time.count() > 0)
    may_grow_ = begun + std::min<std::chrono::nanoseconds>(kReleaseTime, time / 2);
}

bool ArenaWait::may_create(std::size_t existing, std::size_t needed_here,
                           TimePoint now) const noexcept {
  if (existing < arenas_) return true;
  return !full_ && now >= may_grow_ && needed_here < arenas_;
}

}  // namespace wsync::publish
