// Staging: the trainer streams each bucket once, and hosts pass it on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/scale/cluster.h"

namespace wsync::bench {

struct StagingOptions {
  std::uint64_t bucket_bytes = 512ULL << 20U;
  // Hosts that each host passes a bucket on to: 1 is a chain, 2 a binary tree.
  std::uint32_t fan_out = 1;
  double hop_s = 50e-6;  // from the last byte of a bucket to the first one passed on
};

struct StagingPrediction {
  double seconds = 0;
  std::uint32_t levels = 0;  // hosts on the longest way from the trainer
  std::string bottleneck;    // what sets the speed: network, trainer's network or host memory
};

// Hosts that hold the same share of the model make one chain (or tree); there are as many as hosts
// in a replica, side by side, and the trainer, a host with the same NICs, feeds them all. A host
// passes a bucket on when it has all of it. Host memory is written once and read twice (digest,
// passing on). The recurrence: a bucket comes to a level one transfer after it came to the level
// before, or after the bucket before it, whichever is later. Errors as check_cluster();
// kInvalidInput for a bucket of 0 bytes or a fan-out of 0.
[[nodiscard]] Result<StagingPrediction> simulate_staging(std::uint64_t model_bytes,
                                                         const Cluster& cluster,
                                                         const StagingOptions& options);

// The least time that the links allow, whatever the algorithm: bytes by bandwidth of the tightest.
struct Floor {
  double seconds = 0;
  std::string link;
};
// The model is spread evenly over the memory of all hosts and must be in every replica's GPUs:
// what checkpoint-engine does.
[[nodiscard]] Result<Floor> update_floor(std::uint64_t model_bytes, const Cluster& cluster);
// Each host has its share of the model in memory already: what an engine stands still for.
[[nodiscard]] Result<Floor> switch_floor(std::uint64_t model_bytes, const Cluster& cluster);
// The model comes from one trainer host and must be in the memory of all others.
[[nodiscard]] Result<Floor> staging_floor(std::uint64_t model_bytes, const Cluster& cluster);

}  // namespace wsync::bench
