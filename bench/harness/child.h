// A process that a benchmark starts and exchanges lines with. It never outlives the benchmark.
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

// SIGINT and SIGTERM as a descriptor while the object exists, so that waits can end on a signal.
// SIGCHLD is blocked as well. ChildProcesses reads it from its own descriptor, and a thread that
// does not block it could receive it instead. Thread: create it before any other thread starts.
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
// kCancelled if a signal has arrived.
[[nodiscard]] Result<> resume(const Interrupt& interrupt);

struct ChildOptions {
  std::vector<std::string> command;  // argv, with the path of the executable first
  // added to this process's environment
  std::vector<std::pair<std::string, std::string>> environment;
  std::string log_file;  // gets its standard error
};

// Thread: one. The process has its own process group and dies with the thread that started it.
class Child {
 public:
  [[nodiscard]] static Result<Child> start(ChildOptions options);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();  // kills the process if it still runs

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  // Readable if the process has written output or has ended. Valid until wait() or stop().
  [[nodiscard]] int output_fd() const noexcept { return output_.get(); }
  // Writes a line to its standard input.
  [[nodiscard]] Result<> say(const std::string& line);
  // Returns the next line of its standard output. kPeerLost, with the last line of its log, if the
  // process ends first. kDeadline. kCancelled on a signal.
  [[nodiscard]] Result<std::string> line(const Interrupt& interrupt, TimePoint deadline);
  // Returns its remaining output and its exit code (128 + signal if it was killed). Errors as
  // line().
  struct End {
    std::string output;
    int exit_code = 0;
    std::chrono::nanoseconds cpu{0};  // user and system time of all its threads
  };
  [[nodiscard]] Result<End> wait(const Interrupt& interrupt, TimePoint deadline);
  // Closes its input and asks it to stop. Kills it at the deadline. Ignores signals to this
  // process.
  void stop(std::chrono::milliseconds wait_limit);

 private:
  Child() = default;
  [[nodiscard]] Result<bool> read_more(const Interrupt& interrupt, TimePoint deadline);
  End reap();  // without reading its output
  [[nodiscard]] std::string last_words() const;

  ChildOptions options_;
  pid_t pid_ = -1;
  UniqueFd input_;
  UniqueFd output_;
  std::string buffer_;
};

}  // namespace wsync::bench
