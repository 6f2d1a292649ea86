// The steps of a training run as text: `wsync train` prints it, and `wsync demo` for the run that
// it has started.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace wsync::cli {

inline constexpr std::size_t kRewardSteps = 10;  // steps in a mean reward

// Returns a table of at most twelve steps, evenly spaced from the first to the last, and sentences
// about all of them. `result` is that of `wsync train --json`; a missing field throws
// nlohmann::json::exception.
[[nodiscard]] std::string training_text(const nlohmann::json& result);

}  // namespace wsync::cli
