// What a rank answers when it is to read its weights again.
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utility>

#include "tests/contract/engine_link/attached_rank.h"

namespace wsync::engine::test {
namespace {

using control::RankState;
using control::TakeMode;
using testing::HasSubstr;

constexpr control::Scrub kScrub{.pass = 4, .share_ppm = 1'000'000};

// A rank that has committed the first version, and serves it if it is to.
struct ScrubbedRank : Rank {
  // `unreadable`: as Engine::why_unreadable().
  ScrubbedRank(const Model& model, TakeMode take, std::uint32_t rank = 0, std::uint32_t world = 1,
               std::string unreadable = {})
      : Rank(model, take, rank, world), first(model.arena(kFirst)) {
    engine.unreadable = std::move(unreadable);
    start();
    not_scrubbed = peer.accept().not_scrubbed;
    peer.welcome_unified();
    EXPECT_EQ(peer.ask<control::Prepared>(prepare_of(model, kFirst), share(first)).failure, "");
  }
  void serve() {
    switch_to(kFirst);
    if (engine.description.leader)
      peer.ask<control::Resumed>(control::Resume{});
    else
      link->report_running(1);
  }
  SharedArena first;
  std::string not_scrubbed;
};

TEST(LinkScrub, ReturnsTheSumsOfTheVersionForEachWayToHoldIt) {
  const Model model = Model::make();
  for (const TakeMode take :
       {TakeMode::kPieces, TakeMode::kWhole, TakeMode::kAdopt, TakeMode::kBorrow}) {
    ScrubbedRank rank(model, take);
    EXPECT_EQ(rank.not_scrubbed, "");
    rank.serve();
    rank.peer.send(kScrub);
    const auto scrubbed = rank.peer.expect<control::Scrubbed>();
    EXPECT_EQ(scrubbed.failure, "");
    EXPECT_EQ(scrubbed.pass, 4U);
    EXPECT_EQ(scrubbed.version, kFirst);
    const auto plan = plan_of(model, rank.engine);
    ASSERT_EQ(scrubbed.sums.size(), plan.tensors().size());
    for (std::size_t t = 0; t < plan.tensors().size(); ++t)
      EXPECT_EQ(scrubbed.sums[t], reload::expected_sum(plan.tensors()[t], rank.first.data())) << t;
  }
}

TEST(LinkScrub, ReadsTheMemoryAndNotTheVersion) {
  const Model model = Model::make();
  for (const TakeMode take : {TakeMode::kPieces, TakeMode::kWhole}) {
    ScrubbedRank rank(model, take, 0, 2);
    rank.switch_to(kFirst);
    const auto plan = plan_of(model, rank.engine);
    rank.engine.memory[1][5] ^= std::byte{1};
    rank.peer.ask<control::Resumed>(control::Resume{});
    rank.peer.send(kScrub);
    const auto scrubbed = rank.peer.expect<control::Scrubbed>();
    ASSERT_EQ(scrubbed.sums.size(), plan.tensors().size());
    for (std::size_t t = 0; t < plan.tensors().size(); ++t)
      EXPECT_EQ(scrubbed.sums[t] == reload::expected_sum(plan.tensors()[t], rank.first.data()),
                t != 1);
  }
}

// From the pause on, the engine may do with its weights what it likes.
TEST(LinkScrub, AnEngineIsAskedForItsBytesOnlyWhileItServes) {
  const Model model = Model::make();
  for (const TakeMode take : {TakeMode::kWhole, TakeMode::kBorrow}) {
    ScrubbedRank rank(model, take);
    rank.switch_to(kFirst);
    rank.peer.send(kScrub);
    EXPECT_EQ(rank.peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure, "");
    EXPECT_THAT(rank.peer.expect<control::Scrubbed>().failure,
                HasSubstr("all weights were loaded"));
    EXPECT_EQ(rank.peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure, "");
    const std::uint64_t before = rank.engine.reads;
    rank.peer.send(control::Scrub{.pass = 5, .share_ppm = 1'000'000});
    // Whatever else wakes the link up, and whenever it has nothing else to do between these.
    for (int turn = 0; turn < 200; ++turn)
      EXPECT_EQ(rank.peer.ask<control::Paused>(control::Pause{}).step, 0U);
    EXPECT_EQ(rank.engine.reads, before) << "it is asked while it is paused";
    rank.peer.ask<control::Resumed>(control::Resume{});
    const auto scrubbed = rank.peer.expect<control::Scrubbed>();
    EXPECT_EQ(scrubbed.pass, 5U);
    EXPECT_EQ(scrubbed.failure, "");
    EXPECT_GT(rank.engine.reads, before);
  }
}

// The first call in which an engine is asked for its bytes. It lasts until the test ends it.
class FirstCall {
 public:
  explicit FirstCall(FakeEngine& engine) {
    engine.on_read = [this, first = true](std::uint32_t) mutable {
      if (!std::exchange(first, false)) return;
      begun_.set_value();
      may_end_.get_future().wait();
    };
  }
  void wait() { begun_.get_future().wait(); }
  void end() { may_end_.set_value(); }

 private:
  std::promise<void> begun_;
  std::promise<void> may_end_;
};

// However slow it is, what has come from the sidecar waits for one call only.
TEST(LinkScrub, APauseWaitsForOneCallOfTheEngineAtMost) {
  const Model model = Model::make();
  ScrubbedRank rank(model, TakeMode::kWhole);
  FirstCall call(rank.engine);
  rank.serve();
  rank.peer.send(kScrub);
  call.wait();
  rank.peer.send(control::Pause{});
  call.end();
  EXPECT_EQ(rank.peer.expect<control::Paused>().step, 7U);
  EXPECT_EQ(rank.engine.reads, 1U);
  // The pass goes on where it was.
  rank.peer.ask<control::Resumed>(control::Resume{});
  EXPECT_EQ(rank.peer.expect<control::Scrubbed>().failure, "");
}

TEST(LinkScrub, AnEngineThatCannotReturnItsBytesEndsThePassWithItsReason) {
  const Model model = Model::make();
  ScrubbedRank rank(model, TakeMode::kBorrow);
  rank.engine.fail_reads("its cache is being moved");
  rank.serve();
  rank.peer.send(kScrub);
  const auto failed = rank.peer.expect<control::Scrubbed>();
  EXPECT_EQ(failed.pass, 4U);
  EXPECT_THAT(failed.failure, HasSubstr("its cache is being moved"));
  EXPECT_TRUE(failed.sums.empty());
  EXPECT_EQ(rank.engine.reads, 1U);
  rank.engine.fail_reads({});
  rank.peer.send(control::Scrub{.pass = 5, .share_ppm = 1'000'000});
  EXPECT_EQ(rank.peer.expect<control::Scrubbed>().failure, "");
}

TEST(LinkScrub, ASuspendedEngineIsAskedForNothing) {
  const Model model = Model::make();
  ScrubbedRank rank(model, TakeMode::kWhole);
  // What comes during the first call ends its burst. One burst would read the whole small model.
  FirstCall call(rank.engine);
  rank.serve();
  rank.peer.send(control::Scrub{.pass = 4, .share_ppm = 1});  // for a day
  call.wait();
  rank.peer.send(control::ReadDigests{});
  call.end();
  rank.peer.expect<control::Digests>();
  ASSERT_TRUE(rank.link->suspend());
  const std::uint64_t before = rank.engine.reads;
  ASSERT_TRUE(rank.link->poll(0));
  EXPECT_EQ(rank.engine.reads, before);
  ASSERT_TRUE(rank.link->resume());
  EXPECT_EQ(rank.peer.accept().not_scrubbed, "");
  rank.peer.welcome_unified();
  rank.peer.send(control::Scrub{.pass = 5, .share_ppm = 1'000'000});
  EXPECT_THAT(rank.peer.expect<control::Scrubbed>().failure, HasSubstr("has not loaded a version"));
  EXPECT_EQ(rank.engine.reads, before);
}

// Whatever the rank does next is answered as ever.
TEST(LinkScrub, APauseDoesNotWaitForItAndALoadOfAllBytesEndsIt) {
  const Model model = Model::make();
  ScrubbedRank rank(model, TakeMode::kPieces);
  rank.serve();
  rank.peer.send(control::Scrub{.pass = 4, .share_ppm = 1});  // for a day
  EXPECT_EQ(rank.peer.ask<control::Paused>(control::Pause{}).step, 7U);
  EXPECT_EQ(rank.peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure, "");
  const auto scrubbed = rank.peer.expect<control::Scrubbed>();
  EXPECT_EQ(scrubbed.pass, 4U);
  EXPECT_THAT(scrubbed.failure, HasSubstr("all weights were loaded"));
  EXPECT_EQ(rank.peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure, "");
  expect_holds(model, rank.engine, rank.first);
}

TEST(LinkScrub, ARankThatCannotBeReadSaysSo) {
  const Model model = Model::make();
  for (const TakeMode take : {TakeMode::kWhole, TakeMode::kBorrow}) {
    ScrubbedRank rank(model, take, 0, 1, "it keeps no bytes of a version");
    EXPECT_EQ(rank.not_scrubbed, "it keeps no bytes of a version");
    rank.serve();
    rank.peer.send(kScrub);
    EXPECT_EQ(rank.peer.expect<control::Scrubbed>().failure, rank.not_scrubbed);
    EXPECT_EQ(rank.engine.reads, 0U);
  }
  ScrubbedRank rank(model, TakeMode::kPieces);
  rank.peer.send(kScrub);
  EXPECT_THAT(rank.peer.expect<control::Scrubbed>().failure, HasSubstr("has not loaded a version"));
}

TEST(LinkScrub, TheLossOfTheSidecarEndsIt) {
  const Model model = Model::make();
  ScrubbedRank rank(model, TakeMode::kPieces);
  rank.serve();
  rank.peer.send(control::Scrub{.pass = 4, .share_ppm = 1});
  rank.peer.hang_up();
  const auto hello = rank.peer.accept();
  EXPECT_EQ(hello.state, RankState::kServing);
  EXPECT_EQ(hello.active, kFirst);
  rank.peer.welcome_unified();
  rank.peer.send(control::Scrub{.pass = 9, .share_ppm = 1'000'000});
  const auto scrubbed = rank.peer.expect<control::Scrubbed>();
  EXPECT_EQ(scrubbed.pass, 9U) << "nothing is left of the other one";
  EXPECT_EQ(scrubbed.failure, "");
}

TEST(LinkScrub, APassThatWasJudgedIsReportedNoMore) {
  const Model model = Model::make();
  ScrubbedRank rank(model, TakeMode::kPieces);
  rank.serve();
  rank.peer.send(kScrub);
  EXPECT_EQ(rank.peer.expect<control::Scrubbed>().failure, "");
  rank.peer.send(control::Scrub{});
  // The next answer is that of the next question.
  rank.peer.ask<control::Paused>(control::Pause{});
  rank.peer.ask<control::Resumed>(control::Resume{});
}

}  // namespace
}  // namespace wsync::engine::test
