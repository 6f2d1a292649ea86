#include "trainer_side/publish/arena_wait.h"

#include <gtest/gtest.h>

namespace wsync::publish {
namespace {

using std::chrono::milliseconds;

constexpr TimePoint kBegun{1'000'000'000};

TEST(ArenaWait, BelowTheMaximumAnArenaIsCreatedAtOnce) {
  const ArenaWait wait(3, false, kBegun, kBegun + milliseconds(100));
  EXPECT_TRUE(wait.may_create(0, 0, kBegun));
  EXPECT_TRUE(wait.may_create(2, 2, kBegun));
  EXPECT_FALSE(wait.may_create(3, 0, kBegun + milliseconds(100)));
}

TEST(ArenaWait, AnArenaThatOnlyOthersReadDoesNotCountAfterTheTimeToReleaseIt) {
  const ArenaWait wait(3, true, kBegun, kBegun + milliseconds(10'000));
  EXPECT_FALSE(wait.may_create(3, 2, kBegun));
  EXPECT_FALSE(wait.may_create(3, 2, kBegun + milliseconds(499)));
  EXPECT_TRUE(wait.may_create(3, 2, kBegun + milliseconds(500)));
  EXPECT_TRUE(wait.may_create(8, 2, kBegun + milliseconds(500))) << "one for each that hangs";
  EXPECT_FALSE(wait.may_create(8, 3, kBegun + milliseconds(500))) << "the maximum is needed here";
}

TEST(ArenaWait, AShortWaitLeavesTimeForTheAdditionalArena) {
  const ArenaWait wait(3, true, kBegun, kBegun + milliseconds(100));
  EXPECT_FALSE(wait.may_create(3, 2, kBegun + milliseconds(49)));
  EXPECT_TRUE(wait.may_create(3, 2, kBegun + milliseconds(50)));
  // Without any time nothing can be decided, so the maximum holds.
  const ArenaWait none(3, true, kBegun, kBegun);
  EXPECT_FALSE(none.may_create(3, 0, kBegun + milliseconds(1'000)));
}

TEST(ArenaWait, WithoutMemoryForAnotherArenaItWaitsForAReader) {
  ArenaWait wait(3, true, kBegun, kBegun + milliseconds(10'000));
  wait.note_full(Error(ErrorCode::kResourceExhausted, "too little memory"));
  EXPECT_FALSE(wait.may_create(3, 2, kBegun + milliseconds(500)));
  ASSERT_TRUE(wait.full().has_value());
  EXPECT_EQ(wait.full()->code(), ErrorCode::kResourceExhausted);
}

TEST(ArenaWait, ItEndsAtItsDeadline) {
  const ArenaWait wait(3, true, kBegun, kBegun + milliseconds(100));
  EXPECT_FALSE(wait.is_over(kBegun + milliseconds(99)));
  EXPECT_TRUE(wait.is_over(kBegun + milliseconds(100)));
}

TEST(ArenaWait, EachArenaAboveTheMaximumIsForAReaderThatHangs) {
  const ArenaWait wait(3, true, kBegun, kBegun + milliseconds(100));
  EXPECT_EQ(wait.surplus(3, 0), 0U);
  EXPECT_EQ(wait.surplus(5, 0), 2U);
  EXPECT_EQ(wait.surplus(5, 1), 1U);
  EXPECT_EQ(wait.surplus(5, 2), 0U);
  EXPECT_EQ(wait.surplus(3, 2), 0U);
}

}  // namespace
}  // namespace wsync::publish
