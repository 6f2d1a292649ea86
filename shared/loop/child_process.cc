#include "shared/loop/child_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/loop/timer.h"

namespace wsync::cli {
namespace {

constexpr std::size_t kTailLines = 12;
// Time that explained() allows for the end of a child to be reported.
constexpr std::chrono::milliseconds kEndIsTold{500};
constexpr int kInterrupted = 130;  // the status that a shell reports after SIGINT
constexpr int kNarrowBytes = 1;    // the kernel uses its own minimum: a few lines

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  return set;
}

// Returns the last lines of a file, indented.
std::string tail_of(const std::string& path) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
    if (lines.size() > kTailLines) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += "\n    " + line;
  return text.empty() ? "\n    (its log is empty)" : text;
}

Result<UniqueFd> open_append(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid()) return fail_errno(path, errno);
  return fd;
}

std::chrono::nanoseconds duration_of(const timeval& time) {
  return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
}

// Returns `given`, and the entries of `common` whose names are not in `given`.
std::vector<std::string> merged(const std::vector<std::string>& given,
                                const std::vector<std::string>& common) {
  std::vector<std::string> all = given;
  for (const std::string& entry : common) {
    const std::string beginning = entry.substr(0, entry.find('=') + 1);
    if (std::none_of(given.begin(), given.end(),
                     [&](const std::string& other) { return other.starts_with(beginning); }))
      all.push_back(entry);
  }
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// What the forked child executes. Between fork() and exec it makes only calls that are safe there.
struct ExecPlan {
  const char* executable;
  char** arguments;
  char** environment;
  int input;
  int output;
  int errors;
  const std::vector<int>* keep;
  pid_t parent;
};
[[noreturn]] void exec_child(const ExecPlan& plan) {
  constexpr int kCannotRun = 127;
  // A process group of its own: Ctrl-C on the terminal reaches only the parent, which then ends its
  // children in order.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before prctl() took effect; no signal would come then.
  if (::getppid() != plan.parent) ::_exit(kCannotRun);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  if (::dup2(plan.input, STDIN_FILENO) < 0 || ::dup2(plan.output, STDOUT_FILENO) < 0 ||
      ::dup2(plan.errors, STDERR_FILENO) < 0)
    ::_exit(kCannotRun);
  for (const int fd : *plan.keep)
    if (::fcntl(fd, F_SETFD, 0) != 0) ::_exit(kCannotRun);
  ::execve(plan.executable, plan.arguments, plan.environment);
  ::_exit(kCannotRun);
}

}  // namespace

// ---- one child ----

void Child::send(int signal) const noexcept {
  if (running_) ::kill(pid_, signal);
}

bool Child::killed() const noexcept { return !running_ && WIFSIGNALED(status_); }

Result<> Child::write_line(const std::string& line) {
  const std::string text = line + "\n";
  // The line is short and the socket buffer is empty, so that one send() takes all of it.
  if (::send(input_.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0 && errno != EPIPE)
    return fail_errno("write to a child", errno);
  return {};
}

void Child::narrow_output() noexcept {
  ::setsockopt(write_end_.get(), SOL_SOCKET, SO_SNDBUF, &kNarrowBytes, sizeof kNarrowBytes);
}

void Child::hold_lines() noexcept {
  held_ = true;
  if (watcher_) watcher_->watch({});
}

void Child::drain_lines() {
  held_ = false;
  std::array<char, 512> block{};
  while (!held_) {
    const ssize_t n = ::recv(read_end_.get(), block.data(), block.size(), MSG_DONTWAIT);
    if (n <= 0) return;
    partial_.append(block.data(), static_cast<std::size_t>(n));
    for (std::size_t end = 0; (end = partial_.find('\n')) != std::string::npos;) {
      const std::string line = partial_.substr(0, end);
      partial_.erase(0, end + 1);
      if (on_line) on_line(line);
    }
  }
}

// ---- all of them ----

Result<std::unique_ptr<ChildProcesses>> ChildProcesses::create(std::string log_directory,
                                                               std::vector<std::string> environment,
                                                               std::function<void()> on_abandon) {
  std::unique_ptr<ChildProcesses> children(new ChildProcesses());
  children->log_directory_ = std::move(log_directory);
  children->environment_ = std::move(environment);
  children->on_abandon_ = std::move(on_abandon);
  std::array<char, 4096> path{};
  const ssize_t n = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (n < 0) return fail_errno("/proc/self/exe", errno);
  children->executable_.assign(path.data(), static_cast<std::size_t>(n));
  children->loop_ = WSYNC_TRY(Loop::create());
  WSYNC_TRY(children->open_signals());
  return children;
}

Result<> ChildProcesses::open_signals() {
  const sigset_t set = watched_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, &former_mask_);
  masked_ = true;
  former_pipe_ = ::signal(SIGPIPE, SIG_IGN);
  signal_fd_.reset(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signal_fd_.valid()) return fail_errno("signalfd", errno);
  signal_watcher_ = WSYNC_TRY(
      FdWatcher::create(*loop_, signal_fd_.get(), [this](FdEvents) { handle_signals(); }));
  signal_watcher_->watch({.readable = true});
  return {};
}

ChildProcesses::~ChildProcesses() {
  kill_all();
  for (const auto& child : children_)
    if (child->running_) ::waitpid(child->pid_, nullptr, 0);
  if (!masked_) return;
  ::signal(SIGPIPE, former_pipe_);
  ::pthread_sigmask(SIG_SETMASK, &former_mask_, nullptr);
}

void ChildProcesses::kill_all() noexcept {
  for (const auto& child : children_) child->send(SIGKILL);
}

void ChildProcesses::handle_signals() {
  signalfd_siginfo info{};
  bool child_changed = false;
  while (::read(signal_fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGCHLD)
      child_changed = true;
    else
      ++signals_;
  }
  if (signals_ > 1 && on_abandon_) {
    kill_all();
    on_abandon_();
    ::_exit(kInterrupted);
  }
  if (child_changed) reap();
  loop_->stop();
}

void ChildProcesses::reap() {
  for (const auto& child : children_) {
    int status = 0;
    rusage used{};
    while (child->running_ &&
           ::wait4(child->pid_, &status, WNOHANG | WUNTRACED | WCONTINUED, &used) == child->pid_) {
      child->stopped_ = WIFSTOPPED(status);
      if (!WIFEXITED(status) && !WIFSIGNALED(status)) continue;
      child->running_ = false;
      child->status_ = status;
      child->ended_cpu_ = duration_of(used.ru_utime) + duration_of(used.ru_stime);
      child->ending_ = WIFEXITED(status) ? fmt::format("exited with {}", WEXITSTATUS(status))
                                         : fmt::format("was killed by signal {}", WTERMSIG(status));
      child->watcher_.reset();
      child->write_end_.reset();
      if (child->read_end_.valid()) child->drain_lines();
      child->read_end_.reset();
    }
  }
}

Result<Child*> ChildProcesses::start(const ChildOptions& options) {
  auto child = std::make_unique<Child>();
  child->name_ = options.name;
  UniqueFd log;
  int errors = STDERR_FILENO;
  if (options.errors == ChildErrors::kLog) {
    log = WSYNC_TRY(open_append(log_path(options.name)));
    errors = log.get();
  }
  UniqueFd input;
  if (options.input == ChildInput::kLines) {
    // Sockets instead of pipes: MSG_NOSIGNAL prevents a SIGPIPE if the reader is gone.
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
      return fail_errno("socketpair", errno);
    child->input_.reset(ends[0]);
    input.reset(ends[1]);
  } else {
    input.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  UniqueFd file;
  int output = errors;
  if (options.output == ChildOutput::kFile) {
    file = WSYNC_TRY(open_append(output_path(options.name)));
    output = file.get();
  } else if (options.output == ChildOutput::kLines) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
      return fail_errno("socketpair", errno);
    child->read_end_.reset(ends[0]);
    child->write_end_.reset(ends[1]);
    output = ends[1];
    child->watcher_ =
        WSYNC_TRY(FdWatcher::create(*loop_, ends[0], [this, c = child.get()](FdEvents) {
          c->drain_lines();
          loop_->stop();
        }));
    child->watcher_->watch({.readable = true});
  }
  std::vector<std::string> arguments{options.executable.empty() ? executable_ : options.executable};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  std::vector<char*> argument_pointers = pointers(arguments);
  std::vector<std::string> environment = merged(options.environment, environment_);
  std::vector<char*> environment_pointers = pointers(environment);
  const ExecPlan plan{.executable = arguments.front().c_str(),
                      .arguments = argument_pointers.data(),
                      .environment = environment_pointers.data(),
                      .input = input.get(),
                      .output = output,
                      .errors = errors,
                      .keep = &options.keep,
                      .parent = ::getpid()};
  child->pid_ = ::fork();
  if (child->pid_ < 0) return fail_errno("fork", errno);
  if (child->pid_ == 0) exec_child(plan);
  children_.push_back(std::move(child));
  return children_.back().get();
}

Result<> ChildProcesses::check_alive() const {
  for (const auto& child : children_)
    if (!child->running_ && !child->may_end_) return fail(failure_of(*child));
  return {};
}

Error ChildProcesses::explained(Error error) {
  if (error.code() == ErrorCode::kCancelled) return error;
  const auto passed = pass_time(kEndIsTold);
  return passed || passed.error().code() == ErrorCode::kCancelled ? error : passed.error();
}

Error ChildProcesses::failure_of(const Child& child) const {
  return Error(ErrorCode::kInternal,
               fmt::format("{} (pid {}) {}; the end of its log:{}", child.name(), child.pid(),
                           child.ending(), tail_of(log_path(child.name()))));
}

Result<> ChildProcesses::until(const std::string& what, std::chrono::milliseconds deadline,
                               const std::function<bool()>& holds) {
  return run_until(what, deadline, holds, false);
}

Result<> ChildProcesses::run_until(const std::string& what, std::chrono::milliseconds deadline,
                                   const std::function<bool()>& holds, bool ending) {
  bool late = false;
  Timer timer(*loop_, [&] {
    late = true;
    loop_->stop();
  });
  timer.start(deadline);
  while (true) {
    if (!ending && interrupted())
      return fail(ErrorCode::kCancelled, "interrupted; every process was stopped");
    if (!ending) WSYNC_TRY(check_alive());
    if (holds()) return {};
    if (late)
      return fail(ErrorCode::kDeadline,
                  fmt::format("timed out while waiting for {} ({} ms)", what, deadline.count()));
    loop_->run();
  }
}

Result<> ChildProcesses::in_thread(
    const std::string& what, std::chrono::milliseconds deadline,
    std::function<Result<>(const std::atomic<bool>& cancelled)> work) {
  Result<> outcome;
  std::atomic<bool> cancelled = false;
  const auto done = std::make_shared<bool>(false);
  std::jthread thread([&] {
    outcome = work(cancelled);
    // If the work ends after both deadlines, this task runs only after the function has returned.
    loop_->post([finished = std::weak_ptr(done), loop = loop_.get()] {
      const auto flag = finished.lock();
      if (!flag) return;
      *flag = true;
      loop->stop();
    });
  });
  const Result<> waited = until(what, deadline, [&done] { return *done; });
  if (!waited) {
    cancelled = true;
    (void)run_until(what, deadline, [&done] { return *done; }, true);
  }
  thread.join();
  WSYNC_TRY(waited);
  return outcome;
}

Result<> ChildProcesses::pass_time(std::chrono::milliseconds time) {
  const Result<> passed = until("time", time, [] { return false; });
  if (!passed && passed.error().code() != ErrorCode::kDeadline) return passed;
  return {};
}

void ChildProcesses::stop(Child& child, std::chrono::milliseconds wait_limit) {
  child.may_end();
  const auto ended = [&child] { return !child.running(); };
  child.input_.reset();  // a child that reads commands also ends when they end
  child.send(SIGTERM);
  // A stopped process handles SIGTERM only after it continues.
  child.send(SIGCONT);
  if (run_until("its end", wait_limit, ended, true)) return;
  child.send(SIGKILL);
  (void)run_until("its end", wait_limit, ended, true);
}

Result<> ChildProcesses::run(const ChildOptions& options, std::chrono::milliseconds deadline) {
  const auto child = WSYNC_TRY(start(options));
  child->may_end();
  WSYNC_TRY(until("the end of " + options.name, deadline, [&] { return !child->running(); }));
  if (child->succeeded()) return {};
  return fail(failure_of(*child));
}

std::string ChildProcesses::log_path(const std::string& name) const {
  return log_directory_ + "/" + name + ".log";
}
std::string ChildProcesses::output_path(const std::string& name) const {
  return log_directory_ + "/" + name + ".out";
}

}  // namespace wsync::cli
