#include "trainer_side/plugin/publish_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "shared/base/limits.h"
#include "trainer_side/plugin/awaited_text.h"

namespace wsync::plugin {
namespace {

using control::PublishState;
using testing::HasSubstr;

TEST(PublishBoard, StatesOnlyGoForward) {
  PublishBoard board;
  const std::uint64_t id = board.open(3).value();
  const auto becomes = [&](PublishState state) {
    board.update(id, {.step = 3, .state = state});
    return board.look(id)->status.state;
  };
  EXPECT_EQ(becomes(PublishState::kSnapshotted), PublishState::kSnapshotted);
  EXPECT_EQ(becomes(PublishState::kStaged), PublishState::kStaged);
  EXPECT_EQ(becomes(PublishState::kSnapshotted), PublishState::kStaged);
  EXPECT_EQ(becomes(PublishState::kCommitted), PublishState::kCommitted);
  EXPECT_EQ(becomes(PublishState::kFailed), PublishState::kCommitted);
}

TEST(PublishBoard, ASnapshotIsRememberedAfterTheEnd) {
  PublishBoard board;
  const auto ends_as = [&](PublishState end, bool is_snapshotted) {
    const std::uint64_t id = board.open(0).value();
    EXPECT_FALSE(board.look(id)->is_snapshotted);
    if (is_snapshotted) board.update(id, {.state = PublishState::kSnapshotted});
    board.update(id, {.state = end});
    return board.look(id)->is_snapshotted;
  };
  EXPECT_TRUE(ends_as(PublishState::kFailed, true));
  EXPECT_TRUE(ends_as(PublishState::kSuperseded, true));
  EXPECT_TRUE(ends_as(PublishState::kCommitted, false));
  EXPECT_FALSE(ends_as(PublishState::kFailed, false));
}

TEST(PublishBoard, AWaitEndsWithTheStateOrWithThePublish) {
  PublishBoard board;
  const std::uint64_t id = board.open(0).value();
  EXPECT_EQ(board.wait(id, PublishState::kSnapshotted, now()).error().code(), ErrorCode::kDeadline);
  std::jthread other([&] {
    board.update(id, {.state = PublishState::kFailed, .code = ErrorCode::kBusy, .reason = "no"});
  });
  const auto view =
      board.wait(id, PublishState::kCommitted, now() + std::chrono::seconds(20)).value();
  EXPECT_EQ(view.status.state, PublishState::kFailed);
  EXPECT_EQ(view.status.reason, "no");
}

TEST(PublishBoard, AWaitThatIsOverSaysWhereThePublishIs) {
  PublishBoard board;
  const std::uint64_t id = board.open(7).value();
  const auto said = [&](PublishState wanted) {
    return board.wait(id, wanted, now()).error().message();
  };
  EXPECT_EQ(
      said(PublishState::kSnapshotted),
      "the publish of step 7 is pending (its weights are still being read) at the deadline, and "
      "not snapshotted; it goes on, and may be awaited again");
  board.update(id, {.step = 7, .state = PublishState::kSnapshotted, .reason = "nobody has joined"});
  board.awaits(id, "of its round");
  EXPECT_EQ(said(PublishState::kCommitted),
            "the publish of step 7 is snapshotted at the deadline, and not committed: nobody has "
            "joined; it goes on, and may be awaited again");
  board.update(id, {.step = 7, .state = PublishState::kStaged, .version = {1, 7}});
  EXPECT_EQ(
      said(PublishState::kCommitted),
      "the publish of 1.7 is staged at the deadline, and not committed: of its round; it goes "
      "on, and may be awaited again");
  const std::uint64_t unnamed = board.open(0).value();
  EXPECT_THAT(board.wait(unnamed, PublishState::kSnapshotted, now()).error().message(),
              HasSubstr("the publish of the next free step is pending"));
  board.update(id, {.step = 7, .state = PublishState::kCommitted});
  EXPECT_EQ(board.look(id)->reason(), "") << "it waits for nothing";
}

TEST(AwaitedText, NamesWhatIsMissing) {
  const Version version{.epoch = 1, .step = 5};
  const Version older{.epoch = 1, .step = 4};
  control::StatusReply fleet;
  fleet.sidecars = {{.name = "s0", .connected = true, .staged = {older, version}},
                    {.name = "s1", .connected = true, .staged = {older}},
                    {.name = "s2", .connected = false}};
  fleet.sidecars[0].replicas = {
      {.replica = "a", .state = control::ReplicaState::kServing, .version = version},
      {.replica = "b", .state = control::ReplicaState::kPaused, .version = older},
      {.replica = "c", .state = control::ReplicaState::kAbsent, .reason = "rank 1 has ended"}};
  const auto text = [&](control::ProgressPhase phase, std::uint64_t done = 0,
                        std::uint64_t total = 0) {
    return awaited_text(
        fleet, {.version = version, .phase = phase, .done_bytes = done, .total_bytes = total});
  };
  EXPECT_EQ(text(control::ProgressPhase::kStage, 1U << 20U, 4U << 20U),
            "not staged yet by sidecar 's1', 's2' (not connected); 1.00 MiB of 4.00 MiB have "
            "arrived");
  EXPECT_EQ(text(control::ProgressPhase::kSwitch),
            "not served yet by replica 'b' of sidecar 's0' (it is paused), 'c' of sidecar 's0' "
            "(rank 1 has ended)");
  EXPECT_THAT(text(control::ProgressPhase::kAnnounce), HasSubstr("announced to 3 sidecars"));
  EXPECT_THAT(text(control::ProgressPhase::kSnapshot), HasSubstr("the version before it"));
  EXPECT_EQ(awaited_text(fleet, {}), "") << "it has no round";
  fleet.sidecars.resize(1);
  fleet.sidecars[0].replicas.resize(1);
  EXPECT_THAT(text(control::ProgressPhase::kStage), HasSubstr("is being decided"));
  EXPECT_THAT(text(control::ProgressPhase::kSwitch), HasSubstr("every replica serves it"));
  for (int i = 0; i < 7; ++i)
    fleet.sidecars.push_back({.name = "t" + std::to_string(i), .connected = true});
  EXPECT_THAT(text(control::ProgressPhase::kStage), HasSubstr("'t4' and 2 more"));
}

TEST(PublishBoard, AStepHasOnePublishAtATime) {
  PublishBoard board;
  const std::uint64_t first = board.open(7).value();
  EXPECT_THAT(board.open(7).error().message(), HasSubstr("step 7 is being published already"));
  EXPECT_TRUE(board.open(0).has_value());
  EXPECT_TRUE(board.open(0).has_value());
  EXPECT_TRUE(board.open(7, Weights::kSame).has_value());
  EXPECT_FALSE(board.open(7).has_value());
  board.update(board.open(7, Weights::kSame).value(), {.step = 7, .state = PublishState::kFailed});
  board.update(first + 3, {.step = 7, .state = PublishState::kFailed});
  board.update(first, {.step = 7, .state = PublishState::kFailed});
  EXPECT_TRUE(board.open(7).has_value());
}

TEST(PublishBoard, ThoseThatEndedAreForgottenInTheirOrder) {
  PublishBoard board;
  const std::uint64_t open = board.open(0).value();
  const std::uint64_t first = board.open(0).value();
  board.update(first, {.state = PublishState::kCommitted});
  for (std::uint64_t i = 0; i < limits::kPublishesRemembered; ++i)
    board.update(board.open(0).value(), {.state = PublishState::kCommitted});
  EXPECT_THAT(board.look(first).error().message(), HasSubstr("is no longer kept"));
  EXPECT_TRUE(board.look(first + 1).has_value());
  EXPECT_TRUE(board.look(open).has_value());
  EXPECT_THAT(board.look(1'000'000).error().message(), HasSubstr("publish 1000000 does not exist"));
  board.fail_all(Error(ErrorCode::kCancelled, "over"));
  EXPECT_EQ(board.look(open)->status.reason, "over");
  EXPECT_EQ(board.look(first + 1)->status.state, PublishState::kCommitted);
}

}  // namespace
}  // namespace wsync::plugin
