// When replicas read their weights again, and what their answers prove.
#include "inference_side/sidecar/scrub_passes.h"

#include <gtest/gtest.h>

#include "tests/support/versions.h"

namespace wsync::agent {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

class Passes : public testing::Test {
 protected:
  // Ranks that attach without a version and load kV1.
  void serve(std::uint32_t world = 2, const std::string& replica = "r") {
    for (std::uint32_t rank = 0; rank < world; ++rank)
      passes_.attached(replica, rank, world, "", {}, now_);
    commit(kV1, false, world, replica);
  }
  void commit(const Version& version, bool by_patch, std::uint32_t world = 2,
              const std::string& replica = "r") {
    for (std::uint32_t rank = 0; rank < world; ++rank)
      passes_.committed(replica, rank, version, by_patch, now_);
  }
  // The pass that begins at its time.
  std::uint64_t begin() {
    const auto next = passes_.next_due();
    EXPECT_TRUE(next.has_value());
    if (!next) return 0;
    now_ = std::max(now_, *next);
    const auto begins = passes_.due(now_);
    EXPECT_EQ(begins.size(), 1U);
    return begins.empty() ? 0 : begins.front().pass;
  }
  std::optional<ScrubPasses::Complete> answer(std::uint32_t rank, std::uint64_t pass,
                                              const Version& version = kV1,
                                              std::chrono::nanoseconds age = seconds(1)) {
    return passes_.answered("r", rank,
                            {.pass = pass,
                             .version = version,
                             .age_ns = static_cast<std::uint64_t>(age.count()),
                             .cpu_ns = 10,
                             .failure = {},
                             .sums = {{.words = {.product = rank, .sum = 2}, .edges = {}}}},
                            now_);
  }
  [[nodiscard]] control::ReplicaReport report(const std::string& replica = "r") const {
    control::ReplicaReport report{.replica = replica};
    passes_.add_to(report, now_);
    return report;
  }

  static constexpr std::chrono::nanoseconds kInterval = minutes(30);
  ScrubPasses passes_{kInterval};
  TimePoint now_{1'000'000'000'000};
};

TEST_F(Passes, ALoadOfAllBytesIsAProofAndAPassFollowsAfterTheInterval) {
  serve();
  EXPECT_EQ(report().proved, kV1);
  EXPECT_EQ(report().proved_ago_ns, 0U);
  EXPECT_EQ(passes_.next_due(), now_ + minutes(30));
  EXPECT_TRUE(passes_.due(now_ + minutes(29)).empty());
  now_ = now_ + minutes(10);
  commit(kV2, true);
  // What the patch has left alone was compared with kV1.
  EXPECT_EQ(report().proved, kV1);
  EXPECT_EQ(report().proved_ago_ns, 600'000'000'000U);
  const auto pass = begin();
  EXPECT_NE(pass, 0U);
  EXPECT_FALSE(passes_.next_due()) << "one pass at a time";
  EXPECT_TRUE(passes_.due(now_ + minutes(600)).empty());
}

TEST_F(Passes, AllRanksProveItTogether) {
  serve();
  const auto pass = begin();
  EXPECT_FALSE(answer(1, pass, kV1, seconds(5)));
  EXPECT_EQ(report().proved_ago_ns, 1'800'000'000'000U) << "rank 0 has not been read";
  now_ = now_ + seconds(2);
  const auto complete = answer(0, pass);
  ASSERT_TRUE(complete);
  EXPECT_EQ(complete->version, kV1);
  EXPECT_EQ(complete->sums.size(), 2U);
  EXPECT_EQ(complete->sums.at(1)[0].words.product, 1U);
  EXPECT_EQ(complete->cpu.count(), 20);
  // Nothing was read before that.
  EXPECT_EQ(complete->begin, now_ + seconds(-7));
  EXPECT_TRUE(passes_.proved("r", *complete, now_));
  EXPECT_EQ(report().proved, kV1);
  EXPECT_EQ(report().proved_ago_ns, 7'000'000'000U);
  EXPECT_EQ(passes_.next_due(), complete->begin + minutes(30));
  EXPECT_FALSE(passes_.proved("r", *complete, now_)) << "once";
}

TEST_F(Passes, SumsOfTwoVersionsAreNotCompared) {
  serve();
  const auto pass = begin();
  EXPECT_FALSE(answer(0, pass, kV1));
  commit(kV2, true);
  EXPECT_FALSE(answer(1, pass, kV2));
  // Rank 0 says it again, as of the version that it was patched to.
  const auto complete = answer(0, pass, kV2);
  ASSERT_TRUE(complete);
  EXPECT_EQ(complete->version, kV2);
}

TEST_F(Passes, ALoadOfAllBytesEndsThePass) {
  serve();
  const auto pass = begin();
  EXPECT_FALSE(answer(0, pass));
  commit(kV2, false);
  EXPECT_FALSE(answer(1, pass)) << "of a pass that has ended";
  EXPECT_EQ(report().proved, kV2);
  EXPECT_EQ(passes_.next_due(), now_ + minutes(30));
  EXPECT_EQ(passes_.mismatched("r", pass, "x"), ScrubPasses::Verdict::kStale);
  EXPECT_EQ(report().mismatches, 0U);
}

TEST_F(Passes, ARankWithoutSumsEndsThePassAndItIsRepeated) {
  serve();
  const auto pass = begin();
  EXPECT_FALSE(answer(0, pass));
  EXPECT_FALSE(passes_.answered("r", 1, {.pass = pass, .failure = "a load"}, now_));
  EXPECT_EQ(passes_.next_due(), now_ + minutes(1));
  EXPECT_GT(begin(), pass);
}

TEST_F(Passes, AMismatchIsMendedAndGivenUpAfterThreeInARow) {
  serve();
  for (std::uint32_t turn = 1; turn <= ScrubPasses::kMismatchesMax; ++turn) {
    const auto pass = begin();
    ASSERT_FALSE(answer(0, pass));
    ASSERT_TRUE(answer(1, pass));
    const bool is_last = turn == ScrubPasses::kMismatchesMax;
    EXPECT_EQ(passes_.mismatched("r", pass, "tensor w"),
              is_last ? ScrubPasses::Verdict::kGiveUp : ScrubPasses::Verdict::kMend);
    EXPECT_EQ(report().mismatches, turn);
    EXPECT_EQ(report().last_mismatch, "tensor w");
    EXPECT_TRUE(report().proved.none());
    EXPECT_FALSE(passes_.next_due()) << "nothing is read before it is mended";
    if (is_last) break;
    commit(kV1, false);
    EXPECT_EQ(report().proved, kV1);
    EXPECT_EQ(passes_.next_due(), now_) << "the memory may not keep what is written";
  }
  // Another target is loaded once, and looked at.
  commit(kV2, false);
  const auto pass = begin();
  ASSERT_FALSE(answer(0, pass, kV2));
  ASSERT_TRUE(answer(1, pass, kV2));
  EXPECT_EQ(passes_.mismatched("r", pass, "again"), ScrubPasses::Verdict::kGiveUp);
}

TEST_F(Passes, WhatIsFoundOutsideOfAPassEndsItAndIsMendedLikewise) {
  serve();
  EXPECT_TRUE(passes_.is_proved("r"));
  const auto pass = begin();
  EXPECT_FALSE(answer(0, pass));
  EXPECT_EQ(passes_.found_to_differ("r", "tensor w", now_), ScrubPasses::Verdict::kMend);
  EXPECT_FALSE(answer(1, pass)) << "it may have read the tensor when it was right";
  EXPECT_FALSE(passes_.is_proved("r"));
  EXPECT_FALSE(passes_.next_due()) << "nothing is read before it is mended";
  EXPECT_EQ(report().last_mismatch, "tensor w");
  // Of another rank, and once more.
  for (int turn = 0; turn < 5; ++turn)
    EXPECT_EQ(passes_.found_to_differ("r", "tensor w", now_), ScrubPasses::Verdict::kMend);
  EXPECT_EQ(report().mismatches, 1U);
  now_ = now_ + seconds(1);
  commit(kV1, false);
  EXPECT_TRUE(passes_.is_proved("r"));
  EXPECT_EQ(passes_.next_due(), now_);
  EXPECT_EQ(passes_.found_to_differ("r", "before", now_ + -seconds(1)),
            ScrubPasses::Verdict::kStale);
  EXPECT_TRUE(passes_.is_proved("r"));
  now_ = now_ + seconds(1);
  EXPECT_EQ(passes_.found_to_differ("r", "second", now_), ScrubPasses::Verdict::kMend);
  // A patch mends nothing.
  commit(kV2, true);
  EXPECT_FALSE(passes_.is_proved("r"));
  now_ = now_ + seconds(1);
  commit(kV2, false);
  now_ = now_ + seconds(1);
  EXPECT_EQ(passes_.found_to_differ("r", "third", now_), ScrubPasses::Verdict::kGiveUp);
  EXPECT_EQ(passes_.found_to_differ("unknown", "", now_), ScrubPasses::Verdict::kStale);
}

TEST_F(Passes, NothingIsProvedOfWhatHasAttachedWithAVersion) {
  EXPECT_FALSE(passes_.is_proved("r"));
  passes_.attached("r", 0, 1, "", kV1, now_);
  EXPECT_FALSE(passes_.is_proved("r"));
  commit(kV2, true, 1);
  EXPECT_FALSE(passes_.is_proved("r"));
  const auto complete = answer(0, begin(), kV2);
  ASSERT_TRUE(complete);
  EXPECT_TRUE(passes_.proved("r", *complete, now_));
  EXPECT_TRUE(passes_.is_proved("r"));
  passes_.detached("r", 0);
  EXPECT_FALSE(passes_.is_proved("r"));
}

TEST_F(Passes, AProofEndsTheRowOfMismatches) {
  serve(1);
  for (int turn = 0; turn < 10; ++turn) {
    EXPECT_EQ(passes_.mismatched("r", begin(), "x"), ScrubPasses::Verdict::kMend) << turn;
    commit(kV1, false, 1);
    const auto complete = answer(0, begin());
    ASSERT_TRUE(complete);
    EXPECT_TRUE(passes_.proved("r", *complete, now_));
  }
}

TEST_F(Passes, AReplicaThatLacksARankIsNotRead) {
  serve();
  const auto pass = begin();
  EXPECT_FALSE(answer(0, pass));
  passes_.detached("r", 1);
  EXPECT_TRUE(report().proved.none());
  EXPECT_FALSE(answer(1, pass));
  EXPECT_FALSE(passes_.next_due());
  // What a process has gone through before it attached here, nobody knows.
  passes_.attached("r", 1, 2, "", kV1, now_);
  EXPECT_EQ(passes_.next_due(), now_);
  EXPECT_NE(begin(), pass);
}

TEST_F(Passes, RanksThatDifferOrHoldNothingAreNotRead) {
  passes_.attached("r", 0, 2, "", kV1, now_);
  passes_.attached("r", 1, 2, "", {}, now_);
  EXPECT_FALSE(passes_.next_due());
  EXPECT_TRUE(passes_.due(now_).empty());
  passes_.attached("none", 0, 1, "", {}, now_);
  EXPECT_TRUE(passes_.due(now_).empty());
}

TEST_F(Passes, SaysWhichReplicasAreNotScrubbedAndWhy) {
  serve();
  EXPECT_TRUE(passes_.is_scrubbed("r"));
  EXPECT_EQ(report().not_scrubbed, "");
  passes_.attached("whole", 0, 1, "only its engine can read it", kV1, now_);
  EXPECT_FALSE(passes_.is_scrubbed("whole"));
  EXPECT_EQ(report("whole").not_scrubbed, "rank 0: only its engine can read it");
  EXPECT_EQ(passes_.not_scrubbed("whole"), "rank 0: only its engine can read it");
  EXPECT_TRUE(passes_.due(now_).empty());
  EXPECT_FALSE(passes_.is_scrubbed("unknown"));
  passes_.committed("whole", 0, kV2, false, now_);
  EXPECT_EQ(report("whole").proved, kV2) << "by its load";
  EXPECT_TRUE(passes_.due(now_ + minutes(600)).size() == 1U) << "r alone";
  passes_.forget("r");
  EXPECT_FALSE(passes_.is_scrubbed("r"));
}

// A pass may end because a load has come; several in a row while it serves say that it cannot be
// read.
TEST_F(Passes, AReplicaWhosePassesReturnNoSumsIsNotScrubbedUntilOneDoes) {
  serve();
  const auto fail_pass = [&](const std::string& why) {
    const std::uint64_t pass = begin();
    EXPECT_FALSE(passes_.answered("r", 1, {.pass = pass, .failure = why}, now_));
    EXPECT_FALSE(passes_.answered("r", 0, {.pass = pass, .failure = "later"}, now_));
  };
  for (int turn = 0; turn < 3; ++turn) fail_pass("it has not loaded a version");
  EXPECT_EQ(report().not_scrubbed, "") << "it has not served yet";
  passes_.set_serving("r", true);
  fail_pass("all weights were loaded meanwhile");
  passes_.set_serving("r", false);
  for (int turn = 0; turn < 3; ++turn) fail_pass("another version is being loaded");
  EXPECT_EQ(report().not_scrubbed, "") << "a long load";
  EXPECT_TRUE(passes_.is_scrubbed("r"));
  commit(kV1, false);
  passes_.set_serving("r", true);
  passes_.set_serving("none", true);
  fail_pass("it cannot be read");
  EXPECT_EQ(report().not_scrubbed, "") << "a load of all bytes was between them";
  const TimePoint failed = now_;
  fail_pass("it still cannot be read");
  EXPECT_EQ(now_ - failed, minutes(1)) << "it is tried again soon";
  EXPECT_EQ(report().not_scrubbed, "rank 1: it still cannot be read");
  EXPECT_EQ(passes_.not_scrubbed("r"), "rank 1: it still cannot be read");
  EXPECT_FALSE(passes_.is_scrubbed("r"));
  EXPECT_EQ(report().proved, kV1) << "by its load";
  EXPECT_FALSE(passes_.may_be_patched("r", now_)) << "its last proof is older than the interval";
  const std::uint64_t pass = begin();
  EXPECT_FALSE(answer(0, pass));
  EXPECT_TRUE(passes_.proved("r", *answer(1, pass), now_));
  EXPECT_EQ(report().not_scrubbed, "");
  EXPECT_TRUE(passes_.is_scrubbed("r"));
}

// Each load of changed layers ends the pass, so a fleet that switches often would never be read.
TEST_F(Passes, AReplicaWhosePassesAreEndedByLayersIsLoadedInFullAfterTheInterval) {
  serve();
  passes_.set_serving("r", false);
  for (const Version& version : {kV2, kV3}) {
    EXPECT_TRUE(passes_.may_be_patched("r", now_ + kInterval));
    const std::uint64_t pass = begin();
    EXPECT_FALSE(passes_.answered("r", 0, {.pass = pass, .failure = "layers were loaded meanwhile"},
                                  now_, true));
    commit(version, true);
  }
  EXPECT_EQ(report().not_scrubbed, "rank 0: layers were loaded meanwhile");
  EXPECT_FALSE(passes_.may_be_patched("r", now_)) << "its last proof is older than the interval";
  commit(kV1, false);
  EXPECT_EQ(report().not_scrubbed, "");
  EXPECT_TRUE(passes_.may_be_patched("r", now_ + kInterval));
}

TEST_F(Passes, WhatIsNotScrubbedIsPatchedWhileItsLastFullLoadIsRecent) {
  serve();
  EXPECT_TRUE(passes_.may_be_patched("r", now_ + minutes(6000))) << "it is scrubbed";
  EXPECT_FALSE(passes_.may_be_patched("unknown", now_));
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    passes_.attached("gpu", rank, 2, "its weights are in the memory of a GPU", kV1, now_);
  EXPECT_FALSE(passes_.may_be_patched("gpu", now_)) << "nobody knows how it was loaded";
  passes_.committed("gpu", 0, kV2, false, now_);
  EXPECT_FALSE(passes_.may_be_patched("gpu", now_)) << "of one of its ranks";
  passes_.committed("gpu", 1, kV2, false, now_);
  EXPECT_TRUE(passes_.may_be_patched("gpu", now_));
  EXPECT_TRUE(passes_.may_be_patched("gpu", now_ + (kInterval - seconds(1))));
  EXPECT_FALSE(passes_.may_be_patched("gpu", now_ + kInterval));
  // A patch proves nothing of what it leaves alone.
  now_ = now_ + (kInterval - seconds(1));
  commit(kV3, true, 2, "gpu");
  EXPECT_FALSE(passes_.may_be_patched("gpu", now_ + seconds(2)));
  commit(kV1, false, 2, "gpu");
  EXPECT_TRUE(passes_.may_be_patched("gpu", now_ + seconds(2)));
  passes_.detached("gpu", 1);
  EXPECT_FALSE(passes_.may_be_patched("gpu", now_ + seconds(2)));
}

TEST_F(Passes, AnIntervalOfZeroIsNever) {
  ScrubPasses off{std::chrono::nanoseconds(0)};
  off.attached("r", 0, 1, "", kV1, now_);
  EXPECT_TRUE(off.due(now_).empty());
  EXPECT_FALSE(off.next_due());
  EXPECT_FALSE(off.is_scrubbed("r"));
  off.committed("r", 0, kV2, false, now_);
  EXPECT_FALSE(off.may_be_patched("r", now_));
  control::ReplicaReport report{.replica = "r"};
  off.add_to(report, now_);
  EXPECT_EQ(report.not_scrubbed, "scrub.interval is 0");
}

}  // namespace
}  // namespace wsync::agent
