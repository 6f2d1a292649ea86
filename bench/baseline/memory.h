// Copies, first touches, mappings and digests: what memory alone can do.
#pragma once

#include <memory>
#include <string>

#include "bench/baseline/workbench.h"
#include "bench/measure/machine.h"

namespace wsync::bench {

// Numbers of threads that copies are measured with: 1, 2 and all cores.
[[nodiscard]] std::vector<unsigned> copy_threads(unsigned cores);

// Adds the rows of memory. Rows of huge pages are left out, with a note, where the machine's
// settings never give any. `bench` outlives the rows. Each measurement checks what arrived.
[[nodiscard]] Result<> add_memory_rows(Workbench& bench, const Machine& machine,
                                       BaselineRows& rows);

}  // namespace wsync::bench
