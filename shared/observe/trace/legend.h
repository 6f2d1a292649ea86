// What the colours, lines and markers of a chart stand for.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace wsync::trace {

inline constexpr std::string_view kDashes = " stroke-dasharray=\"4 3\"";
inline constexpr double kLegendRow = 18;     // pixels
inline constexpr double kLegendMargin = 16;  // left and right of a legend

struct LegendEntry {
  std::string name;  // empty: it has no entry
  std::string colour;
  std::optional<std::size_t> marker;  // as of marker()
  bool faint = false;
  bool dashed = false;
  bool filled = false;  // a bar, not a line
};

// A shape at a place, in pixels; equal only for indices that differ by the number of shapes. The
// colour is escaped already.
[[nodiscard]] std::string marker(std::size_t index, double x, double y, std::string_view colour);
// The line of an entry, with its marker in the middle.
[[nodiscard]] std::string legend_line(const LegendEntry& entry, double from, double to, double y);

// Entries in rows; a name that is there already is not added again.
class Legend {
 public:
  explicit Legend(double width) : width_(width) {}
  void add(LegendEntry entry);
  // Pixels of all rows but the first.
  [[nodiscard]] double height() const;
  // The first row's text stands at `y`.
  [[nodiscard]] std::string drawn(double y) const;

 private:
  struct Place {
    LegendEntry entry;
    double x = 0;
    std::size_t row = 0;
  };
  double width_;
  std::vector<Place> places_;
  double x_ = kLegendMargin;
  std::size_t row_ = 0;
};

}  // namespace wsync::trace
