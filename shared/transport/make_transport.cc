#include "shared/transport/make_transport.h"

#include <algorithm>
#include <array>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"
#include "shared/transport/memfd/memfd_transport.h"
#include "shared/transport/tcp/tcp_transport.h"
#include "shared/transport/tls/tls_transport.h"

namespace wsync::transport {
namespace {

struct Factory {
  TransportTraits traits;
  Result<std::unique_ptr<Transport>> (*make)(Post post, const TransportOptions& options);
};

// In order of preference: what copies nothing comes first, and what encrypts last, because the
// others are used only where nobody else can read along.
constexpr std::array kFactories = {
    Factory{memfd::kTraits, memfd::make_memfd_transport},
    Factory{tcp::kTraits, tcp::make_tcp_transport},
    Factory{tls::kTraits, tls::make_tls_transport},
};

constexpr auto kKinds = [] {
  std::array<TransportTraits, kFactories.size()> kinds;
  std::ranges::transform(kFactories, kinds.begin(), &Factory::traits);
  return kinds;
}();

static_assert(kKinds.size() <= limits::kTransportCount);
static_assert(std::ranges::all_of(kKinds, [](const TransportTraits& traits) {
  return !traits.kind.empty() && traits.kind.size() <= limits::kTransportKindBytes;
}));

}  // namespace

std::span<const TransportTraits> transport_kinds() noexcept { return kKinds; }

const TransportTraits* find_transport_kind(std::string_view kind) noexcept {
  const auto found = std::ranges::find(kKinds, kind, &TransportTraits::kind);
  return found == kKinds.end() ? nullptr : &*found;
}

std::string transport_kind_names() {
  std::string names;
  for (const TransportTraits& traits : kKinds)
    names += (names.empty() ? "" : ", ") + std::string(traits.kind);
  return names;
}

Result<std::unique_ptr<Transport>> make_transport(std::string_view kind, Post post,
                                                  const TransportOptions& options) {
  const auto found = std::ranges::find(kFactories, kind,
                                       [](const Factory& factory) { return factory.traits.kind; });
  if (found == kFactories.end())
    return fail(ErrorCode::kInvalidInput, fmt::format("this build has no transport '{}', only {}",
                                                      kind, transport_kind_names()));
  return found->make(std::move(post), options);
}

Result<std::vector<std::unique_ptr<Transport>>> make_transports(std::string_view kind,
                                                                const Post& post,
                                                                const TransportOptions& options) {
  std::vector<std::unique_ptr<Transport>> made;
  if (!kind.empty()) {
    made.push_back(WSYNC_TRY(make_transport(kind, post, options)));
    return made;
  }
  std::string missing;
  for (const Factory& factory : kFactories) {
    if (factory.traits.has_keys && !options.secret) continue;
    auto one = factory.make(post, options);
    if (one) {
      made.push_back(std::move(*one));
      continue;
    }
    missing = one.error().message();
    log_warning("the transport {} is not available here: {}", factory.traits.kind, missing);
  }
  if (made.empty())
    return fail(ErrorCode::kNotFound, "no transport is available here; the last one: " + missing);
  return made;
}

}  // namespace wsync::transport
