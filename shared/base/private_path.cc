#include "shared/base/private_path.h"

#include <cerrno>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/durable_file.h"
#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync {
namespace {

constexpr mode_t kOthersReadOrWrite = S_IRWXG | S_IRWXO;
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

Result<> check_key_owner(const std::string& path, const struct stat& status) {
  if (status.st_uid == ::geteuid() || status.st_uid == 0) return {};
  return fail(ErrorCode::kRefused,
              fmt::format("{} belongs to user {}, but this process runs as user {}: use a file or "
                          "folder of this user",
                          path, status.st_uid, ::geteuid()));
}

}  // namespace

Result<Bytes> read_secret_file(const std::filesystem::path& path, std::string_view what,
                               std::uint64_t max_bytes) {
  // Without O_NONBLOCK a pipe in the place of the file would stop the process here.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return fail_errno(fmt::format("open the {} {}", what, path.string()), errno);
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0)
    return fail_errno(fmt::format("look at the {} {}", what, path.string()), errno);
  if (!S_ISREG(status.st_mode))
    return fail(
        ErrorCode::kRefused,
        fmt::format("{}: expected a file with a {}, found something else", path.string(), what));
  WSYNC_TRY(check_key_owner(path.string(), status));
  if ((status.st_mode & kOthersReadOrWrite) != 0)
    return fail(ErrorCode::kRefused,
                fmt::format("{} has mode {:04o}, with which other users may reach the secret in "
                            "it; expected 0600: if nobody has read it, use `chmod 600 {}`, "
                            "otherwise make a new {}",
                            path.string(), status.st_mode & 07777U, path.string(), what));
  auto bytes = read_to_end(fd.get(), path.string(), max_bytes);
  if (!bytes && bytes.error().code() == ErrorCode::kInvalidInput)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: expected a {} of at most {} bytes, found more", path.string(),
                            what, max_bytes));
  return bytes;
}

Result<> check_own_folder(const std::filesystem::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0)
    return fail_errno("look at the folder of keys " + path.string(), errno);
  if (!S_ISDIR(status.st_mode))
    return fail(ErrorCode::kRefused,
                fmt::format("{}: expected a folder of keys, found something else", path.string()));
  WSYNC_TRY(check_key_owner(path.string(), status));
  if ((status.st_mode & kOthersWrite) == 0) return {};
  return fail(ErrorCode::kRefused,
              fmt::format("{} has mode {:04o}, with which other users may add keys; expected 0700: "
                          "look at what is in it, and use `chmod 700 {}`",
                          path.string(), status.st_mode & 07777U, path.string()));
}

}  // namespace wsync
