// A socket that listens on one address.
#pragma once

#include <cstdint>
#include <string>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"

namespace wsync::http {

struct Listener {
  UniqueFd socket;  // accepts without waiting
  std::uint16_t port = 0;
  std::string address;  // "127.0.0.1:8000", "[::1]:8000"
};

// `host`: a name or an address of this host, with or without the brackets of IPv6; `port` 0: the
// kernel chooses. A name of several addresses means the first that this host has. kInvalidInput: no
// address of this host; kBusy: somebody listens there; the sentence says where and what to do.
[[nodiscard]] Result<Listener> listen_on(const std::string& host, std::uint16_t port);

}  // namespace wsync::http
