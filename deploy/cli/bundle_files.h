// Adds the parts of a bundle to its archive and records them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "deploy/cli/archive_file.h"

namespace wsync::cli {

// Adds files to one folder of an archive. It records each file with its source, and each missing
// item with the reason.
class BundleFiles {
 public:
  // `folder`: prefix of all names. `archive` must outlive this object.
  BundleFiles(ArchiveFile& archive, std::string folder);

  // The add functions return kIo if the archive cannot be written. A source that cannot be read is
  // recorded as missing instead.
  [[nodiscard]] Result<> add_text(const std::string& name, std::string_view text,
                                  const std::string& from);
  [[nodiscard]] Result<> add_json(const std::string& name, const nlohmann::json& object,
                                  const std::string& from);
  enum class TooLong : std::uint8_t { kEndOnly, kLeaveOut };
  // Adds at most `max` bytes of a regular file of this host.
  [[nodiscard]] Result<> add_file(const std::string& name, const std::string& path,
                                  std::uint64_t max, TooLong rule);
  // Adds names, types, sizes, modes and ages of the entries of a directory.
  [[nodiscard]] Result<> add_listing(const std::string& name, const std::string& directory);
  void missing(const std::string& what, const std::string& why);

  // Adds manifest.json: `facts`, then "files" (all except manifest.json) and "missing".
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

// Converts text to a file name for the archive. All characters except letters, digits, '.', '-' and
// '_' become '_'. The name is never empty, "." or "..", and has at most 80 characters.
[[nodiscard]] std::string file_name_of(std::string_view text);

}  // namespace wsync::cli
