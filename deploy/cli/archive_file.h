// ArchiveFile: a compressed tar archive that is written entry by entry. The only user of zlib.
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
  // Begins `path`, which must not be there yet, for its owner alone (mode 0600). Its name ends in
  // .tar.gz or .tgz; kInvalidInput for another and for a file that is there; the error of the
  // system when it cannot be made.
  [[nodiscard]] static Result<std::unique_ptr<ArchiveFile>> create(const std::string& path);
  ArchiveFile(const ArchiveFile&) = delete;
  ArchiveFile& operator=(const ArchiveFile&) = delete;
  // Without finish() the file is removed.
  ~ArchiveFile();

  // A regular file of mode 0600. `name`: relative, of ASCII; at most 100 bytes after a folder of at
  // most 155. kInvalidInput for a longer name and for 8 GiB or more; the error of the system when
  // the disk refuses it.
  [[nodiscard]] Result<> add(const std::string& name, std::span<const std::byte> bytes,
                             std::time_t modified);
  // Writes the end; the file's bytes. No add() after it.
  [[nodiscard]] Result<std::uint64_t> finish();

 private:
  struct State;
  explicit ArchiveFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace wsync::cli
