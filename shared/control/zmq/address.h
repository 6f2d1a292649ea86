// Where ports may be: on this host, because beyond it a control channel needs keys.
#pragma once

#include <string>

#include "shared/base/error.h"

namespace wsync::control {

struct PortAddress {
  std::string endpoint;  // as ZeroMQ takes it
  std::string path;      // of an ipc:// address; empty for tcp://
  bool ipv6 = false;
};

// Reads "ipc:///absolute/path" or "tcp://HOST:PORT", where HOST is 127.x.x.x, [::1] or localhost
// (taken as 127.0.0.1, never looked up) and PORT 0 means any free one. Every other host is
// kRefused; anything malformed, and a path that is too long for a socket, kInvalidInput.
[[nodiscard]] Result<PortAddress> parse_port_address(const std::string& text);

}  // namespace wsync::control
