// Loop: the event loop that owns an agent's state. One thread runs it; others talk to it by
// posting.
//
// Thread: everything but post(), stop() and in_loop() belongs to the loop's thread: the one that
//   made the loop, and from then on the one that called run() last.
// Outlives: every Timer, FdWatcher, Signals and Worker made with it. Destroying a loop while one of
//   them lives aborts. Each of them may be destroyed inside its own callback.
#pragma once

#include <memory>
#include <source_location>

#include "shared/base/error.h"
#include "shared/loop/lag.h"
#include "shared/loop/task.h"

namespace wsync {

class Loop {
 public:
  // kResourceExhausted or kIo when the kernel refuses descriptors.
  [[nodiscard]] static Result<std::unique_ptr<Loop>> create();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  // Tasks that have not run are destroyed without running.
  ~Loop();

  // Runs until stop(). May be called again afterwards.
  void run();
  // Makes run() return after the callbacks of the current turn; before run(), makes the next run()
  // return at once after the tasks posted so far. Any thread.
  void stop();
  // Runs `task` on the loop, in the order of posting, never inside this call. Any thread. `made`
  // names the task in the log when it keeps the loop too long (lag.h).
  void post(Task task, std::source_location made = std::source_location::current());
  // Whether this thread may use the loop's objects. Any thread.
  [[nodiscard]] bool in_loop() const noexcept;
  // How long callbacks have kept it until now. Any thread.
  [[nodiscard]] LoopLag lag() const noexcept;

  struct State;
  // For the files of this folder.
  [[nodiscard]] State& state() noexcept { return *state_; }

 private:
  explicit Loop(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace wsync
