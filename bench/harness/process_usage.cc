#include "bench/harness/process_usage.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <system_error>
#include <utility>

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

constexpr std::uint64_t kStatBlockBytes = 512;  // of st_blocks, see stat(3)

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

Result<std::uint64_t> memfd_bytes_of(std::span<const pid_t> pids) {
  constexpr std::string_view kName = "/memfd:";
  // By device and inode: files in huge pages are of a file system of their own.
  std::map<std::pair<dev_t, ino_t>, std::uint64_t> files;
  for (const pid_t pid : pids) {
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid), error)) {
      // One that was closed meanwhile is left out.
      std::error_code closed;
      if (!std::filesystem::read_symlink(entry.path(), closed).native().starts_with(kName))
        continue;
      struct stat status{};
      if (::stat(entry.path().c_str(), &status) == 0)
        files[{status.st_dev, status.st_ino}] =
            static_cast<std::uint64_t>(status.st_blocks) * kStatBlockBytes;
    }
    if (error)
      return fail(ErrorCode::kIo, fmt::format("the files of process {}: {}", pid, error.message()));
  }
  std::map<std::pair<dev_t, ino_t>, std::uint64_t> mapped;
  for (const pid_t pid : pids) {
    std::ifstream maps(fmt::format("/proc/{}/maps", pid));
    for (std::string line; std::getline(maps, line);) {
      if (line.find(kName) == std::string::npos) continue;
      // begin-end rights offset major:minor inode path
      std::istringstream words(line);
      std::uint64_t begin = 0;
      std::uint64_t end = 0;
      std::uint64_t offset = 0;
      unsigned major = 0;
      unsigned minor = 0;
      ino_t inode = 0;
      char mark = 0;
      std::string rights;
      words >> std::hex >> begin >> mark >> end >> rights >> offset >> major >> mark >> minor >>
          std::dec >> inode;
      std::uint64_t& bytes = mapped[{::makedev(major, minor), inode}];
      bytes = std::max(bytes, offset + (end - begin));
    }
  }
  files.merge(mapped);  // those that are not open
  std::uint64_t bytes = 0;
  for (const auto& [file, size] : files) bytes += size;
  return bytes;
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
