// What a coordinator counts, and when it is ready, by a fleet in virtual time.
#include "trainer_side/coordinator/round_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/observe/metrics/catalog.h"
#include "tests/unit/coordinator/coordinator_fleet.h"

namespace wsync::coordinator {
namespace {

using control::ProgressPhase;
using control::ReplicaState;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr TimePoint kBegin{1'000'000'000};

std::string text_of(RoundMetrics& metrics) { return metrics.registry().text({}); }

TEST(RoundMetrics, TimesEachPhaseAndCountsHowRoundsEnd) {
  RoundMetrics metrics;
  EXPECT_THAT(text_of(metrics), AllOf(HasSubstr("wsync_updates_total{result=\"committed\"} 0\n"),
                                      HasSubstr("wsync_rollbacks_total{result=\"partial\"} 0\n")));
  metrics.snapshot_taken(1000, milliseconds(20));
  metrics.entered(1, ProgressPhase::kAnnounce, kBegin);
  metrics.entered(1, ProgressPhase::kStage, kBegin + milliseconds(3));
  // Another publish under way does not end the phases of this one.
  metrics.entered(2, ProgressPhase::kAnnounce, kBegin + milliseconds(4));
  metrics.entered(1, ProgressPhase::kSwitch, kBegin + milliseconds(203));
  metrics.ended({.request = 1, .superseded = false, .reply = {.ok = true}},
                kBegin + milliseconds(243));
  metrics.ended({.request = 2, .superseded = true, .reply = {}}, kBegin + milliseconds(1004));
  metrics.ended({.request = 3, .superseded = false, .reply = {}}, kBegin + milliseconds(1004));
  metrics.failed(ErrorCode::kDeadline);
  // What somebody has asked for is no failure.
  metrics.ended({.request = 4, .superseded = false, .cancelled = true, .reply = {}},
                kBegin + milliseconds(1004));
  metrics.failed(ErrorCode::kCancelled);
  metrics.rolled_back({.ok = true});
  metrics.rolled_back({.ok = false, .partial = true});
  metrics.rolled_back({});
  const std::string text = text_of(metrics);
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("wsync_update_stage_seconds_sum{stage=\"snapshot\"} 0.02"),
            HasSubstr("wsync_update_stage_seconds_count{stage=\"announce\"} 2\n"),
            HasSubstr("wsync_update_stage_seconds_bucket{stage=\"announce\",le=\"0.005\"} 1\n"),
            HasSubstr("wsync_update_stage_seconds_sum{stage=\"stage\"} 0.2"),
            HasSubstr("wsync_update_stage_seconds_count{stage=\"switch\"} 1\n"),
            HasSubstr("wsync_update_bytes_total{stage=\"snapshot\"} 1000\n")));
  EXPECT_THAT(text, AllOf(HasSubstr("wsync_updates_total{result=\"committed\"} 1\n"),
                          HasSubstr("wsync_updates_total{result=\"superseded\"} 1\n"),
                          HasSubstr("wsync_updates_total{result=\"failed\"} 2\n"),
                          HasSubstr("wsync_updates_total{result=\"cancelled\"} 2\n"),
                          HasSubstr("wsync_failures_total{reason=\"cancelled\"} 0\n"),
                          HasSubstr("wsync_failures_total{reason=\"refused\"} 1\n"),
                          HasSubstr("wsync_failures_total{reason=\"deadline\"} 1\n"),
                          HasSubstr("wsync_rollbacks_total{result=\"done\"} 1\n"),
                          HasSubstr("wsync_rollbacks_total{result=\"partial\"} 1\n"),
                          HasSubstr("wsync_rollbacks_total{result=\"failed\"} 1\n")));
}

// What the sidecar's heartbeat says of its one replica.
void notify(Fleet& fleet, ReplicaState state, bool ready, const Version& version) {
  fleet.from("a", control::Heartbeat{.target = fleet.coordinator.target(),
                                     .replicas = {{.replica = "r-a",
                                                   .world_size = 1,
                                                   .ranks_attached = 1,
                                                   .state = state,
                                                   .ready = ready,
                                                   .version = version}}});
}

TEST(FleetReadiness, NeedsAClaimAVersionAndReplicasThatMayBeRoutedTo) {
  Fleet fleet;
  EXPECT_EQ(fleet_readiness(fleet.coordinator, 1).reason,
            "the coordinator is gathering: 0 sidecars have joined it");
  fleet.join("a");
  notify(fleet, ReplicaState::kServing, true, {});
  EXPECT_EQ(fleet_readiness(fleet.coordinator, 1).reason, "no version has been decided on yet");
  fleet.publish();
  fleet.accept("a");
  fleet.staged("a");
  const Version version = fleet.coordinator.target();
  ASSERT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kSwitching);
  for (const ReplicaState state : {ReplicaState::kPaused, ReplicaState::kLoading}) {
    notify(fleet, state, false, {});
    EXPECT_EQ(fleet_readiness(fleet.coordinator, 1).reason,
              "requests may be routed to 0 of 1 replicas, expected at least 1 (min_replicas)")
        << "it has never served a version";
  }
  fleet.switched("a");
  EXPECT_TRUE(fleet_readiness(fleet.coordinator, 1).ready) << "its outcome says so";
  notify(fleet, ReplicaState::kPaused, false, version);
  EXPECT_EQ(fleet_readiness(fleet.coordinator, 1).reason,
            "requests may be routed to 0 of 1 replicas, expected at least 1 (min_replicas)");
  notify(fleet, ReplicaState::kServing, true, version);
  EXPECT_TRUE(fleet_readiness(fleet.coordinator, 1).ready);
  EXPECT_FALSE(fleet_readiness(fleet.coordinator, 2).ready);
  notify(fleet, ReplicaState::kTainted, false, {});
  EXPECT_FALSE(fleet_readiness(fleet.coordinator, 1).ready);
  fleet.from_fence("a", {.epoch = 99}, Fleet::hello("a"));
  ASSERT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kStopped);
  EXPECT_EQ(fleet_readiness(fleet.coordinator, 0).reason,
            "this coordinator has stopped: " + fleet.stop_reason);
}

TEST(FleetReadiness, CountsWhatStandsStillForASwitchAndServedBefore) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  notify(fleet, ReplicaState::kServing, true, fleet.coordinator.target());
  fleet.publish(2);
  fleet.accept("a");
  fleet.staged("a");
  ASSERT_EQ(fleet.coordinator.phase(), CoordinatorPhase::kSwitching);
  for (const ReplicaState state : {ReplicaState::kPaused, ReplicaState::kLoading}) {
    notify(fleet, state, false, {});  // bytes of both versions are in its memory
    EXPECT_TRUE(fleet_readiness(fleet.coordinator, 1).ready);
  }
  notify(fleet, ReplicaState::kTainted, false, {});
  EXPECT_FALSE(fleet_readiness(fleet.coordinator, 1).ready);
}

TEST(FleetReadings, CountTheFleetAsItIs) {
  Fleet fleet;
  fleet.join("a");
  fleet.full_round({"a"});
  const auto shown = [&] {
    return metrics::Registry().text(fleet_readings(
        fleet.coordinator, {.queued = 2, .arena_bytes = 300, .wire_bytes = 40, .min_replicas = 5}));
  };
  notify(fleet, ReplicaState::kServing, true, fleet.coordinator.target());
  EXPECT_THAT(shown(),
              AllOf(HasSubstr("wsync_fleet_sidecars 1\n"), HasSubstr("wsync_fleet_replicas 1\n"),
                    HasSubstr("wsync_fleet_replicas_ready 1\n"),
                    HasSubstr("wsync_fleet_replicas_current 1\n"),
                    HasSubstr("wsync_fleet_replicas_required 5\n"),
                    HasSubstr("wsync_target_version_step 1\n"), HasSubstr("wsync_queue_depth 2\n"),
                    HasSubstr("wsync_arena_bytes 300\n"), HasSubstr("wsync_wire_bytes_total 40\n"),
                    HasSubstr("wsync_coordinator_phase{phase=\"idle\"} 1\n"),
                    HasSubstr("wsync_coordinator_phase{phase=\"staging\"} 0\n")));
  notify(fleet, ReplicaState::kBehind, true, {1, 0});
  EXPECT_THAT(shown(), AllOf(HasSubstr("wsync_fleet_replicas_ready 1\n"),
                             HasSubstr("wsync_fleet_replicas_current 0\n")));
  fleet.step(PeerLost{.peer = "a", .reason = "gone"});
  EXPECT_THAT(shown(),
              AllOf(HasSubstr("wsync_fleet_sidecars 0\n"), HasSubstr("wsync_fleet_replicas 0\n")));
}

}  // namespace
}  // namespace wsync::coordinator
