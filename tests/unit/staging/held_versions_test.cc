// The copies that a sidecar holds, and the checks of copies that could not be loaded.
#include "inference_side/staging/held_versions.h"

#include <gtest/gtest.h>

#include "tests/support/versions.h"

namespace wsync::staging {
namespace {

HeldCopy copy_of(const Version& version) {
  return {.version = version, .content = {.low = version.step}, .bytes = 8};
}

TEST(HeldVersions, KeepsTheOrderInWhichCopiesCame) {
  HeldVersions held(2, {});
  EXPECT_TRUE(held.empty());
  held.add(copy_of(kV3));
  held.add(copy_of(kV1));
  EXPECT_EQ(held.oldest_first(), (std::vector{kV3, kV1}));
  EXPECT_EQ(held.versions(), (std::vector{kV1, kV3}));
  ASSERT_NE(held.find(kV3), nullptr);
  EXPECT_EQ(held.find(kV3)->content.low, 3U);
  EXPECT_EQ(held.find(kV2), nullptr);
  EXPECT_EQ(held.remove(kV3), std::vector{kV3});
  EXPECT_TRUE(held.remove(kV3).empty());
  EXPECT_EQ(held.size(), 1U);
}

TEST(HeldVersions, NamesWhatWasNeverDecided) {
  HeldVersions held(3, {copy_of(kV1), copy_of(kV2)});
  held.mark_decided(kV1);
  held.mark_decided(kV3);  // not held
  EXPECT_EQ(held.never_decided(), std::vector{kV2});
}

TEST(HeldVersions, GoesBackToTheGreatestVersionBelowTheTarget) {
  const HeldVersions held(4, {copy_of(kV2), copy_of(kV1), copy_of(kV3)});
  EXPECT_EQ(held.rollback_target(kV3, {}), kV2);
  EXPECT_EQ(held.rollback_target(kV3, std::vector{kV2}), kV1);
  EXPECT_EQ(held.rollback_target(kV1, {}), std::nullopt);
}

TEST(HeldVersions, ACheckIsVoidOnceItsCopyIsReleased) {
  HeldVersions held(2, {copy_of(kV1)});
  EXPECT_FALSE(held.check(kV2));
  const auto first = held.check(kV1);
  ASSERT_TRUE(first);
  EXPECT_FALSE(held.check(kV1)) << "it is being checked";
  EXPECT_EQ(held.checked_by(first->check), kV1);
  held.confirm(kV1);
  EXPECT_FALSE(held.checked_by(first->check)) << "the check is over";
  const auto second = held.check(kV1);
  ASSERT_TRUE(second);
  EXPECT_NE(second->check, first->check);
  EXPECT_EQ(held.remove(kV1), std::vector{kV1});
  held.add(copy_of(kV1));
  EXPECT_FALSE(held.checked_by(second->check)) << "that was another copy";
}

HeldCopy changes_of(const Version& version, const Version& base) {
  HeldCopy copy = copy_of(version);
  copy.base = base;
  return copy;
}

TEST(HeldVersions, CompletesWhatIsNearestToTheBytesFirst) {
  HeldVersions held(3, {copy_of(kV1), changes_of(kV2, kV1), changes_of(kV3, kV2)});
  EXPECT_EQ(held.complete_versions(), std::vector{kV1});
  EXPECT_EQ(held.next_to_complete(kV1), std::nullopt) << "it is complete";
  EXPECT_EQ(held.next_to_complete(kV3), kV2);
  const CompleteVersion command = held.begin_completion(kV2, true);
  EXPECT_EQ(command.base, kV1);
  EXPECT_EQ(held.next_to_complete(kV3), std::nullopt) << "one at a time";
  EXPECT_TRUE(held.is_changing(kV1));
  EXPECT_TRUE(held.is_changing(kV2));
  EXPECT_FALSE(held.check(kV1)) << "its bytes belong to nobody";
  EXPECT_TRUE(held.complete(true).empty());
  EXPECT_EQ(held.complete_versions(), std::vector{kV2});
  EXPECT_EQ(held.find(kV1)->base, kV2);
  EXPECT_EQ(held.next_to_complete(kV3), kV3);
  EXPECT_TRUE(held.invariants().has_value());
}

TEST(HeldVersions, RemovesWhatLeadsFromACopyWithIt) {
  HeldVersions held(3, {copy_of(kV1), changes_of(kV2, kV1), changes_of(kV3, kV2)});
  EXPECT_EQ(held.dependents(kV1), std::vector{kV2});
  EXPECT_EQ(held.remove(kV2), (std::vector{kV3, kV2}));
  EXPECT_EQ(held.versions(), std::vector{kV1});
}

TEST(HeldVersions, AFailedCompletionLosesTheBaseOnlyIfItsMemoryWasChanged) {
  HeldVersions beside(2, {copy_of(kV1), changes_of(kV2, kV1)});
  EXPECT_EQ(beside.begin_completion(kV2, true).version, kV2);
  EXPECT_EQ(beside.fail_completion(false), std::vector{kV2});
  EXPECT_EQ(beside.complete_versions(), std::vector{kV1});
  HeldVersions lost(2, {copy_of(kV1), changes_of(kV2, kV1)});
  EXPECT_TRUE(lost.begin_completion(kV2, true).in_place);
  EXPECT_EQ(lost.fail_completion(true), (std::vector{kV2, kV1}));
  EXPECT_TRUE(lost.empty());
  EXPECT_TRUE(lost.invariants().has_value());
}

TEST(HeldVersions, ChangesThatLeadFromNoCopyBreakARule) {
  const HeldVersions held(2, {changes_of(kV2, kV1)});
  ASSERT_FALSE(held.invariants().has_value());
  EXPECT_EQ(held.invariants().error().message(), "what changes in 1.2 leads from no copy");
}

TEST(HeldVersions, InvariantsNameWhatIsTooMuchOrHeldTwice) {
  HeldVersions many(1, {copy_of(kV1), copy_of(kV2)});
  EXPECT_TRUE(many.invariants().has_value()) << "one more may arrive before one is let go";
  many.add(copy_of(kV3));
  ASSERT_FALSE(many.invariants().has_value());
  EXPECT_EQ(many.invariants().error().message(), "3 versions held, at most 2 allowed");
  HeldVersions twice(2, {copy_of(kV1), copy_of(kV1)});
  ASSERT_FALSE(twice.invariants().has_value());
  EXPECT_EQ(twice.invariants().error().message(), "version 1.1 is held twice");
}

TEST(HeldVersionsDeathTest, AMoveWithoutARowAborts) {
  HeldVersions held(1, {copy_of(kV1)});
  EXPECT_DEATH(held.confirm(kV1), "the copy of 1.1 cannot go from held to held");
}

}  // namespace
}  // namespace wsync::staging
