#include "shared/loop/signals.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include "shared/base/unique_fd.h"
#include "shared/loop/fd_watcher.h"

namespace wsync {
namespace {

constexpr int kExitInterrupted = 130;
// The handler may touch only these two. -1 means that no Signals exists.
std::atomic<int> g_wake_fd{-1};
std::atomic<int> g_received{0};
static_assert(std::atomic<int>::is_always_lock_free,
              "signal handlers may only use lock-free atomics");

void handle(int signal) {
  if (g_received.fetch_add(1) != 0) ::_exit(kExitInterrupted);
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(g_wake_fd.load(), &byte, 1);
  errno = saved;
}

}  // namespace

struct Signals::State {
  UniqueFd read_end;
  UniqueFd write_end;
  std::function<void(int)> on_stop;
  std::array<struct sigaction, 3> former{};
  std::unique_ptr<FdWatcher> watcher;  // destroyed before read_end is closed
  static constexpr std::array<int, 3> kNumbers = {SIGINT, SIGTERM, SIGPIPE};
};

Result<std::unique_ptr<Signals>> Signals::create(Loop& loop, std::function<void(int)> on_stop) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) return fail_errno("pipe", errno);
  auto state = std::make_unique<State>();
  state->read_end.reset(pipe[0]);
  state->write_end.reset(pipe[1]);
  state->on_stop = std::move(on_stop);
  auto watcher = WSYNC_TRY(FdWatcher::create(loop, pipe[0], [s = state.get()](FdEvents) {
    unsigned char signal = 0;
    if (::read(s->read_end.get(), &signal, 1) != 1) return;
    const auto call = s->on_stop;  // a copy: the call may destroy the Signals
    call(signal);
  }));
  state->watcher = std::move(watcher);
  int none = -1;
  if (!g_wake_fd.compare_exchange_strong(none, pipe[1]))
    return fail(ErrorCode::kBusy, "the process already has a signal handler of wsync");
  state->watcher->watch({.readable = true});
  g_received = 0;
  for (std::size_t i = 0; i < State::kNumbers.size(); ++i) {
    struct sigaction action{};
    action.sa_handler = State::kNumbers[i] == SIGPIPE ? SIG_IGN : handle;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(State::kNumbers[i], &action, &state->former[i]);
  }
  return std::unique_ptr<Signals>(new Signals(std::move(state)));
}

Signals::Signals(std::unique_ptr<State> state) : state_(std::move(state)) {}

Signals::~Signals() {
  for (std::size_t i = 0; i < State::kNumbers.size(); ++i)
    ::sigaction(State::kNumbers[i], &state_->former[i], nullptr);
  g_wake_fd = -1;
}

}  // namespace wsync
