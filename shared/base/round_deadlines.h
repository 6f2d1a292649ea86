// Times of one round: a version on its way to the fleet.
#pragma once

#include <cstdint>

namespace wsync::limits {

inline constexpr std::int64_t kAnnounceDeadlineMs = 10'000;
inline constexpr std::int64_t kStageDeadlineMs = 600'000;
inline constexpr std::int64_t kPublishDeadlineMs = 900'000;
inline constexpr std::int64_t kGatherDeadlineMs = 60'000;  // all ranks of a trainer for one step
inline constexpr std::int64_t kReportMarginMs = 5'000;     // of a sidecar, beyond its own deadlines

}  // namespace wsync::limits
