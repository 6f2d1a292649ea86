// Chooses the kind of transport by which a sidecar gets versions. Pure functions.
#pragma once

#include <string>

#include "shared/base/error.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/coordinator_options.h"
#include "trainer_side/coordinator/roster.h"

namespace wsync::coordinator {

// Returns the trainer's most preferred kind and its address, of those that the sidecar fetches by,
// that reach its host, and that have not failed for it. A kind that has failed is returned if there
// is no other. An equal boot id does not guarantee that a kind within one host succeeds: it also
// needs a path that both processes see, the same user, and a way to pass descriptors. kNotFound,
// with what both sides have, if no kind reaches the sidecar.
[[nodiscard]] Result<control::TransportAddress> choose_transport(const CoordinatorOptions& options,
                                                                 const Member& member);
// Whether another kind may be tried if this one fails.
[[nodiscard]] bool has_alternative(const CoordinatorOptions& options, const Member& member,
                                   const std::string& kind);
// Names each joined sidecar that no kind reaches, with the reason; empty if there is none.
[[nodiscard]] std::string transport_problems(const CoordinatorOptions& options,
                                             const Roster& roster);
// Whether both run on one host. Hosts without a known boot id are different hosts.
[[nodiscard]] bool is_same_host(const std::string& boot_id, const std::string& other);

}  // namespace wsync::coordinator
