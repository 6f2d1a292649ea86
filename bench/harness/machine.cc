#include "bench/harness/machine.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <poll.h>
#include <sched.h>
#include <set>
#include <sstream>
#include <sys/utsname.h>
#include <unistd.h>

#include "bench/harness/child.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

constexpr int kCacheIndices = 8;
constexpr int kLookMs = 300;  // a few dozen of the ticks in which the kernel counts

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns the value after "key : " in /proc/cpuinfo.
std::string cpu_info(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t value = line.find(": ");
    return value == std::string::npos ? std::string() : line.substr(value + 2);
  }
  return {};
}

// "always [madvise] never" -> "madvise"
std::string chosen(const std::string& line) {
  const std::size_t begin = line.find('[');
  const std::size_t end = line.find(']');
  return begin == std::string::npos || end == std::string::npos
             ? line
             : line.substr(begin + 1, end - begin - 1);
}

// Parses "32768K" as the kernel writes it. Returns 0 for anything else.
std::uint64_t kib_of(const std::string& text) {
  std::uint64_t kib = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), kib);
  return error == std::errc() && end != text.data() + text.size() && *end == 'K'
             ? kib * limits::kKiB
             : 0;
}

// Total size of the caches of the highest level. A shared cache counts once.
std::uint64_t last_level_cache(const cpu_set_t& set) {
  std::string highest;
  std::map<std::string, std::uint64_t> caches;  // by the list of cores that share the cache
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    for (int index = 0; index < kCacheIndices; ++index) {
      const std::string cache =
          fmt::format("/sys/devices/system/cpu/cpu{}/cache/index{}/", cpu, index);
      const std::string level = first_line(cache + "level");
      if (level.empty() || level < highest || first_line(cache + "type") == "Instruction") continue;
      if (level > highest) caches.clear();
      highest = level;
      caches[first_line(cache + "shared_cpu_list")] = kib_of(first_line(cache + "size"));
    }
  }
  std::uint64_t bytes = 0;
  for (const auto& [cores, size] : caches) bytes += size;
  return bytes;
}

std::string layout_of(const cpu_set_t& set) {
  std::set<std::string> packages;
  std::set<std::string> cores;
  std::set<std::string> caches;
  std::string cache_bytes;
  int threads = 0;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    ++threads;
    const std::string base = fmt::format("/sys/devices/system/cpu/cpu{}/", cpu);
    const std::string package = first_line(base + "topology/physical_package_id");
    packages.insert(package);
    cores.insert(package + "/" + first_line(base + "topology/core_id"));
    for (int index = 0; index < kCacheIndices; ++index) {
      const std::string cache = fmt::format("{}cache/index{}/", base, index);
      if (first_line(cache + "level") != "3") continue;
      caches.insert(first_line(cache + "shared_cpu_list"));
      cache_bytes = first_line(cache + "size");
    }
  }
  std::string text = fmt::format("{} hardware threads on {} cores, {} packages", threads,
                                 cores.size(), packages.size());
  if (!cache_bytes.empty()) text += fmt::format(", {} L3 caches of {}", caches.size(), cache_bytes);
  return text;
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.cpu = cpu_info("model name");
  machine.virtual_machine =
      (" " + cpu_info("flags") + " ").find(" hypervisor ") != std::string::npos;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    machine.cores = static_cast<std::uint32_t>(CPU_COUNT(&set));
    machine.layout = layout_of(set);
    machine.cache_bytes = last_level_cache(set);
  }
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  if (pages > 0 && page_bytes > 0)
    machine.memory_bytes =
        static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
  utsname name{};
  if (::uname(&name) == 0) machine.kernel = fmt::format("{} {}", name.sysname, name.release);
  machine.huge_pages = chosen(first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  machine.shared_huge_pages =
      chosen(first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  machine.copy_kind = copy_kind_name(best_copy_kind());
  return machine;
}

CpuLoad::CpuLoad() : last_(read()) {}

CpuLoad::Ticks CpuLoad::read() {
  std::istringstream line(first_line("/proc/stat"));
  std::string name;
  line >> name;
  Ticks ticks;
  std::uint64_t value = 0;
  // Fields: user nice system idle iowait irq softirq steal. The user time already includes guest
  // times.
  for (int field = 0; field < 8 && line >> value; ++field) {
    ticks.all += value;
    if (field != 3 && field != 4) ticks.busy += value;
    if (field == 7) ticks.stolen += value;
  }
  return ticks;
}

CpuLoad::Shares CpuLoad::since_last() {
  const Ticks ticks = read();
  const auto all = static_cast<double>(std::max<std::uint64_t>(ticks.all - last_.all, 1));
  const Shares shares{.busy = static_cast<double>(ticks.busy - last_.busy) / all,
                      .stolen = static_cast<double>(ticks.stolen - last_.stolen) / all};
  last_ = ticks;
  return shares;
}

Result<double> busy_with_others(const Interrupt& interrupt) {
  CpuLoad load;
  pollfd fd{.fd = interrupt.fd(), .events = POLLIN, .revents = 0};
  if (::poll(&fd, 1, kLookMs) > 0) return fail(ErrorCode::kCancelled, "interrupted");
  return load.since_last().busy;
}

}  // namespace wsync::bench
