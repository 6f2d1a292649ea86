// Times by which a process notices that another one is gone, and comes back to it.
#pragma once

#include <cstdint>

namespace wsync::limits {

inline constexpr std::int64_t kHeartbeatIntervalMs = 200;
inline constexpr std::int64_t kHeartbeatDeadlineMs = 2'000;
inline constexpr std::int64_t kHelloDeadlineMs = 5'000;
inline constexpr std::int64_t kHelloRetryMs = 500;  // of a sidecar that nobody has welcomed
inline constexpr std::int64_t kReconnectMinMs = 50;
inline constexpr std::int64_t kReconnectMaxMs = 2'000;
inline constexpr std::int64_t kRankReconnectMaxMs = 500;  // of a trainer's rank to its rank 0

static_assert(kHeartbeatDeadlineMs >= 5 * kHeartbeatIntervalMs,
              "a few lost heartbeats are not a lost peer");

}  // namespace wsync::limits
