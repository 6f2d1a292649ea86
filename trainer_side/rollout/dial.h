// Connections to http://HOST:PORT that end at a deadline, whatever the other side does.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <string>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync::rollout {

inline constexpr std::size_t kHostBytes = 255;  // of a name

struct Endpoint {
  std::string host;  // a name or an address; one of IPv6 without brackets
  std::uint16_t port = 0;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};
// `url`: http://HOST:PORT, HOST a name, an IPv4 address or an IPv6 one in brackets. kInvalidInput
// says what is wrong with it.
[[nodiscard]] Result<Endpoint> parse_url(const std::string& url);

// What ends a wait before its time. Both are borrowed.
struct Patience {
  TimePoint deadline{};
  int cancelled = -1;  // readable from then on
};
// Waits until poll() has one of `events` for the descriptor, or its end. kDeadline, kCancelled: the
// sentence says that it happened while `doing` ("connecting").
[[nodiscard]] Result<> wait_for(int fd, short events, const Patience& patience,
                                std::string_view doing);

// A connected TCP socket that does not wait by itself. Addresses of a name are tried in the order
// of the resolver. kPeerLost: there is no such name, or nobody listens; kDeadline; kCancelled.
[[nodiscard]] Result<UniqueFd> dial(const Endpoint& endpoint, const Patience& patience);

}  // namespace wsync::rollout
