// Addresses that a port may use. Without keys only addresses on this host are allowed, because
// everybody who reaches a port without keys may do everything.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace wsync::control {

struct PortAddress {
  std::string endpoint;         // in ZeroMQ's syntax
  std::string path;             // of an ipc:// address; empty for tcp://
  bool ipv6 = false;            // or a name, which may have an address of IPv6
  bool is_on_this_host = true;  // ipc:// or loopback
};

// Parses "ipc:///absolute/path" or "tcp://HOST:PORT", whose HOST is as in parse_tcp_address(). PORT
// 0 requests any free port. kInvalidInput for anything else and for a path that is too long for a
// socket.
[[nodiscard]] Result<PortAddress> parse_port_address(const std::string& text);
// As parse_port_address(). kRefused for an address beyond this host, unless there are keys.
[[nodiscard]] Result<PortAddress> parse_port_address(const std::string& text, bool has_keys);

}  // namespace wsync::control
