// A loop on a thread of its own: the other end of a link that is measured.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "shared/base/error.h"
#include "shared/loop/loop.h"

namespace wsync::bench {

// Thread: one, other than its own.
class LoopThread {
 public:
  // What lives on the loop; made by `set_up` on the thread and destroyed there when it ends.
  using Guest = std::shared_ptr<void>;
  // Errors of Loop::create() and of `set_up`.
  [[nodiscard]] static Result<std::unique_ptr<LoopThread>> start(
      std::function<Result<Guest>(Loop&)> set_up);
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;
  ~LoopThread();
  // Runs `work` on the loop and returns when it has run.
  void run(const std::function<void()>& work);

 private:
  LoopThread() = default;
  Loop* loop_ = nullptr;  // of the thread, while that runs
  std::jthread thread_;
};

}  // namespace wsync::bench
