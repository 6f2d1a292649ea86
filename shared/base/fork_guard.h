// What becomes of this library in a child that fork() makes of the process. Both C libraries
// promise in their headers that a child keeps nothing of what they have open, and that a handle of
// the parent is refused there.
//
// A child has copies of all descriptors, and a description lives as long as one of its copies: a
// peer would not see the parent end, a port and a lock file would stay taken, an arena would stay
// in memory. So the child closes
//   - whatever a UniqueFd owns;
//   - each socket whose own address is that of a listening one among these. libzmq and libuv accept
//     connections that no UniqueFd owns; whoever lets them listen keeps a duplicate of the
//     listening socket as UniqueFd.
// Descriptors that they use inside a process (epoll, eventfd) stay open in the child, where nobody
// uses them. Arenas are not mapped in the child (MappedRegion::keep_from_children()).
//
// fork() runs these handlers. vfork(), posix_spawn(), _Fork() and clone() do not: there, all is
// closed by exec (every descriptor is close-on-exec), and leases end when the parent says so
// (ReadLease).
#pragma once

#include <cstdint>
#include <string_view>
#include <sys/types.h>

#include "shared/base/error.h"

namespace wsync {

// Registers the handlers, once. What the C APIs call when a handle is made: programs that make none
// fork as they like. False when there was no memory for it.
bool close_descriptors_in_children();

// While one lives, fork() waits. Held from the call that makes a descriptor until a UniqueFd owns
// it; meanwhile the thread waits for nothing and destroys no UniqueFd.
class ForkGate {
 public:
  ForkGate() noexcept;
  ForkGate(const ForkGate&) = delete;
  ForkGate& operator=(const ForkGate&) = delete;
  ~ForkGate();
};

// The process that made a handle. Thread: any.
class HomeProcess {
 public:
  HomeProcess() noexcept;
  [[nodiscard]] bool is_here() const noexcept;
  // kInvalidInput in a child of that process; `what` names the handle.
  [[nodiscard]] Result<> check(std::string_view what) const;

 private:
  std::uint64_t forks_;  // process ids come again, and two name spaces have the same
  pid_t pid_;            // not every way to fork counts
};

}  // namespace wsync
