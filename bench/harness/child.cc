#include "bench/harness/child.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/format.h"

namespace wsync::bench {
namespace {

sigset_t stop_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  ::sigaddset(&set, SIGTERM);
  return set;
}

struct Pair {
  UniqueFd ours;
  UniqueFd childs;
};

sigset_t blocked_signals() {
  sigset_t set = stop_signals();
  ::sigaddset(&set, SIGCHLD);
  return set;
}

// Sockets instead of pipes, because send() with MSG_NOSIGNAL raises no SIGPIPE if the reader is
// gone.
Result<Pair> make_pair() {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0)
    return fail_errno("socketpair", errno);
  return Pair{.ours = UniqueFd(fds[0]), .childs = UniqueFd(fds[1])};
}

// Runs between fork and exec: only async-signal-safe calls are allowed.
[[noreturn]] void become(const char* log_file, char* const* argv, char* const* environment, int in,
                         int out, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::setpgid(0, 0);
  const sigset_t set = blocked_signals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  const int log = ::open(log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0 || ::dup2(in, STDIN_FILENO) < 0 || ::dup2(out, STDOUT_FILENO) < 0 ||
      ::dup2(log, STDERR_FILENO) < 0)
    ::_exit(127);
  ::execve(argv[0], argv, environment);
  ::_exit(127);
}

// The environment of this process, except for the names in `given`, which get their new values.
std::vector<std::string> environment_with(const decltype(ChildOptions::environment)& given) {
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry(*at);
    const std::string_view name = entry.substr(0, entry.find('='));
    if (std::ranges::none_of(given, [name](const auto& other) { return other.first == name; }))
      all.emplace_back(entry);
  }
  for (const auto& [name, value] : given) all.push_back(name + "=" + value);
  return all;
}

// An argument for exec: pointers into `words`, with a null at the end.
std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<Interrupt> Interrupt::create() {
  const sigset_t set = stop_signals();
  const sigset_t blocked = blocked_signals();
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr); error != 0)
    return fail_errno("block SIGINT and SIGTERM", error);
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return fail_errno("signalfd", errno);
  return Interrupt(std::move(fd));
}

Interrupt::~Interrupt() {
  if (!fd_.valid()) return;
  // Consumes pending signals. Otherwise unblocking them would end the process without its report.
  signalfd_siginfo info{};
  while (::read(fd_.get(), &info, sizeof info) > 0) {
  }
  const sigset_t set = blocked_signals();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

Result<> resume(const Interrupt& interrupt) {
  pollfd fd{.fd = interrupt.fd(), .events = POLLIN, .revents = 0};
  if (::poll(&fd, 1, 0) > 0) return fail(ErrorCode::kCancelled, "interrupted");
  return {};
}

Result<Child> Child::start(ChildOptions options) {
  auto in = WSYNC_TRY(make_pair());
  auto out = WSYNC_TRY(make_pair());
  // Allocated before the fork, because another thread may hold the allocator's lock during the
  // fork.
  const std::vector<char*> argv = pointers_to(options.command);
  std::vector<std::string> variables = environment_with(options.environment);
  const std::vector<char*> environment = pointers_to(variables);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("fork", errno);
  if (pid == 0)
    become(options.log_file.c_str(), argv.data(), environment.data(), in.childs.get(),
           out.childs.get(), parent);
  Child child;
  child.pid_ = pid;
  child.input_ = std::move(in.ours);
  child.output_ = std::move(out.ours);
  child.options_ = std::move(options);
  return child;
}

Child::Child(Child&& other) noexcept
    : options_(std::move(other.options_)),
      pid_(std::exchange(other.pid_, -1)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      buffer_(std::move(other.buffer_)) {}

Child::~Child() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  (void)reap();
}

Child::End Child::reap() {
  int status = 0;
  rusage used{};
  while (::wait4(pid_, &status, 0, &used) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  const auto time = [](const timeval& value) {
    return std::chrono::seconds(value.tv_sec) + std::chrono::microseconds(value.tv_usec);
  };
  return {.output = {},
          .exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .cpu = time(used.ru_utime) + time(used.ru_stime)};
}

std::string Child::last_words() const {
  std::ifstream log(options_.log_file);
  std::string last;
  for (std::string line; std::getline(log, line);)
    if (!line.empty()) last = line;
  const std::string name = std::filesystem::path(options_.log_file).stem().string();
  return last.empty() ? name + " ended"
                      : fmt::format("{} ended; its last output was: {}", name, last);
}

Result<> Child::say(const std::string& line) {
  const std::string text = line + "\n";
  // The line is short and the buffer is empty, so it is sent in one call. EPIPE is ignored, because
  // the end of the output shows that the child has ended.
  if (::send(input_.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0 && errno != EPIPE)
    return fail_errno("write to a child", errno);
  return {};
}

// Returns true if there is more, false at the end of the output.
Result<bool> Child::read_more(const Interrupt& interrupt, TimePoint deadline) {
  for (;;) {
    std::array<pollfd, 2> fds{pollfd{.fd = output_.get(), .events = POLLIN, .revents = 0},
                              pollfd{.fd = interrupt.fd(), .events = POLLIN, .revents = 0}};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now()).count();
    if (left <= 0) {
      const std::string name = std::filesystem::path(options_.log_file).stem().string();
      return fail(ErrorCode::kDeadline, name + " did not answer before the deadline");
    }
    const int count = ::poll(fds.data(), fds.size(), static_cast<int>(left));
    if (count < 0 && errno != EINTR) return fail_errno("poll", errno);
    if (count <= 0) continue;
    if (fds[1].revents != 0) return fail(ErrorCode::kCancelled, "interrupted");
    std::array<char, 65536> chunk;
    const ssize_t got = ::read(output_.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("read from a child", errno);
    buffer_.append(chunk.data(), static_cast<std::size_t>(got));
    return got > 0;
  }
}

Result<std::string> Child::line(const Interrupt& interrupt, TimePoint deadline) {
  for (;;) {
    const std::size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      std::string found = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return found;
    }
    const auto more = WSYNC_TRY(read_more(interrupt, deadline));
    if (!more) return fail(ErrorCode::kPeerLost, last_words());
  }
}

Result<Child::End> Child::wait(const Interrupt& interrupt, TimePoint deadline) {
  for (;;) {
    const auto more = WSYNC_TRY(read_more(interrupt, deadline));
    if (!more) break;
  }
  End end = reap();
  end.output = std::move(buffer_);
  return end;
}

void Child::stop(std::chrono::milliseconds wait_limit) {
  if (pid_ < 0) return;
  input_.reset();
  ::kill(pid_, SIGTERM);
  const TimePoint deadline = now() + wait_limit;
  // The output ends when the child ends. Its remaining lines are discarded.
  for (;;) {
    pollfd fd{.fd = output_.get(), .events = POLLIN, .revents = 0};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - now()).count();
    if (left <= 0) break;
    if (::poll(&fd, 1, static_cast<int>(left)) <= 0) continue;
    std::array<char, 4096> chunk;
    if (::read(output_.get(), chunk.data(), chunk.size()) <= 0) break;
  }
  if (now() >= deadline) ::kill(pid_, SIGKILL);
  (void)reap();
}

}  // namespace wsync::bench
