// `wsync bench control`: what the control plane costs, beside bare sockets. What each figure means:
// bench/README.md.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/paired.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr unsigned kControlMessagesMax = 1'000'000;
inline constexpr unsigned kOneWayTimes = 10;  // messages one way by round trips

struct ControlBenchOptions {
  std::string directory;     // for sockets; of mode 0700, the owner removes it
  unsigned messages = 2000;  // round trips of one measurement
  std::vector<unsigned> replicas = {1, 10, 100, 1000};  // of rounds, each in a sidecar of its own
  unsigned rounds = 15;
};

// All take turns (measure_in_turns()), after one round that is not counted. kInvalidInput for
// numbers out of range; errors of the links; kCancelled on a signal.
[[nodiscard]] Result<SuiteResult> run_control_bench(const ControlBenchOptions& options,
                                                    const Interrupt& interrupt,
                                                    const OnTurn& on_turn);

}  // namespace wsync::bench
