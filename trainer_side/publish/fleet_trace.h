// Converts the traces of the sidecars to the clock of their coordinator. Pure.
#pragma once

#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/control/messages.h"
#include "trainer_side/publish/fleet_question.h"

namespace wsync::publish {

// Computes the offset of the process's clock from this clock, from the times of one exchange.
// `heard`: when its answer arrived here.
void measure_clock(control::TraceProcess& process, TimePoint heard);

// The answer of a whole fleet: `own` first, then one process for each of `answers`. The answers in
// `probes` contain no spans. They are short in transit and therefore measure the clocks more
// precisely; they are matched by the name of the sidecar. A sidecar without an answer appears with
// its failure. `own_boot_id`: processes of the same boot share one clock.
[[nodiscard]] control::TraceAnswer gathered_trace(control::TraceProcess own,
                                                  const std::vector<FleetAnswer>& probes,
                                                  std::vector<FleetAnswer> answers,
                                                  const std::string& own_boot_id);

}  // namespace wsync::publish
