// The kind `tls`: as `tcp`, with TLS 1.3 on each connection and a key for each pair of ends. It is
// the kind that goes to other hosts.
#pragma once

#include <memory>

#include "shared/transport/transport.h"

namespace wsync::transport::tls {

inline constexpr TransportTraits kTraits{
    .kind = "tls", .reach = Reach::kNetwork, .maps_source = false, .has_keys = true};

// Its source listens at options.data_address if that is beyond loopback, and otherwise at a free
// port of loopback. Starts the thread of its connections. kRefused without options.secret; kIo if
// the thread cannot be started; kInternal if libssl lacks what is needed.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_tls_transport(
    Post post, const TransportOptions& options);

}  // namespace wsync::transport::tls
