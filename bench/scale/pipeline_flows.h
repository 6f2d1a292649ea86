// wsync's weight pipeline under a virtual clock, with operations that share links. The state
// machine is the one that drives real devices (inference_side/reload).
#pragma once

#include <cstdint>
#include <functional>

#include "bench/scale/cluster.h"
#include "bench/scale/prediction.h"
#include "inference_side/reload/weight_pipeline.h"

namespace wsync::bench {

// The load of each operation on the links. A device copies one bucket at a time, and so does an
// engine. Broadcasts run one after the other.
struct PipelineFlows {
  std::function<Flow(std::uint32_t device, std::uint64_t bucket)> h2d;
  std::function<Flow(std::uint64_t bucket)> broadcast;  // to all devices
  std::function<Flow(std::uint32_t engine, std::uint64_t bucket)> reload;
};

struct PipelinePrediction {
  Prediction prediction;
  Stages stages = Stages::kTwo;  // the form that was selected
};

// `links` has the links that the flows name, and nothing uses it yet. Errors as
// WeightPipeline::create().
[[nodiscard]] Result<PipelinePrediction> simulate_pipeline(const reload::PipelineShape& shape,
                                                           Stages stages,
                                                           const PipelineFlows& flows,
                                                           SharedLinks links);

struct SwitchOptions {
  std::uint64_t buffer_bytes = 512ULL << 20U;
  Stages stages = Stages::kAuto;
};

// The switch of one host. All hosts do the same at the same time. The host has its share of the
// model in its own memory. Each GPU copies its buckets in, broadcasts them to the other GPUs and
// computes a digest of what it received. The engine copies its part out with one kernel launch per
// bucket. Engine and sidecar take turns on the GPU. Errors as check_cluster(). kInvalidInput for a
// buffer of 0 bytes.
[[nodiscard]] Result<PipelinePrediction> simulate_switch(std::uint64_t model_bytes,
                                                         const Cluster& cluster,
                                                         const SwitchOptions& options);

// Assumed and not fitted: the time to notify an engine of a bucket and receive its answer (a Unix
// socket in each direction), and to launch one kernel.
inline constexpr double kBucketAnswerSeconds = 60e-6;

}  // namespace wsync::bench
