// Draws a timed program as a picture or converts it to spans. The times may come from the simulator
// or from a measured run.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "shared/observe/trace/recorder.h"
#include "trainer_side/schedule/lowering.h"
#include "trainer_side/schedule/simulate.h"

namespace wsync::schedule {

// The time of each operation of a program, as in Simulation::operations. Both are borrowed.
struct TimedProgram {
  const Program& program;
  const std::vector<std::vector<Timing>>& times;
};

struct PictureOptions {
  std::string title;
  std::string subtitle;
  std::string unit;               // unit of the time axis: "slots", "ms"
  std::vector<std::string> rows;  // names of the grid's rows; empty: "PP0", "PP1", ...
};

// Returns a self-contained SVG with two parts.
//
// The grid has a row for each rank and a box for each turn. A box shows the numbers of its
// micro-batches (from 0), and its shade shows the chunk. The box of a pair has the forward above
// the backward.
//
// Below the grid, three turns of `lanes` are drawn large with their three lanes: a forward alone, a
// pair and a backward alone. A kind of turn that the schedule does not contain is omitted. `lanes`
// may be another timing of the same schedule, with costs for every lane.
[[nodiscard]] std::string schedule_svg(const TimedProgram& grid, const TimedProgram& lanes,
                                       const PictureOptions& options);

// Returns every operation as a span for a Chrome trace: one process for each rank, one thread for
// each lane. One unit of time becomes `unit_ns` nanoseconds.
[[nodiscard]] std::vector<std::vector<trace::Span>> schedule_spans(const TimedProgram& timed,
                                                                   double unit_ns);

}  // namespace wsync::schedule
