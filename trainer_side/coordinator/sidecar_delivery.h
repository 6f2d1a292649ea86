// The delivery of a version to one member of the roster: the messages to the member, and the effect
// of its answers. RoundScheduler decides what a failed delivery means for a round.
//
// If a Result is an error, the delivery has failed for that reason, and the caller must mark it as
// failed. Thread: confined to one thread.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "trainer_side/coordinator/coordinator_context.h"

namespace wsync::coordinator {

// Offers the version. The layout is included unless the sidecar knows it.
void announce(CoordinatorContext& context, Member& member, const PublishRequested& publish);
// Offers it to every sidecar that has joined, except those with these names. Their messages are
// equal, so that the port encodes them once, except that the layout is not sent to those that know
// it.
void announce_to_all(CoordinatorContext& context, const PublishRequested& publish,
                     const std::set<std::string>& left_out);
// Sends the source to read from, and the content digest if `snapshot` has it. `snapshot`: of that
// version, null if it is no longer here.
[[nodiscard]] Result<> stage(CoordinatorContext& context, Member& member,
                             const control::TransportAddress& source,
                             const PublishRequested* snapshot);
// Offers the version again if the sidecar did not know its layout. `snapshot`: of that version,
// null if it is no longer here.
[[nodiscard]] Result<> handle_refuse(CoordinatorContext& context, Member& member,
                                     const control::Refuse& refuse,
                                     const PublishRequested* snapshot);
enum class StagedAnswer : std::uint8_t {
  kComplete,    // every byte has arrived, and its digest is correct
  kStageAgain,  // the caller must call stage(), because a source was lost
  kAnnounced,   // the version was offered again
};
// After a failed kind of transport the next one is tried. `snapshot`: as above.
[[nodiscard]] Result<StagedAnswer> handle_staged(CoordinatorContext& context, Member& member,
                                                 const control::Staged& staged,
                                                 const PublishRequested* snapshot);

}  // namespace wsync::coordinator
