// Common to all ways to train: stop requests and step events.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "shared/base/clock.h"
#include "trainer_side/run/setup.h"

namespace wsync::cli {

// From now on, SIGINT or SIGTERM ends the run of this process after the current step. A second
// signal ends the process immediately with status 130.
void stop_after_step();
// Thread: any.
[[nodiscard]] bool asked_to_stop() noexcept;

// The point at which WSYNC_FAIL_POINT kills a rank (shared/base/fail_point.h).
struct RankFailPoint {
  std::uint32_t rank = 0;
  std::string name;
  std::uint64_t hits = 0;
};
// Reads WSYNC_FAIL_POINT for a run with `ranks` ranks; std::nullopt if it is not set. Returns
// kInvalidInput if it is not "RANK:POINT:HITS".
[[nodiscard]] Result<std::optional<RankFailPoint>> fail_point_of(std::uint32_t ranks);

// Seconds since `begin`.
[[nodiscard]] double since(TimePoint begin);

// Returns the event of a step that took `taken` seconds.
[[nodiscard]] nlohmann::json step_event(std::uint64_t step, const training::StepResult& result,
                                        double taken);
[[nodiscard]] nlohmann::json begin_event(const config::TrainConfig& config,
                                         const training::TrainingOptions& options,
                                         const RunBegin& begin, bool sequential);

}  // namespace wsync::cli
