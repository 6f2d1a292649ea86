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
  UniqueFd socket;                      // accepts without waiting
  std::uint16_t port = 0;               // 0: a socket file
  std::string address;                  // "127.0.0.1:8000", "[::1]:8000", "/run/wsync/control.http"
  std::optional<SocketPath> path = {};  // of a socket file, which goes with it
};

// `host`: a name or an address of this host, with or without the brackets of IPv6; `port` 0: the
// kernel chooses. A name of several addresses means the first that this host has. kInvalidInput: no
// address of this host; kBusy: somebody listens there; the sentence says where, who as far as that
// is known, and what to do.
[[nodiscard]] Result<Listener> listen_on(const std::string& host, std::uint16_t port);

// A name or an address that means this host alone: localhost, 127.0.0.0/8, ::1 (in brackets or
// not).
[[nodiscard]] bool is_loopback(const std::string& host);

// A socket file at an absolute path, in a directory of mode 0700, which is made when it is missing.
// Errors as SocketPath::claim().
[[nodiscard]] Result<Listener> listen_at(const std::string& path, Claim how = Claim::kIfFree);

// One of both: "tcp://127.0.0.1:8000" or "ipc:///run/wsync/control.http"; `how` is for the second.
// kRefused: an address that others than this host's users reach; kInvalidInput: it is no such
// address.
[[nodiscard]] Result<Listener> listen_to(const std::string& address, Claim how = Claim::kIfFree);

}  // namespace wsync::http
