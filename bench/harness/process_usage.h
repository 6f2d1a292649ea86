// Resources that a process has used so far, as counted by the kernel.
#pragma once

#include <chrono>
#include <cstdint>
#include <sys/types.h>

#include "shared/base/error.h"

namespace wsync::bench {

// Processor time of all its threads, including ended ones. kIo if the process has ended.
[[nodiscard]] Result<std::chrono::nanoseconds> cpu_time_of(pid_t pid);
// Maximum resident memory of the process in bytes, including shared pages. 0 if the kernel does not
// report it.
[[nodiscard]] std::uint64_t peak_bytes_of(pid_t pid);

}  // namespace wsync::bench
