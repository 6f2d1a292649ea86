#include "shared/base/process_fd.h"

#include <cerrno>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shared/base/format.h"

// Older C library headers lack this constant. The value is the kernel's, the same on every
// architecture.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace wsync {

Result<UniqueFd> open_process(pid_t pid) {
  if (pid <= 0) return fail(ErrorCode::kNotFound, "the process is in another PID namespace");
  // The kernel sets close-on-exec for every pidfd.
  UniqueFd fd =
      UniqueFd::made_by([pid] { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); });
  if (fd.valid()) return fd;
  if (errno == ESRCH) return fail(ErrorCode::kPeerLost, fmt::format("process {} has ended", pid));
  return fail_errno(fmt::format("watch process {} (pidfd_open)", pid), errno);
}

bool process_has_ended(const UniqueFd& process) noexcept {
  pollfd events{.fd = process.get(), .events = POLLIN, .revents = 0};
  return ::poll(&events, 1, 0) > 0;
}

}  // namespace wsync
