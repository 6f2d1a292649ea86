// A socket that listens on one address.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/base/unix_socket.h"

namespace wsync::http {

struct Listener {
  UniqueFd socket;                      // non-blocking
  std::uint16_t port = 0;               // 0 for a Unix socket
  std::string address;                  // "127.0.0.1:8000", "[::1]:8000", "/run/wsync/control.http"
  std::optional<SocketPath> path = {};  // Unix socket file; the destructor removes it
};

// Listens on `host`, a name or an address of this host; IPv6 with or without brackets. `port` 0:
// the kernel chooses one. If a name has several addresses, uses the first that this host has.
// Errors: kInvalidInput if the host is not an address of this host; kBusy if the port is in use.
// The sentence names the address, the process that uses it if known, and a remedy.
[[nodiscard]] Result<Listener> listen_on(const std::string& host, std::uint16_t port);

// Returns true if the name or address means only this host: localhost, 127.0.0.0/8 or ::1, with or
// without brackets.
[[nodiscard]] bool is_loopback(const std::string& host);

// Listens on a Unix socket at an absolute path. Its directory has mode 0700 and is created if it is
// missing. Errors as SocketPath::claim().
[[nodiscard]] Result<Listener> listen_at(const std::string& path, Claim how = Claim::kIfFree);

// From where clients may come.
enum class Reach : std::uint8_t {
  kThisHost,
  kEverywhere,  // clients show a token
};

// Listens on "tcp://127.0.0.1:8000" or "ipc:///run/wsync/control.http". `how` applies to ipc only.
// Errors: kRefused for an address that is reachable from other hosts, unless `reach` permits it;
// kInvalidInput for any other text.
[[nodiscard]] Result<Listener> listen_to(const std::string& address, Claim how = Claim::kIfFree,
                                         Reach reach = Reach::kThisHost);

}  // namespace wsync::http
