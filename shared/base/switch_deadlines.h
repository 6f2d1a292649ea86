// Deadlines of the switch of one replica. The values are in deadlines.cc, so that a change of one
// recompiles only that file.
#pragma once

#include <cstdint>

namespace wsync::limits {

extern const std::int64_t kPauseDeadlineMs;
extern const std::int64_t kLoadDeadlineMs;
extern const std::int64_t kCommitDeadlineMs;
extern const std::int64_t kSwitchDeadlineMs;
extern const std::int64_t kRankReturnDeadlineMs;  // for a rank that was lost during a switch
extern const std::int64_t kSwitchRetryMs;         // after a failed switch
extern const std::int64_t kSwitchRetryMaxMs;      // after repeated failed loads
extern const std::int64_t kMaxStalenessMs;  // a replica that is behind for longer is not ready
extern const std::int64_t kBucketAckDeadlineMs;
extern const std::int64_t kGroupStartDeadlineMs;  // GPUs form their group, as a sidecar starts
extern const std::int64_t kGroupJoinDeadlineMs;   // they form it again, before a load

}  // namespace wsync::limits
