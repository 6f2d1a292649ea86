// What a sidecar counts of its switches, and when it is ready.
#include "inference_side/sidecar/sidecar_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace wsync::agent {
namespace {

using control::ReplicaState;
using control::SwitchOutcome;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr TimePoint kBegin{5'000'000'000};
constexpr Version kFirst{.epoch = 1, .step = 1};

class Counted : public testing::Test {
 protected:
  template <class Command>
  void sent(const Command& command, std::int64_t at_ms, const std::string& replica = "a") {
    metrics_.sent(replica, command, kBegin + milliseconds(at_ms));
  }
  [[nodiscard]] std::string text() { return metrics_.registry().text({}); }
  SidecarMetrics metrics_;
};

TEST_F(Counted, ASwitchOfAReplicaThatServes) {
  sent(reload::SendPause{}, 0);
  EXPECT_TRUE(metrics_.was_serving("a"));
  sent(reload::BeginLoad{}, 2);
  sent(reload::SendCommit{.rank = 0}, 42);
  sent(reload::SendCommit{.rank = 1}, 43);  // the same commit, for another rank
  sent(reload::SendResume{}, 50);
  EXPECT_FALSE(metrics_.was_serving("a"));
  EXPECT_THAT(text(), AllOf(HasSubstr("wsync_update_stage_seconds_sum{stage=\"pause\"} 0.002"),
                            HasSubstr("wsync_update_stage_seconds_sum{stage=\"load\"} 0.04"),
                            HasSubstr("wsync_update_stage_seconds_count{stage=\"load\"} 1\n"),
                            HasSubstr("wsync_update_stage_seconds_sum{stage=\"commit\"} 0.008"),
                            HasSubstr("wsync_paused_seconds_sum 0.048"),
                            HasSubstr("wsync_paused_seconds_count 1\n")));
}

TEST_F(Counted, TheFirstLoadOfAnEngineIsNoPause) {
  sent(reload::BeginLoad{}, 0);
  EXPECT_FALSE(metrics_.was_serving("a"));
  sent(reload::SendCommit{}, 10);
  sent(reload::SendResume{}, 11);
  EXPECT_THAT(text(), AllOf(HasSubstr("wsync_update_stage_seconds_count{stage=\"load\"} 1\n"),
                            HasSubstr("wsync_update_stage_seconds_count{stage=\"pause\"} 0\n"),
                            HasSubstr("wsync_paused_seconds_count 0\n")));
}

TEST_F(Counted, ALoadThatIsTriedAgainIsOnePauseAndTheLastLoad) {
  sent(reload::SendPause{}, 0);
  sent(reload::BeginLoad{}, 1);
  sent(reload::BeginLoad{}, 101);  // the first one failed
  sent(reload::SendCommit{}, 121);
  sent(reload::SendResume{}, 131);
  EXPECT_THAT(text(), AllOf(HasSubstr("wsync_update_stage_seconds_sum{stage=\"load\"} 0.02"),
                            HasSubstr("wsync_update_stage_seconds_count{stage=\"pause\"} 1\n"),
                            HasSubstr("wsync_paused_seconds_sum 0.13")));
}

TEST_F(Counted, ASwitchThatEndsWithItsRankOrWithoutALoadIsNotTimed) {
  sent(reload::SendPause{}, 0);
  sent(reload::BeginLoad{}, 1);
  metrics_.lost("a");
  EXPECT_FALSE(metrics_.was_serving("a"));
  sent(reload::SendResume{}, 500);
  sent(reload::SendPause{}, 600, "b");
  sent(reload::SendResume{}, 9000, "b");  // it did not pause in time
  EXPECT_THAT(text(), AllOf(HasSubstr("wsync_paused_seconds_count 0\n"),
                            HasSubstr("wsync_update_stage_seconds_count{stage=\"commit\"} 0\n")));
}

TEST_F(Counted, OutcomesCountOnceHoweverOftenTheyAreTold) {
  const control::Switched switched{.number = 3,
                                   .outcomes = {{.outcome = SwitchOutcome::kCommitted},
                                                {.outcome = SwitchOutcome::kCommitted},
                                                {.outcome = SwitchOutcome::kTainted}}};
  metrics_.reported({.epoch = 4}, switched);
  metrics_.reported({.epoch = 4}, switched);
  metrics_.reported({.epoch = 5}, {.number = 1, .outcomes = {{.outcome = SwitchOutcome::kBehind}}});
  metrics_.reported({.epoch = 4}, {.number = 9, .outcomes = {{.outcome = SwitchOutcome::kBehind}}});
  EXPECT_THAT(text(), AllOf(HasSubstr("wsync_switches_total{result=\"committed\"} 2\n"),
                            HasSubstr("wsync_switches_total{result=\"tainted\"} 1\n"),
                            HasSubstr("wsync_switches_total{result=\"behind\"} 1\n"),
                            HasSubstr("wsync_switches_total{result=\"rolled_back\"} 0\n")));
}

TEST_F(Counted, BytesAndFailures) {
  metrics_.staged(1000, milliseconds(10));
  metrics_.loaded({.bytes = 600});
  metrics_.loaded({.bytes = 400});
  metrics_.failed(ErrorCode::kPeerLost);
  EXPECT_THAT(text(), AllOf(HasSubstr("wsync_update_bytes_total{stage=\"stage\"} 1000\n"),
                            HasSubstr("wsync_update_bytes_total{stage=\"load\"} 1000\n"),
                            HasSubstr("wsync_update_stage_seconds_count{stage=\"stage\"} 1\n"),
                            HasSubstr("wsync_failures_total{reason=\"peer_lost\"} 1\n")));
}

TEST_F(Counted, ScrubsAndTheirTime) {
  metrics_.scrubbed(true, std::chrono::milliseconds(1500));
  metrics_.scrubbed(true, std::chrono::milliseconds(500));
  metrics_.scrubbed(false, std::chrono::milliseconds(500));
  EXPECT_THAT(text(), AllOf(HasSubstr("wsync_scrubs_total{result=\"equal\"} 2\n"),
                            HasSubstr("wsync_scrubs_total{result=\"damaged\"} 1\n"),
                            HasSubstr("wsync_scrub_cpu_seconds_total 2.5\n")));
}

TEST_F(Counted, LoadsByKindAndWhatPatchesHaveWritten) {
  metrics_.loaded({.bytes = 600, .written_bytes = 600});
  metrics_.patch_made(77);
  metrics_.patch_made(0);  // it was not worth making
  metrics_.loaded({.bytes = 600, .by_patch = true, .written_bytes = 6});
  metrics_.loaded({.bytes = 600, .failure = "its base", .by_patch = true});
  metrics_.loaded({.bytes = 600, .failure = "no room"});
  EXPECT_THAT(text(), AllOf(HasSubstr("wsync_loads_total{kind=\"full\"} 1\n"),
                            HasSubstr("wsync_loads_total{kind=\"patch\"} 1\n"),
                            HasSubstr("wsync_patch_fallbacks_total 1\n"),
                            HasSubstr("wsync_update_bytes_total{stage=\"load\"} 606\n"),
                            HasSubstr("wsync_update_bytes_total{stage=\"patch\"} 77\n")));
}

ReplicaFacts replica(ReplicaState state, bool ready, const Version& version = kFirst,
                     bool is_switching = false) {
  return {.report = {.replica = "a",
                     .world_size = 2,
                     .ranks_attached = 2,
                     .state = state,
                     .ready = ready,
                     .version = version,
                     .reason = "the reason"},
          .is_switching = is_switching};
}

TEST(SidecarReadiness, NeedsACommitOfEveryReplicaThatIsAttached) {
  EXPECT_EQ(sidecar_readiness({}).reason, "no engine is attached");
  ReplicaFacts gone = replica(ReplicaState::kAbsent, false, {});
  gone.report.ranks_attached = 0;
  EXPECT_EQ(sidecar_readiness({gone}).reason, "no engine is attached");
  EXPECT_EQ(sidecar_readiness({}, {{.replica = "r", .reason = "rank 0 is starting"}}).reason,
            "no engine is attached: replica 'r': rank 0 is starting");
  // It serves what it was started with, and nobody has decided anything.
  EXPECT_EQ(sidecar_readiness({replica(ReplicaState::kServing, true, {})}).reason,
            "replica 'a' is serving: no version has been committed to it yet");
  EXPECT_EQ(sidecar_readiness({replica(ReplicaState::kLoading, false, {})}).reason,
            "replica 'a' is loading: the reason");
  EXPECT_TRUE(sidecar_readiness({replica(ReplicaState::kServing, true)}).ready);
  EXPECT_TRUE(sidecar_readiness({gone, replica(ReplicaState::kServing, true)}).ready);
  EXPECT_FALSE(sidecar_readiness({replica(ReplicaState::kServing, true),
                                  replica(ReplicaState::kLoading, false, {})})
                   .ready);
}

TEST(SidecarReadiness, ASwitchIsNoReasonButTaintedStaleOrTornReplicasAre) {
  EXPECT_TRUE(sidecar_readiness({replica(ReplicaState::kPaused, false, kFirst, true)}).ready);
  EXPECT_TRUE(sidecar_readiness({replica(ReplicaState::kLoading, false, {}, true)}).ready);
  EXPECT_TRUE(sidecar_readiness({replica(ReplicaState::kBehind, true)}).ready);
  // Behind for longer than max_staleness.
  EXPECT_EQ(sidecar_readiness({replica(ReplicaState::kBehind, false)}).reason,
            "replica 'a' is behind: the reason");
  EXPECT_EQ(sidecar_readiness({replica(ReplicaState::kTainted, false, {}, true)}).reason,
            "replica 'a' is tainted: the reason");
  EXPECT_EQ(sidecar_readiness({replica(ReplicaState::kAbsent, false, {}, true)}).reason,
            "replica 'a' is absent: the reason");
  EXPECT_EQ(sidecar_readiness({replica(ReplicaState::kPaused, false)}).reason,
            "replica 'a' is paused: the reason");
}

}  // namespace
}  // namespace wsync::agent
