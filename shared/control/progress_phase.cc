#include "shared/control/progress_phase.h"

namespace wsync::control {

std::string_view phase_name(ProgressPhase phase) noexcept {
  switch (phase) {
    case ProgressPhase::kSnapshot:
      return "snapshot";
    case ProgressPhase::kAnnounce:
      return "announce";
    case ProgressPhase::kStage:
      return "stage";
    case ProgressPhase::kSwitch:
      return "switch";
  }
  return "unknown";
}

}  // namespace wsync::control
