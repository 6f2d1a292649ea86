// The words for the phases of an update, as --json, metrics and traces have them.
#pragma once

#include <array>
#include <string_view>

#include "shared/control/command_messages.h"

namespace wsync::control {

inline constexpr std::array kProgressPhases = {ProgressPhase::kSnapshot, ProgressPhase::kAnnounce,
                                               ProgressPhase::kStage, ProgressPhase::kSwitch};
// "snapshot", "announce", "stage", "switch".
[[nodiscard]] std::string_view phase_name(ProgressPhase phase) noexcept;

}  // namespace wsync::control
