// The values of liveness.h, round_deadlines.h and switch_deadlines.h, and the relations between
// them. The names contain the units.
#include "shared/base/liveness.h"
#include "shared/base/round_deadlines.h"
#include "shared/base/switch_deadlines.h"

namespace wsync::limits {

// ---- liveness.h ----

constexpr std::int64_t kHeartbeatIntervalMs = 200;
constexpr std::int64_t kHeartbeatDeadlineMs = 3'000;
constexpr std::int64_t kEngineDeadlineMs = 10'000;
constexpr std::int64_t kHelloDeadlineMs = 5'000;
constexpr std::int64_t kHelloRetryMs = 500;
constexpr std::int64_t kReconnectMinMs = 50;
constexpr std::int64_t kReconnectMaxMs = 250;
constexpr std::int64_t kRankReconnectMaxMs = 500;

// ---- switch_deadlines.h ----

constexpr std::int64_t kPauseDeadlineMs = 10'000;
constexpr std::int64_t kLoadDeadlineMs = 120'000;
constexpr std::int64_t kCommitDeadlineMs = 10'000;
constexpr std::int64_t kSwitchDeadlineMs = 180'000;
constexpr std::int64_t kRankReturnDeadlineMs = 5'000;
constexpr std::int64_t kSwitchRetryMs = 1'000;
constexpr std::int64_t kSwitchRetryMaxMs = 60'000;
constexpr std::int64_t kMaxStalenessMs = 60'000;
constexpr std::int64_t kBucketAckDeadlineMs = 30'000;
constexpr std::int64_t kGroupStartDeadlineMs = 120'000;
constexpr std::int64_t kGroupJoinDeadlineMs = 30'000;

// ---- round_deadlines.h ----

constexpr std::int64_t kAnnounceDeadlineMs = 10'000;
constexpr std::int64_t kStageDeadlineMs = 600'000;
constexpr std::int64_t kPublishDeadlineMs = 900'000;
constexpr std::int64_t kSnapshotDeadlineMs = 2'000;
constexpr std::int64_t kGatherDeadlineMs = 60'000;
constexpr std::int64_t kReportMarginMs = 5'000;

static_assert(kHeartbeatDeadlineMs >= 5 * kHeartbeatIntervalMs,
              "a few lost heartbeats are not a lost peer");
static_assert(kSwitchDeadlineMs >= kPauseDeadlineMs + kLoadDeadlineMs + kCommitDeadlineMs,
              "a switch has time for all of its steps");
static_assert(kBucketAckDeadlineMs < kLoadDeadlineMs,
              "one silent engine is dropped before the load of all fails");
static_assert(kPublishDeadlineMs >=
                  kAnnounceDeadlineMs + kStageDeadlineMs + kSwitchDeadlineMs + kReportMarginMs,
              "a publish has time for all of its phases");

}  // namespace wsync::limits
