#include "shared/control/zmq/address.h"

#include <string_view>

#include "shared/base/format.h"
#include "shared/base/tcp_address.h"
#include "shared/base/unix_socket.h"

namespace wsync::control {
namespace {

constexpr std::string_view kIpc = "ipc://";
constexpr std::string_view kTcp = "tcp://";

}  // namespace

Result<PortAddress> parse_port_address(const std::string& text) {
  if (text.starts_with(kTcp)) {
    const TcpAddress address = WSYNC_TRY(parse_tcp_address(text));
    return PortAddress{.endpoint = address.to_string(),
                       .path = {},
                       .ipv6 = !address.numeric() || address.numeric()->ss_family == AF_INET6,
                       .is_on_this_host = address.is_loopback()};
  }
  if (!text.starts_with(kIpc))
    return fail(ErrorCode::kInvalidInput,
                fmt::format("address '{}': expected ipc:///path or tcp://HOST:PORT", text));
  std::string path = text.substr(kIpc.size());
  if (auto good = check_socket_path(path); !good)
    return fail(good.error().with_context(fmt::format("address {}", text)));
  return PortAddress{.endpoint = text, .path = std::move(path)};
}

Result<PortAddress> parse_port_address(const std::string& text, bool has_keys) {
  auto address = WSYNC_TRY(parse_port_address(text));
  if (address.is_on_this_host || has_keys) return address;
  return fail(
      ErrorCode::kRefused,
      fmt::format("address {} is beyond this host, and without keys everybody who reaches it "
                  "could take part: make keys with `wsync keys init` and `wsync keys add`",
                  text));
}

}  // namespace wsync::control
