// Runs the program of one rank: its three lanes as three threads, each doing its operations in
// order, each operation as soon as those that it waits for are over.
#pragma once

#include <functional>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "trainer_side/schedule/lowering.h"

namespace wsync::training {

// When an operation ran.
struct Measured {
  TimePoint begin{};
  TimePoint end{};
};

struct LaneHooks {
  // Does one operation. Called by three threads, for each lane by one; what an operation waits for
  // has happened before it.
  std::function<Result<>(const schedule::Operation&)> work;
  // The first failure, once: to end what other lanes wait for. Called by the lane that failed.
  std::function<void(const Error&)> on_failure;
};

// Returns when all operations are over, or when every lane has stopped after the first failure,
// which is the result. The times are those of program.operations. The calling thread is the
// computation lane.
[[nodiscard]] Result<std::vector<Measured>> run_lanes(const schedule::RankProgram& program,
                                                      const LaneHooks& hooks);

}  // namespace wsync::training
