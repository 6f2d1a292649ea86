#include "shared/command/programs.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/log.h"

namespace wsync::cli {
namespace {

bool is_program(const std::string& file) {
  std::error_code error;
  return std::filesystem::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0;
}

}  // namespace

std::optional<std::string> find_program(std::string_view name, const std::string& path) {
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.starts_with('/')) continue;
    std::string file = fmt::format("{}/{}", folder, name);
    if (is_program(file)) return file;
  }
  return std::nullopt;
}

std::optional<std::string> find_program(std::string_view name) {
  const char* path = std::getenv("PATH");
  return find_program(name, path == nullptr ? "/usr/bin:/bin" : path);
}

Result<std::string> find_wsync_program(std::string_view name) {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    std::string beside = (own.parent_path() / name).string();
    if (is_program(beside)) return beside;
  }
  if (auto found = find_program(name)) return std::move(*found);
  return fail(ErrorCode::kNotFound,
              fmt::format("the program {0} is not installed: it is neither in {1} nor in PATH; "
                          "the Python package does not have it: build the tree of wsync, and add "
                          "the folder of its {0} to PATH",
                          name, own.parent_path().string()));
}

Error become_wsync_program(std::string_view name, const std::vector<std::string>& arguments) {
  const auto path = find_wsync_program(name);
  if (!path) return path.error();
  std::vector<std::string> words{std::string(name)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  log_flush(kLogFlush);
  std::fflush(nullptr);  // exec would discard buffered output
  ::execv(path->c_str(), argv.data());
  return Error(ErrorCode::kIo, fmt::format("{} could not be started: {}", *path,
                                           std::generic_category().message(errno)));
}

}  // namespace wsync::cli
