// Draws spans as a picture: one row per lane, with time to the right. The style is that of the
// weight pipeline's chart. The result is a self-contained SVG, dark on light.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/observe/trace/recorder.h"

namespace wsync::trace {

struct TimeRange {
  TimePoint begin{};
  TimePoint end{};
};

struct TimelineOptions {
  std::string title;
  std::string subtitle;            // below the title; may be empty
  std::vector<std::string> lanes;  // rows from the top; empty: all lanes by first span
  unsigned width_px = 1200;        // minimum 400
  unsigned row_px = 30;            // height of a cell, minimum 12
  std::optional<TimeRange> range;  // time range to draw; none: everything
  std::vector<TimePoint> marks;    // vertical lines over all rows
};

// Rows that belong together, such as the rows of one process.
struct TimelineGroup {
  std::string title;               // above its rows; an empty title uses no space
  std::vector<std::string> lanes;  // as TimelineOptions::lanes, for these spans
  std::vector<Span> spans;
};

// Time range during which at least one kPause span is active.
using PauseBand = TimeRange;
// Returns the pauses in time order. Overlapping pauses are merged.
[[nodiscard]] std::vector<PauseBand> pause_bands(const std::vector<Span>& spans);
// Returns the spans that overlap [begin, end].
[[nodiscard]] std::vector<Span> spans_between(const std::vector<Span>& spans, TimePoint begin,
                                              TimePoint end);

// Draws the spans of the selected lanes as cells with their labels. If a cell is too narrow, its
// label is drawn next to it, if there is room. Pauses are bands over all rows; a pause whose lane
// is selected is a cell of that lane instead. Time 0 is the begin of the range, or the first begin
// of the drawn spans. Without spans the chart is empty.
[[nodiscard]] std::string timeline_svg(const std::vector<Span>& spans,
                                       const TimelineOptions& options);
// As timeline_svg(), for several groups of rows from the top on one time axis. Ignores
// `options.lanes`.
[[nodiscard]] std::string grouped_timeline_svg(const std::vector<TimelineGroup>& groups,
                                               const TimelineOptions& options);
[[nodiscard]] Result<> write_timeline_svg(const std::string& path, const std::vector<Span>& spans,
                                          const TimelineOptions& options);

}  // namespace wsync::trace
