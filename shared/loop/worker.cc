#include "shared/loop/worker.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <utility>

#include "shared/base/format.h"

namespace wsync {

struct Worker::State {
  struct Job {
    Task work;
    Task done;
    std::source_location made;
  };
  Loop& loop;
  WorkerOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Job> jobs;   // guarded by mutex
  bool running = false;   // guarded by mutex
  bool stopping = false;  // guarded by mutex
  std::jthread thread;

  void run() {
    pthread_setname_np(pthread_self(), options.name.substr(0, 15).c_str());
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex);
        running = false;
        changed.wait(lock, [this] { return stopping || !jobs.empty(); });
        if (jobs.empty()) return;
        job = std::move(jobs.front());
        jobs.pop_front();
        running = true;
      }
      job.work();
      job.work = {};
      if (job.done) loop.post(std::move(job.done), job.made);
    }
  }
};

Worker::Worker(Loop& loop, WorkerOptions options)
    : state_(new State{.loop = loop, .options = std::move(options)}) {
  state_->thread = std::jthread([state = state_.get()] { state->run(); });
}

Worker::~Worker() { stop(); }

Result<> Worker::submit(Task work, Task done, std::source_location made) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopping)
      return fail(ErrorCode::kCancelled,
                  fmt::format("worker {} has been stopped", state_->options.name));
    if (state_->jobs.size() >= state_->options.max_queued)
      return fail(ErrorCode::kBusy, fmt::format("worker {}: {} tasks are already waiting",
                                                state_->options.name, state_->jobs.size()));
    state_->jobs.push_back({.work = std::move(work), .done = std::move(done), .made = made});
  }
  state_->changed.notify_one();
  return {};
}

bool Worker::is_idle() const {
  const std::lock_guard lock(state_->mutex);
  return !state_->running && state_->jobs.empty();
}

void Worker::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_one();
  if (state_->thread.joinable()) state_->thread.join();
}

}  // namespace wsync
