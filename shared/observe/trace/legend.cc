#include "shared/observe/trace/legend.h"

#include <algorithm>

#include "shared/base/format.h"
#include "shared/observe/trace/axis.h"
#include "shared/observe/trace/svg.h"

namespace wsync::trace {
namespace {

constexpr std::size_t kShapes = 5;
constexpr double kLineLength = 22;
constexpr double kBeforeName = 6;
constexpr double kBetweenEntries = 16;

}  // namespace

std::string marker(std::size_t index, double x, double y, std::string_view colour) {
  switch (index % kShapes) {
    case 0:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", x, y,
                         colour);
    case 1:
      return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"7\" height=\"7\" fill=\"{}\"/>\n",
                         x - 3.5, y - 3.5, colour);
    case 2:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l4.5 8h-9z\" fill=\"{}\"/>\n", x, y - 5, colour);
    case 3:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l5 5l-5 5l-5-5z\" fill=\"{}\"/>\n", x, y - 5,
                         colour);
    default:
      return fmt::format(
          "<path d=\"M{:.1f} {:.1f}l7 7m0-7l-7 7\" stroke=\"{}\" stroke-width=\"2\"/>\n", x - 3.5,
          y - 3.5, colour);
  }
}

std::string legend_line(const LegendEntry& entry, double from, double to, double y) {
  const std::string colour = svg_escaped(entry.colour);
  if (entry.filled)
    return fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"10\" fill=\"{}\"/>\n", from,
        y - 5, to - from, colour);
  std::string text = axis_line(
      from, y, to, y, colour.c_str(),
      fmt::format("{}{}", entry.faint ? " stroke-opacity=\"0.35\"" : " stroke-width=\"2\"",
                  entry.dashed ? kDashes : ""));
  if (entry.marker) text += marker(*entry.marker, (from + to) / 2, y, colour);
  return text;
}

void Legend::add(LegendEntry entry) {
  const double most = width_ - 2 * kLegendMargin;
  entry.name = fitted(entry.name, most - kLineLength - kBeforeName);
  if (entry.name.empty() || std::ranges::any_of(places_, [&](const Place& place) {
        return place.entry.name == entry.name;
      }))
    return;
  const double wide = kLineLength + kBeforeName + text_width(entry.name);
  if (x_ > kLegendMargin && x_ + wide > width_ - kLegendMargin) {
    x_ = kLegendMargin;
    ++row_;
  }
  places_.push_back({.entry = std::move(entry), .x = x_, .row = row_});
  x_ += wide + kBetweenEntries;
}

double Legend::height() const { return kLegendRow * static_cast<double>(row_); }

std::string Legend::drawn(double y) const {
  std::string text;
  for (const Place& place : places_) {
    const double at = y + kLegendRow * static_cast<double>(place.row);
    text += legend_line(place.entry, place.x, place.x + kLineLength, at - 4);
    text += axis_text(place.x + kLineLength + kBeforeName, at, "start", 12, place.entry.name);
  }
  return text;
}

}  // namespace wsync::trace
