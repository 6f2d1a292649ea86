// The output of `wsync train --events --json`: one JSON object per line on standard output.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <variant>
#include <vector>

#include "shared/base/error.h"

namespace wsync::soak {

struct StepEvent {
  std::uint64_t step = 0;  // counted from 1
  double loss = 0;
  double gradient_norm = 0;
  friend bool operator==(const StepEvent&, const StepEvent&) = default;
};
// Processes of all ranks, sent at the start and after each replacement.
struct RanksEvent {
  std::vector<pid_t> pids;  // by rank
  std::uint64_t generation = 0;
  friend bool operator==(const RanksEvent&, const RanksEvent&) = default;
};
struct LostEvent {
  std::uint32_t rank = 0;
  std::uint64_t step = 0;  // step that was active, or that the rank was about to begin
  std::string phase;       // one of kPhases
  std::string why;
  friend bool operator==(const LostEvent&, const LostEvent&) = default;
};
struct RecoveredEvent {
  std::uint64_t step = 0;               // next step of all ranks
  std::vector<std::uint32_t> replaced;  // replaced ranks
  std::string from;                     // one of kSources
  double seconds = 0;                   // measured by rank 0 from its new group on
  std::uint64_t bytes = 0;              // total bytes sent to ranks
  friend bool operator==(const RecoveredEvent&, const RecoveredEvent&) = default;
};
struct SavedEvent {
  std::uint64_t step = 0;
  std::string directory;
  friend bool operator==(const SavedEvent&, const SavedEvent&) = default;
};
// Last line of a failed run.
struct FailedEvent {
  std::string message;
  friend bool operator==(const FailedEvent&, const FailedEvent&) = default;
};
struct OtherEvent {  // an event that the soak runs do not use
  friend bool operator==(const OtherEvent&, const OtherEvent&) = default;
};
using TrainerEvent = std::variant<OtherEvent, StepEvent, RanksEvent, LostEvent, RecoveredEvent,
                                  SavedEvent, FailedEvent>;

// In the order of a step.
inline constexpr std::string_view kPhases[] = {"forward", "backward", "update", "empty"};
inline constexpr std::string_view kSources[] = {"peers", "checkpoint", "start"};

// `ranks`: number of ranks of the run. kInvalidInput describes what is wrong with the line.
[[nodiscard]] Result<TrainerEvent> parse_trainer_event(std::string_view line, std::uint32_t ranks);

}  // namespace wsync::soak
