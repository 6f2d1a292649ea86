#include "bench/measure/programs.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <unistd.h>

#include "shared/base/format.h"

namespace wsync::bench {

std::optional<std::string> find_program(std::string_view name, const std::string& path) {
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.starts_with('/')) continue;
    std::string file = fmt::format("{}/{}", folder, name);
    std::error_code error;
    if (std::filesystem::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0)
      return file;
  }
  return std::nullopt;
}

std::optional<std::string> find_program(std::string_view name) {
  const char* path = std::getenv("PATH");
  return find_program(name, path == nullptr ? "/usr/bin:/bin" : path);
}

}  // namespace wsync::bench
