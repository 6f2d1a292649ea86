#include "bench/harness/process_usage.h"

#include <ctime>
#include <fstream>
#include <string>

#include "shared/base/format.h"
#include "shared/base/units.h"

namespace wsync::bench {

Result<std::chrono::nanoseconds> cpu_time_of(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (const int error = ::clock_getcpuclockid(pid, &clock); error != 0)
    return fail_errno(fmt::format("the processor time of process {}", pid), error);
  if (::clock_gettime(clock, &time) != 0)
    return fail_errno(fmt::format("the processor time of process {}", pid), errno);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

std::uint64_t peak_bytes_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * limits::kKiB;
  return 0;
}

}  // namespace wsync::bench
