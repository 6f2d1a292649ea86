// Line charts, one below the other on one horizontal axis, as an SVG picture.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shared/base/error.h"

namespace wsync::trace {

struct Series {
  std::string name;                               // for the legend; empty: it has no entry
  std::string colour;                             // as SVG writes it: "#1f6fb4"
  std::vector<std::pair<double, double>> points;  // by ascending x; a gap where y is not finite
  bool faint = false;                             // thin, behind the others
};

struct Panel {
  std::string title;  // what the vertical axis is, and its unit
  std::vector<Series> series;
  // Ends of the vertical axis. If they are equal, the axis has the range of the values.
  double min = 0;
  double max = 0;
  bool logarithmic = false;  // values of 0 and below are left out
};

struct Chart {
  std::string title;
  std::string x_title;
  std::vector<Panel> panels;
  // Where a phase begins: a line in all panels, and its name in the first one.
  std::vector<std::pair<double, std::string>> marks;
};

// A panel without a value says so. Pure.
[[nodiscard]] std::string chart_svg(const Chart& chart);
// kIo names the path.
[[nodiscard]] Result<> write_chart_svg(const std::string& path, const Chart& chart);

}  // namespace wsync::trace
