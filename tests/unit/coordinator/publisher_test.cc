// A coordinator whose trainer is another process, which attaches and is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/coordinator_fleet.h"

namespace wsync::coordinator {
namespace {

using control::Abort;
using control::Announce;
using control::Decide;
using control::Stage;
using control::Welcome;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class AttachedPublisher : public testing::Test {
 protected:
  static CoordinatorOptions options() { return {.min_sidecars = 2, .publisher_attaches = true}; }
  AttachedPublisher() : fleet(options()) {
    // As the process does: it has no addresses of a trainer before one has attached.
    fleet.coordinator.serve_by({});
  }
  void attach(std::uint64_t process = 1) {
    fleet.step(
        PublisherAttached{.transports = {{"memfd", "/run/host.sock"}, {"tcp", "tcp://127.0.0.1:1"}},
                          .secret = std::nullopt,
                          .boot_id = "boot",
                          .process = process});
  }
  void lose() { fleet.step(PublisherLost{.reason = "the trainer is gone"}); }
  // Both say Hello again to the Welcome that follows the attachment.
  void rejoin() {
    for (const char* name : {"a", "b"}) fleet.from(name, Fleet::hello(name, staged_));
  }
  void publish(std::uint64_t request, bool is_kept = false) {
    const auto version = fleet.coordinator.next_version();
    ASSERT_TRUE(version.has_value());
    PublishRequested publish = Fleet::snapshot(request, *version);
    publish.is_kept = is_kept;
    fleet.step(std::move(publish));
  }
  void begin() {
    attach();
    fleet.join_all({"a", "b"});
    rejoin();
  }

  Fleet fleet;
  std::vector<Version> staged_;
};

TEST_F(AttachedPublisher, SidecarsAreToldWhereTheTrainerServesWhenItHasAttached) {
  fleet.join_all({"a", "b"});
  EXPECT_THAT(fleet.last<Welcome>("a")->second.transports, IsEmpty());
  EXPECT_THAT(fleet.coordinator.status().activity, HasSubstr("no trainer is connected"));
  EXPECT_THAT(fleet.incidents, IsEmpty()) << "that nobody serves yet is no failure";
  EXPECT_THAT(fleet.coordinator.transport_problems(), IsEmpty());
  attach(5);
  EXPECT_THAT(fleet.last<Welcome>("a")->second.transports, SizeIs(2));
  EXPECT_EQ(fleet.last<Welcome>("b")->second.trainer, 5U);
  rejoin();
  const control::StatusReply status = fleet.coordinator.status();
  ASSERT_THAT(status.sidecars, SizeIs(2));
  EXPECT_EQ(status.sidecars[0].transport, "memfd");
  EXPECT_THAT(fleet.coordinator.status().activity, testing::Not(HasSubstr("no trainer")));
  publish(1);
  for (const char* name : {"a", "b"}) fleet.accept(name);
  EXPECT_EQ(fleet.last<Stage>("a")->second.transport, "memfd");
}

TEST_F(AttachedPublisher, ARoundWithoutAllItsBytesEndsWithTheTrainer) {
  begin();
  publish(1);
  fleet.accept("a");
  fleet.accept("b");
  fleet.staged("a");
  lose();
  ASSERT_THAT(fleet.rounds, SizeIs(1));
  EXPECT_EQ(fleet.rounds[0].reply.reason, "the trainer is gone");
  EXPECT_FALSE(fleet.rounds[0].reply.ok);
  EXPECT_EQ(fleet.count<Abort>("a"), 1U);
  EXPECT_EQ(fleet.count<Decide>("a"), 0U);
  EXPECT_EQ(fleet.dropped, std::vector({Version{1, 1}}));
  EXPECT_FALSE(fleet.coordinator.holds({1, 1}));
}

TEST_F(AttachedPublisher, ARoundThatEverySidecarHasStagedGoesOnWithoutTheTrainer) {
  fleet.hold_stores = false;
  begin();
  publish(1);
  fleet.accept("a");
  fleet.accept("b");
  fleet.staged("a");
  fleet.hold_stores = true;  // the decision is being stored when the trainer is lost
  fleet.staged("b");
  lose();
  EXPECT_THAT(fleet.rounds, IsEmpty());
  fleet.hold_stores = false;
  fleet.answer_store();
  fleet.switched("a");
  fleet.switched("b");
  ASSERT_THAT(fleet.rounds, SizeIs(1));
  EXPECT_TRUE(fleet.rounds[0].reply.ok) << fleet.rounds[0].reply.reason;
  EXPECT_EQ(fleet.coordinator.target(), (Version{1, 1}));
}

TEST_F(AttachedPublisher, ADecidedRoundGoesOnAndNoTrainerIsAskedForItsVersionAfterIt) {
  begin();
  publish(1);
  for (const char* name : {"a", "b"}) fleet.accept(name);
  for (const char* name : {"a", "b"}) fleet.staged(name);
  lose();
  fleet.switched("a");
  fleet.switched("b");
  ASSERT_THAT(fleet.rounds, SizeIs(1));
  EXPECT_TRUE(fleet.rounds[0].reply.ok);
  EXPECT_FALSE(fleet.coordinator.holds({1, 1}));
  // It is held by sidecars that cannot pass it on to one that comes now.
  for (const char* name : {"a", "b"}) {
    control::Hello hello = Fleet::hello(name, {{1, 1}});
    hello.transports = {{"memfd", ""}};
    fleet.from(name, hello);
  }
  fleet.join("c");
  EXPECT_EQ(fleet.count<Announce>("c"), 0U);
  attach(2);
  fleet.from("c", Fleet::hello("c"));
  EXPECT_EQ(fleet.count<Announce>("c"), 0U) << "the other trainer has no such version";
  publish(2);
  EXPECT_EQ(fleet.count<Announce>("c"), 1U);
}

TEST_F(AttachedPublisher, APublishThatIsKeptIsGivenBackAndMayBeRequestedAgain) {
  begin();
  publish(1, true);
  fleet.accept("a");
  lose();
  EXPECT_THAT(fleet.rounds, IsEmpty());
  ASSERT_THAT(fleet.lost, SizeIs(1));
  EXPECT_EQ(fleet.lost[0].version, (Version{1, 1}));
  attach();
  rejoin();
  PublishRequested again = Fleet::snapshot(2, {1, 1});
  again.is_kept = true;
  fleet.step(std::move(again));
  for (const char* name : {"a", "b"}) fleet.accept(name);
  for (const char* name : {"a", "b"}) fleet.staged(name);
  EXPECT_EQ(fleet.coordinator.target(), (Version{1, 1}));
}

TEST_F(AttachedPublisher, ThePublishThatWaitsForItsRoundEndsWithTheTrainer) {
  begin();
  publish(1);
  publish(2);
  lose();
  ASSERT_THAT(fleet.rounds, SizeIs(2));
  for (const RoundDone& done : fleet.rounds) EXPECT_EQ(done.reply.reason, "the trainer is gone");
}

TEST_F(AttachedPublisher, TheKeptPublishThatWaitsForItsRoundIsGivenBack) {
  begin();
  publish(1);
  publish(2, true);
  lose();
  EXPECT_THAT(fleet.rounds, SizeIs(1));
  ASSERT_THAT(fleet.lost, SizeIs(1));
  EXPECT_EQ(fleet.lost[0].version, (Version{1, 2}));
}

TEST_F(AttachedPublisher, ARollbackNeedsNoTrainer) {
  begin();
  for (const std::uint64_t request : {1U, 2U}) {
    publish(request);
    for (const char* name : {"a", "b"}) fleet.accept(name);
    for (const char* name : {"a", "b"}) fleet.staged(name);
    for (const char* name : {"a", "b"}) fleet.switched(name);
  }
  lose();
  fleet.step(RollbackRequested{.request = 9, .to = {}});
  for (const char* name : {"a", "b"}) fleet.switched(name);
  ASSERT_THAT(fleet.rollbacks, SizeIs(1));
  EXPECT_TRUE(fleet.rollbacks[0].reply.ok) << fleet.rollbacks[0].reply.reason;
  EXPECT_EQ(fleet.coordinator.target(), (Version{1, 1}));
}

}  // namespace
}  // namespace wsync::coordinator
