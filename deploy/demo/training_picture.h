// The picture of `wsync demo --train`: activities of trainer ranks and of a sidecar during two
// training steps, on one time axis.
#pragma once

#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/timeline.h"

namespace wsync::cli {

// Returns the time range of the two steps before the last one. While such a step is computed, the
// weights of the step before it are transferred. kNotFound if the trace of this rank has fewer than
// three steps.
[[nodiscard]] Result<trace::TimeRange> pictured_steps(const trace::ProcessTrace& rank);

// Returns the rows from the top: steps and snapshots, then the lanes of each trainer rank, then the
// staging of a sidecar and its engines. Pause and reload of an engine share one row. Processes are
// recognized by their names: "trainer rank 0 (...)", "coordinator", "sidecar host0".
[[nodiscard]] std::vector<trace::TimelineGroup> training_groups(
    const std::vector<trace::ProcessTrace>& processes);

struct PictureText {
  std::string title;
  std::string subtitle;
};
// Draws the spans of these processes, which are sorted by begin. Errors: kNotFound if there is no
// trainer rank or it has too few steps; those of writing a file.
[[nodiscard]] Result<> write_training_picture(const std::string& path,
                                              const std::vector<trace::ProcessTrace>& processes,
                                              PictureText text);

}  // namespace wsync::cli
