// Loop: the event loop that owns the state of an agent. One thread runs it; other threads post
// tasks to it.
//
// Thread: post(), stop(), in_loop() and lag() may be called from any thread. The rest belongs to
// the loop's thread: the thread that created the loop, and later the thread that called run() last.
// Outlives: every Timer, FdWatcher, Signals and Worker created with it. Destroying a loop while one
// of them exists aborts the process. Each of them may be destroyed inside its own callback.
#pragma once

#include <memory>
#include <source_location>

#include "shared/base/error.h"
#include "shared/loop/lag.h"
#include "shared/loop/task.h"

namespace wsync {

class Loop {
 public:
  // kResourceExhausted or kIo if the kernel provides no descriptors.
  [[nodiscard]] static Result<std::unique_ptr<Loop>> create();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  // Destroys the tasks that have not run, without running them.
  ~Loop();

  // Runs until stop() is called. May be called again afterwards.
  void run();
  // Makes run() return after the callbacks of the current iteration. Before run(), it makes the
  // next run() return after the tasks posted so far. Any thread.
  void stop();
  // Runs `task` on the loop, in the order of posting, never inside this call. If the task blocks
  // the loop too long, the log names `made` (lag.h). Any thread.
  void post(Task task, std::source_location made = std::source_location::current());
  // Returns whether the calling thread may use the objects of the loop. Any thread.
  [[nodiscard]] bool in_loop() const noexcept;
  // Returns how long callbacks have blocked the loop so far. Any thread.
  [[nodiscard]] LoopLag lag() const noexcept;

  struct State;
  // Only for the files of this folder.
  [[nodiscard]] State& state() noexcept { return *state_; }

 private:
  explicit Loop(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace wsync
