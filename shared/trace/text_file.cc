#include "shared/trace/text_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync::trace {
namespace {

Result<> write_all(const std::string& path, std::string_view text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
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
  const std::string beside = fmt::format("{}.{}.part", path, ::getpid());
  if (auto written = write_all(beside, text); !written) {
    ::unlink(beside.c_str());
    return written;
  }
  if (std::rename(beside.c_str(), path.c_str()) == 0) return {};
  const int error = errno;
  ::unlink(beside.c_str());
  return fail_errno(fmt::format("cannot replace {}", path), error);
}

}  // namespace wsync::trace
