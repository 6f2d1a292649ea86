// The kinds of transport of this build, and what distinguishes them. Pure data: state machines
// choose a kind by its traits without a socket.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace wsync::transport {

// Which processes a kind connects.
enum class Reach : std::uint8_t {
  kHost,     // processes of one host
  kNetwork,  // processes of different hosts as well
};

struct TransportTraits {
  // Name in configurations, messages and reports; at most limits::kTransportKindBytes.
  std::string_view kind;
  Reach reach = Reach::kNetwork;
  // true: the sink maps the source's own arena, so nothing is copied, and the receiver cannot serve
  // these bytes to others. false: the sink writes a copy into memory of its caller.
  bool maps_source = false;
  // true: what travels is encrypted, and each end proves that it has the key of the pair
  // (pair_key.h). The source and the sink need secrets.
  bool has_keys = false;
};

// Every kind of this build, in order of preference. Any thread.
[[nodiscard]] std::span<const TransportTraits> transport_kinds() noexcept;
// Returns null if this build has no such kind. Any thread.
[[nodiscard]] const TransportTraits* find_transport_kind(std::string_view kind) noexcept;

}  // namespace wsync::transport
