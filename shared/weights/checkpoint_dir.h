// Checkpoint directories in the Hugging Face layout:
//
//   model.safetensors                                  one file, or
//   model-00001-of-000NN.safetensors ...               shards, with
//   model.safetensors.index.json                       {"metadata": {"total_size"},
//                                                       "weight_map": {name: file}}
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/manifest.h"
#include "shared/weights/safetensors.h"

namespace wsync {

// What is wrong with a directory. Each entry is one line that names file, tensor and rule.
struct CheckpointReport {
  std::vector<std::string> problems;  // any problem makes the directory unusable
  std::vector<std::string> warnings;  // unusual, but every byte is accounted for
};

// One open directory. Thread: read() may be called from several threads at once.
class CheckpointDirectory {
 public:
  // Opens every file and checks that each mapped file exists, that each mapped name is in its file,
  // and that there is nothing extra. Fails with the first problem and says how many more there are:
  // kNotFound if the directory does not exist, otherwise kInvalidInput.
  [[nodiscard]] static Result<CheckpointDirectory> open(const std::string& path,
                                                        SafetensorsOptions options = {});
  // Like open(), but collects everything in `report`. Returns std::nullopt if the report has
  // problems.
  [[nodiscard]] static std::optional<CheckpointDirectory> inspect(const std::string& path,
                                                                  SafetensorsOptions options,
                                                                  CheckpointReport& report);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const Manifest& manifest() const noexcept { return manifest_; }
  [[nodiscard]] std::size_t file_count() const noexcept { return files_.size(); }
  [[nodiscard]] std::span<const SafetensorsFile> files() const noexcept { return files_; }
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept { return warnings_; }
  // Returns the path of the file that holds a tensor of the manifest.
  [[nodiscard]] const std::string& file_of(std::size_t tensor) const {
    return files_[locations_[tensor].file].path();
  }
  // Copies bytes [offset, offset + out.size()) of a tensor of the manifest. Errors as for
  // SafetensorsFile::read.
  [[nodiscard]] Result<> read(std::size_t tensor, std::uint64_t offset,
                              std::span<std::byte> out) const {
    const Location& at = locations_[tensor];
    return files_[at.file].read(at.entry, offset, out);
  }

 private:
  struct Location {
    std::uint32_t file = 0;
    std::uint32_t entry = 0;
  };
  CheckpointDirectory() = default;
  void locate();

  std::string path_;
  Manifest manifest_;
  std::vector<SafetensorsFile> files_;
  std::vector<Location> locations_;  // in manifest order
  std::vector<std::string> warnings_;
};

struct CheckpointWriteOptions {
  std::uint64_t shard_bytes = 5'000'000'000;       // tensor bytes per file; a tensor is never split
  std::map<std::string, std::string> other_files;  // name to contents: "config.json"
  std::map<std::string, std::string> metadata;     // of each file, beside "format"
  // Writes additional files into the directory before it is renamed. Gets its temporary name.
  std::function<Result<>(const std::string& directory)> write_more;
};

// Writes a directory: one file, or shards in manifest order with their index. `source` gets the
// manifest index of each tensor. Everything is written to a temporary directory beside `path`,
// which is synced and renamed when it is complete, so that nobody sees an incomplete checkpoint. A
// failure removes the temporary directory. kInvalidInput if `path` exists and is not an empty
// directory.
[[nodiscard]] Result<> write_checkpoint_directory(const std::string& path, const Manifest& manifest,
                                                  const TensorSource& source,
                                                  const CheckpointWriteOptions& options = {});

}  // namespace wsync
