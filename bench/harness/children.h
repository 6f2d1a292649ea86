// Processes of a benchmark that one loop watches (shared/loop/child_process.h).
#pragma once

#include <memory>
#include <string>

#include "shared/loop/child_process.h"

namespace wsync::bench {

// The processes have this process's environment and write their logs to `directory`. The first
// signal ends their waits with kCancelled, and later signals have no effect. At most one object at
// a time per process. Create the Interrupt before it.
[[nodiscard]] Result<std::unique_ptr<cli::ChildProcesses>> bench_children(
    const std::string& directory);

}  // namespace wsync::bench
