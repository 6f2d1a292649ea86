#include "shared/weights/checkpoint_dir.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <set>
#include <unordered_map>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/checkpoint_index.h"
#include "shared/weights/json_text.h"

namespace wsync {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// Returns whether a file belongs to the checkpoint by its name: "model.safetensors" or
// "model-....safetensors".
bool is_model_file(std::string_view name) {
  return name == kSingleFile || (name.starts_with("model-") && name.ends_with(".safetensors"));
}

Result<std::vector<std::byte>> read_small_file(const std::string& path, std::uint64_t max_bytes) {
  // O_NONBLOCK, so that open() does not wait on a FIFO.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return fail_errno("cannot open " + path, errno);
  std::vector<std::byte> bytes;
  constexpr std::size_t kStep = 1U << 20U;
  while (true) {
    const std::size_t used = bytes.size();
    bytes.resize(used + kStep);
    const ssize_t n = ::read(fd.get(), bytes.data() + used, kStep);
    if (n < 0 && errno != EINTR) return fail_errno("cannot read " + path, errno);
    bytes.resize(used + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0) return bytes;
    if (bytes.size() > max_bytes)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{}: more than {} bytes, the limit", path, max_bytes));
  }
}

// Collects the contents of a directory and everything that is wrong with it.
class Inspection {
 public:
  Inspection(std::string path, SafetensorsOptions options, CheckpointReport& report)
      : path_(std::move(path)), options_(options), report_(report) {}

  // Lists the directory, reads the index, opens the files and compares. Returns false if the
  // directory or its index cannot be used.
  bool run() {
    if (!list()) return false;
    if (has_index_ && !read_index()) return false;
    if (!has_index_) mapped_files_.insert(std::string(kSingleFile));
    for (const std::string& name : model_files_)
      if (!mapped_files_.contains(name))
        problem(fmt::format("{}: no tensor is mapped to this file; expected nothing extra",
                            in_directory(name)));
    for (const std::string& name : mapped_files_) open_file(name);
    for (const auto& [tensor, file] : index_.weight_map)
      if (!found_.contains(tensor) && opened_.contains(file))
        problem(fmt::format("{}: tensor {} is mapped to this file but is not in it",
                            in_directory(file), quote_text(tensor)));
    if (index_.total_size && *index_.total_size != total_bytes_)
      report_.warnings.push_back(fmt::format("{}: total_size is {}; the tensors have {} bytes",
                                             in_directory(kIndexFile), *index_.total_size,
                                             total_bytes_));
    return true;
  }
  [[nodiscard]] std::vector<SafetensorsFile> take_files() && { return std::move(files_); }

 private:
  bool problem(std::string line) {
    report_.problems.push_back(std::move(line));
    return false;
  }
  [[nodiscard]] std::string in_directory(std::string_view name) const {
    return (fs::path(path_) / name).string();
  }

  bool list() {
    std::error_code error;
    fs::directory_iterator entries(path_, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
      const std::string name = entries->path().filename().string();
      if (name == kIndexFile) has_index_ = true;
      if (is_model_file(name))
        model_files_.insert(name);
      else if (name.ends_with(".safetensors"))
        report_.warnings.push_back(in_directory(name) + ": not part of the checkpoint; ignored");
    }
    if (error) return problem(fmt::format("cannot read directory {}: {}", path_, error.message()));
    if (has_index_ || model_files_.contains(std::string(kSingleFile))) return true;
    if (model_files_.empty())
      return problem(
          fmt::format("{}: no checkpoint here; expected {} or {}", path_, kSingleFile, kIndexFile));
    return problem(fmt::format("{}: {} shards but no {}", path_, model_files_.size(), kIndexFile));
  }

  bool read_index() {
    const std::string file = in_directory(kIndexFile);
    const auto text = read_small_file(file, limits::kIndexFileBytes);
    if (!text) return problem(text.error().message());
    auto index = parse_checkpoint_index(*text);
    if (!index) return problem(fmt::format("{}: {}", file, index.error().message()));
    index_ = std::move(*index);
    for (const auto& [tensor, name] : index_.weight_map) mapped_files_.insert(name);
    if (mapped_files_.size() > limits::kCheckpointFileCount)
      return problem(fmt::format("{}: {} files; at most {} are allowed", file, mapped_files_.size(),
                                 limits::kCheckpointFileCount));
    return true;
  }

  // Returns "; tensor 'a' is mapped to it" for a file that the index names.
  [[nodiscard]] std::string mapped_to(const std::string& file) const {
    for (const auto& [tensor, name] : index_.weight_map)
      if (name == file) return fmt::format("; tensor {} is mapped to it", quote_text(tensor));
    return {};
  }

  void open_file(const std::string& name) {
    auto file = SafetensorsFile::open(in_directory(name), options_);
    if (!file) {
      problem(file.error().code() == ErrorCode::kNotFound
                  ? fmt::format("{}: the file is missing{}", in_directory(name), mapped_to(name))
                  : file.error().message());
      return;
    }
    opened_.insert(name);
    for (const SafetensorsEntry& entry : file->tensors()) check_tensor(name, entry);
    files_.push_back(std::move(*file));
  }

  void check_tensor(const std::string& file, const SafetensorsEntry& entry) {
    total_bytes_ += entry.end - entry.begin;
    if (has_index_) {
      const auto mapped = index_.weight_map.find(entry.info.name);
      const std::string name = quote_text(entry.info.name);
      if (mapped == index_.weight_map.end()) {
        problem(
            fmt::format("{}: tensor {} is in the file but not in the index; expected nothing "
                        "extra",
                        in_directory(file), name));
        return;
      }
      if (mapped->second != file) {
        problem(fmt::format("{}: tensor {} is in this file; the index maps it to {}",
                            in_directory(file), name, quote_text(mapped->second)));
        return;
      }
    }
    found_.insert(entry.info.name);
  }

  std::string path_;
  SafetensorsOptions options_;
  CheckpointReport& report_;
  bool has_index_ = false;
  std::set<std::string> model_files_;   // by their names in the directory
  std::set<std::string> mapped_files_;  // according to the index
  std::set<std::string> opened_;
  std::set<std::string> found_;  // tensors in the file that they are mapped to
  CheckpointIndex index_;
  std::uint64_t total_bytes_ = 0;
  std::vector<SafetensorsFile> files_;
};

}  // namespace

std::optional<CheckpointDirectory> CheckpointDirectory::inspect(const std::string& path,
                                                                SafetensorsOptions options,
                                                                CheckpointReport& report) {
  Inspection inspection(path, options, report);
  if (!inspection.run() || !report.problems.empty()) return std::nullopt;
  CheckpointDirectory directory;
  directory.path_ = path;
  directory.files_ = std::move(inspection).take_files();
  std::vector<TensorInfo> tensors;
  for (const SafetensorsFile& file : directory.files_)
    for (const SafetensorsEntry& entry : file.tensors()) tensors.push_back(entry.info);
  auto manifest = Manifest::create(std::move(tensors));
  if (!manifest) {
    report.problems.push_back(fmt::format("{}: {}", path, manifest.error().message()));
    return std::nullopt;
  }
  directory.manifest_ = std::move(*manifest);
  directory.locate();
  directory.warnings_ = report.warnings;
  return directory;
}

void CheckpointDirectory::locate() {
  locations_.resize(manifest_.size());
  for (std::uint32_t f = 0; f < files_.size(); ++f) {
    const auto entries = files_[f].tensors();
    for (std::uint32_t e = 0; e < entries.size(); ++e)
      locations_[manifest_.find(entries[e].info.name).value()] = {.file = f, .entry = e};
  }
}

Result<CheckpointDirectory> CheckpointDirectory::open(const std::string& path,
                                                      SafetensorsOptions options) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_directory(path, error))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: it is a file, expected the directory of a checkpoint", path));
  if (!fs::is_directory(path, error))
    return fail(ErrorCode::kNotFound, fmt::format("{}: no such directory", path));
  CheckpointReport report;
  auto directory = inspect(path, options, report);
  if (directory) return std::move(*directory);
  const std::size_t more = report.problems.size() - 1;
  return fail(
      ErrorCode::kInvalidInput,
      report.problems.front() +
          (more == 0 ? "" : fmt::format(" (and {} more problem{})", more, more == 1 ? "" : "s")));
}

}  // namespace wsync
