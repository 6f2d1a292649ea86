// A timed program as a picture and as spans. The program may have been timed by the simulator or
// measured while it ran: both are drawn by this code.
//
// Pure.
#pragma once

#include <string>
#include <vector>

#include "shared/observe/trace/recorder.h"
#include "trainer_side/schedule/lowering.h"
#include "trainer_side/schedule/simulate.h"

namespace wsync::schedule {

// When each operation of a program ran, as in Simulation::operations. Both are borrowed.
struct TimedProgram {
  const Program& program;
  const std::vector<std::vector<Timing>>& times;
};

struct PictureOptions {
  std::string title;
  std::string subtitle;
  std::string unit;               // of the time axis: "slots", "ms"
  std::vector<std::string> rows;  // names of the grid's rows; empty: "PP0", "PP1", ...
};

// The grid: a row for each rank, a box for each turn with the numbers of its micro-batches (from
// 0), the shade telling the chunk; a pair has its forward above its backward. Below it, three turns
// of `lanes` (which may be another timing of the same schedule, with costs for every lane) drawn
// large: a forward alone, a pair and a backward alone, with what their three lanes do; a kind of
// turn that the schedule does not have is left out. A self-contained SVG.
[[nodiscard]] std::string schedule_svg(const TimedProgram& grid, const TimedProgram& lanes,
                                       const PictureOptions& options);

// Every operation as a span, for a Chrome trace: one process for each rank, a lane for each lane.
// One unit of time becomes `unit_ns` nanoseconds.
[[nodiscard]] std::vector<std::vector<trace::Span>> schedule_spans(const TimedProgram& timed,
                                                                   double unit_ns);

}  // namespace wsync::schedule
