// Deadlines of one round, which brings a version to the fleet. The values are in deadlines.cc, so
// that a change of one recompiles only that file.
#pragma once

#include <cstdint>

namespace wsync::limits {

extern const std::int64_t kAnnounceDeadlineMs;
extern const std::int64_t kStageDeadlineMs;
extern const std::int64_t kPublishDeadlineMs;
extern const std::int64_t kSnapshotDeadlineMs;  // for a free arena
extern const std::int64_t kGatherDeadlineMs;    // for all ranks of a trainer in one step
extern const std::int64_t kReportMarginMs;      // added to a sidecar's own deadlines

}  // namespace wsync::limits
