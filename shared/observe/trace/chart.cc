#include "shared/observe/trace/chart.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "shared/base/format.h"
#include "shared/observe/trace/svg.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::trace {
namespace {

// All lengths are in pixels.
constexpr double kWidth = 960;
constexpr double kPanelHeight = 140;
constexpr double kLeftMargin = 76;
constexpr double kRightMargin = 24;
constexpr double kTopMargin = 58;
constexpr double kPanelGap = 52;
constexpr double kBottomMargin = 50;
constexpr double kLetterWidth = 7.2;  // estimated width; the font of the viewer is unknown

constexpr double kTicksAcross = 10;
constexpr double kTicksUp = 4;
constexpr int kTicksMax = 64;
constexpr int kPlainDigits = 4;      // 0.0001 is written as 1e-4, 10000 in full
constexpr double kShortDecades = 2;  // axes up to this length have ticks at 1, 2 and 5
constexpr std::string_view kDashes = " stroke-dasharray=\"4 3\"";

// Range of the added values.
struct Extent {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  void add(double value) {
    min = std::min(min, value);
    max = std::max(max, value);
  }
  [[nodiscard]] bool empty() const { return min > max; }
};

using Tick = std::pair<double, std::string>;

std::string power_text(int exponent, int factor) {
  if (exponent > kPlainDigits || exponent <= -kPlainDigits)
    return fmt::format("{}e{}", factor, exponent);
  return fmt::format("{:.{}f}", factor * std::pow(10, exponent), std::max(0, -exponent));
}

// Maps values to pixels. A logarithmic axis begins and ends at powers of ten.
class AxisScale {
 public:
  AxisScale(Extent extent, double from, double to, bool logarithmic)
      : extent_(extent), from_(from), to_(to), logarithmic_(logarithmic) {
    if (logarithmic_) {
      extent_ = {std::floor(std::log10(extent.min)), std::ceil(std::log10(extent.max))};
      if (extent_.min == extent_.max) extent_ = {extent_.min - 1, extent_.max + 1};
    } else if (extent_.min == extent_.max) {
      const double room = extent_.min == 0 ? 1 : std::abs(extent_.min) / 2;
      extent_ = {extent_.min - room, extent_.max + room};
    }
  }

  // Returns the pixel of a value. Values outside of the axis are placed at its ends. Returns
  // std::nullopt if the value is not finite, or not positive on a logarithmic axis.
  [[nodiscard]] std::optional<double> place(double value) const {
    if (logarithmic_ && value <= 0) return std::nullopt;
    const double at = logarithmic_ ? std::log10(value) : value;
    if (!std::isfinite(at)) return std::nullopt;
    const double share = (at - extent_.min) / (extent_.max - extent_.min);
    return from_ + std::clamp(share, 0.0, 1.0) * (to_ - from_);
  }

  // Returns about `count` ticks at round values.
  [[nodiscard]] std::vector<Tick> ticks(double count) const {
    return logarithmic_ ? powers(count) : multiples(count);
  }

 private:
  // Returns ticks at powers of ten; on a short axis also at 2 and 5 times these powers.
  [[nodiscard]] std::vector<Tick> powers(double count) const {
    const double span = extent_.max - extent_.min;
    const double step = std::max(1.0, std::ceil(span / count));
    std::vector<Tick> ticks;
    for (double at = extent_.min; at <= extent_.max; at += step)
      for (const int factor : {1, 2, 5}) {
        if (factor != 1 && (span > kShortDecades || at == extent_.max)) continue;
        ticks.emplace_back(factor * std::pow(10, at), power_text(static_cast<int>(at), factor));
      }
    return ticks;
  }
  [[nodiscard]] std::vector<Tick> multiples(double count) const {
    std::vector<Tick> ticks;
    const double step = tick_step((extent_.max - extent_.min) / count);
    const double first = std::ceil(extent_.min / step);
    // The loop counts its steps. A value can be so large that adding a step does not change it, and
    // the loop would not end.
    for (int i = 0; i <= kTicksMax; ++i) {
      const double value = (first + i) * step;
      if (!(value <= extent_.max + step / 1e6)) break;
      ticks.emplace_back(value, fmt::format("{:.{}f}", value, tick_digits(step)));
    }
    return ticks;
  }

  Extent extent_;  // log10 of the values if logarithmic
  double from_;
  double to_;
  bool logarithmic_;
};

Extent across(const Chart& chart) {
  Extent extent;
  const auto add = [&extent](double x) {
    if (std::isfinite(x)) extent.add(x);
  };
  for (const Panel& panel : chart.panels)
    for (const Series& series : panel.series)
      for (const auto& [x, y] : series.points) add(x);
  for (const auto& [x, name] : chart.marks) add(x);
  return extent.empty() ? Extent{.min = 0, .max = 1} : extent;
}

Extent up(const Panel& panel) {
  if (panel.min < panel.max) return {panel.min, panel.max};
  Extent extent;
  for (const Series& series : panel.series)
    for (const auto& [x, y] : series.points)
      if (std::isfinite(y) && (!panel.logarithmic || y > 0)) extent.add(y);
  return extent;
}

std::string text_at(double x, double y, const char* anchor, int size, std::string_view text,
                    const char* colour = "#333") {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" fill=\"{}\">{}</text>\n",
      x, y, anchor, size, colour, svg_escaped(text));
}

// `more`: additional attributes, with a leading space.
std::string line_at(double x1, double y1, double x2, double y2, std::string_view colour,
                    std::string_view more = "") {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"{}/>\n", x1, y1,
      x2, y2, svg_escaped(colour), more);
}

std::string draw_series(const Series& series, const AxisScale& horizontal,
                        const AxisScale& vertical) {
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

// Draws the legend in line with the title of its panel, right-aligned.
std::string draw_legend(const Panel& panel, double right, double top) {
  std::string text;
  for (std::size_t i = panel.series.size(); i-- > 0;) {
    const Series& series = panel.series[i];
    if (series.name.empty()) continue;
    text += text_at(right, top - 8, "end", 12, series.name);
    right -= kLetterWidth * static_cast<double>(series.name.size()) + 6;
    text += line_at(right - 18, top - 12, right, top - 12, series.colour,
                    series.faint ? " stroke-opacity=\"0.35\"" : " stroke-width=\"2\"");
    right -= 34;
  }
  return text;
}

class ChartDrawing {
 public:
  explicit ChartDrawing(const Chart& chart)
      : chart_(chart), horizontal_(across(chart), kLeftMargin, kRight, false) {}

  [[nodiscard]] std::string svg() const {
    std::string body = text_at(kLeftMargin, 24, "start", 16, chart_.title, "#111");
    double top = kTopMargin;
    for (const Panel& panel : chart_.panels) {
      body += draw_panel(panel, top) + draw_marks(top, &panel == chart_.panels.data());
      top += kPanelHeight + kPanelGap;
    }
    const double axis = top - kPanelGap;
    body += draw_x_axis(axis);
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
        "height=\"{1}\" font-family=\"sans-serif\" role=\"img\" aria-label=\"{2}\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{3}</svg>\n",
        kWidth, axis + kBottomMargin, svg_escaped(chart_.title), body);
  }

 private:
  static constexpr double kRight = kWidth - kRightMargin;

  [[nodiscard]] std::string draw_panel(const Panel& panel, double top) const {
    std::string text = text_at(kLeftMargin, top - 8, "start", 13, panel.title, "#111");
    text += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#fafafa\" stroke=\"#ccc\"/>\n",
        kLeftMargin, top, kRight - kLeftMargin, kPanelHeight);
    const Extent extent = up(panel);
    if (extent.empty())
      return text + text_at((kLeftMargin + kRight) / 2, top + kPanelHeight / 2, "middle", 12,
                            "no values", "#777");
    const AxisScale vertical(extent, top + kPanelHeight, top, panel.logarithmic);
    for (const auto& [value, name] : vertical.ticks(kTicksUp)) {
      const double y = *vertical.place(value);
      text += line_at(kLeftMargin, y, kRight, y, "#e4e4e4");
      text += text_at(kLeftMargin - 8, y + 4, "end", 12, name);
    }
    for (const bool faint : {true, false})
      for (const Series& series : panel.series)
        if (series.faint == faint) text += draw_series(series, horizontal_, vertical);
    return text + draw_legend(panel, kRight, top);
  }

  [[nodiscard]] std::string draw_marks(double top, bool named) const {
    std::string text;
    for (const auto& [x, name] : chart_.marks) {
      const auto at = horizontal_.place(x);
      if (!at) continue;
      text += line_at(*at, top, *at, top + kPanelHeight, "#888", kDashes);
      if (named) text += text_at(*at + 4, top + 13, "start", 12, name, "#666");
    }
    return text;
  }

  [[nodiscard]] std::string draw_x_axis(double axis) const {
    std::string text;
    for (const auto& [value, name] : horizontal_.ticks(kTicksAcross)) {
      const double x = *horizontal_.place(value);
      text += line_at(x, axis, x, axis + 4, "#888");
      text += text_at(x, axis + 18, "middle", 12, name);
    }
    return text + text_at((kLeftMargin + kRight) / 2, axis + 38, "middle", 12, chart_.x_title);
  }

  const Chart& chart_;
  AxisScale horizontal_;
};

}  // namespace

std::string chart_svg(const Chart& chart) { return ChartDrawing(chart).svg(); }

Result<> write_chart_svg(const std::string& path, const Chart& chart) {
  return write_text_file(path, chart_svg(chart));
}

}  // namespace wsync::trace
