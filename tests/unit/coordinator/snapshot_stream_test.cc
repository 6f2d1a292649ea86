// Rounds that begin with the snapshot: bytes move before the content digest is known, and nothing
// is decided before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/coordinator_fleet.h"

namespace wsync::coordinator {
namespace {

using control::Announce;
using control::Decide;
using control::Stage;
using control::Staged;
using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr std::uint64_t kModelBytes = 100;

// A sidecar of another host, which receives copies.
control::Hello distant(const std::string& name) {
  control::Hello hello = Fleet::hello(name);
  hello.boot_id = "boot of " + name;
  return hello;
}

class SnapshotStream : public testing::Test {
 protected:
  void publish(std::optional<TimePoint> deadline = {}, std::uint64_t step = 0) {
    const auto version = fleet.coordinator.next_version(step);
    ASSERT_TRUE(version.has_value()) << version.error().message();
    version_ = *version;
    fleet.step(PublishRequested{.request = ++request_,
                                .version = version_,
                                .layout_digest = {1, 1},
                                .layout = Bytes(4),
                                .bucket_bytes = 1,
                                .arena_bytes = kModelBytes,
                                .is_complete = false,
                                .was_streamed = true,
                                .deadline = deadline});
  }
  [[nodiscard]] Digest content() const { return {2, version_.step}; }
  void snapshot_complete() {
    fleet.step(SnapshotEnded{.version = version_, .content_digest = content(), .snapshot_ns = 77});
  }
  void staged(const std::string& peer) {
    fleet.from(peer, Staged{.version = version_, .content_digest = content(), .bytes = kModelBytes},
               fleet.last<Announce>(peer)->first.round);
  }
  [[nodiscard]] Stage last_stage(const std::string& peer) {
    const auto stage = fleet.last<Stage>(peer);
    EXPECT_TRUE(stage.has_value()) << peer;
    return stage ? stage->second : Stage{};
  }
  void accept_all(const std::vector<std::string>& peers) {
    for (const std::string& peer : peers) fleet.accept(peer);
  }

  Fleet fleet;
  Version version_;
  std::uint64_t request_ = 0;
};

TEST_F(SnapshotStream, BytesMoveBeforeTheDigestIsKnownAndTheDecisionComesAfterIt) {
  fleet.join("a", distant("a"));
  EXPECT_TRUE(fleet.coordinator.may_stream());
  publish();
  EXPECT_FALSE(fleet.coordinator.may_stream()) << "one round at a time";
  EXPECT_EQ(fleet.last<Announce>("a")->second.content_digest, Digest{});
  fleet.accept("a");
  EXPECT_EQ(last_stage("a").content_digest, Digest{});
  EXPECT_EQ(last_stage("a").transport, "tcp");
  EXPECT_THAT(fleet.coordinator.status().activity, HasSubstr("staging"));
  EXPECT_THAT(fleet.coordinator.status().activity, HasSubstr("whose snapshot is under way"));
  snapshot_complete();
  EXPECT_EQ(fleet.count<Stage>("a"), 2U);
  EXPECT_EQ(last_stage("a").content_digest, content());
  EXPECT_EQ(last_stage("a").source, "tcp://127.0.0.1:1");
  EXPECT_EQ(fleet.last<Stage>("a")->first.round, fleet.last<Announce>("a")->first.round);
  EXPECT_EQ(fleet.coordinator.status().activity.find("under way"), std::string::npos);
  staged("a");
  ASSERT_TRUE(fleet.last<Decide>("a").has_value());
  EXPECT_EQ(fleet.record.content, content());
  EXPECT_EQ(fleet.last<Decide>("a")->second.content_digest, content());
  fleet.switched("a");
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
  EXPECT_EQ(fleet.rounds[0].reply.content_digest, content());
  EXPECT_EQ(fleet.rounds[0].reply.snapshot_ns, 77U);
}

TEST_F(SnapshotStream, NothingIsDecidedWithoutTheDigest) {
  fleet.join("a", distant("a"));
  publish();
  fleet.accept("a");
  staged("a");  // of a sidecar that has gone wrong
  EXPECT_FALSE(fleet.last<Decide>("a").has_value())
      << "a version is decided before its content digest is known";
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_THAT(fleet.rounds[0].reply.reason, HasSubstr("before its content digest was known"));
  EXPECT_TRUE(fleet.coordinator.target().none());
}

TEST_F(SnapshotStream, ThoseThatMapTheSourceWaitForTheEndOfTheSnapshot) {
  fleet.join_all({"a"});
  EXPECT_FALSE(fleet.coordinator.may_stream()) << "nobody would gain";
  fleet.join("b", distant("b"));
  EXPECT_TRUE(fleet.coordinator.may_stream());
  publish();
  accept_all({"a", "b"});
  EXPECT_EQ(fleet.count<Stage>("a"), 0U) << "its source is being written";
  EXPECT_EQ(fleet.count<Stage>("b"), 1U);
  snapshot_complete();
  EXPECT_EQ(last_stage("a").transport, "memfd");
  EXPECT_EQ(last_stage("a").content_digest, content());
  EXPECT_EQ(last_stage("b").content_digest, content());
  staged("b");
  EXPECT_FALSE(fleet.last<Decide>("b").has_value());
  staged("a");
  EXPECT_TRUE(fleet.last<Decide>("a").has_value());
  EXPECT_TRUE(fleet.last<Decide>("b").has_value());
}

TEST_F(SnapshotStream, ASnapshotThatEndsWhileItIsAnnouncedIsStagedWithItsDigest) {
  fleet.join("a", distant("a"));
  publish();
  snapshot_complete();
  EXPECT_EQ(fleet.count<Stage>("a"), 0U);
  fleet.accept("a");
  EXPECT_EQ(fleet.count<Stage>("a"), 1U);
  EXPECT_EQ(last_stage("a").content_digest, content());
}

TEST_F(SnapshotStream, AFailedSnapshotEndsTheRoundForItsReasonAndItsNameIsFree) {
  fleet.join("a", distant("a"));
  publish({}, 5);
  fleet.accept("a");
  fleet.step(SnapshotEnded{.version = version_, .failure = "the source cannot be read"});
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_FALSE(fleet.rounds[0].cancelled);
  EXPECT_EQ(fleet.rounds[0].reply.reason, "the source cannot be read");
  const auto abort = fleet.last<control::Abort>("a");
  ASSERT_TRUE(abort.has_value());
  EXPECT_EQ(abort->second.version, version_);
  EXPECT_EQ(abort->first.round, fleet.last<Announce>("a")->first.round);
  EXPECT_EQ(fleet.dropped, (std::vector<Version>{version_}));
  const std::uint64_t round = fleet.last<Announce>("a")->first.round;
  publish({}, 5);  // its bytes were never known under that name
  EXPECT_GT(fleet.last<Announce>("a")->first.round, round);
  snapshot_complete();
  EXPECT_FALSE(fleet.coordinator.next_version(5).has_value()) << "now they are";
}

TEST_F(SnapshotStream, AStoppedSnapshotEndsTheRoundAsCancelled) {
  fleet.join("a", distant("a"));
  publish();
  fleet.step(SnapshotEnded{.version = version_, .failure = "it was stopped", .cancelled = true});
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].cancelled);
}

TEST_F(SnapshotStream, WhatIsCancelledIgnoresTheEndOfItsSnapshot) {
  fleet.join("a", distant("a"));
  publish();
  fleet.accept("a");
  EXPECT_TRUE(fleet.cancel().ok);
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_TRUE(fleet.rounds[0].cancelled);
  const std::size_t sent = fleet.sends.size();
  snapshot_complete();
  EXPECT_EQ(fleet.sends.size(), sent);
  EXPECT_EQ(fleet.rounds.size(), 1U);
}

TEST_F(SnapshotStream, TheDigestIsSentAgainToASidecarThatMayWaitForIt) {
  fleet.join("a", distant("a"));
  publish();
  fleet.accept("a");
  const auto beat = [&](std::uint64_t sequence, std::uint64_t bytes) {
    fleet.from("a", control::Heartbeat{.sequence = sequence,
                                       .staged_bytes = bytes,
                                       .replicas = Fleet::hello("a").replicas});
  };
  beat(1, 50);
  beat(2, 50);
  EXPECT_EQ(fleet.count<Stage>("a"), 1U) << "it is not known";
  snapshot_complete();
  beat(3, 60);
  EXPECT_EQ(fleet.count<Stage>("a"), 2U) << "bytes arrive";
  beat(4, 60);
  EXPECT_EQ(fleet.count<Stage>("a"), 3U);
  EXPECT_EQ(last_stage("a").content_digest, content());
  staged("a");
  beat(5, 60);
  EXPECT_EQ(fleet.count<Stage>("a"), 3U) << "it has answered";
}

TEST_F(SnapshotStream, StagingHasItsTimeFromTheEndOfTheSnapshot) {
  fleet.join("a", distant("a"));
  const TimePoint deadline = fleet.now + milliseconds(3'600'000);
  publish(deadline);
  fleet.accept("a");
  ASSERT_NE(fleet.coordinator.next_wake(), std::nullopt);
  EXPECT_EQ(*fleet.coordinator.next_wake(), deadline) << "only the whole publish has a deadline";
  fleet.now = fleet.now + milliseconds(60'000);
  snapshot_complete();
  EXPECT_LT(*fleet.coordinator.next_wake(), deadline);
  fleet.wake();
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_THAT(fleet.rounds[0].reply.reason, HasSubstr("no answer before the deadline"));
}

TEST_F(SnapshotStream, TheDeadlineOfThePublishEndsARoundWhoseSnapshotDoesNot) {
  fleet.join("a", distant("a"));
  publish(fleet.now + milliseconds(90'000));
  fleet.accept("a");
  fleet.wake();
  ASSERT_EQ(fleet.rounds.size(), 1U);
  EXPECT_THAT(fleet.rounds[0].reply.reason, HasSubstr("deadlines.publish"));
  EXPECT_TRUE(fleet.last<control::Abort>("a").has_value());
}

TEST_F(SnapshotStream, AnotherSourceAndALateLayoutComeWithWhatIsKnown) {
  fleet.join("a", distant("a"));
  publish();
  fleet.from("a", control::Refuse{.version = version_, .reason = "unknown", .layout_unknown = true},
             fleet.last<Announce>("a")->first.round);
  EXPECT_EQ(fleet.count<Announce>("a"), 2U);
  EXPECT_EQ(fleet.last<Announce>("a")->second.content_digest, Digest{});
  fleet.accept("a");
  const auto lose_source = [&] {
    fleet.from("a", Staged{.version = version_, .failure = "hung up", .source_lost = true},
               fleet.last<Announce>("a")->first.round);
  };
  lose_source();
  EXPECT_EQ(fleet.count<Stage>("a"), 2U);
  EXPECT_EQ(last_stage("a").content_digest, Digest{});
  snapshot_complete();
  lose_source();
  EXPECT_EQ(fleet.count<Stage>("a"), 4U);
  EXPECT_EQ(last_stage("a").content_digest, content());
}

TEST_F(SnapshotStream, AChainGetsTheDigestFromTheCoordinator) {
  for (const char* name : {"a", "b"}) fleet.join(name, distant(name));
  publish();
  accept_all({"a", "b"});
  const std::string relay = last_stage("b").source;
  EXPECT_NE(relay, last_stage("a").source) << "b reads from a";
  snapshot_complete();
  EXPECT_EQ(last_stage("b").source, relay);
  EXPECT_EQ(last_stage("b").content_digest, content());
}

// The sidecar finds out that its relay is dead before the coordinator does.
TEST_F(SnapshotStream, ARelayThatWasLostIsNotNamedAgain) {
  for (const char* name : {"a", "b"}) fleet.join(name, distant(name));
  publish();
  accept_all({"a", "b"});
  const std::string relay = last_stage("b").source;
  fleet.from("b", Staged{.version = version_, .failure = "hung up", .source_lost = true},
             fleet.last<Announce>("b")->first.round);
  EXPECT_NE(last_stage("b").source, relay);
  EXPECT_EQ(last_stage("b").source, last_stage("a").source) << "the trainer";
}

TEST_F(SnapshotStream, APublishThatMustWaitAfterAllIsCompletedOrEndedThere) {
  fleet.join("a", distant("a"));
  fleet.publish(50);
  publish();
  snapshot_complete();
  fleet.accept("a");
  fleet.staged("a");
  fleet.switched("a");
  EXPECT_EQ(fleet.last<Announce>("a")->second.content_digest, content());
  publish();
  fleet.step(SnapshotEnded{.version = version_, .failure = "the source cannot be read"});
  ASSERT_EQ(fleet.rounds.size(), 2U);
  EXPECT_EQ(fleet.rounds[1].reply.reason, "the source cannot be read");
}

TEST_F(SnapshotStream, ItMayNotBeginWhileTheFleetIsNotReady) {
  EXPECT_FALSE(fleet.coordinator.may_stream()) << "nothing is claimed";
  fleet.hold_stores = true;
  fleet.join("a", distant("a"));
  EXPECT_FALSE(fleet.coordinator.may_stream()) << "the claim is being stored";
}

}  // namespace
}  // namespace wsync::coordinator
