// `wsync bench scale` shows how long updates take on clusters that are not available for
// measurements. Everything is simulated. The model and its error: deploy/guides/benchmark.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/scale/checkpoint_engine.h"
#include "bench/scale/cluster.h"
#include "bench/scale/pipeline_flows.h"
#include "bench/scale/staging_model.h"
#include "shared/base/error.h"
#include "shared/weights/example/model_shape.h"

namespace wsync::bench {

// One line of checkpoint-engine's README ("Benchmark"; broadcast updates).
struct PublishedRow {
  std::string_view model;
  std::string_view host;
  std::uint32_t gpus = 8;
  std::uint32_t gpus_per_replica = 8;
  double bucket_gib = 0;
  double seconds = 0;
};
[[nodiscard]] std::span<const PublishedRow> published_rows() noexcept;
// The row on which the constant is fitted: DeepSeek-V3.1 on 16 H20. No other row is used for the
// fit.
[[nodiscard]] const PublishedRow& fitted_row() noexcept;

// Returns the seconds per tensor in checkpoint-engine's reload for which the simulation matches the
// fitted row.
[[nodiscard]] Result<double> fit_tensor_seconds(bool gpu_takes_turns);
// Predicts the row's update by checkpoint-engine.
[[nodiscard]] Result<Prediction> predict_row(const PublishedRow& row, double tensor_s,
                                             bool gpu_takes_turns);

// An update by wsync on a cluster: staging while engines serve, then the switch.
struct OurPrediction {
  StagingPrediction chain;
  StagingPrediction tree;  // with a fan-out of 2
  PipelinePrediction chosen, two, three;
  Floor switch_floor, staging_floor;
};

struct RowResult {
  PublishedRow row;
  Prediction peer;
  double side_by_side_s = 0;  // without turns on the GPU, and with the constant fitted for that
  Floor floor;                // floor of checkpoint-engine's update
  OurPrediction ours;
  [[nodiscard]] double error() const noexcept { return peer.seconds / row.seconds - 1; }
  [[nodiscard]] double side_by_side_error() const noexcept {
    return side_by_side_s / row.seconds - 1;
  }
};

struct ScalePoint {
  std::uint32_t gpus = 0;
  std::uint32_t gpus_per_replica = 0;
  Prediction peer;
  Floor floor;
  OurPrediction ours;
};
struct BufferPoint {
  std::uint64_t bytes = 0;
  PipelinePrediction pipeline;
};
struct ScaleCurve {
  std::string model;
  ShapeTotals totals;
  std::vector<ScalePoint> points;
  std::vector<BufferPoint> buffers;  // on the largest cluster of the curve
};

// How a version of ScaleOptions::staging_bytes reaches the hosts of a cluster.
struct StagingPoint {
  std::uint32_t gpus = 0;
  std::uint32_t hosts = 0;
  StagingPrediction chain;
  StagingPrediction tree;  // with a fan-out of 2
  Floor floor;
};

struct ScaleOptions {
  std::uint64_t staging_bytes = 0;  // not 0: only the staging of so many bytes, and no model
  std::vector<ModelShape> models;
  std::vector<std::uint32_t> gpus;
  HostType host;
  double oversubscription = 1;
  std::uint32_t gpus_per_replica = 0;  // 0: as gpus_for_model()
  std::uint64_t buffer_bytes = 512ULL << 20U;
  std::uint64_t peer_buffer_bytes = 8ULL << 30U;
  Stages stages = Stages::kAuto;
};

struct ScaleResult {
  ScaleOptions options;
  double tensor_s = 0;
  double side_by_side_tensor_s = 0;
  std::vector<RowResult> rows;
  std::vector<ScaleCurve> curves;
  std::vector<StagingPoint> staging;
  std::vector<std::string> notes;  // omissions and their reasons
};

// Computes for a few seconds at most. kInvalidInput as the simulations, and if the model fits in
// none of the clusters.
[[nodiscard]] Result<ScaleResult> run_scale_bench(const ScaleOptions& options);

}  // namespace wsync::bench
