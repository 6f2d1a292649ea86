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
  double changed = 1;               // share of the elements that another version has changed
  bool by_patch = false;            // only these are written
  std::uint64_t written_bytes = 0;  // bytes written into one engine, in the last round
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

// The shares of elements that run_patched_pauses() changes.
inline constexpr double kChangedShares[] = {0.001, 0.01};

// Updates of one fleet on the first of the GPUs, which switches by patches where it can. In each
// round the elements of one checkpoint are changed at random, with each share in turn, and then all
// bytes. Returns the case in which all bytes were loaded, then one for each share: by_patch is
// false for a share of which the sidecar makes no patch. Errors as run_pause_case().
[[nodiscard]] Result<std::vector<PauseCase>> run_patched_pauses(const PauseCaseOptions& options,
                                                                const OnGpuProgress& on_progress);

}  // namespace wsync::bench
