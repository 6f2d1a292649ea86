// JobState: the states of one publish, and the legal transitions between them.
//
// Thread: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "shared/base/transitions.h"
#include "shared/control/command_messages.h"

namespace wsync::publish {

enum class JobState : std::uint8_t {
  kQueued,        // waits for earlier snapshots and, unless it is kept, for the coordinator
  kSnapshotting,  // its source is being opened and copied
  // Cancelled during its snapshot, or its round has ended; the copy has not returned yet.
  kStopping,
  // Its snapshot is complete; waits for the claim of the fence, sidecars and engines. It may have
  // had a round that has lost every sidecar.
  kHeld,
  kWaiting,     // the coordinator has its snapshot but has not begun its round
  kAnnouncing,  // in its round
  kStaging,
  kSwitching,  // decided
  kStreaming,  // in its round, and its snapshot is being taken
  // Final states; an ended publish is removed.
  kServed,
  kFailed,
  kCancelled,
  kSuperseded,  // a newer one has replaced it while it waited
};
[[nodiscard]] std::string_view job_state_name(JobState state) noexcept;
[[nodiscard]] constexpr bool has_ended(JobState state) noexcept {
  return state >= JobState::kServed;
}
// Whether the transition table has a row from one state to the other.
[[nodiscard]] bool is_legal(JobState from, JobState to) noexcept;
// The transition table of one publish, for the protocol documentation.
[[nodiscard]] TransitionTable publish_transitions();

// Whether its snapshot is being taken, even if it is to stop.
[[nodiscard]] bool is_snapshotting(JobState state) noexcept;
// Whether its round is running.
[[nodiscard]] bool is_in_round(JobState state) noexcept;
// The state of a publish whose round is in this phase; kWaiting for kSnapshot, which is none.
[[nodiscard]] JobState state_of(control::ProgressPhase phase) noexcept;

}  // namespace wsync::publish
