#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "bench/page/plot_parts.h"
#include "shared/base/format.h"
#include "shared/observe/trace/chart.h"
#include "shared/observe/trace/progress.h"

namespace wsync::bench::page {
namespace {

constexpr double kMsOfSecond = 1e3;
constexpr double kBytesOfGB = 1e9;
constexpr double kSpansDecades = 10;  // most by least: from here on an axis is logarithmic
constexpr double kFullAxis = 1.08;    // of the most value, where an axis ends

// One "paused" of a suite `sync`.
struct Paused {
  std::size_t run = 0;
  std::uint64_t engines = 0;
  std::uint64_t model_bytes = 0;  // 0: the parameters do not say
  std::string how;                // "that map on 2 devices"; empty: they copy
  std::string model;              // by name; empty: a demo model
  const CaseResult* result = nullptr;
};

std::vector<Paused> all_paused(std::span<const ReportFile> runs) {
  std::vector<Paused> all;
  for (const auto& [run, suite] : suites_named(runs, "sync"))
    for (const CaseResult& one : suite->cases) {
      const NameParts name = first_part(one.name);
      const auto engines = counted_by(name.with, "engine");
      if (name.what != "paused" || one.unit != "ms" || !engines) continue;
      Paused paused{.run = run,
                    .engines = engines->count,
                    .how = std::string(engines->rest),
                    .model = {},
                    .result = &one};
      const nlohmann::json& parameters = suite->parameters;
      if (const auto bytes = parameters.find("bytes");
          bytes != parameters.end() && bytes->is_number_unsigned())
        paused.model_bytes = bytes->get<std::uint64_t>();
      if (const auto model = parameters.find("model");
          model != parameters.end() && model->is_string())
        paused.model = model->get<std::string>();
      all.push_back(std::move(paused));
    }
  return all;
}

// Points that a line joins: the name of the line, and its measurements by ascending x.
struct PausedLine {
  std::string name;
  std::vector<const Paused*> points;
};

// Lines of `key`, in the order in which they come; those with fewer than two values of `x` are
// none.
template <typename Key, typename Rank, typename X, typename Name>
std::vector<PausedLine> lines_of(const std::vector<Paused>& all, Key key, Rank rank, X x,
                                 Name name) {
  std::vector<PausedLine> lines;
  std::map<std::string, std::size_t> places;
  for (const Paused& one : all) {
    const auto [place, is_new] = places.emplace(key(one), lines.size());
    if (is_new) lines.push_back({.name = name(one), .points = {}});
    lines[place->second].points.push_back(&one);
  }
  std::erase_if(lines, [&](PausedLine& line) {
    std::set<std::uint64_t> values;
    for (const Paused* point : line.points) values.insert(x(*point));
    std::ranges::stable_sort(line.points, {}, [&](const Paused* point) { return x(*point); });
    return values.size() < 2;
  });
  std::ranges::stable_sort(lines, {},
                           [&](const PausedLine& line) { return rank(*line.points[0]); });
  if (lines.size() > kSeriesMost) lines.resize(kSeriesMost);
  return lines;
}

// Lines of one name are told apart by their files.
void name_apart(std::vector<PausedLine>& lines) {
  std::map<std::string, int> times;
  for (const PausedLine& line : lines) ++times[line.name];
  for (PausedLine& line : lines)
    if (times[line.name] > 1) line.name += fmt::format(" ({})", run_letter(line.points[0]->run));
}

std::string size_text(const Paused& one) {
  return (one.model.empty() ? "" : one.model + ", ") +
         (one.model_bytes == 0 ? "model" : trace::format_bytes(one.model_bytes));
}

std::string how_text(const Paused& one) { return one.how.empty() ? "" : ", " + one.how; }

std::vector<PausedLine> lines_by_engines(const std::vector<Paused>& all) {
  auto lines = lines_of(
      all,
      [](const Paused& one) {
        return fmt::format("{} {} {} {}", one.run, one.model_bytes, one.model, one.how);
      },
      [](const Paused& one) { return one.model_bytes; },
      [](const Paused& one) { return one.engines; },
      [](const Paused& one) { return size_text(one) + how_text(one); });
  name_apart(lines);
  return lines;
}

// The rate of bytes in a time of milliseconds, in GB/s.
double rate_of(const CaseResult& one, double ms) {
  return ms > 0 ? static_cast<double>(one.bytes) / kBytesOfGB * kMsOfSecond / ms : 0;
}

trace::Series series_of(const PausedLine& line, std::size_t index) {
  return {
      .name = line.name, .colour = kColours[index % kColours.size()], .points = {}, .marked = true};
}

std::vector<trace::Tick> engine_ticks(const std::vector<PausedLine>& lines) {
  std::set<std::uint64_t> engines;
  for (const PausedLine& line : lines)
    for (const Paused* point : line.points) engines.insert(point->engines);
  std::vector<trace::Tick> ticks;
  for (const std::uint64_t count : engines)
    ticks.emplace_back(static_cast<double>(count), fmt::format("{}", count));
  return ticks;
}

trace::Chart by_engines(const std::vector<PausedLine>& lines, std::string title, std::string axis) {
  trace::Chart chart{.title = std::move(title),
                     .x_title = "Engines",
                     .panels = {},
                     .marks = {},
                     .width = kPlotWidth,
                     .panel_height = kPlotHeight,
                     .logarithmic_x = true,
                     .x_ticks = engine_ticks(lines),
                     .legend_on_top = true};
  chart.panels.push_back({.title = std::move(axis), .series = {}});
  return chart;
}

// From zero to what is drawn.
void from_zero(trace::Panel& panel) {
  const auto take = [&panel](double value) {
    if (std::isfinite(value)) panel.most = std::max(panel.most, value);
  };
  for (const trace::Series& series : panel.series) {
    for (const auto& [x, y] : series.points) take(y);
    for (const auto& [least, most] : series.ranges) take(most);
  }
  for (const auto& [value, name] : panel.levels) take(value);
  panel.most *= kFullAxis;
}

Plot throughput_plot(std::vector<PausedLine> lines) {
  Plot plot{.id = "sync-throughput",
            .title = "Throughput against engines",
            .svg = {},
            .note =
                "Bytes that all engines load together, by the time that they stand still. "
                "Dashed: the floor, a plain copy of the same bytes in the same rounds.",
            .command = "wsync bench sync --engines 1,2,4,8 --output FILE"};
  std::erase_if(lines, [](const PausedLine& line) { return line.points[0]->result->bytes == 0; });
  if (lines.empty()) return plot;
  trace::Chart chart = by_engines(lines, plot.title, "GB/s, all engines together");
  trace::Panel& panel = chart.panels[0];
  for (std::size_t i = 0; i < lines.size(); ++i) {
    trace::Series series = series_of(lines[i], i);
    trace::Series floor{.name = {}, .colour = series.colour, .points = {}, .dashed = true};
    for (const Paused* point : lines[i].points) {
      const CaseResult& one = *point->result;
      const Spread ms = spread_of(one.samples);
      const auto x = static_cast<double>(point->engines);
      series.points.emplace_back(x, rate_of(one, ms.median));
      series.ranges.emplace_back(rate_of(one, ms.max), rate_of(one, ms.min));
      if (one.baseline)
        floor.points.emplace_back(x, rate_of(one, spread_of(one.baseline->samples).median));
    }
    panel.series.push_back(std::move(series));
    if (!floor.points.empty()) panel.series.push_back(std::move(floor));
  }
  from_zero(panel);
  plot.svg = trace::chart_svg(chart);
  return plot;
}

Plot share_plot(std::vector<PausedLine> lines) {
  Plot plot{.id = "sync-share-of-floor",
            .title = "Share of the floor against engines",
            .svg = {},
            .note =
                "Floor by paused time, round by round: 1 would be an update that costs nothing "
                "but its bytes.",
            .command = "wsync bench sync --engines 1,2,4,8 --output FILE"};
  std::erase_if(lines, [](const PausedLine& line) {
    return std::ranges::any_of(line.points,
                               [](const Paused* point) { return point->result->ratios.empty(); });
  });
  if (lines.empty()) return plot;
  trace::Chart chart = by_engines(lines, plot.title, "Share of the floor (1: as fast)");
  trace::Panel& panel = chart.panels[0];
  for (std::size_t i = 0; i < lines.size(); ++i) {
    trace::Series series = series_of(lines[i], i);
    for (const Paused* point : lines[i].points) {
      const Spread share = spread_of(point->result->ratios);
      series.points.emplace_back(static_cast<double>(point->engines), share.median);
      series.ranges.emplace_back(share.min, share.max);
      const auto& target = point->result->target;
      if (target && target->of == Target::Of::kRatio && panel.levels.empty())
        panel.levels.emplace_back(target->value,
                                  fmt::format("target {}", figure_text(target->value)));
    }
    panel.series.push_back(std::move(series));
  }
  from_zero(panel);
  plot.svg = trace::chart_svg(chart);
  return plot;
}

// Of one machine only: a line between two machines would say nothing.
std::vector<PausedLine> lines_by_size(std::span<const ReportFile> runs,
                                      const std::vector<Paused>& all) {
  std::vector<std::size_t> machine_of(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (machine_of[i] = 0; runs[machine_of[i]].file.machine != runs[i].file.machine;)
      ++machine_of[i];
  auto lines = lines_of(
      all,
      [&](const Paused& one) {
        return fmt::format("{} {} {}", machine_of[one.run], one.engines, one.how);
      },
      [](const Paused& one) { return one.engines; },
      [](const Paused& one) { return one.model_bytes; },
      [](const Paused& one) { return counted(one.engines, "engine") + how_text(one); });
  name_apart(lines);
  return lines;
}

Plot size_plot(const std::vector<PausedLine>& lines) {
  Plot plot{.id = "sync-paused-by-size",
            .title = "Paused time against model size",
            .svg = {},
            .note =
                "From the last rank's PAUSED to RESUME; whiskers from the shortest to the "
                "longest of all rounds.",
            .command =
                "wsync bench sync --size SIZE --output SIZE.json, once for each size, and "
                "all of those files in one report"};
  if (lines.empty()) return plot;
  trace::Chart chart{.title = plot.title,
                     .x_title = "Bytes of the model",
                     .panels = {},
                     .marks = {},
                     .width = kPlotWidth,
                     .panel_height = kPlotHeight,
                     .x_ticks = {},
                     .legend_on_top = true};
  chart.panels.push_back({.title = "Paused, ms", .series = {}});
  trace::Panel& panel = chart.panels[0];
  trace::Extent sizes;
  trace::Extent times;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    trace::Series series = series_of(lines[i], i);
    for (const Paused* point : lines[i].points) {
      const Spread ms = spread_of(point->result->samples);
      const auto x = static_cast<double>(point->model_bytes);
      series.points.emplace_back(x, ms.median);
      series.ranges.emplace_back(ms.min, ms.max);
      chart.x_ticks.emplace_back(x, trace::format_bytes(point->model_bytes));
      sizes.take(x);
      if (ms.min > 0) times.take(ms.min);
      times.take(ms.max);
    }
    panel.series.push_back(std::move(series));
  }
  // Both or none: so what grows as its bytes is a straight line.
  chart.logarithmic_x = sizes.most >= kSpansDecades * sizes.least ||
                        (times.least > 0 && times.most >= kSpansDecades * times.least);
  panel.logarithmic = chart.logarithmic_x;
  if (!panel.logarithmic) from_zero(panel);
  plot.svg = trace::chart_svg(chart);
  return plot;
}

}  // namespace

std::vector<Plot> sync_plots(std::span<const ReportFile> runs) {
  const std::vector<Paused> all = all_paused(runs);
  const auto by_engines = lines_by_engines(all);
  // The lines refer to what they are made of.
  std::vector<Paused> sized = all;
  std::erase_if(sized, [](const Paused& one) { return one.model_bytes == 0; });
  std::vector<Plot> plots;
  plots.push_back(throughput_plot(by_engines));
  plots.push_back(share_plot(by_engines));
  plots.push_back(size_plot(lines_by_size(runs, sized)));
  return plots;
}

}  // namespace wsync::bench::page
