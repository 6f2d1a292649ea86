// Addresses that a port may use. Only addresses on this host are allowed, because weights would
// travel beyond it without encryption.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace wsync::control {

struct PortAddress {
  std::string endpoint;  // in ZeroMQ's syntax
  std::string path;      // of an ipc:// address; empty for tcp://
  bool ipv6 = false;
};

// Parses "ipc:///absolute/path" or "tcp://HOST:PORT". HOST is 127.x.x.x, [::1] or localhost, which
// means 127.0.0.1 without a lookup. PORT 0 requests any free port. kRefused for every other host;
// kInvalidInput for malformed text or a path that is too long for a socket.
[[nodiscard]] Result<PortAddress> parse_port_address(const std::string& text);

}  // namespace wsync::control
