#include "shared/observe/http/listener.h"

#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <sys/un.h>

#include "shared/base/format.h"
#include "shared/observe/http/port_holder.h"

namespace wsync::http {
namespace {

constexpr int kListenBacklog = 512;
constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kIpc = "ipc://";

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

std::string with_port(const std::string& host, std::uint16_t port) {
  if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

Result<Addresses> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (code == 0) return Addresses(list);
  return fail(ErrorCode::kInvalidInput,
              fmt::format("host {} has no address: {}; name an address of this host, such as "
                          "127.0.0.1 or ::1",
                          host, ::gai_strerror(code)));
}

// Returns 0 if the socket listens, otherwise the errno of the failed call.
int try_to_listen(const addrinfo& address, UniqueFd& socket) {
  socket = UniqueFd::made_by([&] {
    return ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                    address.ai_protocol);
  });
  if (!socket.valid()) return errno;
  // SO_REUSEADDR lets a restarted server bind while connections of its predecessor are in
  // TIME_WAIT. A second server that listens on the same port still gets an error.
  const int yes = 1;
  if (::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0) return errno;
  if (::bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0) return errno;
  return ::listen(socket.get(), kListenBacklog) == 0 ? 0 : errno;
}

Result<std::uint16_t> port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return fail_errno("getsockname of a listening socket", errno);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

tl::unexpected<Error> cannot_listen(const std::string& host, std::uint16_t port, int errno_value) {
  const std::string where = with_port(host, port);
  if (errno_value == EADDRINUSE)
    return fail(ErrorCode::kBusy,
                fmt::format("{} is in use: {} listens there; stop that process, or choose another "
                            "port (0: any free port)",
                            where, port_holder(port).value_or("a program of another user")));
  if (errno_value == EADDRNOTAVAIL)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: this host has no such address; name an address of this host, such "
                            "as 127.0.0.1 or ::1",
                            where));
  if (errno_value == EACCES)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("{}: this user may not listen there; choose port 1024 or higher", where));
  return fail_errno(fmt::format("listening on {}", where), errno_value);
}

}  // namespace

bool is_loopback(const std::string& host) {
  if (host == "localhost" || host == "::1" || host == "[::1]") return true;
  in_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24U) == 127;
}

Result<Listener> listen_on(const std::string& host, std::uint16_t port) {
  std::string name = host;
  if (name.size() > 2 && name.front() == '[' && name.back() == ']')
    name = name.substr(1, name.size() - 2);
  if (name.empty())
    return fail(ErrorCode::kInvalidInput,
                "host is empty; name an address to listen on, such as 127.0.0.1 or ::1");
  const auto addresses = WSYNC_TRY(resolve(name, port));
  UniqueFd socket;
  int problem = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    problem = try_to_listen(*address, socket);
    // Tries the next address only if this host does not have this one. If the address is in use,
    // the name counts as in use.
    if (problem != EADDRNOTAVAIL && problem != EAFNOSUPPORT) break;
  }
  if (problem != 0) return cannot_listen(name, port, problem);
  const auto bound = WSYNC_TRY(port_of(socket.get()));
  return Listener{.socket = std::move(socket), .port = bound, .address = with_port(name, bound)};
}

Result<Listener> listen_at(const std::string& path, Claim how) {
  auto claimed = WSYNC_TRY(SocketPath::claim(path, how));
  UniqueFd socket = UniqueFd::made_by(
      [] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!socket.valid()) return fail_errno("socket of an HTTP server", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);  // claim() checked the length
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return fail_errno("binding " + path, errno);
  if (::listen(socket.get(), kListenBacklog) != 0) return fail_errno("listening at " + path, errno);
  return Listener{
      .socket = std::move(socket), .port = 0, .address = path, .path = std::move(claimed)};
}

Result<Listener> listen_to(const std::string& address, Claim how, Reach reach) {
  if (address.starts_with(kIpc)) return listen_at(address.substr(kIpc.size()), how);
  const std::size_t colon = address.rfind(':');
  std::uint16_t port = 0;
  if (address.starts_with(kTcp) && colon > kTcp.size()) {
    const char* end = address.data() + address.size();
    const auto [stop, error] = std::from_chars(address.data() + colon + 1, end, port);
    if (error == std::errc{} && stop == end) {
      const std::string host = address.substr(kTcp.size(), colon - kTcp.size());
      if (reach == Reach::kEverywhere || is_loopback(host)) return listen_on(host, port);
      return fail(
          ErrorCode::kRefused,
          fmt::format("{} can be reached from other hosts, and this server has no token, which "
                      "its clients would have to show; give it one, or use ipc:///path or a "
                      "loopback address such as 127.0.0.1",
                      address));
    }
  }
  return fail(ErrorCode::kInvalidInput,
              fmt::format("expected tcp://127.0.0.1:PORT or ipc:///path, found '{}'", address));
}

}  // namespace wsync::http
