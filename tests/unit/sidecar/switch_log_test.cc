#include "inference_side/sidecar/switch_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::agent {
namespace {

using std::chrono::milliseconds;
using testing::IsEmpty;

constexpr TimePoint kStartOfLog{1'000'000'000};
const Version kVersion{.epoch = 1, .step = 2};

TEST(SwitchLog, OneLineForALoadAndOneForItsCommit) {
  SwitchLog log;
  EXPECT_THAT(log.sent("r", reload::SendPause{}, kStartOfLog), IsEmpty());
  EXPECT_THAT(log.sent("r", reload::BeginLoad{.version = kVersion}, kStartOfLog), IsEmpty());
  const TimePoint loaded = kStartOfLog + milliseconds(20);
  EXPECT_EQ(log.sent("r", reload::SendCommit{.rank = 0, .version = kVersion}, loaded),
            "replica r has loaded 1.2 in 20.0 ms");
  EXPECT_THAT(log.sent("r", reload::SendCommit{.rank = 1, .version = kVersion}, loaded), IsEmpty())
      << "a line is about the replica, not about each rank";
  const TimePoint committed = kStartOfLog + milliseconds(25);
  EXPECT_EQ(log.sent("r", reload::SendResume{}, committed),
            "replica r has committed 1.2, 25.0 ms after its load began");
  EXPECT_THAT(log.sent("r", reload::SendResume{}, committed), IsEmpty());
}

TEST(SwitchLog, AReplicaThatGoesOnWithItsVersionHasCommittedNothing) {
  SwitchLog log;
  EXPECT_THAT(log.sent("r", reload::SendResume{}, kStartOfLog), IsEmpty()) << "it missed its pause";
  (void)log.sent("r", reload::BeginLoad{.version = kVersion}, kStartOfLog);
  EXPECT_THAT(log.sent("r", reload::SendResume{}, kStartOfLog), IsEmpty())
      << "the load did not begin";
  EXPECT_THAT(log.sent("r", reload::SendCommit{.version = kVersion}, kStartOfLog), IsEmpty());
}

}  // namespace
}  // namespace wsync::agent
