// ThreadPool: a few threads for work that blocks or takes long, so that no loop thread does.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace wsync {

// Runs a function on the owner's loop thread, soon; may be called from any thread.
using Post = std::function<void(std::function<void()>)>;

// Thread: post() from any thread. Work must not outlive what it captures: the owner of that waits.
class ThreadPool {
 public:
  // `nice` (0 to 19) lowers the threads' priority, so that serving processes come first.
  explicit ThreadPool(unsigned threads, int nice = 0);
  // Drops what has not begun; waits for what has.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Work begins in the order of the calls.
  void post(std::function<void()> work);
  [[nodiscard]] unsigned size() const noexcept { return static_cast<unsigned>(threads_.size()); }

 private:
  void run(const std::stop_token& stop);
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<std::function<void()>> work_;  // under mutex_
  std::vector<std::jthread> threads_;
};

// Calls work(0) to work(count - 1), each once, on the pool's threads and this one; returns when all
// have. `helpers` may be null. Not from one of its threads.
void for_each_index(ThreadPool* helpers, std::size_t count,
                    const std::function<void(std::size_t)>& work);

}  // namespace wsync
