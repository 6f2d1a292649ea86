// The weight pipeline under a virtual clock: the same WeightPipeline, with costs instead of
// devices. Predicts how long an update takes, and when each operation runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "inference_side/reload/weight_pipeline.h"

namespace wsync::reload {

// Cost of one bucket. A device copies one bucket at a time, and so does an engine; broadcasts of a
// group run one after the other anyway.
struct PipelineCosts {
  std::chrono::nanoseconds h2d{0};
  std::chrono::nanoseconds broadcast{0};
  std::chrono::nanoseconds reload{0};
  // How many times longer H2D copies and broadcasts take while the other kind runs: 1 = each has a
  // path of its own, 2 = they share one fabric.
  std::uint32_t contention = 1;
};

enum class Activity : std::uint8_t { kH2D, kBroadcast, kReload };

// One stretch of one operation.
struct TimelineEntry {
  Activity activity = Activity::kH2D;
  DeviceIndex device{};  // H2D: its own; broadcast: the source; reload: the engine's
  SlotIndex slot{};      // not for H2D
  EngineId engine{};     // reload only
  std::uint64_t bucket = 0;
  TimePoint begin{};
  TimePoint end{};
};

struct PredictedTimeline {
  std::vector<TimelineEntry> entries;  // by end
  TimePoint end{};                     // begins at 0
  StageChoice choice;                  // with what it measured
};

// kInvalidInput for a shape that WeightPipeline::create refuses, or a contention of 0.
[[nodiscard]] Result<PredictedTimeline> predict_timeline(const PipelineShape& shape,
                                                         const StageChoice& choice,
                                                         const PipelineCosts& costs);

}  // namespace wsync::reload
