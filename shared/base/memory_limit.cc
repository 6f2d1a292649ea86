#include "shared/base/memory_limit.h"

#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

#include "shared/base/format.h"

namespace wsync {
namespace {

// Returns the number at the beginning of a file; std::nullopt if the file does not exist or says
// "max".
std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size()) return std::nullopt;
  return value;
}

// Returns the number after `key` in a file of "key number" lines; 0 if the key is missing.
std::uint64_t read_stat(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  std::uint64_t value = 0;
  while (file >> word >> value)
    if (word == key) return value;
  return 0;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // key in memory.stat, descendants included
};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};

void apply_group(const std::string& directory, const GroupFiles& names, AvailableMemory& min) {
  const std::string limit_path = directory + "/" + names.limit;
  const auto limit = read_number(limit_path);
  const auto usage = read_number(directory + "/" + names.usage);
  if (!limit || !usage) return;
  const std::uint64_t reclaimable = read_stat(directory + "/memory.stat", names.reclaimable);
  const std::uint64_t used = *usage - std::min(*usage, reclaimable);
  const std::uint64_t left = *limit - std::min(*limit, used);
  if (left < min.bytes) min = {left, limit_path};
}

// Applies the group itself and all groups above it, up to the root of the mounted tree. Inside a
// container the path may name a group outside of the mounted tree; then only the root applies.
void apply_groups(const std::string& root, std::string path, const GroupFiles& names,
                  AvailableMemory& min) {
  while (!path.empty() && path != "/") {
    apply_group(root + path, names, min);
    path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
  apply_group(root, names, min);
}

bool names_memory(std::string_view controllers) {
  while (!controllers.empty()) {
    const std::size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == "memory") return true;
    if (comma == std::string_view::npos) return false;
    controllers.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace

Result<AvailableMemory> available_memory(const MemoryFiles& files) {
  const std::string meminfo = files.proc + "/meminfo";
  std::ifstream file(meminfo);
  std::string line;
  AvailableMemory min;
  while (std::getline(file, line) && min.limited_by.empty()) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) min = {kib * 1024, meminfo};
  }
  if (min.limited_by.empty())
    return fail(ErrorCode::kIo,
                fmt::format("{}: no MemAvailable line; is /proc mounted?", meminfo));

  std::ifstream groups(files.proc + "/self/cgroup");
  while (std::getline(groups, line)) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty())
      apply_groups(files.cgroup, path, kVersion2, min);
    else if (names_memory(controllers))
      apply_groups(files.cgroup + "/memory", path, kVersion1, min);
  }
  return min;
}

Result<> require_memory(std::uint64_t bytes, const std::string& what, const MemoryFiles& files) {
  const auto available = available_memory(files);
  if (!available) return fail(available.error().with_context(what));
  if (available->bytes >= bytes) return {};
  return fail(ErrorCode::kResourceExhausted,
              fmt::format("{} needs {} bytes of memory, {} are available ({}); free memory, raise "
                          "the limit or keep fewer versions",
                          what, bytes, available->bytes, available->limited_by));
}

}  // namespace wsync
