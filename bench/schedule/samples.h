// What a rank process has measured, and how it tells the launcher.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "shared/base/clock.h"
#include "trainer_side/training/lanes.h"

namespace wsync::bench {

// One exchange with other ranks.
struct Exchange {
  training::Measured time;
  std::chrono::nanoseconds processor{};  // of the calling thread meanwhile
  std::uint64_t bytes = 0;               // sent or received, whichever is more
};

// One step of one rank, to its last gradient.
struct StepSample {
  TimePoint begin{};
  TimePoint end{};
  std::vector<training::Measured> operations;  // as in the rank's program
  std::vector<Exchange> exchanges;             // of the communication lane, in order
};

// What is compared. All run the same micro-batches, and come to the same gradients.
enum class CaseKind : std::uint8_t {
  kOverlap,    // over the emulated link
  kNoOverlap,  // the same
  kNoLink,     // no overlap, and messages as fast as memory is
};
inline constexpr std::size_t kCaseCount = 3;

// One number after the other: of operations begin and end, of exchanges also the processor's
// nanoseconds and bytes.
[[nodiscard]] nlohmann::json to_json(const StepSample& sample);
// Throws nlohmann::json::exception for another form.
[[nodiscard]] StepSample step_sample_of(const nlohmann::json& object);

}  // namespace wsync::bench
