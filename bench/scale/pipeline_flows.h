// wsync's weight pipeline (inference_side/reload, the state machine that drives real devices) under
// a virtual clock whose operations share links.
#pragma once

#include <cstdint>
#include <functional>

#include "bench/scale/cluster.h"
#include "bench/scale/prediction.h"
#include "inference_side/reload/weight_pipeline.h"

namespace wsync::bench {

// What each operation asks of the links. A device copies one bucket at a time, and so does an
// engine; broadcasts run one after the other.
struct PipelineFlows {
  std::function<Flow(std::uint32_t device, std::uint64_t bucket)> h2d;
  std::function<Flow(std::uint64_t bucket)> broadcast;  // to all devices
  std::function<Flow(std::uint32_t engine, std::uint64_t bucket)> reload;
};

struct PipelinePrediction {
  Prediction prediction;
  Stages stages = Stages::kTwo;  // the form that was kept
};

// `links` has the links that the flows name, and nothing runs on it. Errors as
// WeightPipeline::create().
[[nodiscard]] Result<PipelinePrediction> simulate_pipeline(const reload::PipelineShape& shape,
                                                           Stages stages,
                                                           const PipelineFlows& flows,
                                                           SharedLinks links);

struct SwitchOptions {
  std::uint64_t buffer_bytes = 512ULL << 20U;
  Stages stages = Stages::kAuto;
};

// The switch of one host (all do the same at the same time): its share of the model is in its own
// memory; each GPU copies its buckets in, broadcasts them to the others, takes a digest of what
// came, and the engine copies its part out with one launch for a bucket. Engine and sidecar take
// turns on the GPU. Errors as check_cluster(); kInvalidInput for a buffer of 0 bytes.
[[nodiscard]] Result<PipelinePrediction> simulate_switch(std::uint64_t model_bytes,
                                                         const Cluster& cluster,
                                                         const SwitchOptions& options);

// Assumed, not fitted: an engine is told of a bucket and answers (a Unix socket each way), and
// launches one kernel.
inline constexpr double kBucketAnswerSeconds = 60e-6;

}  // namespace wsync::bench
