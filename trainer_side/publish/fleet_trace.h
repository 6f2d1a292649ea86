// How a coordinator puts the traces of its sidecars on its own clock.
#pragma once

#include <string>
#include <vector>

#include "shared/base/clock.h"
#include "shared/control/messages.h"
#include "trainer_side/publish/fleet_question.h"

namespace wsync::publish {

// Fills in how far the process's clock is from this one, from the times of the exchange whose
// answer was heard now.
void measure_clock(control::TraceProcess& process, TimePoint heard);

// One answer of a fleet: `own`, then a process for each sidecar. The answers of `probes` carried no
// spans, and know the clocks better; they are matched by the sidecar's name. A sidecar that did not
// answer the second time is there with its failure.
[[nodiscard]] control::TraceAnswer gathered_trace(control::TraceProcess own,
                                                  const std::vector<FleetAnswer>& probes,
                                                  std::vector<FleetAnswer> answers,
                                                  const std::string& own_boot_id);

}  // namespace wsync::publish
