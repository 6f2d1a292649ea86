// A directory for what a benchmark makes.
#pragma once

#include <string>
#include <utility>

#include "shared/base/error.h"

namespace wsync::bench {

// A new directory of mode 0700, removed with what is in it.
class TemporaryDirectory {
 public:
  // Below `parent`, which is there; empty: the system's directory for temporary files. kIo when
  // none can be made.
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

// Whether what lies in it lies in memory (tmpfs, ramfs) and on no disk.
[[nodiscard]] bool is_in_memory(const std::string& directory);

}  // namespace wsync::bench
