// Staging: the trainer sends each byte once, and hosts forward it in units.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/scale/cluster.h"
#include "shared/transport/limits.h"

namespace wsync::bench {

struct StagingOptions {
  // What a host has received before it forwards the first byte: a run of leaves on each of its
  // connections, which share the link.
  std::uint64_t unit_bytes = limits::kStreamCountDefault * limits::kStreamLeavesBytes;
  // Number of hosts to which each host forwards: 1 is a chain, 2 a binary tree.
  std::uint32_t fan_out = 1;
  double hop_s = 50e-6;  // from the last byte of a unit to the first forwarded byte
};

struct StagingPrediction {
  double seconds = 0;
  std::uint32_t levels = 0;  // number of hosts on the longest path from the trainer
  std::string bottleneck;    // limit of the speed: network, trainer's network or host memory
};

// The hosts with the same share of the model form one chain (or tree). There are as many chains as
// hosts in a replica. The trainer, a host with the same NICs, sends to all of them. A host forwards
// a unit when it has received all of it. Host memory is written once and read twice (for the
// digest and for forwarding).
//
// The recurrence: a unit arrives at a level one transfer after it arrived at the previous level,
// or one transfer after the previous unit, whichever is later. It is solved for all units but the
// last one, so the cost is that of the levels. Errors as check_cluster().
// kInvalidInput for a unit of 0 bytes or a fan-out of 0.
[[nodiscard]] Result<StagingPrediction> simulate_staging(std::uint64_t model_bytes,
                                                         const Cluster& cluster,
                                                         const StagingOptions& options);

// The minimum time that the links allow for any algorithm: bytes divided by the bandwidth of the
// tightest link.
struct Floor {
  double seconds = 0;
  std::string link;
};
// The model is spread evenly over the memory of all hosts and must reach every replica's GPUs, as
// in checkpoint-engine.
[[nodiscard]] Result<Floor> update_floor(std::uint64_t model_bytes, const Cluster& cluster);
// Each host already has its share of the model in memory. This is the time for which an engine
// pauses.
[[nodiscard]] Result<Floor> switch_floor(std::uint64_t model_bytes, const Cluster& cluster);
// The model comes from one trainer host and must reach the memory of all other hosts.
[[nodiscard]] Result<Floor> staging_floor(std::uint64_t model_bytes, const Cluster& cluster);

}  // namespace wsync::bench
