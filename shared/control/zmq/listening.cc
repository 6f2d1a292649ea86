#include "shared/control/zmq/listening.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <system_error>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/tcp_address.h"
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

bool is_of_sidecar(const std::filesystem::path& socket) { return socket.extension() == ".control"; }

// Whether a process of this user listens at the path. Its queue of connections may be full.
bool has_listener(const std::string& path) {
  const auto socket = connect_unix(path, TimePoint{});
  return socket || socket.error().code() == ErrorCode::kDeadline;
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

// `endpoint`: "tcp://HOST:PORT". Of another host nothing is known: its silence may be a firewall's.
std::optional<std::string> why_not_on(const std::string& endpoint) {
  const auto address = parse_tcp_address(endpoint);
  if (!address || !address->is_loopback()) return std::nullopt;
  const sockaddr_storage where = address->numeric().value();
  if (try_connect(reinterpret_cast<const sockaddr*>(&where),
                  where.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)) !=
      ECONNREFUSED)
    return std::nullopt;
  return "no process listens on its port";
}

}  // namespace

std::optional<std::string> why_nobody_listens(const std::string& address) {
  const auto parsed = parse_port_address(address);
  if (!parsed) return std::nullopt;
  return parsed->path.empty() ? why_not_on(parsed->endpoint) : why_not_at(parsed->path);
}

AddressKind address_kind(const std::string& address) {
  const auto parsed = parse_port_address(address);
  if (!parsed || parsed->path.empty()) return AddressKind::kPort;
  return is_of_sidecar(parsed->path) ? AddressKind::kSidecar : AddressKind::kSocket;
}

std::string who_listens(const std::string& address) {
  const auto parsed = parse_port_address(address);
  if (!parsed || parsed->path.empty()) return {};
  const auto socket = connect_unix(parsed->path, TimePoint{});
  if (!socket) return {};
  const auto peer = peer_credentials(socket->get());
  if (!peer) return {};
  return fmt::format(", although process {} listens there: it hangs, or it is no {}", peer->pid,
                     is_of_sidecar(parsed->path)
                         ? "sidecar"
                         : "coordinator, as at the engine socket of a sidecar");
}

std::string where_sidecars_answer(const std::string& address) {
  constexpr std::size_t kNamed = 3;
  const auto parsed = parse_port_address(address);
  if (!parsed || parsed->path.empty())
    return "a sidecar answers status, verify and plan on its host, at the socket NAME.control in "
           "its run_dir";
  const std::filesystem::path folder = std::filesystem::path(parsed->path).parent_path();
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error))
    if (is_of_sidecar(at->path()) && at->path() != parsed->path && has_listener(at->path()))
      found.push_back("ipc://" + at->path().string());
  if (found.empty() && is_of_sidecar(parsed->path)) return {};
  if (found.empty())
    return fmt::format("a sidecar NAME answers status, verify and plan at ipc://{}/NAME.control",
                       folder.string());
  std::ranges::sort(found);
  const std::size_t more = found.size() - std::min(found.size(), kNamed);
  found.resize(found.size() - more);
  return fmt::format("{} status, verify and plan at {}{}",
                     found.size() == 1 ? "a sidecar answers" : "sidecars answer",
                     fmt::join(found, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace wsync::control
