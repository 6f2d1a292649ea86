// The one check of `wsync doctor` that goes to another process.
#include <cerrno>
#include <cstring>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "deploy/cli/doctor_checks.h"
#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync::cli {
namespace {

// 0 when the connection is made before the deadline, an errno otherwise.
int connect_within(const UniqueFd& fd, const sockaddr* address, socklen_t length,
                   std::chrono::milliseconds deadline) {
  if (!fd.valid()) return errno;
  if (::connect(fd.get(), address, length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{.fd = fd.get(), .events = POLLOUT, .revents = 0};
  const int ready = ::poll(&wait, 1, static_cast<int>(deadline.count()));
  if (ready <= 0) return ready == 0 ? ETIMEDOUT : errno;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

constexpr int kSocketFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

int connect_unix(const std::string& path, std::chrono::milliseconds deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const UniqueFd fd(::socket(AF_UNIX, kSocketFlags, 0));
  return connect_within(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address, deadline);
}

int connect_tcp(std::string host, const std::string& port, std::chrono::milliseconds deadline) {
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return EADDRNOTAVAIL;
  int error = EADDRNOTAVAIL;
  for (const addrinfo* at = found; at != nullptr && error != 0; at = at->ai_next) {
    const UniqueFd fd(::socket(at->ai_family, kSocketFlags, 0));
    error = connect_within(fd, at->ai_addr, at->ai_addrlen, deadline);
  }
  ::freeaddrinfo(found);
  return error;
}

}  // namespace

Check check_coordinator(const std::string& address, std::chrono::milliseconds deadline) {
  constexpr std::string_view kIpc = "ipc://";
  constexpr std::string_view kTcp = "tcp://";
  int error = EINVAL;
  if (address.starts_with(kIpc)) {
    error = connect_unix(address.substr(kIpc.size()), deadline);
  } else if (const std::size_t colon = address.rfind(':');
             address.starts_with(kTcp) && colon > kTcp.size()) {
    error = connect_tcp(address.substr(kTcp.size(), colon - kTcp.size()), address.substr(colon + 1),
                        deadline);
  }
  if (error == 0) return {"coordinator", CheckStatus::kOk, address + " accepts connections", ""};
  return {"coordinator", CheckStatus::kWarn, fmt::format("{}: {}", address, std::strerror(error)),
          "start `wsync trainer`; sidecars serve what they have and keep trying meanwhile"};
}

}  // namespace wsync::cli
