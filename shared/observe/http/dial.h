// Connects to http://HOST:PORT, https://HOST:PORT or a Unix socket. Every call ends at its
// deadline, whatever the peer does.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync::http {

class ClientTls;

inline constexpr std::size_t kMaxHostBytes = 255;  // of a host name

struct Endpoint {
  std::string host;  // name or address; IPv6 without brackets
  std::uint16_t port = 0;
  std::string socket_path = {};  // Unix socket to use instead; empty: none
  // Value of the Authorization header of every request; empty: none (access_token.h).
  std::string authorization = {};
  // Of https: the connection is encrypted, and the server proves that it is `host`.
  std::shared_ptr<const ClientTls> tls = {};
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};
// `url`: http://HOST:PORT, where HOST is a name, an IPv4 address or an IPv6 address in brackets;
// with `tls`, https://HOST:PORT as well. kInvalidInput: the sentence describes the problem.
[[nodiscard]] Result<Endpoint> parse_url(const std::string& url,
                                         std::shared_ptr<const ClientTls> tls = {});

// Returns the value of the Host header for this endpoint, such as "localhost:8000" or "[::1]:80".
[[nodiscard]] std::string host_header(const Endpoint& endpoint);

// Conditions that end a wait early. The descriptor is borrowed.
struct WaitLimit {
  TimePoint deadline{};
  int cancelled = -1;  // readable once cancelled; -1: none
};
// Waits until poll() reports one of `events`, an error or a hang-up for the descriptor. Errors:
// kDeadline, kCancelled. Their sentence includes `doing`, such as "connecting".
[[nodiscard]] Result<> wait_for(int fd, short events, const WaitLimit& limit,
                                std::string_view doing);

// Returns a connected socket. Tries the addresses of a name in the order of the resolver. Errors:
// kPeerLost if the name does not exist or nothing listens; kDeadline; kCancelled. A Unix socket
// returns the errors of connect_unix() and cannot be cancelled while it waits for a full backlog.
[[nodiscard]] Result<UniqueFd> dial(const Endpoint& endpoint, const WaitLimit& limit);

}  // namespace wsync::http
