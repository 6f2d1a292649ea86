#include "deploy/cli/stop_signals.h"

#include <atomic>
#include <unistd.h>

#include "shared/command/exit_code.h"

namespace wsync::cli {
namespace {

std::atomic<int> g_stop_signals{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void remember_stop(int /*signal*/) {
  if (g_stop_signals.fetch_add(1) != 0) ::_exit(kExitInterrupted);
}

}  // namespace

StopSignals::StopSignals() {
  g_stop_signals = 0;
  for (std::size_t i = 0; i < kNumbers.size(); ++i) {
    struct sigaction action{};
    action.sa_handler = remember_stop;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(kNumbers[i], &action, &former_[i]);
  }
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kNumbers.size(); ++i) ::sigaction(kNumbers[i], &former_[i], nullptr);
}

bool StopSignals::stopped() noexcept { return g_stop_signals.load() != 0; }

}  // namespace wsync::cli
