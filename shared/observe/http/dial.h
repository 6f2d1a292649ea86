// Connections to http://HOST:PORT or to a Unix socket that end at a deadline, whatever the other
// side does.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync::http {

inline constexpr std::size_t kMaxHostBytes = 255;  // of a name

struct Endpoint {
  std::string host;  // a name or an address; one of IPv6 without brackets
  std::uint16_t port = 0;
  std::string socket_path = {};  // of a Unix socket instead of both; empty: none
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};
// `url`: http://HOST:PORT, HOST a name, an IPv4 address or an IPv6 one in brackets. kInvalidInput
// says what is wrong with it.
[[nodiscard]] Result<Endpoint> parse_url(const std::string& url);

// "localhost:8000", "[::1]:80": the value of the Host header of requests to it.
[[nodiscard]] std::string host_header(const Endpoint& endpoint);

// What ends a wait early. The descriptor is borrowed.
struct WaitLimit {
  TimePoint deadline{};
  int cancelled = -1;  // readable from then on
};
// Waits until poll() has one of `events` for the descriptor, or its end. kDeadline, kCancelled: the
// sentence says that it happened while `doing` ("connecting").
[[nodiscard]] Result<> wait_for(int fd, short events, const WaitLimit& limit,
                                std::string_view doing);

// A connected socket. Addresses of a name are tried in the order of the resolver. kPeerLost: there
// is no such name, or nobody listens; kDeadline; kCancelled. A Unix socket has the errors of
// connect_unix(), and cannot be cancelled while it waits for a full queue.
[[nodiscard]] Result<UniqueFd> dial(const Endpoint& endpoint, const WaitLimit& limit);

}  // namespace wsync::http
