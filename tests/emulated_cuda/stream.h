// Streams: each is a thread that carries out a queue. A call that enqueues has returned before the
// work is done, unless the driver's documentation says that it waits.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "tests/emulated_cuda/state.h"

namespace emulated_cuda {

inline constexpr int kLowestPriority = 0;
inline constexpr int kGreatestPriority = -5;

struct Op {
  const char* kind = "";  // for faults: "copy", "memset", "kernel", "event", "wait"
  // Its error sticks to the context. `written` is set to a byte that it wrote, for bit flips.
  std::function<CUresult(std::byte*& written)> work;
  std::function<void()> skipped;  // instead of it, when the context has failed; may be empty
  bool always = false;            // it is done all the same
  std::vector<Hold> holds;        // what it uses
};

class Stream {
 public:
  Stream(std::uint64_t id, std::shared_ptr<Context> context);
  ~Stream();

  [[nodiscard]] const Context& context() const noexcept { return *context_; }
  [[nodiscard]] const std::shared_ptr<Context>& shared_context() const noexcept { return context_; }
  void push(Op op);
  [[nodiscard]] bool idle();
  void wait_idle();
  // The queued work still runs; nothing more is pushed.
  void close();
  // True when a closed stream's thread is at its end, so that join() does not wait.
  [[nodiscard]] bool finished() const noexcept { return finished_; }
  void join();

 private:
  void serve();
  void execute(Op& op);

  const std::shared_ptr<Context> context_;
  std::minstd_rand random_;  // of its thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Op> queue_;
  bool busy_ = false;
  bool closed_ = false;
  std::atomic<bool> finished_ = false;
  std::thread thread_;
};

// The stream of the current context with this handle; the mutex is not held.
[[nodiscard]] CUresult find_stream(const char* name, CUstream handle,
                                   std::shared_ptr<Stream>& stream);
// True until the process is exiting, after a short sleep: for loops that wait.
[[nodiscard]] bool pause_unless_stopping();

}  // namespace emulated_cuda
