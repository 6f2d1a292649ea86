// UvThread: a thread that runs a libuv loop for bulk bytes, so that moving gigabytes never delays
// the owner's loop (heartbeats, deadlines).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <uv.h>
#include <vector>

#include "shared/base/error.h"

namespace wsync::transport::tcp {

// Owns the loop and the thread. Outlives everything that runs on it; whoever made a handle on the
// loop closes it before the UvThread goes.
class UvThread {
 public:
  [[nodiscard]] static Result<std::unique_ptr<UvThread>> start();
  // Runs what was posted, closes its own handle, lets pending closes finish, joins.
  ~UvThread();
  UvThread(const UvThread&) = delete;
  UvThread& operator=(const UvThread&) = delete;

  // Runs a function on the thread, in the order of the calls. Any thread.
  void post(std::function<void()> work);
  // The same, and returns when it has run. Any thread but this one.
  void run(const std::function<void()>& work);
  // For handles; this thread only.
  [[nodiscard]] uv_loop_t* loop() noexcept { return &loop_; }
  [[nodiscard]] bool in_thread() const noexcept {
    return std::this_thread::get_id() == thread_.get_id();
  }

 private:
  UvThread() = default;
  void drain();

  uv_loop_t loop_{};
  uv_async_t wake_{};
  std::mutex mutex_;
  std::vector<std::function<void()>> work_;  // under mutex_
  std::thread thread_;
};

// The sentence of a libuv error code.
[[nodiscard]] std::string uv_sentence(std::string_view what, int code);

}  // namespace wsync::transport::tcp
