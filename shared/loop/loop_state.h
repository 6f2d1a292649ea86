// What the files of this folder share: the libuv loop behind a Loop. Not for other folders.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <uv.h>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/unique_fd.h"
#include "shared/loop/loop.h"

namespace wsync {

// How long one thread has waited for a processor since it began.
class RunQueue {
 public:
  // From here on of the calling thread.
  void open();
  void close() { fd_.reset(); }
  // As it was at most a few milliseconds ago.
  [[nodiscard]] std::chrono::nanoseconds waited(TimePoint at);

 private:
  UniqueFd fd_;
  TimePoint read_at_{};
  std::chrono::nanoseconds waited_{0};
};

struct Loop::State {
  uv_loop_t loop{};
  uv_async_t wake{};
  std::atomic<std::thread::id> owner;
  std::mutex mutex;
  struct Posted {
    Task task;
    std::source_location made;
  };
  std::vector<Posted> posted;  // guarded by mutex
  // ---- see lag.h; the loop's thread, but for the atomics ----
  RunQueue run_queue;
  std::chrono::nanoseconds told{0};  // of what callbacks kept
  std::atomic<std::int64_t> longest_ns = 0;
  std::atomic<std::uint64_t> slow_callbacks = 0;
};

}  // namespace wsync
