// State that the files of this folder share: the libuv loop of a Loop. Not for other folders.
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
#include "shared/loop/lag.h"
#include "shared/loop/loop.h"

namespace wsync {

// Reads how long one thread has run, and how long it has waited for a processor.
class RunQueue {
 public:
  // Selects the calling thread.
  void open();
  void close() { fd_.reset(); }
  // Returns values that are at most a few milliseconds old.
  [[nodiscard]] ThreadTime read(TimePoint at);

 private:
  UniqueFd fd_;
  TimePoint read_at_{};
  ThreadTime time_;
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
  // ---- see lag.h; for the loop's thread, except for the atomics ----
  RunQueue run_queue;
  std::chrono::nanoseconds reported{0};  // blocking time that was already reported
  std::atomic<std::int64_t> longest_ns = 0;
  std::atomic<std::uint64_t> slow_callbacks = 0;
};

}  // namespace wsync
