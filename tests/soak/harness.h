// The parts of the benchmark harness that the soak runs use.
#pragma once

#include "bench/harness/child.h"
#include "bench/harness/machine.h"
#include "bench/harness/report.h"
#include "bench/harness/spread.h"

namespace wsync::soak {

using bench::busy_with_others;
using bench::Child;
using bench::ChildOptions;
using bench::CpuLoad;
using bench::Interrupt;
using bench::load_notes;
using bench::Machine;
using bench::machine_json;
using bench::processor_text;
using bench::Spread;
using bench::spread_json;
using bench::spread_of;
using bench::this_machine;

}  // namespace wsync::soak
