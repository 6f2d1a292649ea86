// What a process has used so far, as the kernel counts it.
#pragma once

#include <chrono>
#include <cstdint>
#include <sys/types.h>

#include "shared/base/error.h"

namespace wsync::bench {

// Processor time of all its threads, those that have ended included. kIo when it has ended.
[[nodiscard]] Result<std::chrono::nanoseconds> cpu_time_of(pid_t pid);
// The most memory that it ever had mapped and resident at once, shared pages included, bytes; 0
// where the kernel does not say.
[[nodiscard]] std::uint64_t peak_bytes_of(pid_t pid);

}  // namespace wsync::bench
