// Writes log lines to a descriptor from a thread of its own. A terminal that is stopped, a full
// pipe or a busy disc then holds this thread only, and no loop: a process whose log nobody reads
// goes on.
//
// spdlog's asynchronous logger is not used. Its queue has a lock of its own that a forked child may
// inherit locked, and its destructor waits without a limit for a write that may never end.
#pragma once

#include <chrono>
#include <cstddef>
#include <mutex>
#include <string_view>

namespace wsync {

class LogWriter {
 public:
  // Lines that are not written yet have at most this size together. What comes after is dropped.
  static constexpr std::size_t kQueueBytes = std::size_t{1} << 20U;

  // Does not own the descriptor. Objects are never destroyed, because their thread is never joined.
  explicit LogWriter(int fd) : fd_(fd) {}
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;
  ~LogWriter() = delete;

  // Guards everything here. A thread that forks holds it, so that its child finds a whole queue.
  [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }

  // Queues a line, which ends with '\n', and returns at once. Returns false if the line was dropped
  // because the queue is full. Starts the thread at the first line of each process; a child of
  // fork() begins with an empty queue, because its parent writes what was queued. Without a thread,
  // for want of memory, the line is written before the return. Thread: any that holds mutex().
  [[nodiscard]] bool put(std::string_view line);

  // Waits until every queued line was written, at most for `limit`. Returns whether it was.
  // Thread: any that holds mutex(), which is free while this waits.
  bool flush(std::unique_lock<std::mutex>& held, std::chrono::milliseconds limit);

 private:
  struct Queue;
  static void run(LogWriter* writer, Queue* queue);
  // Returns whether a thread writes the queue.
  bool start();

  const int fd_;
  std::mutex mutex_;
  Queue* queue_ = nullptr;  // of this process; a child leaves its parent's as it is
};

}  // namespace wsync
