// Spans as a picture: one row for each lane, time to the right, in the style of the weight
// pipeline's chart. A self-contained SVG, dark on light.
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
  std::string subtitle;            // one line below the title; may be empty
  std::vector<std::string> lanes;  // rows from the top; empty: every lane, by its first span
  unsigned width_px = 1200;        // at least 400
  unsigned row_px = 30;            // height of a cell, at least 12
  std::optional<TimeRange> range;  // what is drawn, cut there; none: all of it
  std::vector<TimePoint> marks;    // lines over all rows
};

// Rows that belong together, such as those of one process.
struct TimelineGroup {
  std::string title;               // above its rows; an empty one takes no room
  std::vector<std::string> lanes;  // as TimelineOptions::lanes, of these spans
  std::vector<Span> spans;
};

// A time in which at least one kPause span runs.
using PauseBand = TimeRange;
// In the order of time; pauses that overlap are one.
[[nodiscard]] std::vector<PauseBand> pause_bands(const std::vector<Span>& spans);
// The spans that share time with [begin, end].
[[nodiscard]] std::vector<Span> spans_between(const std::vector<Span>& spans, TimePoint begin,
                                              TimePoint end);

// Draws the spans of the chosen lanes as cells with their labels (beside a cell that is too narrow,
// if there is room), and the pause bands over all rows; a pause whose lane was chosen is a cell of
// it instead. Time 0 is the begin of the range, or the first begin of what is drawn. Without a
// span: an empty chart.
[[nodiscard]] std::string timeline_svg(const std::vector<Span>& spans,
                                       const TimelineOptions& options);
// The same for several groups of rows, from the top, on one time axis. `options.lanes` is not used.
[[nodiscard]] std::string grouped_timeline_svg(const std::vector<TimelineGroup>& groups,
                                               const TimelineOptions& options);
[[nodiscard]] Result<> write_timeline_svg(const std::string& path, const std::vector<Span>& spans,
                                          const TimelineOptions& options);

}  // namespace wsync::trace
