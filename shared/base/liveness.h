// Times for detecting that a process is gone and for reconnecting. The values are in deadlines.cc,
// so that a change of one recompiles only that file.
#pragma once

#include <cstdint>

namespace wsync::limits {

extern const std::int64_t kHeartbeatIntervalMs;
extern const std::int64_t kHeartbeatDeadlineMs;
extern const std::int64_t kEngineDeadlineMs;  // for an engine that polls its link
extern const std::int64_t kHelloDeadlineMs;
extern const std::int64_t kHelloRetryMs;  // of a sidecar whose Hello is not answered yet
extern const std::int64_t kReconnectMinMs;
// The longest pause between two attempts to connect. Both sides are on one host, so an attempt
// without a listener costs microseconds, and every process that waits for another one that has just
// started waits as long as this pause.
extern const std::int64_t kReconnectMaxMs;
extern const std::int64_t kRankReconnectMaxMs;  // of a trainer rank that reconnects to rank 0

}  // namespace wsync::limits
