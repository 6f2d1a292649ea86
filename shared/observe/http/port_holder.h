// Finds the process that listens on a TCP port of this host, as far as this user may see it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace wsync::http {

// Returns text such as "process 4711 (prometheus)", or std::nullopt if no process of this user
// listens on the port or /proc cannot be read.
[[nodiscard]] std::optional<std::string> port_holder(std::uint16_t port);

}  // namespace wsync::http
