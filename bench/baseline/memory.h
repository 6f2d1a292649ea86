// Copies, first touches, mappings and digests: the speed of memory alone.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bench/baseline/workbench.h"
#include "bench/harness/machine.h"

namespace wsync::bench {

// Numbers of threads for which copies are measured: 1, 2 and all cores.
[[nodiscard]] std::vector<unsigned> copy_threads(unsigned cores);

// The measurements themselves, for other suites. All threads of the ground copy. Each measurement
// checks what arrived.
[[nodiscard]] Result<Spent> measure_memcpy(Ground& ground);
[[nodiscard]] Result<Spent> measure_streaming_copy(Ground& ground);
[[nodiscard]] Result<std::chrono::nanoseconds> measure_digest(Ground& ground);
// Maps and reads a memfd that holds the ground's source as it is now. Each call measures once.
using MeasureMapping = std::function<Result<std::chrono::nanoseconds>()>;
[[nodiscard]] Result<MeasureMapping> make_mapping(const Ground& ground);

// Adds the rows of memory. Rows of huge pages are left out, with a note, if the machine's settings
// never provide any. `bench` outlives the rows. Each measurement checks what arrived.
[[nodiscard]] Result<> add_memory_rows(Workbench& bench, const Machine& machine,
                                       BaselineRows& rows);

}  // namespace wsync::bench
