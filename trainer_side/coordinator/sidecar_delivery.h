// The delivery of a version to one member of the roster: what is sent to it, and what its answers
// do. What a failed delivery means for a round is RoundScheduler's.
//
// Each Result that fails says why the delivery has failed; the caller then lets it fail.
// Thread: one.
#pragma once

#include <string>

#include "trainer_side/coordinator/coordinator_context.h"

namespace wsync::coordinator {

// Offers the version. The layout goes along unless the sidecar knows it.
void announce(CoordinatorContext& context, Member& member, const PublishRequested& publish);
// Names the source to read from. `chain_source`: address by TCP.
[[nodiscard]] Result<> stage(CoordinatorContext& context, Member& member,
                             const std::string& chain_source);
// Offers the version once more if the sidecar did not know its layout. `snapshot`: of that version,
// null when it is not here any more.
[[nodiscard]] Result<> handle_refuse(CoordinatorContext& context, Member& member,
                                     const control::Refuse& refuse,
                                     const PublishRequested* snapshot);
// True: every byte is there, and its digest is right. False: it is tried in another way.
[[nodiscard]] Result<bool> handle_staged(CoordinatorContext& context, Member& member,
                                         const control::Staged& staged,
                                         const PublishRequested* snapshot,
                                         const std::string& chain_source);

}  // namespace wsync::coordinator
