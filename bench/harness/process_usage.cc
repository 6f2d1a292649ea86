#include "bench/harness/process_usage.h"

#include <ctime>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>

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

namespace {

// The sum of these fields of /proc/PID/status, each with its colon.
std::uint64_t status_bytes(pid_t pid, std::initializer_list<std::string_view> fields) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  std::uint64_t bytes = 0;
  for (std::string line; std::getline(file, line);)
    for (const std::string_view field : fields)
      if (line.starts_with(field)) bytes += std::stoull(line.substr(field.size())) * limits::kKiB;
  return bytes;
}

}  // namespace

std::uint64_t peak_bytes_of(pid_t pid) { return status_bytes(pid, {"VmHWM:"}); }

ResidentMemory resident_memory_of(pid_t pid) {
  return {.private_bytes = status_bytes(pid, {"RssAnon:", "RssFile:"}),
          .shared_bytes = status_bytes(pid, {"RssShmem:"})};
}

Result<> reset_peak_of(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/clear_refs", pid);
  std::ofstream file(path);
  file << "5" << std::flush;
  if (file) return {};
  return fail(ErrorCode::kIo,
              fmt::format("{}: the peak memory of process {} cannot be reset", path, pid));
}

}  // namespace wsync::bench
