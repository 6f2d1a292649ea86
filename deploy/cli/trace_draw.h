// The timeline picture of any trace.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/timeline.h"

namespace wsync::cli {

inline constexpr std::size_t kDrawnSpans = 50'000;  // in one picture
inline constexpr std::size_t kDrawnLanes = 500;

struct DrawOptions {
  std::string title;
  std::string version;  // only its update; empty: everything
  // Since the begin of the first span that is drawn.
  std::optional<std::chrono::nanoseconds> from;
  std::optional<std::chrono::nanoseconds> to;
  unsigned width_px = 1600;
};

// Of a process: lanes of one name but for its last word beside each other, by number or text;
// otherwise by their first span. Pauses have no lane: they are bands over all of them.
[[nodiscard]] std::vector<std::string> drawn_lanes(const trace::ProcessTrace& process);

// One group of rows for each process that has spans in it. A span without a label is labelled
// with the number of its bucket, or its name. kNotFound when nothing is left to draw, naming the
// versions that there are; kInvalidInput for an empty range, and over kDrawnSpans or kDrawnLanes.
[[nodiscard]] Result<std::string> draw_trace(trace::Trace trace, const DrawOptions& options);

}  // namespace wsync::cli
