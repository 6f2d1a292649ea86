// Converts the traces of the sidecars and of the trainer to the clock of their coordinator. Pure,
// but for own_trace().
#pragma once

#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/control/messages.h"
#include "shared/observe/trace/recorder.h"
#include "trainer_side/publish/fleet_question.h"

namespace wsync::publish {

// What this process answers to the question that it received at `received`. `name`: "trainer".
[[nodiscard]] control::TraceProcess own_trace(std::string name, const trace::Recorder& spans,
                                              const control::TraceQuestion& question,
                                              TimePoint received);

// Computes the offset of the process's clock from this clock, from the times of one exchange.
// `heard`: when its answer arrived here.
void measure_clock(control::TraceProcess& process, TimePoint heard);

// The answer of a whole fleet: `own` first, then one process for each of `answers`. The answers in
// `probes` contain no spans. They are short in transit and therefore measure the clocks more
// precisely; they are matched by name. Who has not answered appears with its
// failure. `own_boot_id`: processes of the same boot share one clock.
[[nodiscard]] control::TraceAnswer gathered_trace(control::TraceProcess own,
                                                  const std::vector<FleetAnswer>& probes,
                                                  std::vector<FleetAnswer> answers,
                                                  const std::string& own_boot_id);

}  // namespace wsync::publish
