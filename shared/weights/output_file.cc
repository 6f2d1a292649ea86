#include "shared/weights/output_file.h"

#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>
#include <utility>

#include "shared/base/fail_point.h"
#include "shared/base/format.h"

namespace wsync {
namespace fs = std::filesystem;

std::string temporary_name(const std::string& path) {
  static std::atomic<std::uint64_t> counter{0};
  const fs::path full(path);
  return (full.parent_path() /
          fmt::format(".{}.{}-{}.tmp", full.filename().string(), ::getpid(), counter++))
      .string();
}

Result<> sync_directory(const std::string& directory) {
  const std::string name = directory.empty() ? "." : directory;
  const UniqueFd fd(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return fail_errno("cannot open directory " + name, errno);
  // EINVAL: the file system cannot sync directories.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return fail_errno("cannot sync " + name, errno);
  return {};
}

Result<OutputFile> OutputFile::create(const std::string& path, std::uint64_t bytes) {
  OutputFile file;
  file.path_ = path;
  const std::string temporary = temporary_name(path);
  file.fd_.reset(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.fd_.valid()) return fail_errno("cannot create " + temporary, errno);
  file.temporary_ = temporary;
  fail_point(kWriteFailPoint);
  // File systems without fallocate() report a full disk only when the bytes are written.
  if (bytes != 0 &&
      ::fallocate(file.fd_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) != 0 &&
      errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR)
    return fail_errno(fmt::format("cannot reserve {} bytes for {}", bytes, path), errno);
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::move(other.fd_)) {}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Result<> OutputFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("cannot write " + path_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    fail_point(kWriteFailPoint);
  }
  return {};
}

Result<> OutputFile::commit() {
  // Synced before the rename, so that the name never stands for incomplete data after a crash.
  if (::fsync(fd_.get()) != 0) return fail_errno("cannot sync " + path_, errno);
  fail_point(kWriteFailPoint);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    return fail_errno(fmt::format("cannot rename {} to {}", temporary_, path_), errno);
  temporary_.clear();
  fail_point(kWriteFailPoint);
  return sync_directory(fs::path(path_).parent_path().string());
}

}  // namespace wsync
