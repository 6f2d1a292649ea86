// Copies that sidecars pass on: from where a sidecar that comes later takes a version, so that the
// trainer need not send it, or need not exist any more.
//
// A sidecar that receives a version as a copy passes it on at once (relay). One that holds a
// version in another way, such as in the arena of a trainer, or has received it before this
// coordinator was there, is asked first (RelayVersion), and answers when others may fetch from it
// (RelayReady).
//
// Who is still receiving passes on to those alone whose Announce is newer. So no two of them wait
// for each other.
//
// Thread: confined to one thread. No I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shared/base/error.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/coordinator_context.h"

namespace wsync::coordinator {

// A sidecar that has the version, or is receiving it.
struct CopySource {
  std::string sidecar;
  control::TransportAddress address;  // of its relay
  bool is_ready = false;              // false: it must be asked, or has been asked
  bool has_failed = false;            // this member could not stage from there
};
// Returns the best source for this member, std::nullopt if no sidecar can pass the version on to
// it. One from which it has not failed is preferred, then one that answers, then one on its own
// host, then the one from which the fewest fetch, then another one for each round. `round`: of the
// member's Announce. Costs one look at each member.
[[nodiscard]] std::optional<CopySource> find_copy(const CoordinatorContext& context,
                                                  const Member& member, const Version& version,
                                                  std::uint64_t round);
// Asks the sidecar to pass the version on, unless it has been asked and may still answer.
// `with_layout`: the version is not known here.
void ask_for_relay(CoordinatorContext& context, const std::string& sidecar, const Version& version,
                   bool with_layout);
// Asks any sidecar that holds the version, because nothing is known of it here.
void ask_about(CoordinatorContext& context, const Version& version);
// The answer. `content`: the digest of the version, zero if it is not known. Returns false if it
// was not awaited. kDigestMismatch if the sidecar holds other bytes.
[[nodiscard]] Result<bool> note_relay(const CoordinatorContext& context, Member& member,
                                      const control::RelayReady& ready, const Digest& content);
// What is said of a version that only sidecars hold.
[[nodiscard]] PublishRequested described_by(const control::RelayReady& ready);
// The transfer to this member has failed. `source_lost`: its source does not pass the version on
// any more, so that it is asked again. Otherwise one of both is at fault, and the member prefers
// any other source.
void note_failed_copy(CoordinatorContext& context, Member& member, bool source_lost);

}  // namespace wsync::coordinator
