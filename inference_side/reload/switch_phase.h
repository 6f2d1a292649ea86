// The phases of a replica's switch, and the transitions between them.
#pragma once

#include <cstdint>
#include <string_view>

#include "shared/base/transitions.h"

namespace wsync::reload {

enum class SwitchPhase : std::uint8_t {
  kIdle,        // no switch is in flight
  kPausing,     // PAUSE was sent; a rank may still be inside a step
  kGathering,   // stopped; waits until a lost rank attaches again
  kLoading,     // LOAD is in flight on every rank
  kCommitting,  // COMMIT is in flight on every rank
  kResuming,    // RESUME was sent to the leader
};

[[nodiscard]] std::string_view phase_name(SwitchPhase phase) noexcept;
// Whether the transition table has a row from one phase to the other.
[[nodiscard]] bool is_legal(SwitchPhase from, SwitchPhase to) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable switch_transitions();

}  // namespace wsync::reload
