// Plain driver calls on each GPU, and a broadcast among all GPUs.
#pragma once

#include "bench/baseline/workbench.h"

namespace wsync::bench {

// Adds the rows of GPUs, or a note that says why there are none. `bench` outlives the rows. The
// driver's own copies are not checked. `wsync bench gpu` checks the copies that updates use.
[[nodiscard]] Result<> add_gpu_rows(Workbench& bench, BaselineRows& rows);

}  // namespace wsync::bench
