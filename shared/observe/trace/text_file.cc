#include "shared/observe/trace/text_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync::trace {
namespace {

namespace fs = std::filesystem;

Result<> write_all(const std::string& path, std::string_view text, int how) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | how, 0644));
  if (!fd.valid()) return fail_errno(fmt::format("cannot create {}", path), errno);
  while (!text.empty()) {
    const auto written = ::write(fd.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail_errno(fmt::format("cannot write {}", path), errno);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace

Result<> write_text_file(const std::string& path, std::string_view text) {
  std::error_code ignored;
  const fs::file_status there = fs::status(path, ignored);
  if (fs::exists(there) && !fs::is_regular_file(there)) return write_all(path, text, 0);
  const std::string target =
      fs::exists(there) ? fs::canonical(path, ignored).string() : std::string(path);
  // rename() is atomic only within one file system, so the temporary file is in the same directory.
  const std::string beside = fmt::format("{}.{}.part", target, ::getpid());
  if (auto written = write_all(beside, text, O_CREAT | O_TRUNC); !written) {
    ::unlink(beside.c_str());
    return written;
  }
  if (std::rename(beside.c_str(), target.c_str()) == 0) return {};
  const int error = errno;
  ::unlink(beside.c_str());
  return fail_errno(fmt::format("cannot replace {}", target), error);
}

Result<> check_text_file(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("cannot write to {}: it is a directory; name a file", path));
  fs::path directory = fs::path(path).parent_path();
  if (directory.empty()) directory = ".";
  if (!fs::is_directory(directory, error))
    return fail(
        ErrorCode::kNotFound,
        fmt::format(
            "cannot write to {}: there is no directory {}; create it, or name another directory",
            path, directory.string()));
  const fs::file_status there = fs::status(path, error);
  const bool in_place = fs::exists(there) && !fs::is_regular_file(there);
  if (::access(in_place ? path.c_str() : directory.c_str(), W_OK) != 0)
    return fail(ErrorCode::kInvalidInput,
                in_place ? fmt::format("cannot write to {}: no permission", path)
                         : fmt::format("cannot write to {}: files cannot be created in {}", path,
                                       directory.string()));
  return {};
}

}  // namespace wsync::trace
