// Processes of a benchmark that are watched by one loop (shared/loop/child_process.h).
#pragma once

#include <memory>
#include <string>

#include "shared/loop/child_process.h"

namespace wsync::bench {

// Their environment is this process's, and their logs are in `directory`. The first signal ends
// what waits for them with kCancelled; later signals change nothing. At most one at a time in a
// process; the Interrupt is older.
[[nodiscard]] Result<std::unique_ptr<cli::ChildProcesses>> bench_children(
    const std::string& directory);

}  // namespace wsync::bench
