// Scrubs: engines read their weights again while they serve, and what has changed there is found,
// named, and mended by a load of all bytes.
#include <gmock/gmock.h>

#include "tests/contract/sidecar/linked_hub.h"

namespace wsync::agent::test {
namespace {

using control::TakeMode;
using testing::AllOf;
using testing::HasSubstr;

class Scrub : public LinkedHub {
 protected:
  Scrub() { scrub_ = {.interval = std::chrono::milliseconds(1), .share_ppm = 1'000'000}; }
  // Until so many more passes have found nothing.
  void expect_equal(std::size_t passes) {
    const std::size_t before = equal_;
    EXPECT_TRUE(bench_.until([&] { return equal_ >= before + passes; }));
    EXPECT_EQ(damaged_, 0U);
  }
  reload::RankDamaged expect_damaged() {
    auto found = wait<reload::RankDamaged>(1);
    return found.empty() ? reload::RankDamaged{} : found.front();
  }
  // Index of a tensor of the model.
  [[nodiscard]] std::size_t tensor(const std::string& name) const {
    return model_.manifest.find(name).value();
  }
};

TEST_F(Scrub, RanksAreReadAgainAndAgainWhileTheyServe) {
  open();
  serve_first(2);
  EXPECT_EQ(proof().proved, kV1) << "by its load";
  EXPECT_EQ(equal_, 0U) << "nobody serves";
  serve();
  expect_equal(5);
  EXPECT_EQ(proof().proved, kV1);
  EXPECT_EQ(proof().not_scrubbed, "");
  EXPECT_GT(cpu_.count(), 0);
  // Nothing has been done to it for that.
  for (const auto& rank : ranks_)
    EXPECT_THAT(rank->engine.calls, testing::Not(testing::Contains("pause")));
}

TEST_F(Scrub, AFlippedBitIsNamedAndMendedByALoadOfAllBytes) {
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  open();
  serve_first(2);
  ranks_[1]->engine.memory[tensor(name)][7'001] ^= std::byte{16};
  serve();
  const auto found = expect_damaged();
  EXPECT_EQ(found.rank, 1U);
  EXPECT_TRUE(found.is_mendable);
  EXPECT_FALSE(found.is_copy_suspect);
  EXPECT_THAT(found.why, AllOf(HasSubstr("rank 1"), HasSubstr(name), HasSubstr("1.1"),
                               HasSubstr("expected sum "), HasSubstr("found ")));
  EXPECT_EQ(equal_, 0U);
  EXPECT_EQ(proof().mismatches, 1U);
  EXPECT_THAT(proof().last_mismatch, HasSubstr(name));
  EXPECT_TRUE(proof().proved.none());
  // There is a patch, which would not mend it.
  change(250);
  add(kV2);
  EXPECT_EQ(made_, 1U);
  pause();
  expect_loaded(load(kV2, kV1), false);
  commit(kV2);
  expect_holds();
  serve();
  EXPECT_TRUE(bench_.until([&] { return equal_ > 0; }));
  EXPECT_EQ(damaged_, 1U);
  EXPECT_EQ(proof().proved, kV2);
}

// The library cannot look into their memory, so they are asked for it.
TEST_F(Scrub, AFlippedBitOfAnEngineThatHoldsItsOwnTensorsIsNamedAndMended) {
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  for (const auto& [take, world] : {std::pair{TakeMode::kWhole, 2U}, {TakeMode::kBorrow, 1U}}) {
    open();
    serve_first(world, take);
    serve();
    expect_equal(3);
    EXPECT_EQ(proof().not_scrubbed, "");
    EXPECT_GT(cpu_.count(), 0);
    pause();
    load_all(kV1);
    ranks_.back()->engine.memory[tensor(name)][7'001] ^= std::byte{16};
    serve();
    const auto found = expect_damaged();
    EXPECT_EQ(found.rank, world - 1);
    EXPECT_TRUE(found.is_mendable);
    EXPECT_FALSE(found.is_copy_suspect);
    EXPECT_THAT(found.why,
                AllOf(HasSubstr("rank " + std::to_string(world - 1)), HasSubstr(name),
                      HasSubstr("1.1"), HasSubstr("expected sum "), HasSubstr("found ")));
    EXPECT_EQ(proof().mismatches, 1U);
    EXPECT_TRUE(proof().proved.none());
    pause();
    load_all(kV1);
    expect_holds();
    serve();
    const std::size_t before = equal_;
    EXPECT_TRUE(bench_.until([&] { return equal_ > before; }));
    EXPECT_EQ(proof().proved, kV1);
    for (const auto& rank : ranks_) rank->link->stop();
    ranks_.clear();
    hub_.reset();
    events_.clear();
    damaged_ = 0;
  }
}

TEST_F(Scrub, AnEngineThatCannotReturnItsBytesIsNotScrubbedUntilItCan) {
  open();
  serve_first(1, TakeMode::kBorrow);
  ranks_[0]->engine.fail_reads("its cache is being moved");
  serve();
  EXPECT_TRUE(bench_.until([&] { return !proof().not_scrubbed.empty(); }));
  EXPECT_THAT(proof().not_scrubbed,
              AllOf(HasSubstr("rank 0"), HasSubstr("its cache is being moved")));
  EXPECT_EQ(proof().proved, kV1) << "by its load";
  EXPECT_EQ(damaged_, 0U);
  ranks_[0]->engine.fail_reads({});
  expect_equal(1);
  EXPECT_EQ(proof().not_scrubbed, "");
}

TEST_F(Scrub, WhatVerifyFindsIsMendedAsWell) {
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  scrub_.interval = std::chrono::hours(1);
  open();
  serve_first(2);
  for (std::uint32_t turn = 1; turn <= ScrubPasses::kMismatchesMax; ++turn) {
    const bool is_last = turn == ScrubPasses::kMismatchesMax;
    ranks_[1]->engine.memory[tensor(name)][7'001] ^= std::byte{16};
    const auto ranks = verify();
    ASSERT_EQ(ranks.size(), 2U);
    EXPECT_EQ(ranks[0].follows, "");
    EXPECT_THAT(ranks[1].follows,
                HasSubstr(is_last ? "3rd time in a row" : "all bytes are loaded again"));
    const auto found = wait<reload::RankDamaged>(1).front();
    EXPECT_EQ(found.rank, 1U);
    EXPECT_EQ(found.is_mendable, !is_last);
    EXPECT_FALSE(found.is_copy_suspect);
    EXPECT_THAT(found.why, AllOf(HasSubstr("rank 1"), HasSubstr(name), HasSubstr("1.1"),
                                 HasSubstr("expected digest "), HasSubstr("found ")));
    EXPECT_EQ(proof().mismatches, turn);
    EXPECT_TRUE(proof().proved.none());
    if (is_last) break;
    // Until it is mended, that is the same mismatch.
    EXPECT_EQ(verify()[1].follows, ranks[1].follows);
    EXPECT_EQ(wait<reload::RankDamaged>(1).size(), 1U);
    EXPECT_EQ(proof().mismatches, turn);
    expect_loaded(load(kV1), false);
    commit(kV1);
    expect_holds();
    for (const auto& rank : verify()) EXPECT_TRUE(rank.mismatches.empty());
    EXPECT_EQ(proof().proved, kV1);
  }
}

TEST_F(Scrub, WhatVerifyFindsInAWrongCopyHasTheCopyChecked) {
  scrub_.interval = std::chrono::hours(1);
  open();
  serve_first(1);
  arenas_.at(kV1)[model_.plan.arena_offset(model_.plan.tensor_pieces(0).front()) + 9] ^=
      std::byte{1};
  EXPECT_EQ(verify().front().mismatches.size(), 1U);
  EXPECT_TRUE(wait<reload::RankDamaged>(1).front().is_copy_suspect);
}

// Columns that cut words: whichever byte of whichever rank.
TEST_F(Scrub, BitsAtTheEdgesOfPartsAreFound) {
  model_ = EngineModel::of({{.name = "mlp.down_proj", .dtype = DType::kBF16, .shape = {999, 26}},
                            {.name = "odd", .dtype = DType::kU8, .shape = {70'001}}});
  content_ = {std::vector<std::byte>(model_.plan.arena_bytes(), std::byte{7})};
  open();
  serve_first(2);
  serve();
  expect_equal(2);
  const auto load_again = [&] {
    pause();
    expect_loaded(load(kV1), false);
    commit(kV1);
    expect_holds();
  };
  load_again();
  std::size_t found = 0;
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    for (const std::size_t at : {std::size_t{0}, std::size_t{25}, std::size_t{999 * 26 - 1}}) {
      // From its load until it serves again nobody reads it.
      ranks_[rank]->engine.memory[0][at] ^= std::byte{1};
      serve();
      EXPECT_EQ(expect_damaged().rank, rank) << at;
      EXPECT_EQ(damaged_, ++found);
      load_again();
    }
  const std::size_t before = equal_;
  serve();
  EXPECT_TRUE(bench_.until([&] { return equal_ > before; }));
}

TEST_F(Scrub, GoesOnThroughSwitchesByPatches) {
  open();
  serve_first(2);
  serve();
  Version version = kV1;
  for (int turn = 0; turn < 12; ++turn) {
    change(turn % 2 == 0 ? 250 : 2'000);
    const Version next{.epoch = 1, .step = version.step + 1};
    add(next);
    pause();
    expect_loaded(load(next, version), true);
    commit(next);
    serve();
    hub_->remove_version(std::exchange(version, next));
    // Of each version the pass that begins before its switch, in it, or after it.
    expect_equal(turn % 3 == 0 ? 2 : 1);
  }
  EXPECT_TRUE(bench_.until([&] { return proof().proved == version; }));
  expect_holds();
}

// The rank that was damaged is damaged again as soon as it is loaded.
TEST_F(Scrub, MemoryThatDoesNotKeepItsBytesIsGivenUp) {
  open();
  serve_first(1);
  for (std::uint32_t turn = 1; turn <= ScrubPasses::kMismatchesMax; ++turn) {
    damage(0);
    serve();
    const auto found = expect_damaged();
    EXPECT_EQ(found.is_mendable, turn < ScrubPasses::kMismatchesMax);
    EXPECT_THAT(found.why, HasSubstr(found.is_mendable ? "expected sum" : "3 times in a row"));
    pause();
    expect_loaded(load(kV1), false);
    commit(kV1);
  }
  EXPECT_EQ(damaged_, ScrubPasses::kMismatchesMax);
}

TEST_F(Scrub, AVersionThatIsNotHeldAnyMoreSaysNothing) {
  open();
  serve_first(1);
  hub_->remove_version(kV1);
  damage(0);
  serve();
  // It cannot be compared, until it is staged again.
  add(kV1);
  EXPECT_EQ(expect_damaged().rank, 0U);
}

TEST_F(Scrub, ARankThatIsLostWithinAPassEndsIt) {
  open();
  serve_first(2);
  serve();
  expect_equal(1);
  ranks_[1]->link->stop();
  ranks_.pop_back();
  EXPECT_EQ(wait<reload::RankDetached>(1).size(), 1U);
  EXPECT_TRUE(proof().proved.none());
  const std::size_t before = equal_;
  // It serves what it held, by its own account.
  ranks_.push_back(std::make_unique<LinkedRank>(model_, hub_->socket(), 1, 2, TakeMode::kPieces));
  EXPECT_EQ(wait<reload::RankAttached>(1).size(), 1U);
  EXPECT_EQ(equal_, before) << "the new one holds nothing";
  pause();
  expect_loaded(load(kV1), false);
  commit(kV1);
  serve();
  expect_equal(1);
}

TEST_F(Scrub, ASuspendedEngineIsNotReadUntilItIsBack) {
  open();
  serve_first(1, TakeMode::kWhole);
  serve();
  for (int turn = 0; turn < 5; ++turn) {
    expect_equal(1);
    ASSERT_TRUE(ranks_[0]->link->suspend());
    EXPECT_EQ(wait<reload::RankDetached>(1).size(), 1U);
    // Its memory is someone else's now.
    for (auto& memory : ranks_[0]->engine.memory) std::ranges::fill(memory, std::byte{0});
    ASSERT_TRUE(ranks_[0]->link->resume());
    EXPECT_EQ(wait<reload::RankAttached>(1).size(), 1U);
    expect_loaded(load(kV1), false);
    commit(kV1);
    expect_holds();
    serve();
  }
}

TEST_F(Scrub, AnEngineThatCannotBeReadIsNotScrubbedAndSaysWhy) {
  open();
  attach(1, TakeMode::kWhole, "it keeps no bytes of a version");
  add(kV1);
  load_all(kV1);
  serve();
  EXPECT_EQ(proof().proved, kV1);
  EXPECT_EQ(proof().not_scrubbed, "rank 0: it keeps no bytes of a version");
}

TEST_F(Scrub, WhatIsStagedAndAdoptedIsReadAsWell) {
  open();
  attach(1, TakeMode::kAdopt);
  add(kV1);
  (void)load(kV1);
  commit(kV1);
  // Nobody has written there but the test.
  arenas_.at(kV1)[model_.plan.arena_offset(model_.plan.tensor_pieces(0).front()) + 9] ^=
      std::byte{1};
  serve();
  const auto found = expect_damaged();
  EXPECT_TRUE(found.is_copy_suspect);
  EXPECT_THAT(found.why, AllOf(HasSubstr("model.embed_tokens.weight"),
                               HasSubstr("neither in memory nor where it is staged")));
}

// Without scrubs nobody would find what a patch leaves alone.
TEST_F(Scrub, WithoutScrubsEveryVersionIsLoadedInFull) {
  scrub_.interval = std::chrono::nanoseconds(0);
  open();
  serve_first(1);
  EXPECT_EQ(proof().not_scrubbed, "scrub.interval is 0");
  ranks_[0]->engine.memory[0][1] ^= std::byte{1};
  EXPECT_EQ(verify().front().follows,
            "it serves them until the next update, which loads all bytes, because the replica is "
            "not scrubbed: scrub.interval is 0");
  EXPECT_EQ(proof().mismatches, 1U);
  change(250);
  add(kV2);
  expect_loaded(load(kV2, kV1), false);
}

}  // namespace
}  // namespace wsync::agent::test
