// ChildProcesses: processes of this or another executable that a command (`wsync demo`, a training
// run with several ranks, a benchmark) starts, watches and ends. Their one loop runs only inside
// until(), so that the code around it reads from top to bottom.
//
// SIGINT, SIGTERM and SIGHUP: the first one makes until() fail with kCancelled, so that the caller
// ends its processes in order; the second kills them, removes what `on_abandon` removes, and ends
// this process with status 130. Without an `on_abandon` the second one changes nothing. The
// processes die with this one, however it ends.
//
// Thread: the one that called create(); it must live as long as the children.
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

// Where the standard output of a process goes.
enum class ChildOutput : std::uint8_t {
  kLog,    // where its standard error goes
  kFile,   // to <logs>/<name>.out
  kLines,  // to Child::on_line, line by line
};

// What its standard input is.
enum class ChildInput : std::uint8_t {
  kNone,   // /dev/null
  kLines,  // what Child::write_line() writes
};

// Where its standard error goes.
enum class ChildErrors : std::uint8_t {
  kLog,      // to <logs>/<name>.log
  kInherit,  // where this process's goes
};

struct ChildOptions {
  std::string name;                    // without '/'; a second child of a name appends to its files
  std::vector<std::string> arguments;  // without the executable's own name
  std::string executable;              // its path; empty: this process's
  // "NAME=value", in place of those of the same names that every child has.
  std::vector<std::string> environment;
  ChildInput input = ChildInput::kNone;
  ChildOutput output = ChildOutput::kLog;
  ChildErrors errors = ChildErrors::kLog;
  std::vector<int> keep;  // descriptors that it has under the same numbers; borrowed
};

class Child {
 public:
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] bool running() const noexcept { return running_; }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }  // by SIGSTOP
  // "exited with 1", "was killed by signal 9"; only when it has ended.
  [[nodiscard]] const std::string& ending() const noexcept { return ending_; }
  [[nodiscard]] bool succeeded() const noexcept { return !running_ && status_ == 0; }
  [[nodiscard]] bool killed() const noexcept;  // by a signal
  // Its end is no failure from here on.
  void may_end() noexcept { may_end_ = true; }
  void send(int signal) const noexcept;
  // Processor time of all its threads; known only when it has ended.
  [[nodiscard]] std::chrono::nanoseconds ended_cpu() const noexcept { return ended_cpu_; }
  // ChildInput::kLines: writes a short line to its standard input. A process that has ended is no
  // error: until() tells of it.
  [[nodiscard]] Result<> write_line(const std::string& line);

  // kLines: called inside until() and drain_lines(), without the line end.
  std::function<void(const std::string& line)> on_line;
  // kLines: from here on the process can have written only a few lines more than were read: it
  // waits inside its next one.
  void narrow_output() noexcept;
  // kLines: no line is read until drain_lines().
  void hold_lines() noexcept;
  // kLines: reads every line that is there.
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
  UniqueFd write_end_;  // of the same socket as the child's standard output
  std::string partial_;
  bool held_ = false;
  std::unique_ptr<FdWatcher> watcher_;  // before read_end_ goes
};

class ChildProcesses {
 public:
  // `environment`: "NAME=value" of every child. Files go to `log_directory`, which may be empty
  // when there are none. At most one at a time in a process. `on_abandon` runs on a second signal,
  // before the end of this process.
  [[nodiscard]] static Result<std::unique_ptr<ChildProcesses>> create(
      std::string log_directory, std::vector<std::string> environment,
      std::function<void()> on_abandon);
  // Kills what still runs.
  ~ChildProcesses();
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  // The child lives in this object, until its end.
  [[nodiscard]] Result<Child*> start(const ChildOptions& options);
  // Runs the loop until `holds`, which is asked after every event. kCancelled after a signal;
  // kDeadline naming `what`; kInternal with the end of its log when a child has ended that may not.
  [[nodiscard]] Result<> until(const std::string& what, std::chrono::milliseconds deadline,
                               const std::function<bool()>& holds);
  // As until(), for the end of a command: goes on in spite of a first signal, and of children that
  // have ended.
  [[nodiscard]] Result<> shutdown(const std::string& what, std::chrono::milliseconds deadline,
                                  const std::function<bool()>& holds) {
    return run_until(what, deadline, holds, true);
  }
  // Runs the loop for that long; errors as until().
  [[nodiscard]] Result<> pass_time(std::chrono::milliseconds time);
  // The error itself, or that a child has ended which may not: others may have seen its end first,
  // so it is given half a second to be told of.
  [[nodiscard]] Error explained(Error error);
  // That a child has ended, how, and the end of its log.
  [[nodiscard]] Error failure_of(const Child& child) const;
  // Asks a child to end (SIGTERM), and kills it when it has not after `patience`. Goes on in spite
  // of a first signal.
  void stop(Child& child, std::chrono::milliseconds wait_limit);
  // Runs a command of this executable to its end; its output is in the log. kInternal with the end
  // of the log when it fails.
  [[nodiscard]] Result<> run(const ChildOptions& options, std::chrono::milliseconds deadline);

  // Runs `work` on a thread while the loop runs; `cancelled` asks it to return early.
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
  void (*former_pipe_)(int) = nullptr;  // handler of SIGPIPE, which is ignored meanwhile
  int signals_ = 0;
  std::unique_ptr<Loop> loop_;
  UniqueFd signal_fd_;
  std::unique_ptr<FdWatcher> signal_watcher_;
  std::deque<std::unique_ptr<Child>> children_;
};

}  // namespace wsync::cli
