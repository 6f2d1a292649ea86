// Times of the switch of one replica.
// Their values are in deadlines.cc, so that a change of one compiles only that file again.
#pragma once

#include <cstdint>

namespace wsync::limits {

extern const std::int64_t kPauseDeadlineMs;
extern const std::int64_t kLoadDeadlineMs;
extern const std::int64_t kCommitDeadlineMs;
extern const std::int64_t kSwitchDeadlineMs;
extern const std::int64_t kRankReturnDeadlineMs;  // a rank lost inside a switch
extern const std::int64_t kSwitchRetryMs;         // after a switch that failed
extern const std::int64_t kSwitchRetryMaxMs;      // after loads that failed again and again
extern const std::int64_t kMaxStalenessMs;        // behind longer: not ready
extern const std::int64_t kBucketAckDeadlineMs;
extern const std::int64_t kGroupJoinDeadlineMs;

}  // namespace wsync::limits
