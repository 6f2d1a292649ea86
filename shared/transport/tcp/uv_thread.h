// UvThread: a thread that runs a libuv loop for bulk data, so that moving gigabytes never delays
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

// Owns the loop and the thread. It must outlive everything that runs on it: the owner of a handle
// on the loop closes the handle before the UvThread is destroyed.
class UvThread {
 public:
  [[nodiscard]] static Result<std::unique_ptr<UvThread>> start();
  // Runs the posted work, closes its own handle, waits for pending closes and joins the thread.
  ~UvThread();
  UvThread(const UvThread&) = delete;
  UvThread& operator=(const UvThread&) = delete;

  // Runs a function on the thread, in the order of the calls. Any thread.
  void post(std::function<void()> work);
  // The same, but returns after the function has run. Any thread but this one.
  void run(const std::function<void()>& work);
  // For handles; only on this thread.
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

// Returns the sentence of a libuv error code.
[[nodiscard]] std::string uv_sentence(std::string_view what, int code);

}  // namespace wsync::transport::tcp
