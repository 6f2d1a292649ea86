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

// Borrows the descriptor, which outlives the watcher. Level-triggered: calls back in every turn of
// the loop as long as the condition holds. One watcher for each descriptor and loop.
// Thread: the loop's. May be destroyed or changed inside its callback.
class FdWatcher {
 public:
  // kIo when the descriptor cannot be polled (a regular file). `made` names it in the log when it
  // keeps the loop too long (lag.h).
  [[nodiscard]] static Result<std::unique_ptr<FdWatcher>> create(
      Loop& loop, int fd, std::function<void(FdEvents)> on_event,
      std::source_location made = std::source_location::current());
  FdWatcher(const FdWatcher&) = delete;
  FdWatcher& operator=(const FdWatcher&) = delete;
  ~FdWatcher();

  // What to wait for from now on; nothing: the watcher rests. Begins at rest.
  void watch(FdEvents wanted);

 private:
  struct State;
  explicit FdWatcher(State* state) : state_(state) {}
  State* state_;  // freed by the loop after its close callback
};

}  // namespace wsync
