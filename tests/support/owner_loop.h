// OwnerLoop replaces an agent's loop thread and runs posted functions on the test's own thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "shared/base/thread_pool.h"

namespace wsync {

// Runs posted functions on the thread that calls run_until().
class OwnerLoop {
 public:
  [[nodiscard]] Post post() {
    return [this](std::function<void()> work) {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
      wake_.notify_one();
    };
  }
  // Runs posted functions until `done` holds. Returns false after one minute, which is far longer
  // than a correct run needs.
  [[nodiscard]] bool run_until(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!done()) {
      std::unique_lock lock(mutex_);
      if (!wake_.wait_until(lock, deadline, [&] { return !work_.empty(); })) return false;
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
    }
    return true;
  }
  // Runs all functions posted so far.
  void run_posted() {
    std::deque<std::function<void()>> work;
    {
      const std::lock_guard lock(mutex_);
      work.swap(work_);
    }
    for (const auto& function : work) function();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
};

}  // namespace wsync
