#include "shared/observe/trace/chart.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "shared/base/format.h"
#include "shared/observe/trace/legend.h"
#include "shared/observe/trace/svg.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::trace {
namespace {

constexpr double kLeftMargin = 76;
constexpr double kRightMargin = 24;
constexpr double kTopMargin = 58;
constexpr double kLegendTop = 46;  // its first row
constexpr double kPanelGap = 52;
constexpr double kBottomMargin = 50;
constexpr double kPixelsOfTick = 86;  // across
constexpr double kTicksUp = 4;
constexpr double kEdge = 0.04;        // of the width, left free beside marked points
constexpr double kBeside = 3;         // pixels between whiskers of two series at one x
constexpr double kWhisker = 3;        // half of its ends
constexpr double kFullFigure = 0.05;  // of the range, above and below values with whiskers

bool any_marked(const Chart& chart) {
  return std::ranges::any_of(chart.panels, [](const Panel& panel) {
    return std::ranges::any_of(panel.series, &Series::marked);
  });
}

Extent across(const Chart& chart) {
  Extent extent;
  const auto take = [&](double x) {
    if (std::isfinite(x) && (!chart.logarithmic_x || x > 0)) extent.take(x);
  };
  for (const Panel& panel : chart.panels)
    for (const Series& series : panel.series)
      for (const auto& [x, y] : series.points) take(x);
  for (const auto& [x, name] : chart.marks) take(x);
  if (extent.none()) return {chart.logarithmic_x ? 1.0 : 0.0, chart.logarithmic_x ? 10.0 : 1.0};
  if (!any_marked(chart)) return extent;
  if (!chart.logarithmic_x) {
    extent.widen(kEdge * (extent.most - extent.least));
    return extent;
  }
  const double by = std::pow(extent.most / extent.least, kEdge);
  return {extent.least / by, extent.most * by};
}

Extent up(const Panel& panel) {
  if (panel.least < panel.most) return {panel.least, panel.most};
  Extent extent;
  const auto take = [&](double y) {
    if (std::isfinite(y) && (!panel.logarithmic || y > 0)) extent.take(y);
  };
  for (const Series& series : panel.series) {
    for (const auto& [x, y] : series.points) take(y);
    for (const auto& [least, most] : series.ranges) {
      take(least);
      take(most);
    }
  }
  for (const auto& [y, name] : panel.levels) take(y);
  return extent;
}

struct Scales {
  AxisScale horizontal;
  AxisScale vertical;
};

// `beside` moves it to the right of where it is, in pixels.
std::string draw_line(const Series& series, double beside, const Scales& scales) {
  std::string path;
  bool begins = true;
  for (const auto& [x, y] : series.points) {
    const auto left = scales.horizontal.place(x);
    const auto top = scales.vertical.place(y);
    if (!left || !top) {
      begins = true;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", begins ? "M" : "L", *left + beside, *top);
    begins = false;
  }
  if (path.empty()) return {};
  return fmt::format(
      "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\" "
      "stroke-linejoin=\"round\" stroke-linecap=\"round\"{}/>\n",
      path, svg_escaped(series.colour), series.faint || series.dashed ? 1 : 2,
      series.faint ? 0.35 : 1, series.dashed ? kDashes : "");
}

std::string draw_whisker(double x, double low, double high, std::string_view colour) {
  return fmt::format(
      "<path d=\"M{0:.1f} {2:.1f}H{1:.1f}M{0:.1f} {3:.1f}H{1:.1f}M{4:.1f} {2:.1f}V{3:.1f}\" "
      "fill=\"none\" stroke=\"{5}\"/>\n",
      x - kWhisker, x + kWhisker, low, high, x, colour);
}

std::string draw_points(const Series& series, std::size_t shape, double beside,
                        const Scales& scales) {
  std::string text;
  const std::string colour = svg_escaped(series.colour);
  for (std::size_t i = 0; i < series.points.size(); ++i) {
    const auto left = scales.horizontal.place(series.points[i].first);
    const auto top = scales.vertical.place(series.points[i].second);
    if (!left || !top) continue;
    if (i < series.ranges.size()) {
      const auto low = scales.vertical.place(series.ranges[i].first);
      const auto high = scales.vertical.place(series.ranges[i].second);
      if (low && high) text += draw_whisker(*left + beside, *low, *high, colour);
    }
    if (series.marked) text += marker(shape, *left + beside, *top, colour);
  }
  return text;
}

// Of the series `index`: how many before it have markers.
std::size_t shape_of(const Panel& panel, std::size_t index) {
  return static_cast<std::size_t>(
      std::count_if(panel.series.begin(), panel.series.begin() + static_cast<std::ptrdiff_t>(index),
                    [](const Series& series) { return series.marked; }));
}

// Series with whiskers stand beside each other, or those at one x would hide each other.
std::vector<double> beside_of(const Panel& panel) {
  std::vector<double> beside(panel.series.size(), 0);
  const auto with = std::ranges::count_if(
      panel.series, [](const Series& series) { return !series.ranges.empty(); });
  double at = -kBeside * static_cast<double>(with - 1) / 2;
  for (std::size_t i = 0; i < panel.series.size(); ++i)
    if (!panel.series[i].ranges.empty()) beside[i] = std::exchange(at, at + kBeside);
  return beside;
}

std::string draw_series(const Panel& panel, const Scales& scales) {
  std::string text;
  const std::vector<double> beside = beside_of(panel);
  for (const bool faint : {true, false})
    for (std::size_t i = 0; i < panel.series.size(); ++i)
      if (panel.series[i].faint == faint) text += draw_line(panel.series[i], beside[i], scales);
  for (std::size_t i = 0; i < panel.series.size(); ++i)
    text += draw_points(panel.series[i], shape_of(panel, i), beside[i], scales);
  return text;
}

LegendEntry entry_of(const Panel& panel, std::size_t index) {
  const Series& series = panel.series[index];
  return {.name = series.name,
          .colour = series.colour,
          .marker = series.marked ? std::optional(shape_of(panel, index)) : std::nullopt,
          .faint = series.faint,
          .dashed = series.dashed};
}

std::string legend_of(const Panel& panel, double right, double top) {
  std::string text;
  for (std::size_t i = panel.series.size(); i-- > 0;) {
    const Series& series = panel.series[i];
    if (series.name.empty()) continue;
    text += axis_text(right, top - 8, "end", 12, series.name);
    right -= text_width(series.name) + 6;
    text += legend_line(entry_of(panel, i), right - 18, right, top - 12);
    right -= 34;
  }
  return text;
}

class ChartDrawing {
 public:
  explicit ChartDrawing(const Chart& chart)
      : chart_(chart),
        right_(chart.width - kRightMargin),
        horizontal_(
            across(chart), kLeftMargin, right_,
            chart.logarithmic_x ? AxisScale::Kind::kLogarithmic : AxisScale::Kind::kLinear) {}

  [[nodiscard]] std::string svg() {
    std::string body = axis_text(chart_.legend_on_top ? kLegendMargin : kLeftMargin, 24, "start",
                                 16, chart_.title, "#111");
    double top = kTopMargin;
    if (chart_.legend_on_top) {
      Legend legend(chart_.width);
      for (const Panel& panel : chart_.panels)
        for (std::size_t i = 0; i < panel.series.size(); ++i) legend.add(entry_of(panel, i));
      body += legend.drawn(kLegendTop);
      top += legend.height() + kLegendRow;
    }
    bool first = true;
    for (const Panel& panel : chart_.panels) {
      body += draw(panel, top) + marks(top, first);
      top += chart_.panel_height + kPanelGap;
      first = false;
    }
    const double axis = top - kPanelGap;
    body += x_axis(axis);
    return svg_picture(chart_.width, axis + kBottomMargin, chart_.title, body);
  }

 private:
  [[nodiscard]] std::string draw(const Panel& panel, double top) const {
    const double bottom = top + chart_.panel_height;
    std::string text = axis_text(kLeftMargin, top - 8, "start", 13, panel.title, "#111");
    text += fmt::format(
        "<rect class=\"field\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#fafafa\" "
        "stroke=\"#ccc\"/>\n",
        kLeftMargin, top, right_ - kLeftMargin, chart_.panel_height);
    Extent extent = up(panel);
    if (extent.none())
      return text + axis_text((kLeftMargin + right_) / 2, top + chart_.panel_height / 2, "middle",
                              12, "no values", "#777");
    if (panel.least >= panel.most && !panel.logarithmic &&
        std::ranges::any_of(panel.series, &Series::marked))
      extent.widen(kFullFigure * (extent.most - extent.least));
    const Scales scales{horizontal_, AxisScale(extent, bottom, top,
                                               panel.logarithmic ? AxisScale::Kind::kDecades
                                                                 : AxisScale::Kind::kLinear)};
    for (const auto& [value, name] : scales.vertical.ticks(kTicksUp)) {
      const double y = *scales.vertical.place(value);
      text += axis_line(kLeftMargin, y, right_, y, "#e4e4e4");
      text += axis_text(kLeftMargin - 8, y + 4, "end", 12, name);
    }
    double names_end = right_;
    for (const auto& [value, name] : panel.levels) {
      const auto y = scales.vertical.place(value);
      if (!y) continue;
      text += axis_line(kLeftMargin, *y, right_, *y, "#888", kDashes);
      if (!chart_.legend_on_top) {
        text += axis_text(right_ - 4, *y - 4, "end", 12, name, "#666");
        continue;
      }
      // Above the field, where no line runs through it.
      text += axis_text(names_end, top - 8, "end", 12, name, "#666");
      names_end -= text_width(name) + 6;
      text += axis_line(names_end - 18, top - 12, names_end, top - 12, "#888", kDashes);
      names_end -= 34;
    }
    text += draw_series(panel, scales);
    return chart_.legend_on_top ? text : text + legend_of(panel, right_, top);
  }

  [[nodiscard]] std::string marks(double top, bool named) const {
    std::string text;
    for (const auto& [x, name] : chart_.marks) {
      const auto at = horizontal_.place(x);
      if (!at) continue;
      text += axis_line(*at, top, *at, top + chart_.panel_height, "#888", kDashes);
      if (named) text += axis_text(*at + 4, top + 13, "start", 12, name, "#666");
    }
    return text;
  }

  [[nodiscard]] std::string x_axis(double axis) const {
    std::string text;
    const double count = (right_ - kLeftMargin) / kPixelsOfTick;
    const auto ticks = ticks_that_fit(
        chart_.x_ticks.empty() ? horizontal_.ticks(count) : chart_.x_ticks, horizontal_);
    for (const auto& [value, name] : ticks) {
      const double x = *horizontal_.place(value);
      text += axis_line(x, axis, x, axis + 4, "#888");
      text += axis_text(x, axis + 18, "middle", 12, name);
    }
    return text + axis_text((kLeftMargin + right_) / 2, axis + 38, "middle", 12, chart_.x_title);
  }

  const Chart& chart_;
  double right_;
  AxisScale horizontal_;
};

}  // namespace

std::string chart_svg(const Chart& chart) { return ChartDrawing(chart).svg(); }

Result<> write_chart_svg(const std::string& path, const Chart& chart) {
  return write_text_file(path, chart_svg(chart));
}

}  // namespace wsync::trace
