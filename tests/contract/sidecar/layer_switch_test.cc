// Switches by a patch of ranks that take the layers that it changes.
#include <gmock/gmock.h>
#include <thread>

#include "tests/contract/sidecar/linked_hub.h"

namespace wsync::agent::test {
namespace {

using control::TakeMode;
using testing::HasSubstr;

class LayerSwitch : public LinkedHub {
 protected:
  void serve_layers(std::uint32_t world, TakeMode take) {
    attach(world, take, {}, true);
    add(kV1);
    load_all(kV1);
  }
  // The next version: one value of this tensor is another one.
  void change_tensor(std::uint32_t tensor) {
    content_.push_back(content_.back());
    content_.back()[model_.plan.arena_offset(model_.plan.tensor_pieces(tensor).front())] ^=
        std::byte{1};
  }
  // Layers that a rank was given since then.
  [[nodiscard]] std::vector<std::string> layers_of(std::size_t rank) const {
    std::vector<std::string> layers;
    for (const std::string& call : ranks_[rank]->engine.calls_until_now())
      if (call.starts_with("layer ")) layers.push_back(call);
    return layers;
  }
  void forget_calls() {
    for (const auto& rank : ranks_) {
      const std::lock_guard lock(rank->engine.calls_mutex);
      rank->engine.calls.clear();
    }
  }
};

TEST_F(LayerSwitch, TwoRanksLoadTheLayersThatHaveChanged) {
  open();
  serve_layers(2, TakeMode::kWhole);
  Version base = kV1;
  for (const Version version : {kV2, kV3}) {
    forget_calls();
    change_tensor(version == kV2 ? 1 : 3);
    add(version);
    expect_loaded(load(version, base), true);
    commit(version);
    expect_holds();
    for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(layers_of(rank).size(), 1U);
    serve();
    pause();
    base = version;
  }
  // And back, by the layers of what leads back.
  ASSERT_TRUE(bench_.until([&] { return made_ == 4; }));
  expect_loaded(load(kV2, kV3), true);
  commit(kV2);
  content_.pop_back();
  expect_holds();
}

TEST_F(LayerSwitch, WhatWasLoadedIsComparedWithTheVersion) {
  open();
  serve_layers(1, TakeMode::kWhole);
  change_tensor(0);
  add(kV2);
  // Beside the byte that has changed, in the same layer.
  arenas_.at(kV2)[model_.plan.arena_offset(model_.plan.tensor_pieces(0).front()) + 40] ^=
      std::byte{1};
  const auto loaded = load(kV2, kV1);
  ASSERT_EQ(loaded.size(), 1U);
  EXPECT_THAT(loaded[0].failure, HasSubstr("model.embed_tokens.weight"));
  EXPECT_TRUE(loaded[0].by_patch);
}

// One rank has a patch written into its memory, and the other one is given layers.
TEST_F(LayerSwitch, BesideARankThatTakesPiecesBothAreCompared) {
  open();
  ranks_.push_back(std::make_unique<LinkedRank>(model_, hub_->socket(), 0, 2, TakeMode::kPieces));
  ranks_.push_back(std::make_unique<LinkedRank>(model_, hub_->socket(), 1, 2, TakeMode::kWhole,
                                                std::string(), true));
  EXPECT_EQ(wait<reload::RankAttached>(2).size(), 2U);
  add(kV1);
  load_all(kV1);
  forget_calls();
  change_tensor(1);
  add(kV2);
  expect_loaded(load(kV2, kV1), true);
  commit(kV2);
  expect_holds();
  EXPECT_EQ(layers_of(1).size(), 1U);
  // What is wrong in one of them alone is found.
  for (const std::size_t rank : {0U, 1U}) {
    change_tensor(0);
    const Version next{.epoch = 1, .step = 3 + rank};
    add(next);
    if (rank == 0)
      damage(0);
    else
      arenas_.at(next)[model_.plan.arena_offset(model_.plan.tensor_pieces(0).front()) +
                       model_.manifest.byte_size(0) - 1] ^= std::byte{1};
    const auto loaded = load(next, rank == 0 ? kV2 : kV3);
    EXPECT_TRUE(std::ranges::any_of(
        loaded, [](const auto& one) { return one.by_patch && !one.failure.empty(); }));
    hub_->send("r0", reload::CancelLoad{.request = request_});
    if (rank == 0) load_all(next);
  }
}

// A pass over all layers ends when some are loaded. So where versions come faster than passes end,
// nobody would see a bit that flips in a layer that does not change.
TEST_F(LayerSwitch, WhatIsNeverReadToItsEndIsLoadedInFullAfterTheInterval) {
  scrub_ = {.interval = std::chrono::milliseconds(300), .share_ppm = 100'000};
  open();
  serve_layers(1, TakeMode::kWhole);
  auto& engine = ranks_[0]->engine;
  // Each read is as slow as one of many bytes, so a pass takes seconds.
  engine.on_read = [](std::uint32_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  Version base = kV1;
  for (const std::uint64_t step : {2U, 3U}) {
    serve();
    const std::uint64_t before = engine.reads;
    ASSERT_TRUE(bench_.until([&] { return engine.reads > before; })) << "a pass has begun";
    pause();
    change_tensor(1);
    const Version next{.epoch = 1, .step = step};
    add(next);
    expect_loaded(load(next, base), true);
    commit(next);
    base = next;
  }
  EXPECT_TRUE(bench_.until([&] { return !proof().not_scrubbed.empty(); }));
  EXPECT_EQ(proof().proved, kV1);
  damage(0);
  change_tensor(1);
  const Version last{.epoch = 1, .step = 4};
  add(last);
  expect_loaded(load(last, base), false);
  commit(last);
  EXPECT_EQ(proof().proved, last);
  EXPECT_EQ(proof().not_scrubbed, "");
  expect_holds();
}

TEST_F(LayerSwitch, AllLayersAreLoadedWithoutAPatch) {
  open({.enabled = false});
  serve_layers(1, TakeMode::kWhole);
  change_tensor(0);
  add(kV2);
  expect_loaded(load(kV2, kV1), false);
  commit(kV2);
  expect_holds();
}

TEST_F(LayerSwitch, ARankThatBorrowsIsGivenTheLayersThatHaveChanged) {
  open();
  serve_layers(1, TakeMode::kBorrow);
  forget_calls();
  change_tensor(1);
  add(kV2);
  expect_loaded(load(kV2, kV1), true);
  commit(kV2);
  EXPECT_EQ(layers_of(0).size(), 1U);
  expect_holds();
  // What it has not been given is found by those who ask it for its bytes.
  damage(0);
  serve();
  const auto found = verify();
  ASSERT_EQ(found.front().mismatches.size(), 1U);
  EXPECT_EQ(found.front().mismatches.front().tensor, "model.embed_tokens.weight");
}

}  // namespace
}  // namespace wsync::agent::test
