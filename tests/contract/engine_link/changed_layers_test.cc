// Ranks that take whole tensors or borrow, and of which a load by a patch loads only the layers in
// which it changes something.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/contract/engine_link/attached_rank.h"
#include "tests/contract/engine_link/made_patch.h"

namespace wsync::engine::test {
namespace {

using control::RankState;
using control::TakeMode;
using testing::ElementsAre;
using testing::HasSubstr;

// A rank that serves the first version; the second one is prepared.
struct LayerRank : RankOfTwoVersions {
  LayerRank(const Model& model, TakeMode take, std::uint32_t rank = 0, std::uint32_t world = 1,
            bool any_layout = false)
      : RankOfTwoVersions(model, take, rank, world) {
    engine.description.takes_changed_layers = true;
    engine.description.any_layout = any_layout;
    if (any_layout) engine.description.tensors.clear();
    start();
    const control::EngineHello hello = peer.accept();
    EXPECT_FALSE(hello.takes_patches) << "an older sidecar would compare other sums";
    EXPECT_TRUE(contains(hello.capabilities, control::Capability::kChangedLayers));
    stop_with_first(model);
  }
};

class ChangedLayers : public testing::TestWithParam<TakeMode> {
 protected:
  Model model_ = Model::make();
};

TEST_P(ChangedLayers, OnlyTheseAreLoaded) {
  LayerRank rank(model_, GetParam());
  const MadePatch made(model_, rank.first, rank.second);
  const Bytes bytes = made.bytes();
  const auto loaded = rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes));
  EXPECT_EQ(loaded.failure, "");
  EXPECT_EQ(rank.link->status().state, RankState::kLoaded);
  const bool copies = GetParam() == TakeMode::kWhole;
  ASSERT_EQ(loaded.sums.size(), copies ? model_.manifest.size() : 0);
  EXPECT_EQ(loaded.before.size(), loaded.sums.size());
  std::uint64_t changed = 0;
  for (std::uint32_t t = 0; t < model_.manifest.size(); ++t) {
    const bool is_changed = model_.manifest.tensor(t).name.find("layers.1.") == std::string::npos;
    changed += is_changed ? model_.manifest.byte_size(t) : 0;
    if (!copies) continue;
    const SplitSum expected{
        .words = word_sum(tensor_in(model_, rank.second, t),
                          {.seed = plan_of(model_, rank.engine).tensors()[t].seed, .position = 0})};
    EXPECT_EQ(loaded.sums[t], is_changed ? expected : SplitSum{}) << t;
  }
  EXPECT_EQ(loaded.written_bytes, changed);
  EXPECT_EQ(rank.peer.ask<control::Committed>(control::Commit{.version = kSecond}).failure, "");
  EXPECT_EQ(rank.link->status().active, kSecond);
  expect_holds(model_, rank.engine, rank.second);
  // Nothing changes in layer 2, which is that of "layers.1", and layer 4 has no bytes.
  EXPECT_THAT(rank.engine.calls,
              ElementsAre("begin 1.2", "layer 0", "layer 1", "layer 3", "commit 1.2"));
}

TEST_P(ChangedLayers, NoneAreLoadedIfNothingChanges) {
  LayerRank rank(model_, GetParam());
  const MadePatch none(model_, rank.first, rank.first);
  const Bytes bytes = none.bytes();
  EXPECT_EQ(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure, "");
  EXPECT_EQ(rank.peer.ask<control::Committed>(control::Commit{.version = kSecond}).failure, "");
  EXPECT_THAT(rank.engine.calls, ElementsAre("begin 1.2", "commit 1.2"));
  expect_holds(model_, rank.engine, rank.first);
}

// The load fails after some layers: nothing is committed, and all layers come again.
TEST_P(ChangedLayers, AllAreLoadedAfterAFailure) {
  LayerRank rank(model_, GetParam());
  const MadePatch made(model_, rank.first, rank.second);
  const Bytes bytes = made.bytes();
  rank.engine.fail_layer = 3;
  EXPECT_THAT(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure,
              HasSubstr("no room for this layer"));
  EXPECT_EQ(rank.link->status().state, RankState::kTainted);
  // No patch is taken by a rank that holds no version.
  EXPECT_NE(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure, "");
  rank.engine.fail_layer = UINT32_MAX;
  rank.engine.calls.clear();
  rank.switch_to(kSecond);
  expect_holds(model_, rank.engine, rank.second);
  EXPECT_THAT(rank.engine.calls, ElementsAre("begin 1.2", "layer 0", "layer 1", "layer 2",
                                             "layer 3", "layer 4", "commit 1.2"));
}

INSTANTIATE_TEST_SUITE_P(Engine, ChangedLayers,
                         testing::Values(TakeMode::kWhole, TakeMode::kBorrow));

TEST(ChangedLayer, RanksOfTwoTakeTheirParts) {
  const Model model = Model::make();
  for (std::uint32_t number = 0; number < 2; ++number) {
    LayerRank rank(model, TakeMode::kWhole, number, 2);
    const MadePatch made(model, rank.first, rank.second);
    const Bytes bytes = made.bytes();
    EXPECT_EQ(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure, "");
    EXPECT_EQ(rank.peer.ask<control::Committed>(control::Commit{.version = kSecond}).failure, "");
    expect_holds(model, rank.engine, rank.second);
  }
}

TEST(ChangedLayer, MayBeOfAnyLayout) {
  const Model model = Model::make();
  LayerRank rank(model, TakeMode::kBorrow, 0, 1, true);
  const MadePatch made(model, rank.first, rank.second);
  const Bytes bytes = made.bytes();
  EXPECT_EQ(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure, "");
  EXPECT_EQ(rank.peer.ask<control::Committed>(control::Commit{.version = kSecond}).failure, "");
  EXPECT_THAT(rank.engine.calls,
              ElementsAre("begin 1.2", "layer 0", "layer 1", "layer 3", "commit 1.2"));
  for (std::uint32_t t = 0; t < model.manifest.size(); ++t)
    EXPECT_TRUE(std::ranges::equal(rank.engine.memory[t], tensor_in(model, rank.second, t))) << t;
}

TEST(ChangedLayer, IsNotAnsweredLater) {
  const Model model = Model::make();
  LayerRank rank(model, TakeMode::kBorrow);
  const MadePatch made(model, rank.first, rank.second);
  const Bytes bytes = made.bytes();
  rank.engine.late_layers = {1};
  rank.peer.send(load_by(bytes), sealed(bytes));
  rank.peer.ask<control::Pong>(control::Ping{});
  EXPECT_EQ(rank.engine.calls.back(), "layer 1");
  rank.link->report_loaded(kSecond, {});
  EXPECT_THAT(rank.peer.expect<control::Loaded>().failure,
              HasSubstr("it is not told how many there are"));
}

TEST(ChangedLayer, IsForRanksWhoseEngineHoldsThemAndReturnsThem) {
  const Model model = Model::make();
  const auto refusal = [&](TakeMode take, std::string unreadable) {
    Rank rank(model, take);
    rank.engine.description.takes_changed_layers = true;
    rank.engine.unreadable = std::move(unreadable);
    const auto link = EngineLink::create(rank.engine.description, rank.peer.path(), rank.engine);
    EXPECT_FALSE(link);
    return link ? std::string() : link.error().message();
  };
  EXPECT_THAT(refusal(TakeMode::kPieces, ""), HasSubstr("takes pieces, or adopts"));
  EXPECT_THAT(refusal(TakeMode::kAdopt, ""), HasSubstr("takes pieces, or adopts"));
  EXPECT_THAT(refusal(TakeMode::kWhole, "it has packed them"), HasSubstr("it has packed them"));
}

}  // namespace
}  // namespace wsync::engine::test
