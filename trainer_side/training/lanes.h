// Runs the program of one rank. Each of its three lanes is a thread, which runs its operations in
// order. An operation begins as soon as the operations that it waits for have ended.
#pragma once

#include <functional>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "trainer_side/schedule/lowering.h"

namespace wsync::training {

// The time range in which an operation ran.
struct Measured {
  TimePoint begin{};
  TimePoint end{};
};

struct LaneHooks {
  // Executes one operation. Each lane calls it from its own thread. The operations that this one
  // waits for happen before the call.
  std::function<Result<>(const schedule::Operation&)> work;
  // Called once, with the first failure, by the lane that failed. It must end the waits of the
  // other lanes.
  std::function<void(const Error&)> on_failure;
};

// Returns when all operations have ended, or when every lane has stopped after the first failure,
// which is then the result. The times are indexed as program.operations. The calling thread runs
// the computation lane.
[[nodiscard]] Result<std::vector<Measured>> run_lanes(const schedule::RankProgram& program,
                                                      const LaneHooks& hooks);

}  // namespace wsync::training
