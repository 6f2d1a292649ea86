// OutputFile: a file that appears complete or not at all.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync {

// Writes to a temporary file beside `path`; commit() syncs it and renames it. Destroyed without
// commit(), the temporary file is removed. Not thread-safe.
class OutputFile {
 public:
  // Reserves `bytes` on the disk at once, so that a full disk is found before anything is written
  // (kResourceExhausted).
  [[nodiscard]] static Result<OutputFile> create(const std::string& path, std::uint64_t bytes);
  ~OutputFile();
  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  [[nodiscard]] Result<> append(std::span<const std::byte> bytes);
  // Makes the file visible under its name; durable when this returns. Once only, at the end.
  [[nodiscard]] Result<> commit();

 private:
  OutputFile() = default;
  std::string path_;
  std::string temporary_;  // empty once renamed or moved from
  UniqueFd fd_;
};

// Makes a directory's entries durable.
[[nodiscard]] Result<> sync_directory(const std::string& directory);

// "dir/name" -> "dir/.name.<process>-<number>.tmp": a name beside it that nobody else uses.
[[nodiscard]] std::string temporary_name(const std::string& path);

}  // namespace wsync
