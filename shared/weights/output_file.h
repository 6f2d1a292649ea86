// OutputFile: a file that appears only when it is complete.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync {

// The fail point (shared/base/fail_point.h) of each step of writing a file or a directory.
inline constexpr std::string_view kWriteFailPoint = "file_written";

// Writes to a temporary file beside `path`; commit() syncs and renames it. Destruction without
// commit() removes the temporary file. Not thread-safe.
class OutputFile {
 public:
  // Reserves `bytes` on the disk first, so that a full disk is detected before anything is written
  // (kResourceExhausted).
  [[nodiscard]] static Result<OutputFile> create(const std::string& path, std::uint64_t bytes);
  ~OutputFile();
  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  [[nodiscard]] Result<> append(std::span<const std::byte> bytes);
  // Makes the file visible under its name. It is durable when this returns. Call it once, at the
  // end.
  [[nodiscard]] Result<> commit();

 private:
  OutputFile() = default;
  std::string path_;
  std::string temporary_;  // empty after a rename or a move
  UniqueFd fd_;
};

// Makes a directory's entries durable.
[[nodiscard]] Result<> sync_directory(const std::string& directory);

// "dir/name" -> "dir/.name.<process>-<number>.tmp": a unique name in the same directory.
[[nodiscard]] std::string temporary_name(const std::string& path);

}  // namespace wsync
