#include "shared/weights/weight_directory.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <fcntl.h>
#include <fstream>
#include <set>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <system_error>
#include <unistd.h>

#include "shared/base/fail_point.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/json_text.h"
#include "shared/weights/output_file.h"

namespace wsync {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "weight_v";
constexpr std::string_view kLatest = "latest";
constexpr std::string_view kVersionKey = "wsync.version";
constexpr std::string_view kDigestKey = "wsync.digest";
constexpr std::uintmax_t kModelFileBytesMax = 64 * limits::kMiB;  // tokenizers have up to 40
constexpr std::size_t kLatestBytesMax = 4096;

// The small files beside the weights, by their names: not the weights themselves, and no index of
// other weights.
bool is_model_file(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.ends_with(".index.json")) return false;
  for (const std::string_view ending : {".json", ".txt", ".model", ".jinja", ".tiktoken", ".py"})
    if (name.ends_with(ending)) return true;
  return false;
}

// The text of `latest`, which is a file or a symbolic link; std::nullopt if there is neither.
Result<std::optional<std::string>> read_latest(const std::string& path) {
  std::array<char, kLatestBytesMax> text{};
  ssize_t n = ::readlink(path.c_str(), text.data(), text.size());
  if (n < 0 && errno == ENOENT) return std::nullopt;
  if (n < 0 && errno == EINVAL) {  // not a link
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid() && errno == ENOENT) return std::nullopt;
    if (!fd.valid()) return fail_errno("cannot open " + path, errno);
    n = ::read(fd.get(), text.data(), text.size());
  }
  if (n < 0) return fail_errno("cannot read " + path, errno);
  std::string name(text.data(), static_cast<std::size_t>(n));
  while (!name.empty() && (name.back() == '\n' || name.back() == ' ' || name.back() == '\r'))
    name.pop_back();
  const fs::path parts(name);
  bool inside = !name.empty() && !parts.is_absolute() && name.find('\0') == std::string::npos;
  for (const fs::path& part : parts) inside = inside && part != ".." && part != ".";
  if (!inside)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: expected the name of a directory beside it, found {}", path,
                            quote_text(name)));
  return name;
}

}  // namespace

std::string weight_directory_name(std::uint64_t number) {
  return fmt::format("{}{:06d}", kPrefix, number);
}

std::optional<std::uint64_t> weight_directory_number(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::uint64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + kPrefix.size(), end, number);
  if (error != std::errc{} || last != end || number > limits::kStepMax) return std::nullopt;
  return number;
}

Result<std::map<std::uint64_t, std::string>> weight_directories(const std::string& folder) {
  std::map<std::uint64_t, std::string> found;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (const auto number = weight_directory_number(name)) found[*number] = name;
  }
  if (error) return fail_errno("cannot read directory " + folder, error.value());
  return found;
}

Result<std::string> latest_weight_directory(const std::string& folder) {
  const auto latest = WSYNC_TRY(read_latest(folder + "/latest"));
  if (latest) return folder + "/" + *latest;
  const auto found = WSYNC_TRY(weight_directories(folder));
  if (found.empty())
    return fail(ErrorCode::kNotFound, fmt::format("{}: no `latest` and no directory of the form {}",
                                                  folder, weight_directory_name(12)));
  return folder + "/" + found.rbegin()->second;
}

Result<CheckpointDirectory> open_latest_weight_directory(const std::string& folder) {
  return open_weight_directory(folder, WSYNC_TRY(latest_weight_directory(folder)));
}

Result<CheckpointDirectory> open_weight_directory(const std::string& folder,
                                                  const std::string& path) {
  auto opened = CheckpointDirectory::open(path);
  if (opened) return opened;
  std::error_code error;
  const auto now = latest_weight_directory(folder);
  if (fs::is_directory(path, error) && now && *now == path) return opened;
  return fail(ErrorCode::kNotFound, fmt::format("{}: it vanished while it was opened: {}", path,
                                                opened.error().message()));
}

Result<std::optional<WeightProof>> weight_proof(const CheckpointDirectory& directory) {
  std::optional<WeightProof> proof;
  bool is_first = true;
  for (const SafetensorsFile& file : directory.files()) {
    std::optional<WeightProof> found;
    const auto version = file.metadata().find(std::string(kVersionKey));
    const auto digest = file.metadata().find(std::string(kDigestKey));
    const bool has_version = version != file.metadata().end();
    if (has_version != (digest != file.metadata().end()))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{}: its metadata has only one of {} and {}", file.path(),
                              kVersionKey, kDigestKey));
    if (has_version) {
      const auto parsed = Version::parse(version->second);
      const auto content = Digest::parse(digest->second);
      if (!parsed || !content)
        return fail((!parsed ? parsed.error() : content.error()).with_context(file.path()));
      found = WeightProof{.version = *parsed, .content = *content};
    }
    if (!std::exchange(is_first, false) && found != proof)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{}: it is of another version than {}", file.path(),
                              directory.files().front().path()));
    proof = found;
  }
  return proof;
}

Result<std::string> weight_files_identity(const std::string& path) {
  std::set<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(path, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".index.json")) names.insert(name);
  }
  if (error) return fail_errno("cannot read directory " + path, error.value());
  Digester digester;
  for (const std::string& name : names) {
    const std::string file = fmt::format("{}/{}", path, name);
    struct stat found{};
    if (::stat(file.c_str(), &found) != 0) return fail_errno("cannot read " + file, errno);
    digester.update(name);
    for (const auto number :
         {static_cast<std::uint64_t>(found.st_size), static_cast<std::uint64_t>(found.st_ino),
          static_cast<std::uint64_t>(found.st_mtim.tv_sec),
          static_cast<std::uint64_t>(found.st_mtim.tv_nsec)})
      digester.update(number);
  }
  return digester.finish().to_string();
}

Result<std::map<std::string, std::string>> read_model_files(const std::string& directory) {
  std::map<std::string, std::string> files;
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    if (!is_model_file(entries->path()) || !entries->is_regular_file(error)) continue;
    if (entries->file_size(error) > kModelFileBytesMax) continue;
    std::ifstream file(entries->path(), std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (file.bad())
      return fail(ErrorCode::kIo, fmt::format("cannot read {}", entries->path().string()));
    files[entries->path().filename().string()] = std::move(text);
  }
  if (error) return fail_errno("cannot read directory " + directory, error.value());
  return files;
}

// ---- writer ----

WeightDirectoryWriter::WeightDirectoryWriter(std::string folder, WeightDirectoryOptions options,
                                             LockFile lock)
    : folder_(std::move(folder)), options_(std::move(options)), lock_(std::move(lock)) {}

Result<WeightDirectoryWriter> WeightDirectoryWriter::open(const std::string& folder,
                                                          const WeightDirectoryOptions& options) {
  if (options.keep == 0 || options.shard_bytes == 0)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("{}: expected to keep 1 directory or more, with files of 1 byte or more",
                    folder));
  std::error_code error;
  fs::create_directory(folder, error);
  if (error) return fail_errno("cannot create directory " + folder, error.value());
  const std::string path = fs::absolute(folder).lexically_normal().string();
  auto lock = LockFile::acquire(path + "/.writer.lock");
  if (!lock && lock.error().code() == ErrorCode::kBusy)
    return fail(lock.error().with_context(path + " has another writer"));
  if (!lock) return fail(lock.error().with_context("cannot lock " + path));
  WeightDirectoryWriter writer(path, options, std::move(*lock));
  if (!options.model_files.empty())
    writer.model_files_ = WSYNC_TRY(read_model_files(options.model_files));
  writer.remove_leftovers();
  return writer;
}

std::string WeightDirectoryWriter::latest() const {
  const auto name = read_latest(folder_ + "/latest");
  return name && *name ? **name : "";
}

// The sentence of a failed write, with what its user can do about it.
Error WeightDirectoryWriter::with_space(const Error& error, const std::string& name,
                                        std::uint64_t needed) const {
  struct statvfs space{};
  std::string free = "an unknown number of";
  if (::statvfs(folder_.c_str(), &space) == 0)
    free = fmt::format("{}", std::uint64_t{space.f_bavail} * space.f_frsize);
  const std::string latest = this->latest();
  return {error.code(),
          fmt::format("cannot write {}/{}: it needs {} bytes, {} bytes are free; {}: {}", folder_,
                      name, needed, free,
                      latest.empty() ? "there is no `latest` yet"
                                     : fmt::format("`latest` is {} as before", latest),
                      error.message()),
          error.where()};
}

// The newest directory of a version; empty if there is none that can be read.
std::string WeightDirectoryWriter::find(const Version& version) const {
  const auto found = weight_directories(folder_);
  if (!found) return "";
  for (auto it = found->rbegin(); it != found->rend(); ++it) {
    const auto opened = CheckpointDirectory::open(folder_ + "/" + it->second);
    if (!opened) continue;
    const auto proof = weight_proof(*opened);
    if (proof && *proof && (**proof).version == version) return it->second;
  }
  return "";
}

Result<std::string> WeightDirectoryWriter::write(const Manifest& manifest, const WeightProof& proof,
                                                 const TensorSource& source) {
  remove_leftovers();
  const auto found = WSYNC_TRY(weight_directories(folder_));
  if (const std::string written = find(proof.version); !written.empty()) {
    const auto opened = WSYNC_TRY(CheckpointDirectory::open(folder_ + "/" + written));
    const auto held = WSYNC_TRY(weight_proof(opened));
    if (held == proof) {
      WSYNC_TRY(set_latest(written));
      return written;
    }
  }
  const std::uint64_t next = found.empty() ? 1 : found.rbegin()->first + 1;
  if (next > limits::kStepMax)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}/{} has the highest number that a directory can have; remove it, or "
                            "use another folder",
                            folder_, found.rbegin()->second));
  const std::string name = weight_directory_name(std::max(proof.version.step, next));
  std::uint64_t needed = manifest.total_bytes();
  for (const auto& [file, text] : model_files_) needed += text.size();
  struct statvfs space{};
  if (::statvfs(folder_.c_str(), &space) == 0 &&
      std::uint64_t{space.f_bavail} * space.f_frsize < needed)
    return fail(with_space(Error(ErrorCode::kResourceExhausted, "the file system is too full"),
                           name, needed));
  const Result<> written = write_checkpoint_directory(
      folder_ + "/" + name, manifest, source,
      {.shard_bytes = options_.shard_bytes,
       .other_files = model_files_,
       .metadata = {{std::string(kVersionKey), proof.version.to_string()},
                    {std::string(kDigestKey), proof.content.to_string()}},
       .write_more = {}});
  if (!written) return fail(with_space(written.error(), name, needed));
  if (const Result<> set = set_latest(name); !set) {
    // Nobody was told of this directory, and the next one gets its number.
    std::error_code ignored;
    fs::remove_all(folder_ + "/" + name, ignored);
    return fail(with_space(set.error(), name, needed));
  }
  remove_oldest();
  return name;
}

Result<std::string> WeightDirectoryWriter::point_to(const Version& version) {
  const std::string name = find(version);
  if (name.empty())
    return fail(ErrorCode::kNotFound,
                fmt::format("{} has no directory of version {} any more; `latest` is {} as before",
                            folder_, version.to_string(), latest()));
  WSYNC_TRY(set_latest(name));
  return name;
}

Result<> WeightDirectoryWriter::set_latest(const std::string& name) {
  if (latest() == name) return {};
  auto file = WSYNC_TRY(OutputFile::create(fmt::format("{}/{}", folder_, kLatest), name.size()));
  WSYNC_TRY(file.append(std::as_bytes(std::span(name))));
  return file.commit();
}

// Temporary names, which only a killed writer leaves: this one has the lock.
void WeightDirectoryWriter::remove_leftovers() {
  std::error_code error;
  fs::directory_iterator entries(folder_, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    const bool is_ours = name.starts_with(fmt::format(".{}", kPrefix)) ||
                         name.starts_with(fmt::format(".{}.", kLatest));
    if (!is_ours || !name.ends_with(".tmp")) continue;
    std::error_code failed;
    fs::remove_all(entries->path(), failed);
    if (failed) log_warning("cannot remove {}: {}", entries->path().string(), failed.message());
  }
}

// Whether a writer of this form has made the directory: it states a proof.
bool WeightDirectoryWriter::is_ours(const std::string& name) const {
  const auto opened = CheckpointDirectory::open(folder_ + "/" + name);
  if (!opened) return false;
  const auto proof = weight_proof(*opened);
  return proof && *proof;
}

// A directory is renamed before its files are removed, so that nobody finds a part of it under its
// own name. Those of other programs stay, and do not count.
void WeightDirectoryWriter::remove_oldest() {
  const auto found = weight_directories(folder_);
  if (!found) return log_warning("{}", found.error().message());
  const std::string latest = this->latest();
  std::uint32_t kept = 0;
  for (auto it = found->rbegin(); it != found->rend(); ++it) {
    if (!is_ours(it->second) || kept++ < options_.keep || it->second == latest) continue;
    const std::string path = folder_ + "/" + it->second;
    const std::string temporary = temporary_name(path);
    fail_point(kWriteFailPoint);
    if (::rename(path.c_str(), temporary.c_str()) != 0) {
      log_warning("cannot rename {} to {}: {}", path, temporary,
                  std::error_code(errno, std::generic_category()).message());
      continue;
    }
    fail_point(kWriteFailPoint);
    std::error_code failed;
    fs::remove_all(temporary, failed);
    if (failed) log_warning("cannot remove {}: {}", temporary, failed.message());
  }
}

}  // namespace wsync
