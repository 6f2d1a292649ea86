#include "bench/scale/report.h"

#include "bench/harness/catalogue.h"
#include "shared/base/format.h"
#include "shared/config/units.h"

namespace wsync::bench {
namespace {

constexpr double kBytesInGB = 1e9;

std::string stages_text(Stages stages) { return std::string(reload::stages_name(stages)); }

std::string rows_text(const ScaleResult& result) {
  std::string text = fmt::format(
      "Published updates of checkpoint-engine, and the model's predictions. One constant is "
      "fitted, on\n{} x {} GPUs: {:.1f} us for a tensor in the engine's reload. Times in "
      "seconds.\nwsync: staged while engines serve, then paused.\n\n{:<16} {:>9} {:>9} {:>9} {:>7} "
      " {:<26} {:>6} {:<9} {:>7} {:>7} {:>6}\n",
      fitted_row().model, fitted_row().gpus, result.tensor_s * 1e6, "model", "GPUs", "published",
      "predicted", "error", "busiest (share of the time)", "floor", "by", "staged", "paused",
      "floor");
  for (const RowResult& row : result.rows) {
    const LinkUse busiest = row.peer.bottleneck();
    text += fmt::format(
        "{:<16} {:>5} {:<4}{:>8.2f} {:>9.2f} {:>+6.1f}%  {:<26} {:>7.2f} {:<9} {:>7.2f} {:>7.2f} "
        "{:>6.2f}\n",
        row.row.model, row.row.gpus, row.row.host, row.row.seconds, row.peer.seconds,
        100 * row.error(),
        fmt::format("{} ({:.0f}%)", busiest.name, 100 * busiest.seconds / row.peer.seconds),
        row.floor.seconds, row.floor.link, row.ours.chain.seconds,
        row.ours.chosen.prediction.seconds, row.ours.switch_floor.seconds);
  }
  text += fmt::format(
      "\nIf engines and broadcasts ran concurrently on a GPU, {:.1f} us would fit, with errors of",
      result.side_by_side_tensor_s * 1e6);
  for (const RowResult& row : result.rows)
    text += fmt::format(" {:+.0f}%", 100 * row.side_by_side_error());
  return text + "\n";
}

std::string staging_text(const ScaleResult& result) {
  std::string text = fmt::format(
      "How {} reach every host, from one. Seconds.\n\n{:>7} {:>7} {:>9} {:>9} {:>9} {}\n",
      config::format_size(result.options.staging_bytes), "GPUs", "hosts", "chain", "tree", "floor",
      "by");
  for (const StagingPoint& p : result.staging)
    text += fmt::format("{:>7} {:>7} {:>9.3f} {:>9.3f} {:>9.3f} {}\n", p.gpus, p.hosts,
                        p.chain.seconds, p.tree.seconds, p.floor.seconds, p.floor.link);
  return text;
}

std::string curve_text(const ScaleCurve& curve) {
  std::string text = fmt::format(
      "\n{}: {:.1f} GB in {} tensors; replicas of {} GPUs. Seconds.\n"
      "{:>7} | {:>17} {:>7} {:<12} | {:>7} {:>8} {:>8} | {:>7} {:>7} {:>7} {:>6}\n",
      curve.model, static_cast<double>(curve.totals.bytes) / kBytesInGB, curve.totals.tensors,
      curve.points.front().gpus_per_replica, "GPUs", "checkpoint-engine", "floor", "by", "staged",
      "by tree", "floor", "paused", "2 stages", "3 stages", "floor");
  for (const ScalePoint& p : curve.points)
    text += fmt::format(
        "{:>7} | {:>17.2f} {:>7.2f} {:<12} | {:>7.2f} {:>8.2f} {:>8.2f} | {:>7.2f} {:>8.2f} "
        "{:>8.2f} {:>6.2f}\n",
        p.gpus, p.peer.seconds, p.floor.seconds, p.floor.link, p.ours.chain.seconds,
        p.ours.tree.seconds, p.ours.staging_floor.seconds, p.ours.chosen.prediction.seconds,
        p.ours.two.prediction.seconds, p.ours.three.prediction.seconds,
        p.ours.switch_floor.seconds);
  const ScalePoint& last = curve.points.back();
  text += fmt::format(
      "On {} GPUs: checkpoint-engine is limited by {}; the pause by {} (with {} stages), staging "
      "by {}.\nBuffer sizes on these GPUs:",
      last.gpus, last.peer.bottleneck().name, last.ours.chosen.prediction.bottleneck().name,
      stages_text(last.ours.chosen.stages), last.ours.chain.bottleneck);
  for (const BufferPoint& b : curve.buffers)
    text += fmt::format("{} {}: paused {:.2f}", &b == curve.buffers.data() ? "" : ";",
                        config::format_size(b.bytes), b.pipeline.prediction.seconds);
  return text + "\n";
}

nlohmann::json use_json(const Prediction& prediction) {
  nlohmann::json made = nlohmann::json::array();
  for (const LinkUse& use : prediction.use)
    made.push_back({{"link", use.name}, {"busy_s", use.seconds}});
  return made;
}
nlohmann::json prediction_json(const Prediction& p) {
  return {{"seconds", p.seconds},
          {"buckets", p.buckets},
          {"busiest", p.bottleneck().name},
          {"busiest_s", p.bottleneck().seconds},
          {"links", use_json(p)}};
}
nlohmann::json pipeline_json(const PipelinePrediction& p) {
  nlohmann::json made = prediction_json(p.prediction);
  made["stages"] = reload::stages_name(p.stages);
  return made;
}
nlohmann::json floor_json(const Floor& floor) {
  return {{"seconds", floor.seconds}, {"link", floor.link}};
}
nlohmann::json staging_json(const StagingPrediction& s) {
  return {{"seconds", s.seconds}, {"levels", s.levels}, {"bottleneck", s.bottleneck}};
}
nlohmann::json ours_json(const OurPrediction& ours) {
  return {{"staged", staging_json(ours.chain)},
          {"staged_by_tree", staging_json(ours.tree)},
          {"staging_floor", floor_json(ours.staging_floor)},
          {"paused", pipeline_json(ours.chosen)},
          {"paused_two_stages", pipeline_json(ours.two)},
          {"paused_three_stages", pipeline_json(ours.three)},
          {"pause_floor", floor_json(ours.switch_floor)}};
}
nlohmann::json host_json(const HostType& host) {
  return {{"name", host.name},
          {"gpus", host.gpus},
          {"gpu_bytes", host.gpu_bytes},
          {"gpu_memory_bytes_per_s", host.gpu_memory},
          {"pcie_bytes_per_s", host.pcie},
          {"gpus_per_switch", host.gpus_per_switch},
          {"nvlink_bytes_per_s", host.nvlink},
          {"nics", host.nics},
          {"nic_bytes_per_s", host.nic},
          {"host_memory_bytes_per_s", host.host_memory}};
}
nlohmann::json row_json(const RowResult& row) {
  return {{"model", row.row.model},
          {"host", row.row.host},
          {"gpus", row.row.gpus},
          {"gpus_per_replica", row.row.gpus_per_replica},
          {"bucket_gib", row.row.bucket_gib},
          {"published_s", row.row.seconds},
          {"fitted", row.row.model == fitted_row().model && row.row.gpus == fitted_row().gpus},
          {"checkpoint_engine", prediction_json(row.peer)},
          {"error", row.error()},
          {"side_by_side_error", row.side_by_side_error()},
          {"floor", floor_json(row.floor)},
          {"wsync", ours_json(row.ours)}};
}
nlohmann::json curve_json(const ScaleCurve& curve) {
  nlohmann::json points = nlohmann::json::array();
  for (const ScalePoint& p : curve.points)
    points.push_back({{"gpus", p.gpus},
                      {"gpus_per_replica", p.gpus_per_replica},
                      {"checkpoint_engine", prediction_json(p.peer)},
                      {"floor", floor_json(p.floor)},
                      {"wsync", ours_json(p.ours)}});
  nlohmann::json buffers = nlohmann::json::array();
  for (const BufferPoint& b : curve.buffers)
    buffers.push_back({{"buffer_bytes", b.bytes}, {"paused", pipeline_json(b.pipeline)}});
  return {{"model", curve.model},        {"parameters", curve.totals.parameters},
          {"bytes", curve.totals.bytes}, {"tensors", curve.totals.tensors},
          {"points", std::move(points)}, {"buffers", std::move(buffers)}};
}

}  // namespace

std::string to_text(const ScaleResult& result) {
  std::string text = result.options.staging_bytes != 0 ? staging_text(result) : rows_text(result);
  for (const ScaleCurve& curve : result.curves) text += curve_text(curve);
  for (const std::string& note : result.notes) text += "note: " + note + "\n";
  return text;
}

nlohmann::json to_json(const ScaleResult& result) {
  nlohmann::json rows = nlohmann::json::array();
  for (const RowResult& row : result.rows) rows.push_back(row_json(row));
  nlohmann::json curves = nlohmann::json::array();
  for (const ScaleCurve& curve : result.curves) curves.push_back(curve_json(curve));
  nlohmann::json staging = nlohmann::json::array();
  for (const StagingPoint& p : result.staging)
    staging.push_back({{"gpus", p.gpus},
                       {"hosts", p.hosts},
                       {"staged", staging_json(p.chain)},
                       {"staged_by_tree", staging_json(p.tree)},
                       {"floor", floor_json(p.floor)}});
  return {{"tensor_s", result.tensor_s},
          {"side_by_side_tensor_s", result.side_by_side_tensor_s},
          {"host", host_json(result.options.host)},
          {"oversubscription", result.options.oversubscription},
          {"buffer_bytes", result.options.buffer_bytes},
          {"peer_buffer_bytes", result.options.peer_buffer_bytes},
          {"stages", reload::stages_name(result.options.stages)},
          {"published", std::move(rows)},
          {"curves", std::move(curves)},
          {"staging_bytes", result.options.staging_bytes},
          {"staging", std::move(staging)},
          {"notes", result.notes}};
}

SuiteResult to_suite(const ScaleResult& result) {
  SuiteResult suite{
      .suite = "scale", .cases = {}, .notes = result.notes, .details = to_json(result)};
  for (const char* key :
       {"host", "oversubscription", "buffer_bytes", "peer_buffer_bytes", "stages"})
    suite.parameters[key] = suite.details[key];
  const auto add = [&](const char* name, std::string_view model, std::uint32_t gpus, double seconds,
                       double baseline) {
    CaseResult one = case_of("scale", name, fmt::format("{}, {} GPUs", model, gpus), {seconds});
    set_baseline_of("scale", name, one, {baseline});
    suite.cases.push_back(std::move(one));
  };
  for (const StagingPoint& p : result.staging)
    add("staged", config::format_size(result.options.staging_bytes), p.gpus, p.chain.seconds,
        p.floor.seconds);
  for (const RowResult& row : result.rows)
    add("published update", row.row.model, row.row.gpus, row.peer.seconds, row.row.seconds);
  for (const ScaleCurve& curve : result.curves)
    for (const ScalePoint& p : curve.points) {
      add("checkpoint-engine", curve.model, p.gpus, p.peer.seconds, p.floor.seconds);
      add("staged", curve.model, p.gpus, p.ours.chain.seconds, p.ours.staging_floor.seconds);
      add("paused", curve.model, p.gpus, p.ours.chosen.prediction.seconds,
          p.ours.switch_floor.seconds);
    }
  return suite;
}

}  // namespace wsync::bench
