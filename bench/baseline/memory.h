// Copies, first touches, mappings and digests: what memory alone can do.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bench/baseline/workbench.h"
#include "bench/harness/machine.h"

namespace wsync::bench {

// Numbers of threads that copies are measured with: 1, 2 and all cores.
[[nodiscard]] std::vector<unsigned> copy_threads(unsigned cores);

// The measurements themselves, for other suites; copies by all threads of the ground. Each checks
// what arrived.
[[nodiscard]] Result<Spent> measure_memcpy(Ground& ground);
[[nodiscard]] Result<Spent> measure_streaming_copy(Ground& ground);
[[nodiscard]] Result<std::chrono::nanoseconds> measure_digest(Ground& ground);
// A memfd that holds the ground's source as it is now is mapped and read; again with each call.
using MeasureMapping = std::function<Result<std::chrono::nanoseconds>()>;
[[nodiscard]] Result<MeasureMapping> make_mapping(const Ground& ground);

// Adds the rows of memory. Rows of huge pages are left out, with a note, where the machine's
// settings never give any. `bench` outlives the rows. Each measurement checks what arrived.
[[nodiscard]] Result<> add_memory_rows(Workbench& bench, const Machine& machine,
                                       BaselineRows& rows);

}  // namespace wsync::bench
