// Times inside a step of a replica that has several ranks.
#pragma once

#include <cstdint>

namespace wsync::limits {

inline constexpr std::int64_t kStepDeadlineMs = 5'000;      // one wait inside a step of a replica
inline constexpr std::int64_t kForwardDeadlineMs = 30'000;  // what its ranks compute in one
inline constexpr std::int64_t kStepReconnectMaxMs = 500;
inline constexpr std::int64_t kGroupWholeDeadlineMs = 2'000;  // a resume waits for its followers

static_assert(kStepReconnectMaxMs < kGroupWholeDeadlineMs);

}  // namespace wsync::limits
