// The factory of transports. To add a kind: a folder with a Transport, and a line in the table of
// make_transport.cc. The contract suite, the configuration key `transport` and the messages take
// their kinds from that table.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "shared/transport/transport.h"

namespace wsync::transport {

// kInvalidInput if this build has no such kind; otherwise the error of the kind's own start.
// `post`: runs callbacks on the owner's loop thread.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_transport(std::string_view kind, Post post,
                                                                const TransportOptions& options);
// The transports that a configuration permits, in order of preference. `kind`: the only kind, with
// the errors of make_transport(). Empty: every kind that starts on this machine; the others are
// logged. kNotFound if none starts. Kinds with keys are left out, or refused (kRefused), if there
// is no TransportOptions::secret.
[[nodiscard]] Result<std::vector<std::unique_ptr<Transport>>> make_transports(
    std::string_view kind, const Post& post, const TransportOptions& options);
// The names of all kinds, separated by commas, for sentences.
[[nodiscard]] std::string transport_kind_names();

}  // namespace wsync::transport
