#include "shared/observe/metrics/process.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

#include "shared/observe/metrics/catalog.h"

namespace wsync::metrics {
namespace {

// Returns the fields of /proc/self/stat that follow the process name, from field 3 on (proc(5)).
std::vector<std::string> stat_fields() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  std::vector<std::string> fields;
  if (name_end == std::string::npos) return fields;
  std::istringstream words(line.substr(name_end + 1));
  for (std::string word; words >> word;) fields.push_back(word);
  return fields;
}

double number(const std::string& text) {
  double value = 0;
  std::istringstream(text) >> value;
  return value;
}

// Returns the boot time of the machine in seconds since 1970.
double boot_time() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("btime ")) return number(line.substr(6));
  return 0;
}

}  // namespace

std::vector<Reading> process_readings() {
  std::vector<Reading> readings;
  const auto add = [&](const Definition& what, double value) {
    readings.push_back({.what = &what, .value = value, .labels = {}});
  };
  constexpr std::size_t kUserTicks = 11, kSystemTicks = 12, kStart = 19, kVirtual = 20,
                        kResidentPages = 21;  // fields 14, 15, 22, 23 and 24
  const double ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  if (const std::vector<std::string> fields = stat_fields(); fields.size() > kResidentPages) {
    add(kCpuSeconds, (number(fields[kUserTicks]) + number(fields[kSystemTicks])) / ticks);
    add(kStartTime, boot_time() + number(fields[kStart]) / ticks);
    add(kVirtualMemory, number(fields[kVirtual]));
    add(kResidentMemory,
        number(fields[kResidentPages]) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  }
  std::error_code error;
  double open = 0;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end;
       !error && entry != end; entry.increment(error))
    ++open;
  if (!error) add(kOpenFds, open - 1);  // without the directory itself
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) add(kMaxFds, static_cast<double>(limit.rlim_cur));
  return readings;
}

}  // namespace wsync::metrics
