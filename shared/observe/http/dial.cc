#include "shared/observe/http/dial.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string_view>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/unix_socket.h"
#include "shared/weights/json_text.h"

namespace wsync::http {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kScheme = "http://";
constexpr std::string_view kTlsScheme = "https://";

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

// State of a name lookup. getaddrinfo() can block for a long time and cannot be cancelled, so it
// runs on its own thread. That thread may outlive the caller and shares ownership of this state.
struct Lookup {
  Endpoint endpoint;
  UniqueFd done;  // readable when the lookup has ended
  int error = 0;  // return value of getaddrinfo()
  std::vector<Address> found;
};

int look_up(const Endpoint& endpoint, int flags, std::vector<Address>& found) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &list);
  for (const addrinfo* entry = list; error == 0 && entry != nullptr; entry = entry->ai_next) {
    Address address{.size = entry->ai_addrlen};
    std::memcpy(&address.bytes, entry->ai_addr,
                std::min<std::size_t>(entry->ai_addrlen, sizeof address.bytes));
    found.push_back(address);
  }
  if (list != nullptr) ::freeaddrinfo(list);
  return error;
}

Result<std::vector<Address>> addresses_of(const Endpoint& endpoint, const WaitLimit& limit) {
  // A numeric address needs no resolver, so the call does not block and needs no thread.
  std::vector<Address> numeric;
  if (look_up(endpoint, AI_NUMERICHOST, numeric) == 0) return numeric;
  const auto lookup = std::make_shared<Lookup>();
  lookup->endpoint = endpoint;
  lookup->done = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!lookup->done.valid()) return fail_errno("create an eventfd", errno);
  try {
    std::thread([lookup] {
      lookup->error = look_up(lookup->endpoint, 0, lookup->found);
      (void)::eventfd_write(lookup->done.get(), 1);
    }).detach();
  } catch (const std::system_error& error) {
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("cannot start a thread to look up {}: {}", quote_text(endpoint.host),
                            error.what()));
  }
  WSYNC_TRY(wait_for(lookup->done.get(), POLLIN, limit, "looking up its name"));
  eventfd_t ended = 0;
  (void)::eventfd_read(lookup->done.get(), &ended);
  if (lookup->error != 0)
    return fail(ErrorCode::kPeerLost,
                fmt::format("cannot find host {}: {}", quote_text(endpoint.host),
                            ::gai_strerror(lookup->error)));
  return std::move(lookup->found);
}

tl::unexpected<Error> not_connected(int error) {
  return fail(ErrorCode::kPeerLost,
              "cannot connect: " + std::error_code(error, std::generic_category()).message());
}

Result<UniqueFd> connect_to(const Address& address, const WaitLimit& limit) {
  UniqueFd socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return fail_errno("create a socket", errno);
  const int yes = 1;
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  const auto* to = reinterpret_cast<const sockaddr*>(&address.bytes);
  if (::connect(socket.get(), to, address.size) == 0) return socket;
  if (errno != EINPROGRESS && errno != EINTR) return not_connected(errno);
  WSYNC_TRY(wait_for(socket.get(), POLLOUT, limit, "connecting"));
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return not_connected(error);
  return socket;
}

tl::unexpected<Error> wrong_url(const std::string& url, std::string_view what) {
  return fail(ErrorCode::kInvalidInput,
              fmt::format("{}: {}; expected http://HOST:PORT, with an IPv6 address in brackets",
                          quote_text(url), what));
}

}  // namespace

Result<Endpoint> parse_url(const std::string& url, std::shared_ptr<const ClientTls> tls) {
  std::string_view rest = url;
  const bool is_tls = tls && rest.starts_with(kTlsScheme);
  if (!is_tls && !rest.starts_with(kScheme))
    return wrong_url(url, "it does not begin with http://");
  rest.remove_prefix(is_tls ? kTlsScheme.size() : kScheme.size());
  const bool brackets = rest.starts_with('[');
  const std::size_t host_end = brackets ? rest.find(']') : rest.find(':');
  if (host_end == std::string_view::npos)
    return wrong_url(url, brackets ? "its bracket is not closed" : "it has no port");
  Endpoint endpoint{.host = std::string(rest.substr(brackets, host_end - brackets))};
  rest.remove_prefix(host_end + brackets);
  const auto in_host = [brackets](unsigned char c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return letter || c == '.' || (brackets ? c == ':' || c == '%' : c == '-' || c == '_');
  };
  if (endpoint.host.empty() || endpoint.host.size() > kMaxHostBytes ||
      !std::all_of(endpoint.host.begin(), endpoint.host.end(), in_host))
    return wrong_url(url, "its host is neither a name nor an address");
  if (!rest.starts_with(':')) return wrong_url(url, "it has no port");
  rest.remove_prefix(1);
  const char* const end = rest.data() + rest.size();
  const auto [stop, error] = std::from_chars(rest.data(), end, endpoint.port);
  if (error != std::errc{} || endpoint.port == 0)
    return wrong_url(url, "its port is not a number from 1 to 65535");
  if (stop != end) return wrong_url(url, "there is text after its port");
  if (is_tls) endpoint.tls = std::move(tls);
  return endpoint;
}

std::string host_header(const Endpoint& endpoint) {
  if (!endpoint.socket_path.empty()) return "localhost";
  if (endpoint.host.find(':') != std::string::npos)
    return fmt::format("[{}]:{}", endpoint.host, endpoint.port);
  return fmt::format("{}:{}", endpoint.host, endpoint.port);
}

Result<> wait_for(int fd, short events, const WaitLimit& limit, std::string_view doing) {
  for (;;) {
    std::array<pollfd, 2> entries{pollfd{.fd = fd, .events = events, .revents = 0},
                                  pollfd{.fd = limit.cancelled, .events = POLLIN, .revents = 0}};
    const auto left = std::chrono::ceil<milliseconds>(limit.deadline - now()).count();
    const int ready = ::poll(
        entries.data(), entries.size(),
        static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max())));
    if (ready < 0 && errno != EINTR) return fail_errno("wait for a socket", errno);
    if (ready > 0 && entries[1].revents != 0)
      return fail(ErrorCode::kCancelled, fmt::format("cancelled while {}", doing));
    if (ready > 0) return {};
    if (now() >= limit.deadline)
      return fail(ErrorCode::kDeadline, fmt::format("the deadline passed while {}", doing));
  }
}

Result<UniqueFd> dial(const Endpoint& endpoint, const WaitLimit& limit) {
  if (!endpoint.socket_path.empty()) return connect_unix(endpoint.socket_path, limit.deadline);
  const auto addresses = WSYNC_TRY(addresses_of(endpoint, limit));
  Result<UniqueFd> socket = not_connected(EADDRNOTAVAIL);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    // Each remaining address gets an equal share of the remaining time. Otherwise one address that
    // drops packets would use all of the time and the next one would never be tried.
    const auto share = (limit.deadline - now()) / static_cast<std::int64_t>(addresses.size() - i);
    socket = connect_to(addresses[i], {.deadline = now() + share, .cancelled = limit.cancelled});
    if (socket || socket.error().code() == ErrorCode::kCancelled) break;
  }
  return socket;
}

}  // namespace wsync::http
