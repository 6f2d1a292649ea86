// Names of the phases of an update, as used in --json, metrics and traces.
#pragma once

#include <array>
#include <string_view>

#include "shared/control/command_messages.h"

namespace wsync::control {

inline constexpr std::array kProgressPhases = {ProgressPhase::kSnapshot, ProgressPhase::kAnnounce,
                                               ProgressPhase::kStage, ProgressPhase::kSwitch};
// Returns "snapshot", "announce", "stage" or "switch".
[[nodiscard]] std::string_view phase_name(ProgressPhase phase) noexcept;

}  // namespace wsync::control
