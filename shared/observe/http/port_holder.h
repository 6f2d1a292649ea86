// Who listens on a TCP port of this host, as far as this user may know.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace wsync::http {

// "process 4711 (prometheus)", for people. Nothing when no process of this user listens there, or
// /proc does not tell.
[[nodiscard]] std::optional<std::string> port_holder(std::uint16_t port);

}  // namespace wsync::http
