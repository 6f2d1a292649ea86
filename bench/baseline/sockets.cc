#include "bench/baseline/sockets.h"

#include <cerrno>
#include <sys/socket.h>
#include <sys/time.h>

#include "shared/base/format.h"

namespace wsync::bench {

Result<> limit_stalls(int fd) {
  const timeval limit{.tv_sec = kStallSeconds, .tv_usec = 0};
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
    if (::setsockopt(fd, SOL_SOCKET, option, &limit, sizeof limit) != 0)
      return fail_errno("setting the time limit of a socket", errno);
  return {};
}

tl::unexpected<Error> stream_error(std::string_view what, ssize_t result, int error) {
  if (result == 0) return fail(ErrorCode::kPeerLost, fmt::format("{}: the stream ended", what));
  if (error == EAGAIN || error == EWOULDBLOCK)
    return fail(ErrorCode::kDeadline,
                fmt::format("{}: no bytes were transferred for {} s", what, kStallSeconds));
  return fail_errno(what, error);
}

}  // namespace wsync::bench
