// What every way to train has in common: how it is asked to stop, and what it tells.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "shared/base/clock.h"
#include "trainer_side/run/setup.h"

namespace wsync::cli {

// From now on SIGINT and SIGTERM ask this process to end its run after the step that runs; a second
// one ends it at once, with status 130.
void stop_after_step();
// Thread: any.
[[nodiscard]] bool asked_to_stop() noexcept;

// Where WSYNC_FAIL_POINT lets a rank be killed (shared/base/fail_point.h).
struct RankFailPoint {
  std::uint32_t rank = 0;
  std::string name;
  std::uint64_t hits = 0;
};
// Of a run of so many ranks; nothing when none is set. kInvalidInput: "RANK:POINT:HITS" is
// expected.
[[nodiscard]] Result<std::optional<RankFailPoint>> fail_point_of(std::uint32_t ranks);

// In seconds.
[[nodiscard]] double since(TimePoint begin);

// Of a step that took `taken` seconds.
[[nodiscard]] nlohmann::json step_event(std::uint64_t step, const training::StepResult& result,
                                        double taken);
[[nodiscard]] nlohmann::json begin_event(const config::TrainConfig& config,
                                         const training::TrainingOptions& options,
                                         const RunBegin& begin, bool sequential);

}  // namespace wsync::cli
