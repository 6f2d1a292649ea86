// Addresses of the data transports: tcp://HOST:PORT on loopback.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace wsync::transport {

struct TcpAddress {
  std::string host;  // a numeric loopback address, IPv6 without brackets
  std::uint16_t port = 0;
  [[nodiscard]] std::string to_string() const;  // tcp://HOST:PORT
};

// Parses tcp://127.0.0.1:PORT, tcp://[::1]:PORT or tcp://localhost:PORT (which means 127.0.0.1).
// kInvalidInput for malformed text. kRefused for an address outside of loopback, because data
// connections use no keys in this release.
[[nodiscard]] Result<TcpAddress> parse_tcp_address(std::string_view text);

}  // namespace wsync::transport
