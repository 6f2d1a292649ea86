// What goes into a bundle, piece by piece, and the list of it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "deploy/cli/archive_file.h"

namespace wsync::cli {

// Adds to an archive below one folder and keeps the list: what is there, from where, and what could
// not be had and why.
class BundleFiles {
 public:
  // `folder`: the name in front of everything; `archive` outlives this.
  BundleFiles(ArchiveFile& archive, std::string folder);

  // Each is kIo when the archive cannot be written; what cannot be read is put on the list instead.
  [[nodiscard]] Result<> add_text(const std::string& name, std::string_view text,
                                  const std::string& from);
  [[nodiscard]] Result<> add_json(const std::string& name, const nlohmann::json& object,
                                  const std::string& from);
  enum class TooLong : std::uint8_t { kEndOnly, kLeaveOut };
  // A regular file on this host, at most `most` bytes of it.
  [[nodiscard]] Result<> add_file(const std::string& name, const std::string& path,
                                  std::uint64_t max, TooLong rule);
  // Names, kinds, sizes, modes and ages of what is in a directory.
  [[nodiscard]] Result<> add_listing(const std::string& name, const std::string& directory);
  void missing(const std::string& what, const std::string& why);

  // Adds manifest.json: `facts`, then "files" (all but itself) and "missing".
  [[nodiscard]] Result<> finish(nlohmann::json facts);
  [[nodiscard]] const nlohmann::json& files() const noexcept { return files_; }
  [[nodiscard]] const nlohmann::json& missing() const noexcept { return missing_; }

 private:
  [[nodiscard]] Result<> add(const std::string& name, std::string_view bytes,
                             const std::string& from, std::uint64_t left_out);

  ArchiveFile& archive_;
  const std::string folder_;
  nlohmann::json files_ = nlohmann::json::array();
  nlohmann::json missing_ = nlohmann::json::array();
};

// A name for the archive: everything but letters, digits, '.', '-' and '_' becomes '_'; never
// empty, "." or "..", at most 80 characters.
[[nodiscard]] std::string file_name_of(std::string_view text);

}  // namespace wsync::cli
