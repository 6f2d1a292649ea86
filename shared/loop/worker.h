// Worker: one thread for blocking work, with a bounded queue. Results return to the loop.
#pragma once

#include <cstddef>
#include <memory>
#include <source_location>
#include <string>

#include "shared/loop/loop.h"

namespace wsync {

struct WorkerOptions {
  std::string name;             // of the thread; 15 bytes are shown
  std::size_t max_queued = 64;  // waiting tasks, without the running one
};

// Thread: submit() and stop() from one thread at a time, usually the loop's.
class Worker {
 public:
  Worker(Loop& loop, WorkerOptions options);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();  // calls stop()

  // Runs `work` on the thread after all earlier work, then posts `done` (may be empty) to the loop.
  // kBusy if the queue is full, kCancelled after stop(): neither function runs then. If `done`
  // blocks the loop too long, the log names `made` (lag.h).
  [[nodiscard]] Result<> submit(Task work, Task done = {},
                                std::source_location made = std::source_location::current());
  // Whether all submitted work has ended.
  [[nodiscard]] bool is_idle() const;
  // Waits until all submitted work has ended, then joins the thread. The `done` tasks are still
  // posted.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace wsync
