// A loop in its own thread: the other end of a measured link.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "shared/base/error.h"
#include "shared/loop/loop.h"

namespace wsync::bench {

// Thread: one, other than the loop's thread.
class LoopThread {
 public:
  // An object that lives on the loop. `set_up` creates it in the loop's thread, where it is
  // destroyed when the thread ends.
  using Guest = std::shared_ptr<void>;
  // Errors of Loop::create() and of `set_up`.
  [[nodiscard]] static Result<std::unique_ptr<LoopThread>> start(
      std::function<Result<Guest>(Loop&)> set_up);
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;
  ~LoopThread();
  // Runs `work` on the loop and returns when `work` has returned.
  void run(const std::function<void()>& work);

 private:
  LoopThread() = default;
  Loop* loop_ = nullptr;  // the thread's loop, while it runs
  std::jthread thread_;
};

}  // namespace wsync::bench
