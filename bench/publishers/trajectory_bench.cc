#include "bench/publishers/trajectory_bench.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/harness/catalogue.h"
#include "bench/harness/machine.h"
#include "bench/harness/memory.h"
#include "bench/harness/report.h"
#include "bench/harness/spread.h"
#include "bench/publishers/c_publisher.h"
#include "bench/publishers/delta_fleet.h"
#include "bench/publishers/publishing_fleet.h"
#include "shared/base/format.h"
#include "shared/observe/trace/chart.h"
#include "shared/weights/dtype.h"

namespace wsync::bench {
namespace {

constexpr std::size_t kRowsMax = 40;  // of a table that is read on a terminal
constexpr double kPercent = 100;
constexpr std::uint64_t kCopies = 6;  // as delta_bench.cc, without those of the engines

// What was measured of one step, a sample for each round.
struct Samples {
  double changed = 0;
  double patch = 0;
  std::vector<double> pause, full_pause, update, full_update;
};

std::optional<std::uint64_t> number_of(const std::string& name) {
  const std::size_t line = name.rfind('_');
  if (line == std::string::npos) return std::nullopt;
  std::string_view digits = std::string_view(name).substr(line + 1);
  if (digits.starts_with('v')) digits.remove_prefix(1);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

class Steps {
 public:
  Steps(PublishingFleet& fleet, const ModelSource& source, const TrajectoryOptions& options)
      : fleet_(fleet), source_(source), options_(options) {
    for (const SourceTensor& tensor : source.tensors)
      elements_ += tensor.bytes * 8 / std::max(dtype_bits(tensor.info.dtype), 8U);
  }

  Result<> measure(std::size_t to, Samples& samples) {
    // Whatever was there: all elements of the checkpoint before the step change, and change back.
    (void)WSYNC_TRY(fleet_.load(source_.models[to - 1]));
    (void)WSYNC_TRY(fleet_.change("elements", 1, ++stamp_));
    (void)WSYNC_TRY(fleet_.publish(kPublishChanged, stamp_));
    (void)WSYNC_TRY(fleet_.load(source_.models[to - 1]));
    const auto full = WSYNC_TRY(fleet_.publish(kPublishChanged, ++stamp_));
    const auto before = WSYNC_TRY(fleet_.patch_counts());
    const auto changed = WSYNC_TRY(fleet_.load(source_.models[to]));
    const auto step = WSYNC_TRY(fleet_.publish(kPublishChanged, ++stamp_));
    const auto after = WSYNC_TRY(fleet_.patch_counts());
    samples.changed = kPercent * static_cast<double>(changed) /
                      static_cast<double>(std::max<std::uint64_t>(elements_, 1));
    if (after.loads - before.loads == options_.engines)
      samples.patch = kPercent * static_cast<double>(after.bytes - before.bytes) /
                      static_cast<double>(source_.bytes);
    samples.pause.push_back(in_ms(step.paused_ns));
    samples.full_pause.push_back(in_ms(full.paused_ns));
    samples.update.push_back(in_ms(step.whole_ns));
    samples.full_update.push_back(in_ms(full.whole_ns));
    return {};
  }

 private:
  PublishingFleet& fleet_;
  const ModelSource& source_;
  const TrajectoryOptions& options_;
  std::uint64_t elements_ = 0;
  std::uint64_t stamp_ = 0;
};

double median_of(const std::vector<double>& samples) { return spread_of(samples).median; }

std::vector<TrajectoryStep> steps_of(const TrajectoryOptions& options,
                                     const std::vector<Samples>& measured) {
  std::vector<TrajectoryStep> steps;
  for (std::size_t i = 0; i < measured.size(); ++i)
    steps.push_back({.name = std::filesystem::path(options.checkpoints[i + 1]).filename().string(),
                     .changed = measured[i].changed,
                     .patch = measured[i].patch,
                     .pause_ms = median_of(measured[i].pause),
                     .full_pause_ms = median_of(measured[i].full_pause),
                     .update_ms = median_of(measured[i].update),
                     .full_update_ms = median_of(measured[i].full_update)});
  return steps;
}

std::vector<double> column(const std::vector<TrajectoryStep>& steps,
                           double TrajectoryStep::* figure) {
  std::vector<double> values;
  for (const TrajectoryStep& step : steps) values.push_back(step.*figure);
  return values;
}

void add_cases(const std::vector<TrajectoryStep>& steps, std::uint64_t bytes, SuiteResult& suite) {
  const auto timed = [&](const char* name, double TrajectoryStep::* own,
                         double TrajectoryStep::* full) {
    CaseResult result = case_of("delta", name, "trajectory", column(steps, own));
    set_baseline_of("delta", name, result, column(steps, full));
    result.bytes = bytes;
    suite.cases.push_back(std::move(result));
  };
  timed("pause", &TrajectoryStep::pause_ms, &TrajectoryStep::full_pause_ms);
  timed("update", &TrajectoryStep::update_ms, &TrajectoryStep::full_update_ms);
  suite.cases.push_back(
      case_of("delta", "changed", "trajectory", column(steps, &TrajectoryStep::changed)));
  std::vector<double> patches = column(steps, &TrajectoryStep::patch);
  std::erase(patches, 0);
  if (patches.size() < steps.size())
    suite.notes.push_back(
        fmt::format("{} of {} steps were loaded in full, because a patch would "
                    "have been no cheaper",
                    steps.size() - patches.size(), steps.size()));
  if (!patches.empty())
    suite.cases.push_back(case_of("delta", "patch", "trajectory", std::move(patches)));
  nlohmann::json rows = nlohmann::json::array();
  for (const TrajectoryStep& step : steps)
    rows.push_back({{"checkpoint", step.name},
                    {"changed_percent", step.changed},
                    {"patch_percent", step.patch},
                    {"pause_ms", step.pause_ms},
                    {"full_pause_ms", step.full_pause_ms},
                    {"update_ms", step.update_ms},
                    {"full_update_ms", step.full_update_ms}});
  suite.details = {{"steps", std::move(rows)}};
}

Result<Trajectory> measure_trajectory(const TrajectoryOptions& options, const Interrupt& interrupt,
                                      const OnTurn& on_turn) {
  const double busy = WSYNC_TRY(busy_with_others(interrupt));
  const auto source = WSYNC_TRY(make_source(options.directory, options.checkpoints));
  WSYNC_TRY(require_copies(kCopies + options.engines, source.bytes,
                           fmt::format("for {}", counted(options.engines, "engine"))));
  const auto children = WSYNC_TRY(bench_children(options.directory));
  CpuLoad load;
  const std::size_t steps = options.checkpoints.size() - 1;
  const auto total = static_cast<unsigned>(steps) * options.rounds + 1;
  unsigned done = 0;
  on_turn("warming up", ++done, total);
  const auto fleet = WSYNC_TRY(start_delta_fleet({.executable = options.executable,
                                                  .directory = options.directory,
                                                  .checkpoint = options.checkpoints.front(),
                                                  .engines = options.engines,
                                                  .transport = options.transport},
                                                 source, *children));
  std::vector<Samples> samples(steps);
  Steps publisher(*fleet, source, options);
  for (unsigned round = 0; round < options.rounds; ++round)
    for (std::size_t i = 0; i < steps; ++i) {
      on_turn(std::filesystem::path(options.checkpoints[i + 1]).filename().string(), ++done, total);
      WSYNC_TRY(publisher.measure(i + 1, samples[i]));
    }
  WSYNC_TRY(fleet->verify());
  Trajectory result{.suite = {.suite = "delta",
                              .parameters = {{"bytes", source.bytes},
                                             {"engines", options.engines},
                                             {"transport", options.transport},
                                             {"steps", steps}},
                              .cases = {},
                              .notes = load_sentences(busy, load.since_last().stolen),
                              .details = {}},
                    .steps = steps_of(options, samples)};
  add_cases(result.steps, source.bytes, result.suite);
  return result;
}

}  // namespace

Result<std::vector<std::string>> find_trajectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  if (error)
    return fail(ErrorCode::kIo,
                fmt::format("--trajectory: {} cannot be read: {}", directory, error.message()));
  std::map<std::uint64_t, std::string> found;
  for (const auto& entry : entries)
    if (const auto number = number_of(entry.path().filename().string());
        number && entry.is_directory(error))
      found[*number] = entry.path().string();
  if (found.size() < 2)
    return fail(ErrorCode::kNotFound,
                fmt::format("--trajectory: {} has {}, expected two or more whose names end in "
                            "their number, such as step_12 or weight_v000012",
                            directory, counted(found.size(), "checkpoint")));
  std::vector<std::string> paths;
  for (auto& [number, path] : found) paths.push_back(std::move(path));
  return paths;
}

Result<Trajectory> run_trajectory(const TrajectoryOptions& options, const Interrupt& interrupt,
                                  const OnTurn& on_turn) {
  if (options.checkpoints.size() < 2 || options.engines == 0 || options.rounds == 0)
    return fail(ErrorCode::kInvalidInput,
                "expected two checkpoints or more, one engine or more, and one round or more");
  try {
    return measure_trajectory(options, interrupt, on_turn);
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kInternal,
                fmt::format("an answer has an unexpected format: {}", error.what()));
  }
}

std::string trajectory_table(const std::vector<TrajectoryStep>& steps) {
  const std::size_t every = (steps.size() + kRowsMax - 1) / kRowsMax;
  std::string text =
      fmt::format("{:<20} {:>10} {:>9} {:>10} {:>10} {:>11} {:>11}\n", "checkpoint", "changed %",
                  "patch %", "pause ms", "full ms", "update ms", "full ms");
  for (std::size_t i = 0; i < steps.size(); i += every) {
    const TrajectoryStep& step = steps[i];
    const std::string patch = step.patch == 0 ? "full load" : fmt::format("{:.3f}", step.patch);
    text += fmt::format("{:<20} {:>10.3f} {:>9} {:>10.2f} {:>10.2f} {:>11.2f} {:>11.2f}\n",
                        step.name, step.changed, patch, step.pause_ms, step.full_pause_ms,
                        step.update_ms, step.full_update_ms);
  }
  if (every > 1)
    text += fmt::format("{} of {} steps are shown; --json has all\n",
                        (steps.size() + every - 1) / every, steps.size());
  return text;
}

Result<> write_trajectory_picture(const std::string& path, const std::string& title,
                                  const std::vector<TrajectoryStep>& steps) {
  const auto curve = [&](std::string name, std::string colour, double TrajectoryStep::* figure) {
    trace::Series series{.name = std::move(name), .colour = std::move(colour), .points = {}};
    for (std::size_t i = 0; i < steps.size(); ++i)
      series.points.emplace_back(static_cast<double>(i + 1), steps[i].*figure);
    return series;
  };
  return trace::write_chart_svg(
      path,
      {.title = title,
       .x_title = "step",
       .panels =
           {{.title = "percent",
             .series = {curve("elements that change", "#c0392b", &TrajectoryStep::changed),
                        curve("size of the patch, by that of the model", "#1f6fb4",
                              &TrajectoryStep::patch)},
             .logarithmic = true},
            {.title = "pause, ms",
             .series = {curve("everything is loaded", "#8a8a8a", &TrajectoryStep::full_pause_ms),
                        curve("the step", "#2e8b57", &TrajectoryStep::pause_ms)}},
            {.title = "update, ms",
             .series = {curve("everything is loaded", "#8a8a8a", &TrajectoryStep::full_update_ms),
                        curve("the step", "#2e8b57", &TrajectoryStep::update_ms)}}},
       .marks = {}});
}

}  // namespace wsync::bench
