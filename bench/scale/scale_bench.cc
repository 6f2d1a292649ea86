#include "bench/scale/scale_bench.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

constexpr double kGiB = 1073741824.0;

// From README.md of MoonshotAI/checkpoint-engine, commit 59a3c4f: Update (Broadcast), with the size
// of the IPC bucket in brackets; vLLM v0.10.2rc1.
constexpr std::array<PublishedRow, 6> kRows = {{
    {.model = "GLM-4.5-Air",
     .host = "h800",
     .gpus = 8,
     .gpus_per_replica = 8,
     .bucket_gib = 3.02,
     .seconds = 3.47},
    {.model = "Qwen3-235B-A22B",
     .host = "h800",
     .gpus = 8,
     .gpus_per_replica = 8,
     .bucket_gib = 2.67,
     .seconds = 6.22},
    {.model = "DeepSeek-V3.1",
     .host = "h20",
     .gpus = 16,
     .gpus_per_replica = 16,
     .bucket_gib = 5.39,
     .seconds = 10.19},
    {.model = "Kimi-K2",
     .host = "h20",
     .gpus = 16,
     .gpus_per_replica = 16,
     .bucket_gib = 5.89,
     .seconds = 14.36},
    {.model = "DeepSeek-V3.1",
     .host = "h20",
     .gpus = 256,
     .gpus_per_replica = 16,
     .bucket_gib = 8.00,
     .seconds = 11.33},
    {.model = "Kimi-K2",
     .host = "h20",
     .gpus = 256,
     .gpus_per_replica = 16,
     .bucket_gib = 8.00,
     .seconds = 16.04},
}};
constexpr std::size_t kFittedRow = 2;
constexpr double kTensorSecondsMax = 1e-3;
constexpr int kFitSteps = 40;  // halvings: from 1e-3 s to a femtosecond
constexpr std::array<std::uint64_t, 6> kBuffersMiB = {64, 128, 256, 512, 1024, 2048};

ModelBytes bytes_of(const std::vector<TensorInfo>& tensors) {
  ModelBytes made;
  for (const TensorInfo& tensor : tensors) {
    const auto bytes = tensor.byte_size();
    WSYNC_CHECK(bytes.has_value(), "every tensor of a table has a size");
    made.tensors.push_back(*bytes);
  }
  return made;
}

Result<Cluster> cluster_of(const PublishedRow& row) {
  const auto host = WSYNC_TRY(find_host(std::string(row.host)));
  return Cluster{.host = host, .gpus = row.gpus, .gpus_per_replica = row.gpus_per_replica};
}

// A row's model and cluster, which all steps of a fit share.
struct RowModel {
  ModelBytes model;
  Cluster cluster;
  CheckpointEngineOptions options;
};
Result<RowModel> model_of(const PublishedRow& row, bool gpu_takes_turns) {
  const auto shape = WSYNC_TRY(find_model(row.model));
  auto cluster = WSYNC_TRY(cluster_of(row));
  return RowModel{.model = bytes_of(tensors_of(shape)),
                  .cluster = cluster,
                  .options = {.bucket_bytes = static_cast<std::uint64_t>(row.bucket_gib * kGiB),
                              .gpu_takes_turns = gpu_takes_turns}};
}
Result<Prediction> predict(RowModel& row, double tensor_s) {
  row.options.tensor_s = tensor_s;
  return simulate_checkpoint_engine(row.model, row.cluster, row.options);
}

// The switch is the same on every host, so it is simulated once per kind of cluster.
class OurSide {
 public:
  explicit OurSide(std::uint64_t model_bytes) : model_bytes_(model_bytes) {}

  Result<OurPrediction> on(const Cluster& cluster, std::uint64_t buffer, Stages stages) {
    OurPrediction made;
    for (auto& [to, fan_out] : {std::pair{&made.chain, 1U}, std::pair{&made.tree, 2U}}) {
      const auto staged = WSYNC_TRY(simulate_staging(model_bytes_, cluster, {.fan_out = fan_out}));
      *to = staged;
    }
    using enum Stages;
    for (auto& [to, form] : {std::pair{&made.chosen, stages}, std::pair{&made.two, kTwo},
                             std::pair{&made.three, kThree}}) {
      const auto pipeline = WSYNC_TRY(switch_on(cluster, buffer, form));
      *to = pipeline;
    }
    const auto pause = WSYNC_TRY(switch_floor(model_bytes_, cluster));
    made.switch_floor = pause;
    const auto staging = WSYNC_TRY(staging_floor(model_bytes_, cluster));
    made.staging_floor = staging;
    return made;
  }

  Result<PipelinePrediction> switch_on(const Cluster& cluster, std::uint64_t buffer,
                                       Stages stages) {
    const auto key = std::tuple(cluster.gpus_per_replica, buffer, stages);
    if (const auto known = switches_.find(key); known != switches_.end()) return known->second;
    auto made = simulate_switch(model_bytes_, cluster, {.buffer_bytes = buffer, .stages = stages});
    if (made) switches_.emplace(key, *made);
    return made;
  }

 private:
  std::uint64_t model_bytes_;
  std::map<std::tuple<std::uint32_t, std::uint64_t, Stages>, PipelinePrediction> switches_;
};

Result<RowResult> run_row(const PublishedRow& row, const ScaleResult& made) {
  RowResult result{.row = row, .peer = {}, .floor = {}, .ours = {}};
  for (const bool turns : {true, false}) {
    const auto predicted =
        WSYNC_TRY(predict_row(row, turns ? made.tensor_s : made.side_by_side_tensor_s, turns));
    if (turns)
      result.peer = predicted;
    else
      result.side_by_side_s = predicted.seconds;
  }
  const auto shape = WSYNC_TRY(find_model(row.model));
  const auto cluster = WSYNC_TRY(cluster_of(row));
  const std::uint64_t bytes = totals_of(tensors_of(shape)).bytes;
  const auto floor = WSYNC_TRY(update_floor(bytes, cluster));
  result.floor = floor;
  auto ours = WSYNC_TRY(OurSide(bytes).on(cluster, made.options.buffer_bytes, made.options.stages));
  result.ours = std::move(ours);
  return result;
}

std::uint32_t replica_of(const ScaleOptions& options, std::uint64_t model_bytes) {
  return options.gpus_per_replica != 0 ? options.gpus_per_replica
                                       : gpus_for_model(options.host, model_bytes);
}

// Refuses a model that fits in none of the clusters before anything is computed.
Result<> require_points(const ScaleOptions& options) {
  for (const ModelShape& shape : options.models) {
    const std::uint32_t replica = replica_of(options, totals_of(tensors_of(shape)).bytes);
    if (std::ranges::none_of(options.gpus, [&](std::uint32_t g) { return g % replica == 0; }))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{0} needs {1} GPUs for one copy: expected a number of GPUs that is "
                              "a multiple of {1}",
                              shape.name, replica));
  }
  return {};
}

class CurveMaker {
 public:
  CurveMaker(const ModelShape& shape, ScaleResult& made)
      : options_(made.options),
        made_(made),
        tensors_(tensors_of(shape)),
        model_(bytes_of(tensors_)),
        ours_(model_.total()) {
    curve_.model = shape.name;
    curve_.totals = totals_of(tensors_);
    replica_ = replica_of(options_, curve_.totals.bytes);
  }

  Result<ScaleCurve> run() && {
    for (const std::uint32_t gpus : options_.gpus)
      if (auto added = add_point(gpus); !added)
        return fail(added.error().with_context(curve_.model));
    for (const std::uint64_t mib : kBuffersMiB) WSYNC_TRY(add_buffer(mib << 20U));
    return std::move(curve_);
  }

 private:
  [[nodiscard]] Cluster cluster(std::uint32_t gpus) const {
    return {.host = options_.host,
            .gpus = gpus,
            .gpus_per_replica = replica_,
            .oversubscription = options_.oversubscription};
  }
  Result<> add_point(std::uint32_t gpus) {
    if (gpus % replica_ != 0) {
      made_.notes.push_back(
          fmt::format("{0} on {1} GPUs is left out: {1} is not a multiple of {2}, the number of "
                      "GPUs for one copy of the model",
                      curve_.model, gpus, replica_));
      return {};
    }
    const Cluster on = cluster(gpus);
    ScalePoint point{
        .gpus = gpus, .gpus_per_replica = replica_, .peer = {}, .floor = {}, .ours = {}};
    auto peer = WSYNC_TRY(simulate_checkpoint_engine(
        model_, on,
        {.bucket_bytes = std::max(options_.peer_buffer_bytes, curve_.totals.largest_tensor_bytes),
         .tensor_s = made_.tensor_s}));
    point.peer = std::move(peer);
    const auto floor = WSYNC_TRY(update_floor(curve_.totals.bytes, on));
    point.floor = floor;
    auto ours = WSYNC_TRY(ours_.on(on, options_.buffer_bytes, options_.stages));
    point.ours = std::move(ours);
    curve_.points.push_back(std::move(point));
    return {};
  }
  Result<> add_buffer(std::uint64_t bytes) {
    const Cluster on = cluster(curve_.points.back().gpus);
    auto pipeline = WSYNC_TRY(ours_.switch_on(on, bytes, options_.stages));
    curve_.buffers.push_back({.bytes = bytes, .pipeline = std::move(pipeline)});
    return {};
  }

  const ScaleOptions& options_;
  ScaleResult& made_;
  std::vector<TensorInfo> tensors_;
  ModelBytes model_;
  OurSide ours_;
  std::uint32_t replica_ = 0;
  ScaleCurve curve_;
};

Result<ScaleResult> run_staging(const ScaleOptions& options) {
  ScaleResult made{.options = options};
  const std::uint32_t replica =
      options.gpus_per_replica != 0 ? options.gpus_per_replica : options.host.gpus;
  for (const std::uint32_t gpus : options.gpus) {
    const Cluster cluster{.host = options.host,
                          .gpus = gpus,
                          .gpus_per_replica = replica,
                          .oversubscription = options.oversubscription};
    const std::uint64_t bytes = options.staging_bytes;
    StagingPoint point{
        .gpus = gpus, .hosts = cluster.hosts(), .chain = {}, .tree = {}, .floor = {}};
    for (auto& [to, fan_out] : {std::pair{&point.chain, 1U}, std::pair{&point.tree, 2U}}) {
      auto staged = WSYNC_TRY(simulate_staging(bytes, cluster, {.fan_out = fan_out}));
      *to = std::move(staged);
    }
    auto floor = WSYNC_TRY(staging_floor(bytes, cluster));
    point.floor = std::move(floor);
    made.staging.push_back(std::move(point));
  }
  return made;
}

}  // namespace

std::span<const PublishedRow> published_rows() noexcept { return kRows; }
const PublishedRow& fitted_row() noexcept { return kRows[kFittedRow]; }

Result<Prediction> predict_row(const PublishedRow& row, double tensor_s, bool gpu_takes_turns) {
  auto model = WSYNC_TRY(model_of(row, gpu_takes_turns));
  return predict(model, tensor_s);
}

// The time of an update never decreases when the seconds per tensor increase, so bisection finds
// the constant.
Result<double> fit_tensor_seconds(bool gpu_takes_turns) {
  auto model = WSYNC_TRY(model_of(fitted_row(), gpu_takes_turns));
  double min = 0;
  double max = kTensorSecondsMax;
  for (int step = 0; step < kFitSteps; ++step) {
    const double middle = (min + max) / 2;
    const auto predicted = WSYNC_TRY(predict(model, middle));
    (predicted.seconds > fitted_row().seconds ? max : min) = middle;
  }
  return min;
}

Result<ScaleResult> run_scale_bench(const ScaleOptions& options) {
  if (options.staging_bytes != 0) return run_staging(options);
  WSYNC_TRY(require_points(options));
  ScaleResult made{.options = options};
  for (auto& [to, turns] :
       {std::pair{&made.tensor_s, true}, std::pair{&made.side_by_side_tensor_s, false}}) {
    const auto fitted = WSYNC_TRY(fit_tensor_seconds(turns));
    *to = fitted;
  }
  for (const PublishedRow& row : published_rows()) {
    auto result = run_row(row, made);
    if (!result) return fail(result.error().with_context(std::string(row.model)));
    made.rows.push_back(std::move(*result));
  }
  for (const ModelShape& shape : options.models) {
    auto curve = WSYNC_TRY(CurveMaker(shape, made).run());
    made.curves.push_back(std::move(curve));
  }
  return made;
}

}  // namespace wsync::bench
