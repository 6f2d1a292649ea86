#include "shared/observe/trace/bar_chart.h"

#include <algorithm>
#include <cmath>

#include "shared/base/format.h"
#include "shared/observe/trace/legend.h"
#include "shared/observe/trace/svg.h"

namespace wsync::trace {
namespace {

constexpr double kBarMargin = 16;
constexpr double kBarTop = 40;  // of the first panel, under the title
constexpr double kBarHeight = 13;
constexpr double kBarGap = 3;
constexpr double kRowName = 17;  // above a row's bars
constexpr double kRowGap = 7;
constexpr double kAxisHeight = 58;  // ticks, title and what is left free below
constexpr double kTextBeside = 6;
constexpr double kBarTicks = 5;
constexpr double kBarWhisker = 4;

double height_of(const BarRow& row) {
  return kRowName + static_cast<double>(row.bars.size()) * (kBarHeight + kBarGap) + kRowGap;
}

class PanelOfBars {
 public:
  PanelOfBars(const BarPanel& panel, double width)
      : panel_(panel),
        width_(width),
        right_(width - kBarMargin - room()),
        scale_(extent(), kBarMargin, right_, AxisScale::Kind::kLinear) {}

  // Moves `top` to below the panel.
  [[nodiscard]] std::string drawn(double& top) const {
    std::string text;
    if (!panel_.title.empty()) {
      text += axis_text(kBarMargin, top + 14, "start", 13, panel_.title, "#111");
      top += 24;
    }
    const double named = panel_.levels.empty() ? top : top + 16;
    double bottom = named;
    for (const BarRow& row : panel_.rows) bottom += height_of(row);
    text += grid(named, bottom) + levels(named, bottom);
    double at = named;
    for (const BarRow& row : panel_.rows) {
      text += drawn(row, at);
      at += height_of(row);
    }
    text += axis_line(kBarMargin, named, kBarMargin, bottom, "#888");
    text += axis_text((kBarMargin + right_) / 2, bottom + 34, "middle", 12, panel_.x_title);
    top = bottom + kAxisHeight;
    return text;
  }

 private:
  // Right of the longest bar, for its text.
  [[nodiscard]] double room() const {
    double most = 0;
    for (const BarRow& row : panel_.rows)
      for (const Bar& bar : row.bars) most = std::max(most, text_width(bar.text));
    return std::min(most + kTextBeside, width_ / 2);
  }
  [[nodiscard]] Extent extent() const {
    Extent extent{0, 0};
    const auto take = [&](double value) {
      if (std::isfinite(value)) extent.take(value);
    };
    for (const BarRow& row : panel_.rows)
      for (const Bar& bar : row.bars) {
        take(bar.value);
        if (bar.range) take(bar.range->second);
      }
    for (const auto& [value, name] : panel_.levels) take(value);
    extent.least = 0;
    if (extent.most <= 0) extent.most = 1;
    return extent;
  }
  [[nodiscard]] std::string grid(double top, double bottom) const {
    std::string text;
    for (const auto& [value, name] : ticks_that_fit(scale_.ticks(kBarTicks), scale_)) {
      const double x = *scale_.place(value);
      text += axis_line(x, top, x, bottom, "#e4e4e4");
      text += axis_text(x, bottom + 16, "middle", 12, name);
    }
    return text;
  }
  [[nodiscard]] std::string levels(double top, double bottom) const {
    std::string text;
    for (const auto& [value, name] : panel_.levels) {
      const auto x = scale_.place(value);
      if (!x) continue;
      text += axis_line(*x, top - 2, *x, bottom, "#888", kDashes);
      text += axis_text(*x, top - 5, "middle", 12, name, "#666");
    }
    return text;
  }
  [[nodiscard]] std::string drawn(const BarRow& row, double top) const {
    std::string text =
        axis_text(kBarMargin + 4, top + 13, "start", 12, fitted(row.name, width_ - 2 * kBarMargin));
    top += kRowName;
    for (const Bar& bar : row.bars) {
      const auto end = scale_.place(bar.value);
      double beside = kBarMargin;
      if (end) {
        beside = *end;
        text += fmt::format(
            "<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>\n",
            kBarMargin, top, std::max(*end - kBarMargin, 1.0), kBarHeight, svg_escaped(bar.colour));
      }
      if (const auto places = whisker(bar)) {
        const double middle = top + kBarHeight / 2;
        text += fmt::format(
            "<path class=\"whisker\" d=\"M{0:.1f} {2:.1f}V{3:.1f}M{1:.1f} {2:.1f}V{3:.1f}M{0:.1f} "
            "{4:.1f}H{1:.1f}\" fill=\"none\" stroke=\"#222\"/>\n",
            places->first, places->second, middle - kBarWhisker, middle + kBarWhisker, middle);
        beside = std::max(beside, places->second);
      }
      text += axis_text(beside + kTextBeside, top + 11, "start", 12, bar.text);
      top += kBarHeight + kBarGap;
    }
    return text;
  }
  // Pixels of its ends.
  [[nodiscard]] std::optional<std::pair<double, double>> whisker(const Bar& bar) const {
    if (!bar.range) return std::nullopt;
    const auto least = scale_.place(bar.range->first);
    const auto most = scale_.place(bar.range->second);
    if (!least || !most || *most - *least < 1) return std::nullopt;
    return std::pair(*least, *most);
  }

  const BarPanel& panel_;
  double width_;
  double right_;
  AxisScale scale_;
};

}  // namespace

std::string bar_chart_svg(const BarChart& chart) {
  std::string body = axis_text(kLegendMargin, 24, "start", 16, chart.title, "#111");
  Legend legend(chart.width);
  bool has_legend = false;
  for (const BarPanel& panel : chart.panels)
    for (const BarRow& row : panel.rows)
      for (const Bar& bar : row.bars) {
        has_legend = has_legend || !bar.name.empty();
        legend.add({.name = bar.name, .colour = bar.colour, .marker = {}, .filled = true});
      }
  double top = kBarTop;
  if (has_legend) {
    body += legend.drawn(top + 8);
    top += legend.height() + kLegendRow;
  }
  for (const BarPanel& panel : chart.panels) body += PanelOfBars(panel, chart.width).drawn(top);
  return svg_picture(chart.width, std::max(top - 14, kBarTop), chart.title, body);
}

}  // namespace wsync::trace
