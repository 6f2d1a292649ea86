#include <algorithm>
#include <map>

#include "bench/page/plot_parts.h"
#include "shared/base/format.h"
#include "shared/observe/trace/bar_chart.h"
#include "shared/observe/trace/chart.h"

namespace wsync::bench::page {
namespace {

constexpr const char* kScaleCommand = "wsync bench scale --output FILE";
constexpr const char* kFloorOfPause = "floor of a pause";

// "checkpoint-engine, Kimi-K2, 256 GPUs"
struct ScaleCase {
  std::string_view what;
  std::string_view model;
  std::uint64_t gpus = 0;
  const CaseResult* result = nullptr;
};

std::vector<ScaleCase> scale_cases(const SuiteResult& suite) {
  std::vector<ScaleCase> cases;
  for (const CaseResult& one : suite.cases) {
    const NameParts name = first_part(one.name);
    const NameParts with = last_part(name.with);
    const auto gpus = counted_by(with.with, "GPU");
    if (gpus && one.unit == "s")
      cases.push_back({.what = name.what, .model = with.what, .gpus = gpus->count, .result = &one});
  }
  return cases;
}

// A curve of one kind of case, of its samples or of what it is compared with.
struct CurveOf {
  const char* name;
  std::string_view what;
  bool of_baseline = false;
  const char* colour;
};
constexpr std::array kCurves{
    CurveOf{.name = "checkpoint-engine", .what = "checkpoint-engine", .colour = kColours[1]},
    CurveOf{.name = "wsync, staged", .what = "staged", .colour = kColours[2]},
    CurveOf{.name = "wsync, paused", .what = "paused", .colour = kColours[0]},
    CurveOf{.name = kFloorOfPause, .what = "paused", .of_baseline = true, .colour = kFloorColour},
};

trace::Series curve(const std::vector<ScaleCase>& cases, std::string_view model,
                    const CurveOf& of) {
  trace::Series series{.name = of.name,
                       .colour = of.colour,
                       .points = {},
                       .dashed = of.of_baseline,
                       .marked = !of.of_baseline};
  for (const ScaleCase& one : cases) {
    if (one.model != model || one.what != of.what) continue;
    if (of.of_baseline && !one.result->baseline) continue;
    const auto& samples = of.of_baseline ? one.result->baseline->samples : one.result->samples;
    series.points.emplace_back(static_cast<double>(one.gpus), spread_of(samples).median);
  }
  std::ranges::stable_sort(series.points, {}, [](const auto& point) { return point.first; });
  return series;
}

// The most GPUs that something was published for; 0: nothing was.
std::uint64_t published_most(const std::vector<ScaleCase>& cases) {
  std::uint64_t most = 0;
  for (const ScaleCase& one : cases)
    if (one.what == "published update") most = std::max(most, one.gpus);
  return most;
}

Plot model_plot(const std::vector<ScaleCase>& cases, std::string_view model,
                const std::string& of) {
  Plot plot{.id = "scale-" + id_text(model),
            .title = fmt::format("{} by GPUs, simulated{}", model, of),
            .svg = {},
            .note =
                "Nothing here is measured. checkpoint-engine and the pause stand for engines "
                "that stand still; staging goes on while they serve.",
            .command = kScaleCommand};
  trace::Chart chart{.title = plot.title,
                     .x_title = "GPUs",
                     .panels = {},
                     .marks = {},
                     .width = kPlotWidth,
                     .panel_height = kPlotHeight,
                     .logarithmic_x = true,
                     .x_ticks = {},
                     .legend_on_top = true};
  trace::Panel panel{.title = "Seconds", .series = {}, .logarithmic = true};
  for (const CurveOf& of_kind : kCurves) {
    trace::Series series = curve(cases, model, of_kind);
    if (series.points.empty()) continue;
    for (const auto& [gpus, seconds] : series.points)
      chart.x_ticks.emplace_back(gpus, fmt::format("{:.0f}", gpus));
    panel.series.push_back(std::move(series));
  }
  chart.panels.push_back(std::move(panel));
  if (const std::uint64_t most = published_most(cases); most > 0) {
    chart.marks.emplace_back(static_cast<double>(most), "published up to here");
  }
  plot.svg = trace::chart_svg(chart);
  return plot;
}

Plot published_plot(const std::vector<ScaleCase>& cases, const std::string& of) {
  Plot plot{.id = "scale-published",
            .title = "checkpoint-engine, published and simulated" + of,
            .svg = {},
            .note = "One constant of the simulation is fitted, on one of these rows.",
            .command = kScaleCommand};
  trace::BarPanel panel{.title = {}, .x_title = "Seconds", .rows = {}};
  for (const ScaleCase& one : cases) {
    if (one.what != "published update" || !one.result->baseline) continue;
    if (panel.rows.size() == kRowsMost) break;
    const double published = spread_of(one.result->baseline->samples).median;
    const double simulated = spread_of(one.result->samples).median;
    panel.rows.push_back({.name = fmt::format("{}, {} GPUs", one.model, one.gpus),
                          .bars = {{.value = published,
                                    .text = figure_text(published) + " s",
                                    .colour = kFloorColour,
                                    .name = "published"},
                                   {.value = simulated,
                                    .text = figure_text(simulated) + " s",
                                    .colour = kColours[1],
                                    .name = "simulated"}}});
  }
  if (!panel.rows.empty())
    plot.svg = trace::bar_chart_svg(
        {.title = plot.title, .panels = {std::move(panel)}, .width = kPlotWidth});
  return plot;
}

}  // namespace

std::vector<Plot> scale_plots(std::span<const ReportFile> runs) {
  std::vector<Plot> plots;
  for (const auto& [run, suite] : suites_named(runs, "scale")) {
    const auto cases = scale_cases(*suite);
    const std::string of = of_run(runs, run);
    std::vector<std::string_view> models;
    for (const ScaleCase& one : cases)
      if (one.what != "published update" && std::ranges::find(models, one.model) == models.end())
        models.push_back(one.model);
    for (const std::string_view model : models)
      if (plots.size() < kSeriesMost) plots.push_back(model_plot(cases, model, of));
    if (Plot published = published_plot(cases, of); !published.svg.empty())
      plots.push_back(std::move(published));
  }
  if (plots.empty())
    plots.push_back({.id = "scale",
                     .title = "Updates by the number of GPUs",
                     .svg = {},
                     .note = {},
                     .command = kScaleCommand});
  return plots;
}

}  // namespace wsync::bench::page
