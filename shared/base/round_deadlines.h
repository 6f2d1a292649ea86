// Times of one round: a version on its way to the fleet.
// Their values are in deadlines.cc, so that a change of one compiles only that file again.
#pragma once

#include <cstdint>

namespace wsync::limits {

extern const std::int64_t kAnnounceDeadlineMs;
extern const std::int64_t kStageDeadlineMs;
extern const std::int64_t kPublishDeadlineMs;
extern const std::int64_t kGatherDeadlineMs;  // all ranks of a trainer for one step
extern const std::int64_t kReportMarginMs;    // of a sidecar, beyond its own deadlines

}  // namespace wsync::limits
