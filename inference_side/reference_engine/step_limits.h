// Timeouts inside a step of a replica with several ranks.
#pragma once

#include <cstdint>

namespace wsync::limits {

inline constexpr std::int64_t kStepDeadlineMs = 5'000;      // one wait inside a step
inline constexpr std::int64_t kForwardDeadlineMs = 30'000;  // the ranks' computation in one step
inline constexpr std::int64_t kStepReconnectMaxMs = 500;
// Resume waits this long for followers.
inline constexpr std::int64_t kGroupWholeDeadlineMs = 2'000;

static_assert(kStepReconnectMaxMs < kGroupWholeDeadlineMs);

}  // namespace wsync::limits
