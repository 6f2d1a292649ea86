// What a round does before the snapshot of its version is complete: the bytes go to the sidecars
// that copy them, bucket by bucket, while the trainer takes the snapshot. Sidecars that map the
// trainer's arena wait. The content digest follows with the end of the snapshot, and nothing is
// decided before.
//
// Thread: confined to one thread. No I/O.
#pragma once

#include "trainer_side/coordinator/coordinator_context.h"

namespace wsync::coordinator {

// Whether a sidecar that has joined receives by a kind that copies, so that it gains by a round
// that begins with the snapshot.
[[nodiscard]] bool has_copying_member(const CoordinatorContext& context);
// Whether there are sidecars, and all that have joined take a version as what changes from the
// target, so that the trainer may hold it so: those that copy, and those that lend the arenas that
// they map.
[[nodiscard]] bool all_take_changes(const CoordinatorContext& context);
// Whether a sidecar that is to read from `source` must wait for the end of the snapshot. `publish`:
// of its version, null if it is no longer here.
[[nodiscard]] bool must_wait_for_snapshot(const PublishRequested* publish,
                                          const control::TransportAddress& source);
// Whether who fetches from there maps the memory of the source.
[[nodiscard]] bool maps_source(const control::TransportAddress& source);
// Adds what is known at the end of the snapshot to its publish.
void complete(PublishRequested& publish, const SnapshotEnded& snapshot);
// Sends the content digest of the complete publish to a sidecar that is reading the version.
void send_content(CoordinatorContext& context, const Member& member,
                  const PublishRequested& publish);
// Whether the content digest may have been lost on its way to a sidecar that is reading the
// version: its heartbeat reports as many bytes as the one before, as if it waited.
[[nodiscard]] bool may_lack_content(const Member& member, const control::Heartbeat& heartbeat,
                                    const PublishRequested& publish);

}  // namespace wsync::coordinator
