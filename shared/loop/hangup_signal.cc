#include "shared/loop/hangup_signal.h"

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

// The handler may touch only this. -1 means that no HangupSignal exists.
std::atomic<int> g_hangup_fd{-1};

void handle_hangup(int /*signal*/) {
  const int saved = errno;
  // A full pipe loses nothing: its reader has a call before it.
  [[maybe_unused]] const ssize_t written = ::write(g_hangup_fd.load(), "", 1);
  errno = saved;
}

}  // namespace

struct HangupSignal::State {
  UniqueFd read_end;
  UniqueFd write_end;
  std::function<void()> on_hangup;
  std::unique_ptr<FdWatcher> watcher;  // destroyed before read_end is closed
};

Result<std::unique_ptr<HangupSignal>> HangupSignal::create(Loop& loop,
                                                           std::function<void()> on_hangup) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) return fail_errno("pipe", errno);
  auto state = std::make_unique<State>();
  state->read_end.reset(pipe[0]);
  state->write_end.reset(pipe[1]);
  state->on_hangup = std::move(on_hangup);
  state->watcher = WSYNC_TRY(FdWatcher::create(loop, pipe[0], [s = state.get()](FdEvents) {
    std::array<char, 64> bytes;
    while (::read(s->read_end.get(), bytes.data(), bytes.size()) > 0) {
    }
    const auto call = s->on_hangup;  // a copy: the call may destroy the HangupSignal
    call();
  }));
  struct sigaction former{};
  ::sigaction(SIGHUP, nullptr, &former);
  int none = -1;
  if (!g_hangup_fd.compare_exchange_strong(none, pipe[1]))
    return fail(ErrorCode::kBusy, "the process already has a handler of SIGHUP of wsync");
  if ((former.sa_flags & SA_SIGINFO) != 0 || former.sa_handler != SIG_DFL) {
    g_hangup_fd = -1;
    return fail(ErrorCode::kRefused, "the application handles or ignores SIGHUP itself");
  }
  state->watcher->watch({.readable = true});
  struct sigaction action{};
  action.sa_handler = handle_hangup;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGHUP, &action, nullptr);
  return std::unique_ptr<HangupSignal>(new HangupSignal(std::move(state)));
}

HangupSignal::HangupSignal(std::unique_ptr<State> state) : state_(std::move(state)) {}

HangupSignal::~HangupSignal() {
  struct sigaction by_default{};
  by_default.sa_handler = SIG_DFL;
  sigemptyset(&by_default.sa_mask);
  ::sigaction(SIGHUP, &by_default, nullptr);
  g_hangup_fd = -1;
}

}  // namespace wsync
