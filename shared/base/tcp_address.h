// Addresses of the form tcp://HOST:PORT, of the control channel and of the transports. Pure: no
// name is looked up here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <vector>

#include "shared/base/error.h"

namespace wsync {

struct TcpAddress {
  std::string host;  // IPv4, IPv6 without brackets, or a name
  std::uint16_t port = 0;
  [[nodiscard]] std::string to_string() const;  // tcp://HOST:PORT, IPv6 in brackets
  // As the kernel takes it; std::nullopt for a name.
  [[nodiscard]] std::optional<sockaddr_storage> numeric() const;
  // Whether only this host reaches it: 127.0.0.0/8 or ::1.
  [[nodiscard]] bool is_loopback() const;
  // Whether it means every address of this host: 0.0.0.0 or ::. Others cannot connect to it.
  [[nodiscard]] bool is_any() const;
  friend bool operator==(const TcpAddress&, const TcpAddress&) = default;
};

// Parses tcp://HOST:PORT. HOST is an IPv4 address, an IPv6 address in brackets, or a name of
// letters, digits, '-', '_' and '.'; localhost means 127.0.0.1. PORT is 0 to 65535. kInvalidInput,
// with what is wrong and what to write, for anything else.
[[nodiscard]] Result<TcpAddress> parse_tcp_address(std::string_view text);
// The addresses of a list with commas between them, without the spaces around them. What begins
// with ipc:// is one address. Nothing is checked. The result refers to `list`.
[[nodiscard]] std::vector<std::string_view> split_addresses(std::string_view list);
// Parses HOST alone, in the same forms; IPv6 with or without brackets. Returns it without brackets.
[[nodiscard]] Result<std::string> parse_host(std::string_view text);

}  // namespace wsync
