#include "shared/control/zmq/listening.h"

#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <netinet/in.h>
#include <poll.h>
#include <string_view>
#include <sys/socket.h>
#include <sys/stat.h>

#include "shared/base/format.h"
#include "shared/base/unix_socket.h"
#include "shared/control/zmq/address.h"

namespace wsync::control {
namespace {

// The kernel of this host refuses a connection to a port without a listener in microseconds.
constexpr int kRefusalMs = 100;

std::optional<std::string> why_not_at(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode))
    return S_ISDIR(status.st_mode) ? "it is a directory and not a socket"
                                   : "it is a file and not a socket";
  const auto socket = connect_unix(path, TimePoint{});
  if (socket || is_claimed(path)) return std::nullopt;
  if (socket.error().code() == ErrorCode::kNotFound) return "its socket does not exist";
  if (socket.error().code() == ErrorCode::kPeerLost)
    return "its socket is left over from a process that has ended";
  return std::nullopt;
}

// Connects a non-blocking socket. Returns the errno of the attempt; 0 if it is connected or
// pending.
int try_connect(const sockaddr* address, socklen_t size) {
  const UniqueFd socket = UniqueFd::made_by(
      [&] { return ::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!socket.valid()) return 0;
  if (::connect(socket.get(), address, size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd entry{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  if (::poll(&entry, 1, kRefusalMs) <= 0) return 0;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

// `endpoint`: "tcp://HOST:PORT", whose host is a loopback address.
std::optional<std::string> why_not_on(std::string_view endpoint, bool ipv6) {
  const std::size_t colon = endpoint.rfind(':');
  const std::string_view port = endpoint.substr(colon + 1);
  std::uint16_t number = 0;
  std::from_chars(port.data(), port.data() + port.size(), number);
  int error = 0;
  if (ipv6) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    address.sin6_port = htons(number);
    error = try_connect(reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } else {
    const std::string_view scheme = "tcp://";
    const std::string host(endpoint.substr(scheme.size(), colon - scheme.size()));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(number);
    if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return std::nullopt;
    error = try_connect(reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  if (error != ECONNREFUSED) return std::nullopt;
  return "no process listens on its port";
}

}  // namespace

std::optional<std::string> why_nobody_listens(const std::string& address) {
  const auto parsed = parse_port_address(address);
  if (!parsed) return std::nullopt;
  return parsed->path.empty() ? why_not_on(parsed->endpoint, parsed->ipv6)
                              : why_not_at(parsed->path);
}

std::string who_listens(const std::string& address) {
  const auto parsed = parse_port_address(address);
  if (!parsed || parsed->path.empty()) return {};
  const auto socket = connect_unix(parsed->path, TimePoint{});
  if (!socket) return {};
  const auto peer = peer_credentials(socket->get());
  if (!peer) return {};
  return fmt::format(
      ", although process {} listens there: it hangs, or it is no coordinator, as at the engine "
      "socket of a sidecar",
      peer->pid);
}

}  // namespace wsync::control
