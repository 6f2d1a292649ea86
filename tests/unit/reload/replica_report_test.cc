// How a replica is reported, and whether requests may be routed to it.
#include "inference_side/reload/replica_report.h"

#include <gtest/gtest.h>

#include "tests/support/versions.h"

namespace wsync::reload {
namespace {

using control::ReplicaState;

ReplicaFacts serves(const Version& version, const Version& target) {
  return {.missing = {}, .version = version, .serving = true, .target = target, .last_failure = {}};
}

control::ReplicaReport report(const ReplicaFacts& facts) {
  control::ReplicaReport out;
  report_state(facts, out);
  return out;
}

TEST(ReplicaReport, OneThatServesTheTargetIsReady) {
  EXPECT_EQ(report(serves(kV1, kV1)).state, ReplicaState::kServing);
  EXPECT_TRUE(report(serves(kV1, kV1)).ready);
  EXPECT_TRUE(report(serves(kV1, {})).ready) << "nothing was decided yet";
  ReplicaFacts facts = serves(kV1, kV1);
  facts.version_withdrawn = true;
  EXPECT_FALSE(report(facts).ready);
  EXPECT_EQ(report(facts).reason, "version 1.1 was withdrawn and no other one has been decided");
}

TEST(ReplicaReport, OneThatIsBehindIsReadyUntilItIsStale) {
  ReplicaFacts facts = serves(kV1, kV2);
  EXPECT_EQ(report(facts).state, ReplicaState::kBehind);
  EXPECT_TRUE(report(facts).ready);
  EXPECT_EQ(report(facts).reason, "it serves 1.1; the target is 1.2");
  facts.stale = true;
  EXPECT_FALSE(report(facts).ready);
  facts.last_failure = "no memory";
  EXPECT_EQ(report(facts).reason, "no memory");
}

TEST(ReplicaReport, OneThatDoesNotServeIsNotReady) {
  ReplicaFacts facts = serves(kV1, kV2);
  facts.serving = false;
  facts.phase = SwitchPhase::kPausing;
  EXPECT_EQ(report(facts).state, ReplicaState::kBehind);
  EXPECT_EQ(report(facts).reason, "it is pausing");
  facts.quiesced = true;
  EXPECT_EQ(report(facts).state, ReplicaState::kPaused);
  facts.version_withdrawn = true;
  EXPECT_EQ(report(facts).reason,
            "version 1.1 was withdrawn and 1.2 is not staged on this sidecar");
  facts.phase = SwitchPhase::kLoading;
  EXPECT_EQ(report(facts).state, ReplicaState::kLoading);
  EXPECT_EQ(report(facts).reason, "it is loading");
  facts.last_failure = "rank 0: no memory";
  EXPECT_EQ(report(facts).reason, "it is loading; rank 0: no memory");
  facts.missing = "rank 1 is not attached";
  EXPECT_EQ(report(facts).state, ReplicaState::kAbsent);
  EXPECT_EQ(report(facts).reason, "rank 1 is not attached");
}

TEST(ReplicaReport, MixedBytesAreTainted) {
  ReplicaFacts facts{.missing = {}, .version = {}, .target = kV1, .last_failure = {}};
  EXPECT_EQ(report(facts).state, ReplicaState::kLoading);
  EXPECT_EQ(report(facts).reason, "a rank is waiting for a staged version");
  facts.written = true;
  EXPECT_EQ(report(facts).state, ReplicaState::kTainted);
}

}  // namespace
}  // namespace wsync::reload
