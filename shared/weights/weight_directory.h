// Folders of published weights, for engines and trainers that share a file system:
//
//   FOLDER/weight_v000012/model.safetensors    a checkpoint directory (checkpoint_dir.h): one file,
//                                              or shards with model.safetensors.index.json
//   FOLDER/weight_v000012/config.json          and the other small files of the model, if given
//   FOLDER/latest                              a text file: "weight_v000012", without a line end
//
// A writer makes a directory under a temporary name (".weight_v000012.<process>-<number>.tmp"),
// syncs its files and itself, renames it, and then replaces `latest` by a rename. So `latest` names
// a complete directory at every time, and a crash leaves at most temporary names, which the next
// writer removes. `latest` is a text file because an NFS client asks its server when it opens a
// file, and may trust what it has read of a symbolic link for a minute. Readers accept a symbolic
// link too, and a folder without `latest`, where the directory with the highest number counts.
//
// The metadata of each .safetensors file has "wsync.version" (epoch.step) and "wsync.digest" (the
// content digest of the whole model, content_digest.h), so that a reader can prove the bytes. A
// directory of another program has neither, and its bytes are not proven.
//
// The number of a directory is the step of its version, but always higher than those that the
// folder has: a name never stands for two different byte strings while readers may know the first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/unix_socket.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/manifest.h"
#include "shared/weights/version.h"

namespace wsync {

// What the writer of a directory says about its bytes.
struct WeightProof {
  Version version;
  Digest content;
  friend bool operator==(const WeightProof&, const WeightProof&) = default;
};

// "weight_v000012" of 12.
[[nodiscard]] std::string weight_directory_name(std::uint64_t number);
// 12 of "weight_v000012"; std::nullopt for any other name, and for a number above kStepMax.
[[nodiscard]] std::optional<std::uint64_t> weight_directory_number(std::string_view name);

// The names of the directories of a folder by their numbers.
[[nodiscard]] Result<std::map<std::uint64_t, std::string>> weight_directories(
    const std::string& folder);

// The path of the directory that `latest` names, which may not exist; without `latest` the one with
// the highest number. kNotFound if there is neither; kInvalidInput if `latest` leads out of the
// folder.
[[nodiscard]] Result<std::string> latest_weight_directory(const std::string& folder);

// Opens that directory. kNotFound also if it was removed or `latest` changed meanwhile: look again.
// Other errors as CheckpointDirectory::open().
[[nodiscard]] Result<CheckpointDirectory> open_latest_weight_directory(const std::string& folder);
// As above, for who has asked latest_weight_directory() already.
[[nodiscard]] Result<CheckpointDirectory> open_weight_directory(const std::string& folder,
                                                                const std::string& path);

// The proof in the metadata of a directory; std::nullopt if it has none. kInvalidInput if it cannot
// be parsed, or if two files have different ones.
[[nodiscard]] Result<std::optional<WeightProof>> weight_proof(const CheckpointDirectory& directory);

// A text that changes when a file of the directory of this path is written or replaced: the digest
// of names, sizes, inodes and times of change. No file is opened.
[[nodiscard]] Result<std::string> weight_files_identity(const std::string& path);

// The small files beside the weights of a directory (config.json, the tokenizer), by their names.
// No weights, and no index of weights.
[[nodiscard]] Result<std::map<std::string, std::string>> read_model_files(
    const std::string& directory);

struct WeightDirectoryOptions {
  std::uint32_t keep = 2;  // newest directories of this form that are kept, 1 at least
  std::uint64_t shard_bytes = 5'000'000'000;  // of a file
  // A directory whose small files (config.json, the tokenizer) are copied into each; empty: none.
  std::string model_files;
};

// The one writer of a folder. Not thread-safe; every function may block for as long as the file
// system does.
class WeightDirectoryWriter {
 public:
  // Creates the folder if only its last part is missing, locks it, and removes what killed writers
  // have left. kBusy if another writer, also on another host, has the folder; kInvalidInput for
  // keep 0.
  [[nodiscard]] static Result<WeightDirectoryWriter> open(const std::string& folder,
                                                          const WeightDirectoryOptions& options);

  // Writes a directory, lets `latest` name it, and removes the oldest ones beyond `keep`, but never
  // the one that `latest` names, nor one without a proof, which another program wrote. A process
  // that has a removed file open goes on reading it on a local file system; over NFS its reads may
  // fail (ESTALE). Returns the name of the directory. If the folder has this version already, only
  // `latest` changes. On an error `latest` and the directories are as before, and the sentence has
  // the bytes that are needed and free.
  [[nodiscard]] Result<std::string> write(const Manifest& manifest, const WeightProof& proof,
                                          const TensorSource& source);
  // Lets `latest` name the directory of an older version again. Returns its name; kNotFound if it
  // was removed, and `latest` is as before.
  [[nodiscard]] Result<std::string> point_to(const Version& version);
  // The name in `latest`; empty before the first.
  [[nodiscard]] std::string latest() const;
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

 private:
  WeightDirectoryWriter(std::string folder, WeightDirectoryOptions options, LockFile lock);
  [[nodiscard]] Error with_space(const Error& error, const std::string& name,
                                 std::uint64_t needed) const;
  [[nodiscard]] std::string find(const Version& version) const;
  [[nodiscard]] bool is_ours(const std::string& name) const;
  [[nodiscard]] Result<> set_latest(const std::string& name);
  void remove_leftovers();
  void remove_oldest();

  std::string folder_;
  WeightDirectoryOptions options_;
  LockFile lock_;
  std::map<std::string, std::string> model_files_;  // name to contents
};

}  // namespace wsync
