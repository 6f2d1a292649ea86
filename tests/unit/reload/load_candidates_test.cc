// Which versions may be loaded, and for how long one that failed is put off.
#include "inference_side/reload/load_candidates.h"

#include <gtest/gtest.h>

#include "tests/support/versions.h"

namespace wsync::reload {
namespace {

using std::chrono::seconds;

constexpr TimePoint kNow{1};

LoadCandidates staged() {
  LoadCandidates candidates(seconds(1), seconds(3));
  candidates.set_staged({kV1, kV2});
  return candidates;
}

TEST(LoadCandidates, AVersionIsLoadableWhenItIsStagedAndNotWithdrawn) {
  LoadCandidates candidates(seconds(1), seconds(3));
  EXPECT_FALSE(candidates.loadable(kV1));
  candidates.set_staged({{}, kV1, kV2});
  EXPECT_TRUE(candidates.loadable(kV1));
  EXPECT_FALSE(candidates.loadable({})) << "0.0 is no version";
  candidates.set_withdrawn({kV1});
  EXPECT_FALSE(candidates.loadable(kV1));
  EXPECT_TRUE(candidates.withdrawn(kV1));
  EXPECT_FALSE(candidates.withdrawn(kV2));
}

TEST(LoadCandidates, AVersionThatDoesNotFitARankIsNotLoadableWhileTheRankIsAttached) {
  LoadCandidates candidates = staged();
  candidates.set_unfit(1, {{.version = kV1, .why = "w (the engine expects it)"}});
  EXPECT_FALSE(candidates.loadable(kV1));
  EXPECT_TRUE(candidates.loadable(kV2));
  EXPECT_EQ(candidates.unfit(kV1),
            "version 1.1 does not fit rank 1: w (the engine expects it): publish the model of this "
            "engine, or end it");
  EXPECT_FALSE(candidates.unfit(kV2));
  candidates.add_unfit(1, {.version = kV2, .why = "x"});
  candidates.add_unfit(1, {.version = kV2, .why = "again"});
  EXPECT_EQ(candidates.unfit(kV2),
            "version 1.2 does not fit rank 1: x: publish the model of this engine, or end it");
  // Neither a decision, nor another engine, nor another copy changes the tensors of this one.
  candidates.reset(true);
  candidates.forget_failures();
  candidates.set_staged({});
  candidates.set_staged({kV1, kV2});
  EXPECT_FALSE(candidates.loadable(kV1));
  EXPECT_FALSE(candidates.next_wake()) << "it is not tried again by itself";
  candidates.set_unfit(0, {{.version = kV1, .why = "v"}});
  candidates.forget_rank(1);
  EXPECT_FALSE(candidates.loadable(kV1));
  EXPECT_TRUE(candidates.loadable(kV2));
  candidates.set_unfit(0, {});
  EXPECT_TRUE(candidates.loadable(kV1));
}

TEST(LoadCandidates, AVersionHasTwoChancesAndIsThenPostponedForLongerEachTime) {
  LoadCandidates candidates = staged();
  for (const seconds wait : {seconds(1), seconds(2), seconds(3), seconds(3)}) {
    candidates.begin(kV2);
    EXPECT_TRUE(candidates.count_failure());
    candidates.begin(kV2);
    EXPECT_FALSE(candidates.count_failure());
    candidates.postpone(kV2, kNow);
    EXPECT_FALSE(candidates.loadable(kV2));
    EXPECT_TRUE(candidates.loadable(kV1));
    EXPECT_EQ(candidates.next_wake(), kNow + wait);
    candidates.expire(kNow + (wait - std::chrono::nanoseconds(1)));
    EXPECT_FALSE(candidates.loadable(kV2));
    candidates.expire(kNow + wait);
    EXPECT_TRUE(candidates.loadable(kV2));
    EXPECT_FALSE(candidates.next_wake());
    EXPECT_TRUE(candidates.invariants().has_value());
  }
  candidates.succeed(true);
  candidates.postpone(kV2, kNow);
  EXPECT_EQ(candidates.next_wake(), kNow + seconds(1)) << "a success starts anew";
}

TEST(LoadCandidates, FailuresCountForOneVersion) {
  LoadCandidates candidates = staged();
  candidates.begin(kV2);
  EXPECT_TRUE(candidates.count_failure());
  candidates.begin(kV1);
  EXPECT_TRUE(candidates.count_failure());
}

TEST(LoadCandidates, ADecisionAnotherEngineOrAnotherCopyAllowsItAtOnce) {
  LoadCandidates candidates = staged();
  candidates.postpone(kV2, kNow);
  candidates.reset(false);
  EXPECT_TRUE(candidates.loadable(kV2));
  candidates.postpone(kV2, kNow);
  EXPECT_EQ(candidates.next_wake(), kNow + seconds(2)) << "the wait stays with the target";
  candidates.forget_failures();
  EXPECT_TRUE(candidates.loadable(kV2));
  candidates.reset(true);
  candidates.postpone(kV2, kNow);
  EXPECT_EQ(candidates.next_wake(), kNow + seconds(1));
  candidates.set_staged({kV1, kV2});
  EXPECT_FALSE(candidates.loadable(kV2)) << "the same copy";
  candidates.set_staged({kV1});
  candidates.set_staged({kV1, kV2});
  EXPECT_TRUE(candidates.loadable(kV2)) << "another copy";
}

TEST(LoadCandidates, InvariantsNameAVersionThatIsPostponedTwice) {
  LoadCandidates candidates = staged();
  candidates.postpone(kV2, kNow);
  candidates.postpone(kV2, kNow);
  ASSERT_FALSE(candidates.invariants().has_value());
  EXPECT_EQ(candidates.invariants().error().message(), "version 1.2 is postponed twice");
}

}  // namespace
}  // namespace wsync::reload
