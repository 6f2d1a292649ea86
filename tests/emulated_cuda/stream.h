// Streams: each is a thread that carries out a queue. A call that enqueues has returned before the
// work is done, unless the driver's documentation says that it waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <shared_mutex>
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
  // Waits while nothing may be enqueued.
  void push(Op op);
  // False, and `op` is unchanged, while nothing may be enqueued.
  [[nodiscard]] bool try_push(Op& op);
  [[nodiscard]] bool idle();
  void wait_idle();
  // The queued work still runs; nothing more is pushed.
  void close();
  // True when a closed stream's thread is at its end, so that join() does not wait.
  [[nodiscard]] bool finished() const noexcept { return finished_; }
  void join();

 private:
  void enqueue(Op op);
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
// What the driver does in some calls that give memory back: returns when the streams of the device,
// and of those that it has enabled peer access with, have nothing left to do. -1: of all devices.
// Nothing can be enqueued on any device meanwhile, so work that waits for work which is not
// enqueued yet never ends. `locked` is what keeps others from enqueuing; the state's mutex is not
// held.
void wait_for_kernels(int device, const std::unique_lock<std::shared_mutex>& locked);
// True until the process is exiting, after a short sleep: for loops that wait.
[[nodiscard]] bool pause_unless_stopping(
    std::chrono::microseconds pause = std::chrono::microseconds(100));

}  // namespace emulated_cuda
