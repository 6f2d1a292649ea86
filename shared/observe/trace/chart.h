// Line charts, one below the other on one horizontal axis, as an SVG picture.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/observe/trace/axis.h"

namespace wsync::trace {

struct Series {
  std::string name;                               // for the legend; empty: it has no entry
  std::string colour;                             // as SVG writes it: "#1f6fb4"
  std::vector<std::pair<double, double>> points;  // by ascending x; a gap where y is not finite
  bool faint = false;                             // thin, behind the others
  bool dashed = false;
  // A marker at each point, of a shape that the series' place among those of its panel gives:
  // colours are not all that tells series apart.
  bool marked = false;
  // Least and most of each point, a whisker; empty: none. As many as points.
  std::vector<std::pair<double, double>> ranges = {};
};

struct Panel {
  std::string title;  // what the vertical axis is, and its unit
  std::vector<Series> series;
  // Of the vertical axis; where they are equal it is the range of the values.
  double least = 0;
  double most = 0;
  bool logarithmic = false;  // values of 0 and below are left out
  // Horizontal lines with a name: a target.
  std::vector<Tick> levels = {};
};

struct Chart {
  std::string title;
  std::string x_title;
  std::vector<Panel> panels;
  // Where a phase begins: a line with its name, in all panels.
  std::vector<Tick> marks;
  double width = 960;          // pixels
  double panel_height = 140;   // pixels
  bool logarithmic_x = false;  // every x is above 0
  // Where the horizontal axis has ticks, of which those that would overlap others are left out;
  // empty: at round values.
  std::vector<Tick> x_ticks = {};
  // One legend of all panels, in rows under the title; else each panel has its own beside its
  // title.
  bool legend_on_top = false;
};

// A panel without a value says so.
[[nodiscard]] std::string chart_svg(const Chart& chart);
// kIo names the path.
[[nodiscard]] Result<> write_chart_svg(const std::string& path, const Chart& chart);

}  // namespace wsync::trace
