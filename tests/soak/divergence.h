// Compares two training runs that must agree to the last bit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "tests/soak/trainer_event.h"

namespace wsync::soak {

struct Divergence {
  std::uint64_t compared = 0;     // compared steps or files
  std::uint64_t count = 0;        // number of differences
  std::vector<std::string> told;  // first few differences, one sentence each
  void add(std::string sentence);
};

// Compares loss and gradient norm of every step of `run` with those of `reference`. A step that was
// reported several times is compared each time. Each run must have reported every step from 1 to
// `last`. Pure.
[[nodiscard]] Divergence compare_steps(const std::vector<StepEvent>& run,
                                       const std::vector<StepEvent>& reference, std::uint64_t last);

// Compares all files below two directories byte by byte. kNotFound if `reference` lacks one of
// kStateFiles. kIo.
inline constexpr std::string_view kStateFiles[] = {"model.safetensors",
                                                   "optimizer/state.safetensors"};
[[nodiscard]] Result<Divergence> compare_states(const std::string& run,
                                                const std::string& reference);

}  // namespace wsync::soak
