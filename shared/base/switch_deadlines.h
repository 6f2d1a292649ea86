// Times of the switch of one replica.
#pragma once

#include <cstdint>

namespace wsync::limits {

inline constexpr std::int64_t kPauseDeadlineMs = 10'000;
inline constexpr std::int64_t kLoadDeadlineMs = 120'000;
inline constexpr std::int64_t kCommitDeadlineMs = 10'000;
inline constexpr std::int64_t kSwitchDeadlineMs = 180'000;
inline constexpr std::int64_t kRankReturnDeadlineMs = 5'000;  // a rank lost inside a switch
inline constexpr std::int64_t kSwitchRetryMs = 1'000;         // after a switch that failed
inline constexpr std::int64_t kSwitchRetryMaxMs =
    60'000;                                              // after loads that failed again and again
inline constexpr std::int64_t kMaxStalenessMs = 60'000;  // behind longer: not ready
inline constexpr std::int64_t kBucketAckDeadlineMs = 30'000;
inline constexpr std::int64_t kGroupJoinDeadlineMs = 30'000;

static_assert(kSwitchDeadlineMs >= kPauseDeadlineMs + kLoadDeadlineMs + kCommitDeadlineMs);
static_assert(kBucketAckDeadlineMs < kLoadDeadlineMs,
              "one silent engine is dropped before the load of all fails");

}  // namespace wsync::limits
