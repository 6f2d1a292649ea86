// Times by which a process notices that another one is gone, and comes back to it.
// Their values are in deadlines.cc, so that a change of one compiles only that file again.
#pragma once

#include <cstdint>

namespace wsync::limits {

extern const std::int64_t kHeartbeatIntervalMs;
extern const std::int64_t kHeartbeatDeadlineMs;
extern const std::int64_t kHelloDeadlineMs;
extern const std::int64_t kHelloRetryMs;  // of a sidecar that nobody has welcomed
extern const std::int64_t kReconnectMinMs;
extern const std::int64_t kReconnectMaxMs;
extern const std::int64_t kRankReconnectMaxMs;  // of a trainer's rank to its rank 0

}  // namespace wsync::limits
