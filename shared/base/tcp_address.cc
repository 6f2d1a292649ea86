#include "shared/base/tcp_address.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cctype>
#include <charconv>
#include <cstring>
#include <netinet/in.h>

#include "shared/base/format.h"

namespace wsync {
namespace {

constexpr std::string_view kTcpScheme = "tcp://";
constexpr std::size_t kHostNameBytes = 253;  // the longest name that DNS has

bool is_ipv4(const std::string& host, in_addr& address) {
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1;
}

bool is_ipv6(const std::string& host, in6_addr& address) {
  return ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool is_name(std::string_view host) {
  const bool has_letter = std::ranges::any_of(
      host, [](unsigned char c) { return std::isalpha(c) != 0 || c == '-' || c == '_'; });
  return has_letter && host.size() <= kHostNameBytes && host.front() != '-' &&
         host.front() != '.' && std::ranges::all_of(host, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

// Returns the host without brackets; empty if it is none.
std::string host_of(std::string_view text, bool needs_brackets) {
  in_addr v4{};
  in6_addr v6{};
  const bool has_brackets = text.size() > 2 && text.front() == '[' && text.back() == ']';
  std::string host(has_brackets ? text.substr(1, text.size() - 2) : text);
  if (has_brackets || (!needs_brackets && is_ipv6(host, v6))) {
    if (!is_ipv6(host, v6)) host.clear();
    return host;
  }
  if (host == "localhost") return "127.0.0.1";
  if (host.empty() || (!is_ipv4(host, v4) && !is_name(host))) return {};
  return host;
}

}  // namespace

std::string TcpAddress::to_string() const {
  return host.find(':') != std::string::npos ? fmt::format("tcp://[{}]:{}", host, port)
                                             : fmt::format("tcp://{}:{}", host, port);
}

std::optional<sockaddr_storage> TcpAddress::numeric() const {
  sockaddr_storage where{};
  sockaddr_in v4{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {}, .sin_zero = {}};
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  if (is_ipv4(host, v4.sin_addr))
    std::memcpy(&where, &v4, sizeof v4);
  else if (is_ipv6(host, v6.sin6_addr))
    std::memcpy(&where, &v6, sizeof v6);
  else
    return std::nullopt;
  return where;
}

bool TcpAddress::is_loopback() const {
  in_addr v4{};
  in6_addr v6{};
  if (is_ipv4(host, v4)) return (ntohl(v4.s_addr) >> 24U) == IN_LOOPBACKNET;
  return is_ipv6(host, v6) && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool TcpAddress::is_any() const {
  in_addr v4{};
  in6_addr v6{};
  if (is_ipv4(host, v4)) return v4.s_addr == htonl(INADDR_ANY);
  return is_ipv6(host, v6) && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

Result<TcpAddress> parse_tcp_address(std::string_view text) {
  const auto malformed = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("address '{}': {}; write tcp://HOST:PORT, such as "
                            "tcp://127.0.0.1:7000, tcp://[::1]:7000 or tcp://trainer0:7000",
                            text, what));
  };
  if (!text.starts_with(kTcpScheme)) return malformed("it does not begin with tcp://");
  const std::string_view rest = text.substr(kTcpScheme.size());
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return malformed("it has no port");
  const std::string_view port = rest.substr(colon + 1);
  TcpAddress address;
  const char* end = port.data() + port.size();
  const auto parsed = std::from_chars(port.data(), end, address.port);
  if (parsed.ec != std::errc{} || parsed.ptr != end || port.empty())
    return malformed("the port is not 0 to 65535");
  address.host = host_of(rest.substr(0, colon), true);
  if (address.host.empty())
    return malformed("the host is no IPv4 address, no IPv6 address in brackets and no name");
  return address;
}

Result<std::string> parse_host(std::string_view text) {
  std::string host = host_of(text, false);
  if (host.empty())
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("expected an IPv4 address, an IPv6 address or a name, found '{}'", text));
  return host;
}

std::vector<std::string_view> split_addresses(std::string_view list) {
  if (list.starts_with("ipc://")) return {list};
  std::vector<std::string_view> found;
  for (;;) {
    const std::size_t comma = list.find(',');
    std::string_view one = list.substr(0, comma);
    while (one.starts_with(' ')) one.remove_prefix(1);
    while (one.ends_with(' ')) one.remove_suffix(1);
    found.push_back(one);
    if (comma == std::string_view::npos) return found;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace wsync
