// Spans as a picture: one row for each lane, time to the right, in the style of the weight
// pipeline's chart. A self-contained SVG, dark on light.
#pragma once

#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/trace/recorder.h"

namespace wsync::trace {

struct TimelineOptions {
  std::string title;
  std::string subtitle;            // one line below the title; may be empty
  std::vector<std::string> lanes;  // rows from the top; empty: every lane, by its first span
  unsigned width_px = 1200;        // at least 400
};

// A time in which at least one kPause span runs.
struct PauseBand {
  TimePoint begin{};
  TimePoint end{};
};
// In the order of time; pauses that overlap are one.
[[nodiscard]] std::vector<PauseBand> pause_bands(const std::vector<Span>& spans);
// The spans that share time with [begin, end].
[[nodiscard]] std::vector<Span> spans_between(const std::vector<Span>& spans, TimePoint begin,
                                              TimePoint end);

// Draws the spans of the chosen lanes as cells with their labels, and the pause bands over all
// rows. Time 0 is the first begin of what is drawn. Without a span: an empty chart.
[[nodiscard]] std::string timeline_svg(const std::vector<Span>& spans,
                                       const TimelineOptions& options);
[[nodiscard]] Result<> write_timeline_svg(const std::string& path, const std::vector<Span>& spans,
                                          const TimelineOptions& options);

}  // namespace wsync::trace
