// The kind `memfd`: a process of the same host maps the arena itself, and nothing is copied.
#pragma once

#include <memory>

#include "shared/transport/transport.h"

namespace wsync::transport::memfd {

inline constexpr TransportTraits kTraits{
    .kind = "memfd", .reach = Reach::kHost, .maps_source = true};

// Its source listens at <run_dir>/<name>-host.sock. Always succeeds.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_memfd_transport(
    Post post, const TransportOptions& options);

}  // namespace wsync::transport::memfd
