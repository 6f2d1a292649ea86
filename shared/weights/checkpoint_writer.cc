#include <cerrno>
#include <filesystem>
#include <system_error>
#include <unistd.h>

#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/weights/checkpoint_dir.h"
#include "shared/weights/checkpoint_index.h"
#include "shared/weights/output_file.h"

namespace wsync {
namespace {
namespace fs = std::filesystem;

struct Shard {
  std::size_t first = 0;  // manifest indices [first, end)
  std::size_t end = 0;
};

std::vector<Shard> cut_into_shards(const Manifest& manifest, std::uint64_t shard_bytes) {
  std::vector<Shard> shards{{}};
  std::uint64_t used = 0;
  for (std::size_t i = 0; i < manifest.size(); ++i) {
    const std::uint64_t bytes = manifest.byte_size(i);
    if (used != 0 && (bytes > shard_bytes || used > shard_bytes - bytes)) {
      shards.push_back({.first = i, .end = i});
      used = 0;
    }
    used += bytes;
    shards.back().end = i + 1;
  }
  return shards;
}

// A directory that is removed on destruction unless keep() was called.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  void keep() { path_.clear(); }

 private:
  std::string path_;
};

Result<> write_text(const std::string& path, std::string_view text) {
  auto file = WSYNC_TRY(OutputFile::create(path, text.size()));
  WSYNC_TRY(file.append(std::as_bytes(std::span(text))));
  return file.commit();
}

Result<> write_shards(const std::string& directory, const Manifest& manifest,
                      const TensorSource& source, const CheckpointWriteOptions& options) {
  const std::vector<Shard> shards = cut_into_shards(manifest, options.shard_bytes);
  std::map<std::string, std::string> metadata = options.metadata;
  metadata["format"] = "pt";
  CheckpointIndex index{.total_size = manifest.total_bytes()};
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const Shard shard = shards[s];
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05d}-of-{:05d}.safetensors",
                                                              s + 1, shards.size());
    const auto tensors = manifest.tensors().subspan(shard.first, shard.end - shard.first);
    WSYNC_TRY(write_safetensors(fmt::format("{}/{}", directory, name), tensors, metadata,
                                [&](std::size_t i, std::uint64_t offset, std::span<std::byte> out) {
                                  return source(shard.first + i, offset, out);
                                }));
    for (const TensorInfo& tensor : tensors) index.weight_map.emplace(tensor.name, name);
  }
  if (shards.size() == 1) return {};
  const auto text = WSYNC_TRY(make_checkpoint_index(index));
  return write_text(directory + "/model.safetensors.index.json", text);
}

}  // namespace

Result<> write_checkpoint_directory(const std::string& path, const Manifest& manifest,
                                    const TensorSource& source,
                                    const CheckpointWriteOptions& options) {
  std::string target = path;
  while (target.size() > 1 && target.ends_with('/')) target.pop_back();
  std::error_code error;
  if (fs::exists(target, error) && !fs::is_empty(target, error))
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("{}: exists already; a checkpoint is written to a new directory", path));
  const std::string temporary = temporary_name(target);
  if (!fs::create_directory(temporary, error))
    return fail_errno("cannot create directory " + temporary, error.value());
  TemporaryDirectory directory(temporary);
  fail_point(kWriteFailPoint);
  WSYNC_TRY(write_shards(temporary, manifest, source, options));
  for (const auto& [name, text] : options.other_files)
    WSYNC_TRY(write_text(fmt::format("{}/{}", temporary, name), text));
  if (options.write_more) WSYNC_TRY(options.write_more(temporary));
  WSYNC_TRY(sync_directory(temporary));
  if (::rename(temporary.c_str(), target.c_str()) != 0)
    return fail_errno(fmt::format("cannot rename {} to {}", temporary, target), errno);
  directory.keep();
  fail_point(kWriteFailPoint);
  return sync_directory(fs::path(target).parent_path().string());
}

}  // namespace wsync
