// What two training runs that must be equal to the last bit differ in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "tests/soak/trainer_event.h"

namespace wsync::soak {

struct Divergence {
  std::uint64_t compared = 0;     // steps that were told, or files
  std::uint64_t count = 0;        // of what differs
  std::vector<std::string> told;  // the first few, one sentence each
  void add(std::string sentence);
};

// Loss and gradient norm of every step that `run` told, however often, with those that `reference`
// told; each must have told every step from 1 to `last`. Pure.
[[nodiscard]] Divergence compare_steps(const std::vector<StepEvent>& run,
                                       const std::vector<StepEvent>& reference, std::uint64_t last);

// All files below two directories, byte by byte. kNotFound: one of kStateFiles is not in
// `reference`; kIo.
inline constexpr std::string_view kStateFiles[] = {"model.safetensors",
                                                   "optimizer/state.safetensors"};
[[nodiscard]] Result<Divergence> compare_states(const std::string& run,
                                                const std::string& reference);

}  // namespace wsync::soak
