#include "shared/transport/address.h"

#include <arpa/inet.h>
#include <charconv>

#include "shared/base/format.h"

namespace wsync::transport {

std::string TcpAddress::to_string() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return is_ipv6 ? fmt::format("tcp://[{}]:{}", host, port)
                 : fmt::format("tcp://{}:{}", host, port);
}

Result<TcpAddress> parse_tcp_address(std::string_view text) {
  const auto malformed = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("data address '{}': {}; write tcp://127.0.0.1:PORT", text, what));
  };
  constexpr std::string_view kScheme = "tcp://";
  if (!text.starts_with(kScheme)) return malformed("does not begin with tcp://");
  const std::string_view rest = text.substr(kScheme.size());
  const std::size_t colon = rest.find_last_of(':');
  if (colon == std::string_view::npos) return malformed("has no port");
  std::string_view host = rest.substr(0, colon);
  const std::string_view port_text = rest.substr(colon + 1);
  TcpAddress address;
  const char* end = port_text.data() + port_text.size();
  const auto parsed = std::from_chars(port_text.data(), end, address.port);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return malformed("the port is not 0 to 65535");
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  address.host = host == "localhost" ? "127.0.0.1" : std::string(host);

  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, address.host.c_str(), &v4) == 1) {
    if ((ntohl(v4.s_addr) >> 24U) == 127) return address;
  } else if (::inet_pton(AF_INET6, address.host.c_str(), &v6) == 1) {
    if (IN6_IS_ADDR_LOOPBACK(&v6)) return address;
  } else {
    return malformed("the host is not a numeric address");
  }
  return fail(ErrorCode::kRefused,
              fmt::format("data address '{}' is not on loopback: bulk bytes travel without keys in "
                          "this release, so only 127.0.0.0/8 and [::1] are taken",
                          text));
}

}  // namespace wsync::transport
