#include "shared/base/durable_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync {
namespace {

Result<> write_all(int fd, const std::string& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("write " + path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  if (::fsync(fd) != 0) return fail_errno("fsync " + path, errno);
  return {};
}

Result<> sync_directory(const std::filesystem::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return fail_errno("open " + directory.string(), errno);
  if (::fsync(fd.get()) != 0) return fail_errno("fsync " + directory.string(), errno);
  return {};
}

}  // namespace

Result<> write_durably(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const std::string temporary = path.string() + ".new." + std::to_string(::getpid());
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return fail_errno("open " + temporary, errno);
  Result<> written = write_all(fd.get(), temporary, bytes);
  fd.reset();
  if (written && ::rename(temporary.c_str(), path.c_str()) != 0)
    written = fail_errno("rename " + temporary + " to " + path.string(), errno);
  if (!written) {
    ::unlink(temporary.c_str());
    return written;
  }
  return sync_directory(path.parent_path());
}

Result<Bytes> read_small_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return fail_errno("open " + path.string(), errno);
  Bytes bytes;
  std::byte buffer[4096];
  while (true) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno("read " + path.string(), errno);
    if (n == 0) return bytes;
    if (bytes.size() + static_cast<std::size_t>(n) > max_bytes)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{} has more than {} bytes", path.string(), max_bytes));
    bytes.insert(bytes.end(), buffer, buffer + n);
  }
}

}  // namespace wsync
