#include "bench/schedule/report.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "bench/harness/catalogue.h"
#include "bench/harness/report.h"
#include "shared/base/format.h"
#include "shared/observe/trace/progress.h"
#include "trainer_side/schedule/picture.h"

namespace wsync::bench {
namespace {

using nlohmann::json;
using schedule::OperationCosts;

constexpr double kMillisecondNs = 1e6;

json costs_json(const OperationCosts& costs) {
  return {{"attention", costs.attention},
          {"mlp", costs.mlp},
          {"head", costs.head},
          {"attention_gradient", costs.attention_gradient},
          {"mlp_gradient", costs.mlp_gradient},
          {"weight_gradient", costs.weight_gradient},
          {"dispatch", costs.dispatch},
          {"combine", costs.combine},
          {"pp_transfer", costs.pp_transfer},
          {"pair_factor", costs.pair_factor}};
}

json case_json(const ScheduleCase& done) {
  return {{"case", case_name(done.kind)},
          {"step_ms", spread_json(done.step_ms)},
          {"predicted_step_ms", done.predicted.makespan},
          {"ratio", spread_json(done.ratio)},
          {"exposed_ms", spread_json(done.exposed_ms)},
          {"predicted_exposed_ms", done.predicted.exposed()},
          {"costs_ms", costs_json(done.costs)},
          {"steps_ms", done.steps_ms}};
}

std::string link_text(const ScheduleBenchResult& result) {
  const OperationCosts& costs = result.of(CaseKind::kNoOverlap).costs;
  return fmt::format(
      "link of each rank: {:.3f} ms and {}; a dispatch takes {:.2f} ms, an attention {:.2f} ms\n",
      1e3 * seconds(result.link.latency),
      trace::format_rate(static_cast<std::uint64_t>(std::llround(result.link.bytes_per_second)),
                         std::chrono::seconds(1)),
      costs.dispatch, costs.attention);
}

std::string case_line(const ScheduleCase& done) {
  constexpr std::array kLabels{"overlap", "no overlap", "no overlap, no link"};
  return fmt::format(
      "{:<20} {:>9.1f} {:<15} {:>9.1f} {:>6.3f} {:<12} {:>9.1f} {:>9.1f}\n",
      kLabels[static_cast<std::size_t>(done.kind)], done.step_ms.median,
      fmt::format("{:.1f}-{:.1f}", done.step_ms.min, done.step_ms.max), done.predicted.makespan,
      done.ratio.median,
      fmt::format("{:.3f}-{:.3f}", done.ratio.lower_quartile, done.ratio.upper_quartile),
      done.exposed_ms.median, done.predicted.exposed());
}

std::string schedule_notes(const ScheduleBenchResult& result) {
  std::string text;
  const std::uint32_t ranks = result.options.sizes.ranks();
  if (ranks > result.machine.cores)
    text += fmt::format(
        "note: {} on {}: ranks wait for each other's cores, which the simulator does not model\n",
        counted(ranks, "rank"), counted(result.machine.cores, "core"));
  return text + load_notes(result.others_busy, result.stolen);
}

// Measured and simulated steps, with and without overlap, drawn as if each were a set of ranks.
struct Drawing {
  schedule::Program program;
  std::vector<std::vector<schedule::Timing>> times;
  std::vector<std::string> names;
};
Drawing drawing_of(const ScheduleBenchResult& result) {
  Drawing drawing;
  drawing.program.shape = result.of(CaseKind::kOverlap).program.shape;
  drawing.program.layers = result.of(CaseKind::kOverlap).program.layers;
  const auto add = [&](const ScheduleCase& one, std::string_view what,
                       const std::vector<std::vector<schedule::Timing>>& times) {
    for (std::size_t rank = 0; rank < times.size(); ++rank) {
      drawing.program.ranks.push_back(one.program.ranks[rank]);
      drawing.times.push_back(times[rank]);
      drawing.names.push_back(
          fmt::format("{}{}, {}", times.size() == 1 ? "" : fmt::format("PP{} ", rank),
                      one.kind == CaseKind::kOverlap ? "overlap" : "no overlap", what));
    }
  };
  for (const CaseKind kind : {CaseKind::kOverlap, CaseKind::kNoOverlap}) {
    add(result.of(kind), "measured", result.of(kind).times);
    add(result.of(kind), "simulated", result.of(kind).predicted.operations);
  }
  return drawing;
}

}  // namespace

std::string_view case_name(CaseKind kind) noexcept {
  switch (kind) {
    case CaseKind::kOverlap:
      return "overlap";
    case CaseKind::kNoOverlap:
      return "no_overlap";
    case CaseKind::kNoLink:
      return "no_link";
  }
  return "";
}

json to_json(const ScheduleBenchResult& result) {
  const ScheduleBenchOptions& options = result.options;
  json cases = json::array();
  for (const ScheduleCase& done : result.cases) cases.push_back(case_json(done));
  return {{"machine", machine_json(result.machine)},
          {"pp", options.sizes.pp},
          {"vpp", options.sizes.vpp},
          {"dp", options.sizes.dp},
          {"ep", options.sizes.ep},
          {"microbatches", options.microbatches},
          {"tokens", options.tokens},
          {"hidden", options.hidden},
          {"experts", options.experts},
          {"link",
           {{"latency_ns", result.link.latency.count()},
            {"bytes_per_s", result.link.bytes_per_second},
            {"given", options.link.bytes_per_second.has_value()}}},
          {"cases", std::move(cases)},
          {"speed_up", spread_json(result.speed_up)},
          {"predicted_speed_up", result.predicted_speed_up},
          {"speed_up_ratio", result.speed_up.median / result.predicted_speed_up},
          {"others_busy", result.others_busy},
          {"stolen", result.stolen}};
}

std::string to_text(const ScheduleBenchResult& result) {
  const Machine& machine = result.machine;
  const ScheduleBenchOptions& options = result.options;
  const training::ParallelSizes& sizes = options.sizes;
  std::string text =
      fmt::format("{}\n{}; {}\n", processor_text(machine), machine.layout, machine.kernel);
  text += fmt::format(
      "{} processes (pp {}, vpp {}, dp {}, ep {}), {} micro-batches of {} tokens, hidden size {}, "
      "{} experts\n",
      sizes.ranks(), sizes.pp, sizes.vpp, sizes.dp, sizes.ep, options.microbatches, options.tokens,
      options.hidden, options.experts);
  text += link_text(result);
  text += fmt::format("{} of each case in turns; the gradients of all are equal, bit by bit\n\n",
                      counted(options.steps, "step"));
  text += fmt::format("{:<20} {:>9} {:<15} {:>9} {:>6} {:<12} {:>9} {:>9}\n", "ms", "step",
                      "min-max", "predicted", "ratio", "quartiles", "exposed", "predicted");
  for (const ScheduleCase& done : result.cases) text += case_line(done);
  text += fmt::format(
      "\noverlap makes a step {:.3f} times as fast ({:.3f}-{:.3f}); predicted {:.3f}, measured / "
      "predicted {:.3f}\n",
      result.speed_up.median, result.speed_up.lower_quartile, result.speed_up.upper_quartile,
      result.predicted_speed_up, result.speed_up.median / result.predicted_speed_up);
  return text + schedule_notes(result);
}

std::string to_svg(const ScheduleBenchResult& result) {
  const ScheduleCase& overlap = result.of(CaseKind::kOverlap);
  const ScheduleCase& no_overlap = result.of(CaseKind::kNoOverlap);
  const Drawing drawing = drawing_of(result);
  return schedule::schedule_svg(
      {drawing.program, drawing.times}, {overlap.program, overlap.times},
      {.title = fmt::format("One training step over an emulated link: {:.0f} ms with overlap, "
                            "{:.0f} ms without",
                            overlap.step_ms.median, no_overlap.step_ms.median),
       .subtitle = fmt::format("measured / predicted: {:.3f} with overlap, {:.3f} without; below, "
                               "the measured lanes with overlap",
                               overlap.ratio.median, no_overlap.ratio.median),
       .unit = "ms",
       .rows = drawing.names});
}

std::vector<trace::ProcessTrace> to_trace(const ScheduleBenchResult& result) {
  const Drawing drawing = drawing_of(result);
  std::vector<trace::ProcessTrace> processes;
  for (auto& spans : schedule::schedule_spans({drawing.program, drawing.times}, kMillisecondNs)) {
    const auto number = static_cast<std::uint32_t>(processes.size());
    processes.push_back(
        {.name = drawing.names[number], .pid = number + 1, .spans = std::move(spans)});
  }
  return processes;
}

SuiteResult to_suite(const ScheduleBenchResult& result) {
  const ScheduleBenchOptions& options = result.options;
  SuiteResult suite{.suite = "schedule", .details = to_json(result)};
  for (const char* key : {"pp", "vpp", "dp", "ep", "microbatches", "tokens", "hidden", "experts"})
    suite.parameters[key] = suite.details[key];
  suite.parameters["latency_ns"] = result.link.latency.count();
  if (options.link.bytes_per_second)
    suite.parameters["link_bytes_per_s"] = *options.link.bytes_per_second;
  else
    suite.parameters["dispatch_share"] = options.link.dispatch_share;
  const auto& no_link = result.of(CaseKind::kNoLink);
  const auto& overlap = result.of(CaseKind::kOverlap);
  const auto& no_overlap = result.of(CaseKind::kNoOverlap);
  const auto add = [&](const char* name, std::vector<double> samples,
                       std::vector<double> baseline) {
    CaseResult done = case_of("schedule", name, "", std::move(samples));
    set_baseline_of("schedule", name, done, std::move(baseline));
    suite.cases.push_back(std::move(done));
  };
  add("step, overlap", overlap.steps_ms, no_link.steps_ms);
  add("step, no overlap", no_overlap.steps_ms, no_link.steps_ms);
  add("step, no link", no_link.steps_ms, {no_link.predicted.makespan});
  std::vector<double> speed_ups;
  const std::size_t pairs = std::min(overlap.steps_ms.size(), no_overlap.steps_ms.size());
  for (std::size_t i = 0; i < pairs; ++i)
    speed_ups.push_back(no_overlap.steps_ms[i] / overlap.steps_ms[i]);
  add("speed-up", std::move(speed_ups), {result.predicted_speed_up});
  suite.notes = load_sentences(result.others_busy, result.stolen);
  return suite;
}

}  // namespace wsync::bench
