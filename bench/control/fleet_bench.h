// `wsync bench control --sidecars N`: a coordinator process with N sidecars over real connections.
//
// The coordinator is a `wsync trainer` of its own; the sidecars are simulated by this process
// (fleet_peers.h) and answer at once. They connect by ipc, and with keys by TCP on loopback. For
// each N: one push that is not measured, then --repeats
// pushes of a small checkpoint, then a time without a push. Processor time is that of the
// coordinator's process only.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/child.h"
#include "bench/harness/paired.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

struct FleetBenchOptions {
  std::string executable;             // of wsync
  std::string directory;              // for sockets and logs; mode 0700, the owner removes it
  std::vector<unsigned> sidecars;     // of each fleet, one after the other
  std::string checkpoint;             // that is pushed; empty: one of 2 MiB is made
  unsigned replicas = 8;              // of each sidecar
  unsigned rounds = 5;                // measured pushes of each fleet
  bool with_keys = false;             // measure each fleet a second time, with keys and by TCP
  std::chrono::milliseconds idle{0};  // measured time without a push
};

// kInvalidInput if a number is out of range. kInternal if a push did not reach every replica.
// kCancelled on a signal.
[[nodiscard]] Result<SuiteResult> run_fleet_bench(const FleetBenchOptions& options,
                                                  const Interrupt& interrupt,
                                                  const OnTurn& on_turn);

}  // namespace wsync::bench
