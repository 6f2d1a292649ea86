// Measurements of a rank process, and their format for the launcher.
#pragma once

#include <array>
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
  std::chrono::nanoseconds processor{};  // processor time of the calling thread
  std::uint64_t bytes = 0;               // maximum of sent and received bytes
};

// One step of one rank, to its last gradient.
struct StepSample {
  TimePoint begin{};
  TimePoint end{};
  std::vector<training::Measured> operations;  // in the order of the rank's program
  std::vector<Exchange> exchanges;             // exchanges of the communication lane, in order
};

// The compared cases. All train the same micro-batches and compute the same gradients.
enum class CaseKind : std::uint8_t {
  kOverlap,    // over the emulated link
  kNoOverlap,  // over the emulated link as well
  kNoLink,     // without overlap, with messages at the speed of memory
};
inline constexpr std::array kCaseKinds{CaseKind::kOverlap, CaseKind::kNoOverlap, CaseKind::kNoLink};
inline constexpr std::size_t kCaseCount = kCaseKinds.size();

// Lists of numbers: begin and end of each operation; for exchanges also the processor time in
// nanoseconds and the bytes.
[[nodiscard]] nlohmann::json to_json(const StepSample& sample);
// Throws nlohmann::json::exception if the format is wrong.
[[nodiscard]] StepSample step_sample_of(const nlohmann::json& object);

}  // namespace wsync::bench
