// Measures how long engines on GPUs pause for an update, with a real trainer, sidecar and engines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/copies.h"
#include "bench/harness/spread.h"
#include "bench/sync/measured_fleet.h"
#include "shared/base/error.h"

namespace wsync::bench {

struct PauseCase {
  std::vector<std::uint32_t> gpus;  // GPU of each engine
  std::uint64_t bytes = 0;          // bytes of the model
  std::vector<Pushed> rounds;
  Spread paused_ns, load_ns;
};

struct PauseCaseOptions {
  std::string executable;  // wsync
  std::string directory;   // for sockets, states and logs
  std::vector<std::uint32_t> gpus;
  std::vector<std::string> checkpoints;  // two, published in turn
  unsigned updates = 5;
};

// The first update with each checkpoint warms up everything and is not counted. At the end `wsync
// verify` reads back the engines' weights. kDigestMismatch unless every byte was loaded and is
// right.
[[nodiscard]] Result<PauseCase> run_pause_case(const PauseCaseOptions& options,
                                               const OnGpuProgress& on_progress);

}  // namespace wsync::bench
