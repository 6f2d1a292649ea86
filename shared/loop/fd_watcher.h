// FdWatcher: calls back when a descriptor can be read or written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>

#include "shared/loop/loop.h"

namespace wsync {

struct FdEvents {
  bool readable = false;  // includes the end of the stream and errors
  bool writable = false;
};

// Borrows the descriptor, which must outlive the watcher. Level-triggered: calls back in every
// iteration of the loop while the condition holds. At most one watcher per descriptor and loop.
// Thread: the loop's. May be destroyed or changed inside its callback.
class FdWatcher {
 public:
  // kIo if the descriptor cannot be polled (a regular file). If the callback blocks the loop too
  // long, the log names `made` (lag.h).
  [[nodiscard]] static Result<std::unique_ptr<FdWatcher>> create(
      Loop& loop, int fd, std::function<void(FdEvents)> on_event,
      std::source_location made = std::source_location::current());
  FdWatcher(const FdWatcher&) = delete;
  FdWatcher& operator=(const FdWatcher&) = delete;
  ~FdWatcher();

  // Sets the events to wait for. With no event the watcher is inactive, which is its initial state.
  void watch(FdEvents wanted);

 private:
  struct State;
  explicit FdWatcher(State* state) : state_(state) {}
  State* state_;  // freed by the loop after its close callback
};

}  // namespace wsync
