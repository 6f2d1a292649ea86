// ArchiveFile: writes a compressed tar archive entry by entry. Only this class uses zlib.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <span>
#include <string>

#include "shared/base/error.h"

namespace wsync::cli {

// Thread: one.
class ArchiveFile {
 public:
  // Creates `path` with mode 0600. The file must not exist, and its name must end in .tar.gz or
  // .tgz. Errors: kInvalidInput for another name or an existing file; the system's error if it
  // cannot be created.
  [[nodiscard]] static Result<std::unique_ptr<ArchiveFile>> create(const std::string& path);
  ArchiveFile(const ArchiveFile&) = delete;
  ArchiveFile& operator=(const ArchiveFile&) = delete;
  // Removes the file unless finish() has succeeded.
  ~ArchiveFile();

  // Adds a regular file with mode 0600. `name`: relative and ASCII; at most 100 bytes, after a
  // folder of at most 155 bytes. Errors: kInvalidInput for a longer name or for 8 GiB or more; the
  // system's error if writing fails.
  [[nodiscard]] Result<> add(const std::string& name, std::span<const std::byte> bytes,
                             std::time_t modified);
  // Completes the archive and returns its size in bytes. No add() may follow.
  [[nodiscard]] Result<std::uint64_t> finish();

 private:
  struct State;
  explicit ArchiveFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace wsync::cli
