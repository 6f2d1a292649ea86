// Loads through the buffers of a separate device that are given up at each of their points: the
// next load brings its version, and nothing of the first one comes with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tuple>

#include "shared/base/format.h"
#include "tests/contract/engine_link/separate_rank.h"

namespace wsync::engine::test {
namespace {

using control::TakeMode;
using testing::HasSubstr;

enum class EndOfLoad : std::uint8_t { kLoss, kOtherLoad, kAbort };

struct GivenUp : testing::TestWithParam<std::tuple<TakeMode, EndOfLoad>> {
  void prepare(Version version) {
    EXPECT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, version)).failure, "");
  }
  // `taken` buckets of the first version are acknowledged, and the next one is announced if it
  // `is_under_way`, when its load is given up. Then the Load of the second version is sent.
  void give_up(std::uint64_t taken, bool is_under_way) {
    const EndOfLoad end = std::get<EndOfLoad>(GetParam());
    prepare(kFirst);
    prepare(kSecond);
    rank.peer.send(control::Load{.version = kFirst});
    for (std::uint64_t bucket = 0; bucket < taken; ++bucket)
      EXPECT_EQ(rank.give(model, first, bucket).failure, "");
    if (is_under_way) rank.put(model, first, taken);
    if (end == EndOfLoad::kLoss) {
      rank.peer.hang_up();
      rank.peer.accept();
      rank.welcome(model);
      prepare(kSecond);
    }
    if (end == EndOfLoad::kAbort) rank.peer.send(control::Abort{.version = kFirst});
    rank.peer.send(control::Load{.version = kSecond});
    if (end == EndOfLoad::kLoss) return;
    if (is_under_way) {
      EXPECT_EQ(rank.peer.expect<control::BucketAck>().failure, "");
    }
    const bool has_ended = taken + (is_under_way ? 1 : 0) == model.plan.bucket_count();
    if (has_ended) {
      EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
    } else if (end == EndOfLoad::kAbort) {
      EXPECT_THAT(rank.peer.expect<control::Loaded>().failure, HasSubstr("cancelled"));
    }
  }

  Model model = Model::make();
  SharedArena first = model.arena(kFirst);
  SharedArena second = model.arena(kSecond);
  SeparateRank rank{model, std::get<TakeMode>(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Engine, GivenUp,
                         testing::Combine(testing::Values(TakeMode::kPieces, TakeMode::kWhole),
                                          testing::Values(EndOfLoad::kLoss, EndOfLoad::kOtherLoad,
                                                          EndOfLoad::kAbort)));

TEST_P(GivenUp, TheNextLoadBringsItsVersionFromEveryPoint) {
  rank.attach(model);
  ASSERT_GE(model.plan.bucket_count(), 3U);
  for (std::uint64_t taken = 0; taken <= model.plan.bucket_count(); ++taken)
    for (const bool is_under_way : {false, true}) {
      if (is_under_way && taken == model.plan.bucket_count()) continue;
      SCOPED_TRACE(fmt::format("after {} buckets{}", taken,
                               is_under_way ? ", the next one is under way" : ""));
      give_up(taken, is_under_way);
      for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count() && !HasFailure(); ++bucket)
        EXPECT_EQ(rank.give(model, second, bucket).failure, "");
      if (HasFailure()) return;
      EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
      EXPECT_EQ(rank.peer.ask<control::Committed>(control::Commit{.version = kSecond}).failure, "");
      expect_holds(model, rank.engine, second);
    }
}

}  // namespace
}  // namespace wsync::engine::test
