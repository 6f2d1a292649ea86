// Bars from zero, one below the other, as an SVG picture.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/observe/trace/axis.h"

namespace wsync::trace {

struct Bar {
  double value = 0;  // not below 0; what is not finite has no bar
  std::optional<std::pair<double, double>> range = std::nullopt;  // least and most, a whisker
  std::string text;                                               // at its end: "1.23 s"
  std::string colour;
  std::string name = {};  // for the legend; empty: it has no entry
};

// What belongs together, under one name.
struct BarRow {
  std::string name;
  std::vector<Bar> bars;
};

struct BarPanel {
  std::string title;    // empty: none
  std::string x_title;  // what the lengths are, and their unit
  std::vector<BarRow> rows;
  // Vertical lines with a name: a target.
  std::vector<Tick> levels = {};
};

struct BarChart {
  std::string title;
  std::vector<BarPanel> panels;
  double width = 460;  // pixels
};

// Names that are too long for the width end with an ellipsis.
[[nodiscard]] std::string bar_chart_svg(const BarChart& chart);

}  // namespace wsync::trace
