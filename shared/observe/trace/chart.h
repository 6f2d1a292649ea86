// Line charts in panels, one below the other with a common horizontal axis, as an SVG picture.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shared/base/error.h"

namespace wsync::trace {

struct Series {
  std::string name;                               // in the legend; empty: no entry
  std::string colour;                             // as in SVG: "#1f6fb4"
  std::vector<std::pair<double, double>> points;  // ascending x; a non-finite y is a gap
  bool faint = false;                             // thin and behind the others
};

struct Panel {
  std::string title;  // quantity and unit of the vertical axis
  std::vector<Series> series;
  // Limits of the vertical axis. If they are equal, the axis covers the range of the values.
  double min = 0;
  double max = 0;
  bool logarithmic = false;  // values of 0 and below are not drawn
};

struct Chart {
  std::string title;
  std::string x_title;
  std::vector<Panel> panels;
  // Start of each phase: a line in all panels, with its name in the first panel.
  std::vector<std::pair<double, std::string>> marks;
};

// Draws a chart. A panel without values contains a note that says so. Pure.
[[nodiscard]] std::string chart_svg(const Chart& chart);
// Writes the picture to a file. kIo: the sentence names the path.
[[nodiscard]] Result<> write_chart_svg(const std::string& path, const Chart& chart);

}  // namespace wsync::trace
