// OwnRunDir: a folder in a run_dir for a command that is a trainer for a while. A trainer or
// another command may have the run_dir itself. Removed at the end; what a killed command has left
// is removed by the next one.
#pragma once

#include <optional>
#include <string>

#include "shared/base/error.h"
#include "shared/base/unix_socket.h"

namespace wsync::cli {

class OwnRunDir {
 public:
  // Makes <run_dir>/push-<random>. Errors: kInvalidInput if its path is longer than a run_dir may
  // be; those of make_private_directory() and LockFile::acquire().
  [[nodiscard]] static Result<OwnRunDir> create(const std::string& run_dir);
  OwnRunDir(OwnRunDir&& other) noexcept;
  OwnRunDir& operator=(OwnRunDir&&) = delete;
  ~OwnRunDir();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  OwnRunDir(std::string path, LockFile lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;  // empty after a move
  std::optional<LockFile> lock_;
};

}  // namespace wsync::cli
