// The driver's plain calls on each GPU, and a broadcast among all of them.
#pragma once

#include "bench/baseline/workbench.h"

namespace wsync::bench {

// Adds the rows of GPUs, or a note that says why there are none. `bench` outlives the rows. Copies
// of the driver's own calls are not checked; `wsync bench gpu` checks the ones of updates.
[[nodiscard]] Result<> add_gpu_rows(Workbench& bench, BaselineRows& rows);

}  // namespace wsync::bench
