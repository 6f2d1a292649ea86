// The fleet of `wsync bench delta`: the C publisher of `wsync bench whole`, and a sidecar
// with the default settings of patches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bench/harness/child.h"
#include "bench/peers/model_source.h"
#include "bench/publishers/publishing_fleet.h"
#include "shared/base/error.h"

namespace wsync::bench {

struct DeltaFleetOptions {
  std::string executable;  // wsync
  std::string directory;   // the fleet's own is made in it
  std::string checkpoint;  // names and shapes for the engines
  unsigned engines = 1;
  std::string transport = "memfd";  // by which the sidecar receives versions
  // Publishes in which all weights change, before start_delta_fleet() returns. By default, until
  // every arena has been used.
  unsigned full_updates = 3;
};

[[nodiscard]] constexpr double in_ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }

// Starts it, and publishes. Errors as PublishingFleet::start().
[[nodiscard]] Result<std::unique_ptr<PublishingFleet>> start_delta_fleet(
    const DeltaFleetOptions& options, const ModelSource& source, cli::ChildProcesses& children);

}  // namespace wsync::bench
