// How this library behaves in a child process created by fork(). The headers of both C libraries
// promise two things: a child keeps none of the library's descriptors open, and it rejects the
// handles of its parent.
//
// A child has copies of all descriptors, and an open file description lives as long as one of its
// copies. Without these handlers a peer would not notice the end of the parent, ports and lock
// files would stay occupied, and arenas would stay in memory. The child therefore closes
//   - every descriptor that a UniqueFd owns;
//   - every socket whose local address is that of a listening socket among these. libzmq and libuv
//     accept connections that no UniqueFd owns. Code that makes them listen keeps a duplicate of
//     the listening socket as a UniqueFd.
// Descriptors that these libraries use inside a process (epoll, eventfd) stay open in the child,
// where nothing uses them. Arenas are not mapped in the child (MappedRegion::keep_from_children()).
//
// fork() runs these handlers. vfork(), posix_spawn(), _Fork() and clone() do not. In their children
// exec() closes everything (every descriptor is close-on-exec), and a lease ends when the parent
// ends it (ReadLease).
#pragma once

#include <cstdint>
#include <string_view>
#include <sys/types.h>

#include "shared/base/error.h"

namespace wsync {

// Registers the handlers, once. The C APIs call this when they create a handle. Programs that
// create no handle fork without them. Returns false if there is not enough memory.
bool close_descriptors_in_children();

// fork() waits while a ForkGate exists, and a ForkGate waits while fork() runs. Hold one from the
// call that creates a descriptor until a UniqueFd owns it. Meanwhile the thread must not log and
// must not wait for another thread. Gates do not wait for each other: the call may take long, such
// as opening a file on a busy disc, and other threads go on.
class ForkGate {
 public:
  ForkGate() noexcept;
  ForkGate(const ForkGate&) = delete;
  ForkGate& operator=(const ForkGate&) = delete;
  ~ForkGate();
};

// Remembers the process that created a handle. Thread: any.
class HomeProcess {
 public:
  HomeProcess() noexcept;
  // Returns whether the calling process is the one that created this object.
  [[nodiscard]] bool is_here() const noexcept;
  // kInvalidInput in a child of that process; `what` names the handle.
  [[nodiscard]] Result<> check(std::string_view what) const;

 private:
  // Both are compared. Process ids are reused, and two PID namespaces may use the same id; the
  // count misses children of calls that do not run the handlers.
  std::uint64_t forks_;
  pid_t pid_;
};

}  // namespace wsync
