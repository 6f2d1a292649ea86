#include "trainer_side/plugin/publish_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "shared/base/limits.h"

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

TEST(PublishBoard, AStepHasOnePublishAtATime) {
  PublishBoard board;
  const std::uint64_t first = board.open(7).value();
  EXPECT_THAT(board.open(7).error().message(), HasSubstr("publish 1 of step 7 has not ended"));
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
