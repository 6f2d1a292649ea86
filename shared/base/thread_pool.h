// ThreadPool: a few threads for work that blocks or takes long, so that it does not run on a
// loop thread.
#pragma once

#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <source_location>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace wsync {

// Runs a function soon on the owner's loop thread. May be called from any thread. Constructed from
// a callable that takes the work and, if it needs it, the source location of the post.
class Post {
 public:
  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, Post>)
  Post(F&& post)  // NOLINT(google-explicit-constructor): used like std::function
  {
    if constexpr (std::invocable<F&, std::function<void()>, std::source_location>)
      post_ = std::forward<F>(post);
    else
      post_ = [post = std::forward<F>(post)](std::function<void()> work, std::source_location) {
        post(std::move(work));
      };
  }
  void operator()(std::function<void()> work,
                  std::source_location made = std::source_location::current()) const {
    post_(std::move(work), made);
  }

 private:
  std::function<void(std::function<void()>, std::source_location)> post_;
};

// Thread: post() may be called from any thread. Work must not outlive what it captures: the owner
// of the captured objects waits for the work.
class ThreadPool {
 public:
  // `nice` (0 to 19) lowers the threads' priority, so that serving processes come first.
  explicit ThreadPool(unsigned threads, int nice = 0);
  // Drops work that has not begun and waits for work that has.
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

// Threads that help the calling one, so that `threads` of them work in all. Null for 0 or 1: it
// works alone.
[[nodiscard]] std::unique_ptr<ThreadPool> helpers_for(unsigned threads);

// Calls work(0) to work(count - 1) once each, on the threads of the pool and on this one, and
// returns when all calls have ended. `helpers` may be null. Must not be called from a thread of the
// pool, which would wait for itself.
void for_each_index(ThreadPool* helpers, std::size_t count,
                    const std::function<void(std::size_t)>& work);

}  // namespace wsync
