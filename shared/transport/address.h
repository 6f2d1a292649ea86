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

// Reads tcp://127.0.0.1:PORT, tcp://[::1]:PORT or tcp://localhost:PORT (that is 127.0.0.1).
// Malformed text is kInvalidInput; an address outside loopback is kRefused: bulk bytes carry no
// keys in this release.
[[nodiscard]] Result<TcpAddress> parse_tcp_address(std::string_view text);

}  // namespace wsync::transport
