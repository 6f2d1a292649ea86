// StopSignals: Ctrl-C and SIGTERM of a command that works without a loop. The first one is
// remembered, so that the command can end in order; the second one ends the process at once.
#pragma once

#include <array>
#include <csignal>

namespace wsync::cli {

// At most one exists in a process. Destruction restores the former handlers.
// Thread: the one that created it, except stopped().
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  // Whether a signal has arrived. Thread: any.
  [[nodiscard]] static bool stopped() noexcept;

 private:
  static constexpr std::array<int, 2> kNumbers = {SIGINT, SIGTERM};
  std::array<struct sigaction, kNumbers.size()> former_{};
};

}  // namespace wsync::cli
