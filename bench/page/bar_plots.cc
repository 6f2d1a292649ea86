#include <algorithm>
#include <cmath>

#include "bench/page/plot_parts.h"
#include "shared/base/format.h"
#include "shared/observe/trace/bar_chart.h"

namespace wsync::bench::page {
namespace {

constexpr const char* kPeersCommand = "wsync bench peers --output FILE";
constexpr const char* kPipelineCommand = "wsync bench pipeline --output FILE";
constexpr const char* kBaselineCommand = "wsync bench baseline --output FILE";
constexpr std::string_view kOurs = "wsync";

trace::Bar bar_of(const std::vector<double>& samples, std::string_view unit, const char* colour,
                  std::string name = {}) {
  const Spread spread = spread_of(samples);
  return {.value = spread.median,
          .range = std::pair(spread.min, spread.max),
          .text = figure_text(spread.median) + (unit.empty() ? "" : " ") + std::string(unit),
          .colour = colour,
          .name = std::move(name)};
}

// Of a panel: all, or those that come first.
trace::BarPanel some_rows(trace::BarPanel panel) {
  if (panel.rows.size() > kRowsMost) panel.rows.resize(kRowsMost);
  return panel;
}

// One of those that did the same job: its times, and of which parts they are.
struct Contender {
  std::string name;
  const CaseResult* whole = nullptr;
  std::vector<const CaseResult*> parts;  // "staged, wsync" beside "verified copies, wsync"
};

// The fastest first. A case that no other one is named after stands for itself.
std::vector<Contender> contenders_of(const SuiteResult& suite) {
  std::vector<Contender> all;
  for (const CaseResult& one : suite.cases) {
    if (one.unit != "s") continue;
    const NameParts parts = first_part(one.name);
    const std::string name(parts.with.empty() ? parts.what : parts.with);
    const auto same = std::ranges::find(all, name, &Contender::name);
    if (same == all.end())
      all.push_back({.name = name, .whole = &one, .parts = {}});
    else
      same->parts.push_back(&one);
  }
  std::ranges::stable_sort(
      all, {}, [](const Contender& one) { return spread_of(one.whole->samples).median; });
  return all;
}

// How many times as long as the other, of each round where both have as many.
std::vector<double> times_as_long(const CaseResult& one, const CaseResult& other) {
  CaseResult rate = one;
  rate.higher_is_better = true;  // sample by baseline
  set_baseline(rate, {}, other.samples);
  return rate.ratios;
}

trace::BarRow seconds_row(const Contender& one, const char* colour) {
  trace::BarRow row{.name = one.name, .bars = {bar_of(one.whole->samples, "s", colour)}};
  for (const CaseResult* part : one.parts) {
    trace::Bar bar = bar_of(part->samples, "s", kColours[5]);
    bar.text += fmt::format(" {}", first_part(part->name).what);
    row.bars.push_back(std::move(bar));
  }
  return row;
}

Plot peers_part(const char* id, const char* title, const std::string& of, trace::BarPanel panel) {
  Plot plot{.id = id, .title = title + of, .svg = {}, .note = {}, .command = kPeersCommand};
  if (!panel.rows.empty())
    plot.svg = trace::bar_chart_svg(
        {.title = plot.title, .panels = {some_rows(std::move(panel))}, .width = kPlotWidth});
  return plot;
}

// Seconds, ratio to the floor and ratio to wsync.
std::array<Plot, 3> peers_of(const SuiteResult& suite, const std::string& of) {
  const std::vector<Contender> all = contenders_of(suite);
  trace::BarPanel seconds{.title = {}, .x_title = "Seconds", .rows = {}};
  trace::BarPanel floor{.title = {},
                        .x_title = "Speed as a share of the floor's",
                        .rows = {},
                        .levels = {{1, "floor"}}};
  trace::BarPanel ours{.title = {}, .x_title = "Times as long as wsync", .rows = {}};
  const auto wsync = std::ranges::find(all, kOurs, &Contender::name);
  for (const Contender& one : all) {
    const bool is_ours = one.name == kOurs;
    const bool has_floor = !one.whole->ratios.empty();
    const char* colour = is_ours ? kColours[0] : has_floor ? kColours[1] : kFloorColour;
    seconds.rows.push_back(seconds_row(one, colour));
    if (!has_floor) continue;
    floor.rows.push_back({.name = one.name, .bars = {bar_of(one.whole->ratios, "", colour)}});
    if (wsync == all.end() || is_ours) continue;
    if (auto times = times_as_long(*one.whole, *wsync->whole); !times.empty())
      ours.rows.push_back({.name = one.name, .bars = {bar_of(times, "times", colour)}});
  }
  return {peers_part("peers", "The same job by others", of, std::move(seconds)),
          peers_part("peers-to-floor", "The same job, against the floor", of, std::move(floor)),
          peers_part("peers-to-wsync", "The same job, against wsync", of, std::move(ours))};
}

Plot predictions_plot(const SuiteResult& suite, const std::string& of) {
  Plot plot{.id = "pipeline",
            .title = "The pipeline, predicted and measured" + of,
            .svg = {},
            .note = "Predicted from each stage alone in the same round; the target is 10 %.",
            .command = kPipelineCommand};
  trace::BarPanel times{.title = {}, .x_title = "Milliseconds", .rows = {}};
  trace::BarPanel ratios{.title = "Predicted by measured",
                         .x_title = "1: as predicted",
                         .rows = {},
                         .levels = {{0.9, "0.9"}, {1.1, "1.1"}}};
  for (const CaseResult& one : suite.cases) {
    if (!one.baseline || one.ratios.empty() || one.unit != "ms") continue;
    times.rows.push_back(
        {.name = one.name,
         .bars = {bar_of(one.samples, "ms", kColours[0], "measured"),
                  bar_of(one.baseline->samples, "ms", kFloorColour, "predicted")}});
    ratios.rows.push_back({.name = one.name, .bars = {bar_of(one.ratios, "", kColours[0])}});
  }
  if (times.rows.empty()) return plot;
  plot.svg =
      trace::bar_chart_svg({.title = plot.title,
                            .panels = {some_rows(std::move(times)), some_rows(std::move(ratios))},
                            .width = kPlotWidth});
  return plot;
}

Plot machine_plot(const SuiteResult& suite, const std::string& of) {
  Plot plot{.id = "baseline",
            .title = "What the machine can do" + of,
            .svg = {},
            .note = "What the other suites' figures are shares of.",
            .command = kBaselineCommand};
  trace::BarPanel panel{.title = {}, .x_title = "GiB/s", .rows = {}};
  for (const CaseResult& one : suite.cases)
    if (one.unit == "GiB/s")
      panel.rows.push_back(
          {.name = one.name, .bars = {bar_of(one.samples, one.unit, kColours[2])}});
  if (!panel.rows.empty())
    plot.svg = trace::bar_chart_svg(
        {.title = plot.title, .panels = {some_rows(std::move(panel))}, .width = kPlotWidth});
  return plot;
}

// One plot of each suite of that name, or the one that has no data.
template <typename Make>
std::vector<Plot> one_of_each(std::span<const ReportFile> runs, std::string_view name, Make make) {
  std::vector<Plot> plots;
  for (const auto& [run, suite] : suites_named(runs, name))
    if (Plot made = make(*suite, of_run(runs, run)); !made.svg.empty())
      plots.push_back(std::move(made));
  if (plots.empty()) plots.push_back(make(SuiteResult{}, ""));
  return plots;
}

}  // namespace

std::vector<Plot> peer_plots(std::span<const ReportFile> runs) {
  std::vector<Plot> plots;
  for (const auto& [run, suite] : suites_named(runs, "peers"))
    for (Plot& made : peers_of(*suite, of_run(runs, run)))
      if (!made.svg.empty()) plots.push_back(std::move(made));
  if (plots.empty()) plots.push_back(peers_of({}, "")[0]);
  return plots;
}

std::vector<Plot> pipeline_plots(std::span<const ReportFile> runs) {
  return one_of_each(runs, "pipeline", predictions_plot);
}

std::vector<Plot> baseline_plots(std::span<const ReportFile> runs) {
  return one_of_each(runs, "baseline", machine_plot);
}

}  // namespace wsync::bench::page
