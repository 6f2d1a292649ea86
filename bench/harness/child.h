// A process that a benchmark starts, speaks to by lines, and never leaves behind.
#pragma once

#include <chrono>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync::bench {

// SIGINT and SIGTERM as a descriptor, from construction to destruction, so that a wait ends with
// them. SIGCHLD is blocked as well: ChildProcesses reads it from a descriptor of its own, and a
// thread that does not block it could take it away. Thread: make it before any other thread is
// started.
class Interrupt {
 public:
  [[nodiscard]] static Result<Interrupt> create();
  Interrupt(Interrupt&&) noexcept = default;
  Interrupt& operator=(Interrupt&&) = delete;
  ~Interrupt();
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  explicit Interrupt(UniqueFd fd) noexcept : fd_(std::move(fd)) {}
  UniqueFd fd_;
};
// kCancelled when a signal has come.
[[nodiscard]] Result<> resume(const Interrupt& interrupt);

struct ChildOptions {
  std::vector<std::string> command;  // argv; the executable's path first
  std::vector<std::pair<std::string, std::string>> environment;  // set over this process's own
  std::string log_file;                                          // what it says on standard error
};

// Thread: one. The process is in a group of its own and dies with the thread that started it.
class Child {
 public:
  [[nodiscard]] static Result<Child> start(ChildOptions options);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();  // kills what still runs

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  // Readable when it has said something, or has ended. Until wait() or stop().
  [[nodiscard]] int output_fd() const noexcept { return output_.get(); }
  // Writes a line to its standard input.
  [[nodiscard]] Result<> say(const std::string& line);
  // The next line of its standard output. kPeerLost, with the last line of its log, when it ends
  // first; kDeadline; kCancelled on a signal.
  [[nodiscard]] Result<std::string> line(const Interrupt& interrupt, TimePoint deadline);
  // Its remaining output, and its exit code (128 + signal when it was killed). Errors as line().
  struct End {
    std::string output;
    int exit_code = 0;
    std::chrono::nanoseconds cpu{0};  // processor time, user and system, of all its threads
  };
  [[nodiscard]] Result<End> wait(const Interrupt& interrupt, TimePoint deadline);
  // Closes its input and asks it to stop; kills it at the deadline. Does not heed signals.
  void stop(std::chrono::milliseconds wait_limit);

 private:
  Child() = default;
  [[nodiscard]] Result<bool> read_more(const Interrupt& interrupt, TimePoint deadline);
  End reap();  // without its output
  [[nodiscard]] std::string last_words() const;

  ChildOptions options_;
  pid_t pid_ = -1;
  UniqueFd input_;
  UniqueFd output_;
  std::string buffer_;
};

}  // namespace wsync::bench
