// Chooses the kind of transport by which a sidecar gets versions. Pure functions.
#pragma once

#include <chrono>
#include <string>

#include "shared/base/error.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/coordinator_context.h"
#include "trainer_side/coordinator/coordinator_options.h"
#include "trainer_side/coordinator/roster.h"

namespace wsync::coordinator {

// Returns the trainer's most preferred kind and its address, of those that the sidecar fetches by,
// that reach its host, and that are not avoided after a failure. One that is avoided is returned if
// there is no other. An equal boot id does not guarantee that a kind within one host succeeds: it
// also needs a path that both processes see, the same user, and a way to pass descriptors.
// `copies_only`: one that copies, because nobody has the whole version in an arena. kNotFound, with
// what both sides have, if no kind reaches the sidecar.
[[nodiscard]] Result<control::TransportAddress> choose_transport(const CoordinatorOptions& options,
                                                                 const Member& member,
                                                                 bool copies_only = false);
// From where the sidecar fetches the parts of a version that ranks on other hosts serve, in their
// order. kNotFound, with the rank, if no kind reaches one.
[[nodiscard]] Result<std::vector<control::PartSource>> choose_part_sources(
    const CoordinatorContext& context, const Member& member, const std::vector<PartOwner>& owners);
// Whether a sidecar may fetch from the trainer or from another sidecar: `source` serves there, and
// `boot_id` is of its host. Weights leave a host only where CoordinatorOptions permits it.
[[nodiscard]] bool may_fetch(const CoordinatorOptions& options, const Member& member,
                             const std::string& boot_id, const control::TransportAddress& source);
// The key of this sidecar at a source, under the present fence. Empty if its kind has no keys.
[[nodiscard]] Bytes pair_key_of(const CoordinatorContext& context, const Member& member,
                                const control::TransportAddress& source);
// Whether another kind may be tried if this one fails.
[[nodiscard]] bool has_alternative(const CoordinatorOptions& options, const Member& member,
                                   const std::string& kind, bool copies_only = false);
// A version by this kind could not be staged. The kind is avoided for 10 s at first, then for twice
// as long each time, up to 1 h. Returns that time.
std::chrono::milliseconds note_failed_transport(Member& member, const std::string& kind,
                                                std::string why, TimePoint now);
// A version is about to be offered: kinds whose time has come may be tried again.
void retry_failed_transports(Member& member, TimePoint now);
// A version was staged by this kind. Returns whether the kind had failed before.
bool note_good_transport(Member& member, const std::string& kind);
// Names each joined sidecar that no kind reaches, with the reason; empty if there is none.
[[nodiscard]] std::string transport_problems(const CoordinatorOptions& options,
                                             const Roster& roster);
// Whether both run on one host. Hosts without a known boot id are different hosts.
[[nodiscard]] bool is_same_host(const std::string& boot_id, const std::string& other);

}  // namespace wsync::coordinator
