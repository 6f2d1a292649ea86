// A directory for the files of a benchmark.
#pragma once

#include <string>
#include <utility>

#include "shared/base/error.h"

namespace wsync::bench {

// A new directory of mode 0700. The destructor removes it with its contents.
class TemporaryDirectory {
 public:
  // Creates it below `parent`, which exists. Empty: the system's directory for temporary files. kIo
  // if it cannot be created.
  [[nodiscard]] static Result<TemporaryDirectory> create(const std::string& parent);
  TemporaryDirectory(TemporaryDirectory&& other) noexcept
      : path_(std::exchange(other.path_, std::string())) {}
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory();
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) noexcept : path_(std::move(path)) {}
  std::string path_;
};

// Returns whether the directory is in memory (tmpfs, ramfs) and not on a disk.
[[nodiscard]] bool is_in_memory(const std::string& directory);

}  // namespace wsync::bench
