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

TEST(SwitchLog, ALoadByAPatchSaysHowMuchItsRanksHaveWritten) {
  SwitchLog log;
  (void)log.sent("r", reload::BeginLoad{.version = kVersion}, kStartOfLog);
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    log.loaded("r", {.rank = rank, .bytes = 2048, .by_patch = true, .written_bytes = 512});
  EXPECT_EQ(log.sent("r", reload::SendCommit{.rank = 0, .version = kVersion},
                     kStartOfLog + milliseconds(20)),
            "replica r has loaded 1.2 by a patch, 1.00 KiB of 4.00 KiB, in 20.0 ms");
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
