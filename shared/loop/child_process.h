// ChildProcesses: processes of this or another executable that a command (`wsync demo`, a training
// run with several ranks, a benchmark) starts, watches and ends. They share one loop, which runs
// only inside until(), so that the code around it reads from top to bottom.
//
// SIGINT, SIGTERM and SIGHUP: the first signal makes until() fail with kCancelled, so that the
// caller ends its processes in order. The second one kills them, calls `on_abandon` and ends this
// process with status 130. Without `on_abandon` the second signal changes nothing. The children are
// killed when this process ends in any way.
//
// Thread: the one that called create(). It must live as long as the children, because the kernel
// kills them when the thread that started them ends.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/loop/fd_watcher.h"
#include "shared/loop/loop.h"

namespace wsync::cli {

// Where the standard output of a child goes.
enum class ChildOutput : std::uint8_t {
  kLog,    // same as its standard error
  kFile,   // <logs>/<name>.out
  kLines,  // Child::on_line, line by line
};

// Where the standard input of a child comes from.
enum class ChildInput : std::uint8_t {
  kNone,   // /dev/null
  kLines,  // Child::write_line()
};

// Where the standard error of a child goes.
enum class ChildErrors : std::uint8_t {
  kLog,      // <logs>/<name>.log
  kInherit,  // same as this process
};

struct ChildOptions {
  std::string name;                    // without '/'; children of one name append to the same files
  std::vector<std::string> arguments;  // without the name of the executable
  std::string executable;              // path; empty: the executable of this process
  // "NAME=value". These replace entries of the same names in the environment of all children.
  std::vector<std::string> environment;
  ChildInput input = ChildInput::kNone;
  ChildOutput output = ChildOutput::kLog;
  ChildErrors errors = ChildErrors::kLog;
  std::vector<int> keep;  // descriptors that the child inherits under the same numbers; borrowed
};

class Child {
 public:
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] bool running() const noexcept { return running_; }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }  // by SIGSTOP
  // "exited with 1" or "was killed by signal 9". Valid only after the child has ended.
  [[nodiscard]] const std::string& ending() const noexcept { return ending_; }
  [[nodiscard]] bool succeeded() const noexcept { return !running_ && status_ == 0; }
  [[nodiscard]] bool killed() const noexcept;  // by a signal
  // From now on the end of this child is not a failure.
  void may_end() noexcept { may_end_ = true; }
  void send(int signal) const noexcept;
  // Processor time of all its threads. Valid only after the child has ended.
  [[nodiscard]] std::chrono::nanoseconds ended_cpu() const noexcept { return ended_cpu_; }
  // ChildInput::kLines: writes a short line to the standard input of the child. Returns success if
  // the child has ended: until() reports that.
  [[nodiscard]] Result<> write_line(const std::string& line);

  // kLines: called inside until() and drain_lines(), with the line without its line end.
  std::function<void(const std::string& line)> on_line;
  // kLines: limits how far the child can write ahead of what was read to a few lines. It then
  // blocks in its next write.
  void narrow_output() noexcept;
  // kLines: reads no more lines until drain_lines().
  void hold_lines() noexcept;
  // kLines: reads all available lines.
  void drain_lines();

 private:
  friend class ChildProcesses;
  std::string name_;
  pid_t pid_ = 0;
  bool running_ = true;
  bool stopped_ = false;
  bool may_end_ = false;
  int status_ = 0;
  std::string ending_;
  std::chrono::nanoseconds ended_cpu_{0};
  UniqueFd input_;
  UniqueFd read_end_;
  UniqueFd write_end_;  // ours, of the same socket as the standard output of the child
  std::string partial_;
  bool held_ = false;
  std::unique_ptr<FdWatcher> watcher_;  // destroyed before read_end_ is closed
};

class ChildProcesses {
 public:
  // `environment`: "NAME=value" for every child. Log and output files go to `log_directory`, which
  // may be empty if there are none. At most one object may exist in a process. `on_abandon` runs on
  // a second signal, before this process ends.
  [[nodiscard]] static Result<std::unique_ptr<ChildProcesses>> create(
      std::string log_directory, std::vector<std::string> environment,
      std::function<void()> on_abandon);
  // Kills all children that still run.
  ~ChildProcesses();
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  // Starts a child. The pointer is valid as long as this object lives.
  [[nodiscard]] Result<Child*> start(const ChildOptions& options);
  // Runs the loop until `holds` returns true; it is called after every event. kCancelled after a
  // signal; kDeadline naming `what`; kInternal with the end of the log if a child has ended without
  // may_end().
  [[nodiscard]] Result<> until(const std::string& what, std::chrono::milliseconds deadline,
                               const std::function<bool()>& holds);
  // Like until(), but for the end of a command: ignores a first signal and children that have
  // ended.
  [[nodiscard]] Result<> shutdown(const std::string& what, std::chrono::milliseconds deadline,
                                  const std::function<bool()>& holds) {
    return run_until(what, deadline, holds, true);
  }
  // Runs the loop for that time. Errors as for until().
  [[nodiscard]] Result<> pass_time(std::chrono::milliseconds time);
  // Returns the error itself, or the error that a child has ended without may_end(). Other code may
  // notice that end first, so this waits half a second for it to be reported.
  [[nodiscard]] Error explained(Error error);
  // Returns an error with the name of the child, how it ended, and the end of its log.
  [[nodiscard]] Error failure_of(const Child& child) const;
  // Sends SIGTERM to a child, and SIGKILL if it has not ended after `wait_limit`. Ignores a first
  // signal.
  void stop(Child& child, std::chrono::milliseconds wait_limit);
  // Runs a child to its end. Its output goes to the log. kInternal with the end of the log if it
  // fails.
  [[nodiscard]] Result<> run(const ChildOptions& options, std::chrono::milliseconds deadline);

  // Runs `work` on a thread while the loop runs. `cancelled` asks `work` to return early.
  [[nodiscard]] Result<> in_thread(
      const std::string& what, std::chrono::milliseconds deadline,
      std::function<Result<>(const std::atomic<bool>& cancelled)> work);

  [[nodiscard]] bool interrupted() const noexcept { return signals_ > 0; }
  [[nodiscard]] Loop& loop() noexcept { return *loop_; }
  [[nodiscard]] std::string log_path(const std::string& name) const;
  [[nodiscard]] std::string output_path(const std::string& name) const;

 private:
  ChildProcesses() = default;
  [[nodiscard]] Result<> open_signals();
  void handle_signals();
  void reap();
  void kill_all() noexcept;
  [[nodiscard]] Result<> check_alive() const;
  [[nodiscard]] Result<> run_until(const std::string& what, std::chrono::milliseconds deadline,
                                   const std::function<bool()>& holds, bool ending);

  std::string log_directory_;
  std::vector<std::string> environment_;
  std::function<void()> on_abandon_;
  std::string executable_;
  sigset_t former_mask_{};
  bool masked_ = false;
  void (*former_pipe_)(int) = nullptr;  // former handler of SIGPIPE, which is ignored meanwhile
  int signals_ = 0;
  std::unique_ptr<Loop> loop_;
  UniqueFd signal_fd_;
  std::unique_ptr<FdWatcher> signal_watcher_;
  std::deque<std::unique_ptr<Child>> children_;
};

}  // namespace wsync::cli
