// The kind `tcp`: several TCP connections write the buckets into the receiver's memory. They are
// plain, so they stay on loopback unless the network is trusted.
#pragma once

#include <memory>

#include "shared/transport/transport.h"

namespace wsync::transport::tcp {

inline constexpr TransportTraits kTraits{
    .kind = "tcp", .reach = Reach::kNetwork, .maps_source = false};

// Its source listens at options.data_address if that is on loopback or the network is trusted, and
// otherwise at a free port of loopback. Starts the thread of its connections; kIo if that fails.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_tcp_transport(
    Post post, const TransportOptions& options);

}  // namespace wsync::transport::tcp
