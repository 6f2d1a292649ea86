// Resources that a process has used so far, as counted by the kernel.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <sys/types.h>

#include "shared/base/error.h"

namespace wsync::bench {

// Processor time of all its threads, including ended ones. kIo if the process has ended.
[[nodiscard]] Result<std::chrono::nanoseconds> cpu_time_of(pid_t pid);
// Maximum resident memory of the process in bytes, including shared pages. 0 if the kernel does not
// report it.
[[nodiscard]] std::uint64_t peak_bytes_of(pid_t pid);
// Memory of a process that is resident now. Both are 0 if the kernel does not report them.
struct ResidentMemory {
  std::uint64_t private_bytes = 0;  // anonymous and of files
  std::uint64_t shared_bytes = 0;   // of memfd, tmpfs and System V
};
[[nodiscard]] ResidentMemory resident_memory_of(pid_t pid);
// Memory of all files of memfd_create() that these processes have open or mapped, each file once.
// What is allocated of a file that is open counts; of one that is only mapped, all up to the end of
// its mappings. kIo if a process has ended, or is another user's.
[[nodiscard]] Result<std::uint64_t> memfd_bytes_of(std::span<const pid_t> pids);
// Sets that maximum to what is resident now. kIo, naming the process, if it has ended or the kernel
// does not allow it.
[[nodiscard]] Result<> reset_peak_of(pid_t pid);

}  // namespace wsync::bench
