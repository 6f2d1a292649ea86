#include "shared/base/open_files.h"

#include <sys/resource.h>

#include "shared/base/format.h"

namespace wsync {

std::uint64_t raise_open_files() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t soft = limit.rlim_cur;
  if (soft == limit.rlim_max) return soft;
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : soft;
}

Result<> allow_open_files(std::uint64_t wanted) {
  const std::uint64_t allowed = raise_open_files();
  if (allowed >= wanted) return {};
  return fail(ErrorCode::kResourceExhausted,
              fmt::format("this process may open {} files, but it needs {}: raise the hard limit "
                          "of open files (ulimit -Hn, or LimitNOFILE= of its systemd unit)",
                          allowed, wanted));
}

}  // namespace wsync
