#include "shared/control/zmq/address.h"

#include <arpa/inet.h>
#include <charconv>
#include <string_view>

#include "shared/base/format.h"
#include "shared/base/unix_socket.h"

namespace wsync::control {
namespace {

constexpr std::string_view kIpc = "ipc://";
constexpr std::string_view kTcp = "tcp://";

bool is_ipv4_loopback(const std::string& host) {
  in_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 &&
         (ntohl(address.s_addr) >> 24U) == IN_LOOPBACKNET;
}

Result<PortAddress> parse_tcp(const std::string& text) {
  const std::string_view rest = std::string_view(text).substr(kTcp.size());
  const std::size_t colon = rest.rfind(':');
  const std::string_view port = colon == std::string_view::npos ? "" : rest.substr(colon + 1);
  unsigned number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (port.empty() || error != std::errc() || end != port.data() + port.size() || number > 65535)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("address {}: expected tcp://HOST:PORT with a port from 0 to 65535", text));
  std::string host(rest.substr(0, colon));
  if (host == "localhost") host = "127.0.0.1";
  const bool ipv6 = host == "[::1]";
  if (!ipv6 && !is_ipv4_loopback(host))
    return fail(ErrorCode::kRefused,
                fmt::format("address {}: {} is not this host's loopback; other hosts are refused, "
                            "because weights would travel there without encryption: use "
                            "ipc:///path, tcp://127.0.0.1:PORT or tcp://[::1]:PORT",
                            text, host.empty() ? "''" : host));
  return PortAddress{
      .endpoint = fmt::format("tcp://{}:{}", host, number), .path = {}, .ipv6 = ipv6};
}

}  // namespace

Result<PortAddress> parse_port_address(const std::string& text) {
  if (text.starts_with(kTcp)) return parse_tcp(text);
  if (!text.starts_with(kIpc))
    return fail(ErrorCode::kRefused,
                fmt::format("address {}: only ipc:///path and loopback tcp://HOST:PORT are "
                            "allowed; other hosts are refused, because weights would travel there "
                            "without encryption",
                            text));
  std::string path = text.substr(kIpc.size());
  if (auto good = check_socket_path(path); !good)
    return fail(good.error().with_context(fmt::format("address {}", text)));
  return PortAddress{.endpoint = text, .path = std::move(path), .ipv6 = false};
}

}  // namespace wsync::control
