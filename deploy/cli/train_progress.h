// What every way to train has in common: how it is asked to stop, and what it tells.
#pragma once

#include <nlohmann/json.hpp>

#include "deploy/cli/train_setup.h"
#include "shared/base/clock.h"

namespace wsync::cli {

// From now on SIGINT and SIGTERM ask this process to end its run after the step that runs; a second
// one ends it at once, with status 130.
void stop_after_step();
// Thread: any.
[[nodiscard]] bool asked_to_stop() noexcept;

// In seconds.
[[nodiscard]] double since(TimePoint begin);

// Of a step that took `taken` seconds.
[[nodiscard]] nlohmann::json step_event(std::uint64_t step, const training::StepResult& result,
                                        double taken);
[[nodiscard]] nlohmann::json begin_event(const config::TrainConfig& config,
                                         const training::TrainingOptions& options,
                                         const RunBegin& begin, bool sequential);

}  // namespace wsync::cli
