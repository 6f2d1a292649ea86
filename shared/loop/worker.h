// Worker: one thread for whatever blocks, with a bounded queue; results come back to the loop.
#pragma once

#include <cstddef>
#include <memory>
#include <source_location>
#include <string>

#include "shared/loop/loop.h"

namespace wsync {

struct WorkerOptions {
  std::string name;             // of the thread, 15 bytes are shown
  std::size_t max_queued = 64;  // tasks that wait; the running one is not counted
};

// Thread: submit() and stop() from any one thread at a time, usually the loop's.
class Worker {
 public:
  Worker(Loop& loop, WorkerOptions options);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();  // as stop()

  // Runs `work` on the thread, after what was submitted before; then posts `done` (may be empty)
  // to the loop. kBusy when the queue is full, kCancelled after stop(): nothing runs then. `made`
  // names `done` in the log when it keeps the loop too long (lag.h).
  [[nodiscard]] Result<> submit(Task work, Task done = {},
                                std::source_location made = std::source_location::current());
  // Lets everything that was submitted finish, then joins the thread. Its `done` tasks are still
  // posted.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace wsync
