#include "bench/schedule/processes.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync::bench {
namespace {

// First byte of a message that contains a line.
constexpr char kLine = 'L';
constexpr char kFailure = 'E';  // followed by the code's number, a space and the sentence

Result<> write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail_errno("write to the launcher", errno);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Error failure_of(std::string_view text) {
  unsigned code = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code);
  if (error != std::errc() || code > static_cast<unsigned>(ErrorCode::kInternal))
    return {ErrorCode::kInternal, std::string(text)};
  const auto begin = static_cast<std::size_t>(end - text.data());
  return {static_cast<ErrorCode>(code), std::string(text.substr(std::min(begin + 1, text.size())))};
}

[[noreturn]] void become_rank(std::uint32_t rank, int out, pid_t parent,
                              const ProcessHooks& hooks) noexcept {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  // Own process group, so that Ctrl-C reaches the launcher only.
  ::setpgid(0, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const Result<> done = hooks.body(rank, LineWriter(out));
  if (!done)
    (void)write_all(out,
                    fmt::format("{}{} {}\n", kFailure, static_cast<unsigned>(done.error().code()),
                                done.error().message()));
  ::_exit(done ? 0 : 1);
}

class Processes {
 public:
  explicit Processes(const ProcessHooks& hooks) : hooks_(hooks) {}
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  ~Processes() {
    for (const Process& one : all_)
      if (one.pid > 0) ::kill(one.pid, SIGKILL);
    for (Process& one : all_) (void)reap(one);
  }

  Result<> start(std::uint32_t count) {
    const pid_t parent = ::getpid();
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      std::array<int, 2> ends{};
      if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_errno("pipe", errno);
      UniqueFd in(ends[0]);
      const UniqueFd out(ends[1]);
      const pid_t pid = ::fork();
      if (pid < 0) return fail_errno("fork", errno);
      if (pid == 0) become_rank(rank, out.get(), parent, hooks_);
      all_.push_back({.pid = pid, .in = std::move(in), .buffer = {}});
    }
    return {};
  }

  Result<> run(const Interrupt& interrupt) {
    for (;;) {
      std::vector<pollfd> waits{{.fd = interrupt.fd(), .events = POLLIN, .revents = 0}};
      bool pending = false;
      for (const Process& one : all_) {
        // poll() ignores -1
        waits.push_back({.fd = one.in.get(), .events = POLLIN, .revents = 0});
        pending |= one.in.valid();
      }
      if (!pending) break;
      if (::poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR)
        return fail_errno("poll", errno);
      if (waits[0].revents != 0) return fail(ErrorCode::kCancelled, "interrupted");
      for (std::uint32_t rank = 0; rank < all_.size(); ++rank)
        if (waits[rank + 1].revents != 0) read_from(rank);
    }
    return failure_ ? Result<>(fail(*failure_)) : Result<>();
  }

 private:
  struct Process {
    pid_t pid = -1;
    UniqueFd in;
    std::string buffer;
  };

  void read_from(std::uint32_t rank) {
    Process& one = all_[rank];
    std::array<char, 1U << 16U> bytes{};
    const ssize_t count = ::read(one.in.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) return;
    if (count <= 0) return ended(rank);
    one.buffer.append(bytes.data(), static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = one.buffer.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      const std::string_view line = std::string_view(one.buffer).substr(begin, end - begin);
      if (line.starts_with(kLine)) hooks_.on_line(rank, std::string(line.substr(1)));
      if (line.starts_with(kFailure)) failed(failure_of(line.substr(1)));
    }
    one.buffer.erase(0, begin);
  }

  void ended(std::uint32_t rank) {
    Process& one = all_[rank];
    one.in.reset();
    const int status = reap(one);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    // A process that exits with 1 has already reported its error.
    failed({ErrorCode::kPeerLost,
            WIFSIGNALED(status)
                ? fmt::format("rank {} was killed by signal {}", rank, WTERMSIG(status))
                : fmt::format("rank {} ended with exit code {}", rank, WEXITSTATUS(status))});
  }

  void failed(Error error) {
    if (failure_) return;
    failure_ = std::move(error);
    hooks_.on_failure(*failure_);
  }

  static int reap(Process& one) {
    const pid_t pid = std::exchange(one.pid, -1);
    int status = 0;
    while (pid > 0 && ::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }

  const ProcessHooks& hooks_;
  std::vector<Process> all_;
  std::optional<Error> failure_;
};

}  // namespace

Result<> LineWriter::write(std::string line) const {
  return write_all(fd_, kLine + std::move(line) + '\n');
}

Result<> run_processes(std::uint32_t count, const ProcessHooks& hooks, const Interrupt& interrupt) {
  Processes processes(hooks);
  WSYNC_TRY(processes.start(count));
  return processes.run(interrupt);
}

}  // namespace wsync::bench
