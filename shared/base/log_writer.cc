#include "shared/base/log_writer.h"

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <poll.h>
#include <string>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

namespace wsync {

struct LogWriter::Queue {
  explicit Queue(Queue* parents) : parents_queue(parents) {}

  const pid_t process = ::getpid();
  Queue* const parents_queue;  // its lock and its conditions are in whatever state they were
  bool has_thread = false;
  bool writing = false;  // the thread has taken lines that it has not written yet
  std::string lines;
  std::condition_variable filled;
  std::condition_variable written;
};

namespace {

// A descriptor that takes nothing for good (a closed pipe, a full disc) loses the rest of the
// lines.
void write_all(int fd, std::string_view lines) {
  while (!lines.empty()) {
    const ssize_t n = ::write(fd, lines.data(), lines.size());
    if (n > 0) {
      lines.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      // Another process may have made the open file non-blocking for all that share it.
      pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

void LogWriter::run(LogWriter* writer, Queue* queue) {
  std::unique_lock lock(writer->mutex_);
  for (;;) {
    queue->filled.wait(lock, [&] { return !queue->lines.empty(); });
    const std::string lines = std::exchange(queue->lines, {});
    queue->writing = true;
    lock.unlock();
    write_all(writer->fd_, lines);
    lock.lock();
    queue->writing = false;
    queue->written.notify_all();
  }
}

bool LogWriter::start() {
  if (queue_ == nullptr || queue_->process != ::getpid()) queue_ = new Queue(queue_);
  if (queue_->has_thread) return true;
  // Signals are for the threads of the program, which may be somebody else's.
  sigset_t all;
  sigset_t former;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &former);
  try {
    std::thread(run, this, queue_).detach();
    queue_->has_thread = true;
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &former, nullptr);
  return queue_->has_thread;
}

bool LogWriter::put(std::string_view line) {
  if (!start()) {
    write_all(fd_, line);
    return true;
  }
  if (queue_->lines.size() + line.size() > kQueueBytes) return false;
  queue_->lines += line;
  queue_->filled.notify_one();
  return true;
}

bool LogWriter::flush(std::unique_lock<std::mutex>& held, std::chrono::milliseconds limit) {
  Queue* const queue = queue_;
  if (queue == nullptr || queue->process != ::getpid()) return true;
  return queue->written.wait_for(held, limit,
                                 [&] { return queue->lines.empty() && !queue->writing; });
}

}  // namespace wsync
