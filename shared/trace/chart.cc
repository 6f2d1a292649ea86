#include "shared/trace/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "shared/base/format.h"
#include "shared/trace/svg.h"
#include "shared/trace/text_file.h"

namespace wsync::trace {
namespace {

constexpr double kChartWidth = 960;
constexpr double kLeftMargin = 76;
constexpr double kRightMargin = 24;
constexpr double kTopMargin = 58;
constexpr double kPanelHeight = 140;
constexpr double kPanelGap = 52;
constexpr double kBottomMargin = 50;
constexpr double kTicksAcross = 10;
constexpr double kTicksUp = 4;
constexpr double kLegendCharacter = 7.2;  // pixels, of the letters used

struct Extent {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  void take(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  [[nodiscard]] bool none() const { return least > most; }
  // A constant has room above and below.
  void widen() {
    if (most > least) return;
    widen(most == 0 ? 1 : std::abs(most) / 2);
  }
  void widen(double by) {
    least -= by;
    most += by;
  }
};

class Scale {
 public:
  // `extent` lies between pixels `from` and `to`.
  Scale(Extent extent, double from, double to, bool logarithmic)
      : extent_(extent), from_(from), to_(to), logarithmic_(logarithmic) {
    if (logarithmic_) {
      extent_ = {std::floor(std::log10(extent.least)), std::ceil(std::log10(extent.most))};
      if (extent_.least == extent_.most) extent_.widen(1);  // ends stay powers of ten
    }
    extent_.widen();
  }
  [[nodiscard]] std::optional<double> place(double value) const {
    if (logarithmic_ && value <= 0) return std::nullopt;
    const double at = logarithmic_ ? std::log10(value) : value;
    if (!std::isfinite(at)) return std::nullopt;
    const double share = (at - extent_.least) / (extent_.most - extent_.least);
    return from_ + std::clamp(share, 0.0, 1.0) * (to_ - from_);
  }
  // Values and what is written beside them.
  [[nodiscard]] std::vector<std::pair<double, std::string>> ticks(double count) const {
    std::vector<std::pair<double, std::string>> ticks;
    const double span = extent_.most - extent_.least;
    if (logarithmic_) {
      const double step = std::max(1.0, std::ceil(span / count));
      for (double at = extent_.least; at <= extent_.most; at += step)
        ticks.emplace_back(std::pow(10, at), fmt::format("1e{:.0f}", at));
      return ticks;
    }
    const double step = tick_step(span / count);
    for (double i = std::ceil(extent_.least / step); i * step <= extent_.most + step / 1e6; ++i)
      ticks.emplace_back(i * step, fmt::format("{:.{}f}", i * step, tick_digits(step)));
    return ticks;
  }

 private:
  Extent extent_;
  double from_;
  double to_;
  bool logarithmic_;
};

Extent across(const Chart& chart) {
  Extent extent;
  for (const Panel& panel : chart.panels)
    for (const Series& series : panel.series)
      for (const auto& [x, y] : series.points) extent.take(x);
  for (const auto& [x, name] : chart.marks) extent.take(x);
  return extent;
}

Extent up(const Panel& panel) {
  if (panel.least < panel.most) return {panel.least, panel.most};
  Extent extent;
  for (const Series& series : panel.series)
    for (const auto& [x, y] : series.points)
      if (std::isfinite(y) && (!panel.logarithmic || y > 0)) extent.take(y);
  return extent;
}

std::string text_at(double x, double y, const char* anchor, int size, std::string_view text,
                    const char* colour = "#333") {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" fill=\"{}\">{}</text>\n",
      x, y, anchor, size, colour, svg_escaped(text));
}

std::string line(double x1, double y1, double x2, double y2, const char* colour, const char* more) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"{}/>\n", x1, y1,
      x2, y2, colour, more);
}

std::string draw(const Series& series, const Scale& horizontal, const Scale& vertical) {
  std::string path;
  bool begins = true;
  for (const auto& [x, y] : series.points) {
    const auto left = horizontal.place(x);
    const auto top = vertical.place(y);
    if (!left || !top) {
      begins = true;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", begins ? "M" : "L", *left, *top);
    begins = false;
  }
  if (path.empty()) return {};
  return fmt::format(
      "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\" "
      "stroke-linejoin=\"round\" stroke-linecap=\"round\"/>\n",
      path, svg_escaped(series.colour), series.faint ? 1 : 2, series.faint ? 0.35 : 1);
}

std::string legend(const Panel& panel, double top) {
  std::string text;
  double right = kChartWidth - kRightMargin;
  for (auto series = panel.series.rbegin(); series != panel.series.rend(); ++series) {
    if (series->name.empty()) continue;
    text += text_at(right, top - 8, "end", 12, series->name);
    right -= static_cast<double>(series->name.size()) * kLegendCharacter + 6;
    text += line(right - 18, top - 12, right, top - 12, svg_escaped(series->colour).c_str(),
                 series->faint ? " stroke-opacity=\"0.35\"" : " stroke-width=\"2\"");
    right -= 34;
  }
  return text;
}

std::string draw(const Panel& panel, const Scale& horizontal, double top) {
  const double bottom = top + kPanelHeight;
  std::string text = text_at(kLeftMargin, top - 8, "start", 13, panel.title, "#111");
  text += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#fafafa\" stroke=\"#ccc\"/>\n",
      kLeftMargin, top, kChartWidth - kLeftMargin - kRightMargin, kPanelHeight);
  const Extent extent = up(panel);
  if (extent.none())
    return text +
           text_at(kChartWidth / 2, top + kPanelHeight / 2, "middle", 12, "no values", "#777");
  const Scale vertical(extent, bottom, top, panel.logarithmic);
  for (const auto& [value, name] : vertical.ticks(kTicksUp)) {
    const double y = *vertical.place(value);
    text += line(kLeftMargin, y, kChartWidth - kRightMargin, y, "#e4e4e4", "");
    text += text_at(kLeftMargin - 8, y + 4, "end", 11, name);
  }
  for (const bool faint : {true, false})
    for (const Series& series : panel.series)
      if (series.faint == faint) text += draw(series, horizontal, vertical);
  return text + legend(panel, top);
}

}  // namespace

std::string chart_svg(const Chart& chart) {
  const double panels = static_cast<double>(chart.panels.size());
  const double height =
      kTopMargin + panels * (kPanelHeight + kPanelGap) - kPanelGap + kBottomMargin;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      kChartWidth, height);
  svg += text_at(kLeftMargin, 24, "start", 16, chart.title, "#111");
  Extent extent = across(chart);
  if (extent.none()) extent = {0, 1};
  const Scale horizontal(extent, kLeftMargin, kChartWidth - kRightMargin, false);
  double top = kTopMargin;
  for (const Panel& panel : chart.panels) {
    svg += draw(panel, horizontal, top);
    for (const auto& [x, name] : chart.marks) {
      const double at = *horizontal.place(x);
      svg += line(at, top, at, top + kPanelHeight, "#888", " stroke-dasharray=\"4 3\"");
      if (top == kTopMargin) svg += text_at(at + 4, top + 13, "start", 11, name, "#666");
    }
    top += kPanelHeight + kPanelGap;
  }
  const double axis = top - kPanelGap;
  for (const auto& [value, name] : horizontal.ticks(kTicksAcross)) {
    const double x = *horizontal.place(value);
    svg += line(x, axis, x, axis + 4, "#888", "");
    svg += text_at(x, axis + 18, "middle", 11, name);
  }
  svg += text_at((kLeftMargin + kChartWidth - kRightMargin) / 2, axis + 38, "middle", 12,
                 chart.x_title);
  return svg + "</svg>\n";
}

Result<> write_chart_svg(const std::string& path, const Chart& chart) {
  return write_text_file(path, chart_svg(chart));
}

}  // namespace wsync::trace
