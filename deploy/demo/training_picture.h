// The picture of `wsync demo --train`: what trainer ranks and a sidecar did in two training steps,
// on one time axis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/timeline.h"

namespace wsync::cli {

struct TrainingPicture {
  double loss_before = 0;
  double loss_after = 0;
  std::uint64_t bytes = 0;  // of a version
  std::uint32_t engines = 1;
};

// Two whole steps, the last ones but one: while those are computed, the weights of the step before
// travel. kNotFound when the trace of this rank shows fewer than three steps.
[[nodiscard]] Result<trace::TimeRange> pictured_steps(const trace::ProcessTrace& rank);

// The rows, from the top: steps and snapshots, then the lanes of each trainer rank, then a
// sidecar's staging and its engines, with pause and reload of each in one row. Processes are told
// apart by their names: "trainer rank 0 (...)", "coordinator", "sidecar host0".
[[nodiscard]] std::vector<trace::TimelineGroup> training_groups(
    const std::vector<trace::ProcessTrace>& processes);

// Draws these processes' spans. kNotFound without a trainer rank or its steps; errors of writing.
[[nodiscard]] Result<> write_training_picture(const std::string& path,
                                              const std::vector<trace::ProcessTrace>& processes,
                                              const TrainingPicture& picture);

}  // namespace wsync::cli
