#include "shared/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <latch>
#include <memory>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

namespace wsync {

ThreadPool::ThreadPool(unsigned threads, int nice) {
  for (unsigned i = 0; i < std::max(1U, threads); ++i)
    threads_.emplace_back([this, nice](const std::stop_token& stop) {
      // On Linux, PRIO_PROCESS with the id of a thread changes the priority of that thread alone.
      // The thread also works without the lower priority, so a failure is ignored.
      if (nice != 0) (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), nice);
      run(stop);
    });
}

ThreadPool::~ThreadPool() {
  for (std::jthread& thread : threads_) thread.request_stop();
}

void ThreadPool::post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  wake_.notify_one();
}

void ThreadPool::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::unique_lock lock(mutex_);
    if (!wake_.wait(lock, stop, [&] { return !work_.empty(); }) || stop.stop_requested()) return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
  }
}

std::unique_ptr<ThreadPool> helpers_for(unsigned threads) {
  return threads > 1 ? std::make_unique<ThreadPool>(threads - 1) : nullptr;
}

void for_each_index(ThreadPool* helpers, std::size_t count,
                    const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  const auto take = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  const std::size_t others = helpers == nullptr || count < 2 ? 0 : helpers->size();
  // Shared, because the last thread to count down may still be inside count_down() when wait()
  // returns.
  const auto done = std::make_shared<std::latch>(static_cast<std::ptrdiff_t>(others));
  for (std::size_t i = 0; i < others; ++i)
    helpers->post([&take, done] {
      take();
      done->count_down();
    });
  take();
  done->wait();
}

}  // namespace wsync
