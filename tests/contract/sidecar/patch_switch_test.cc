// Switches by a patch: what ranks write, and when all bytes are loaded instead.
#include <gmock/gmock.h>

#include "tests/contract/sidecar/linked_hub.h"

namespace wsync::agent::test {
namespace {

using testing::HasSubstr;

class PatchSwitch : public LinkedHub {
 protected:
  // A rank serves the first version, and then commits the second one, which it loads by a patch.
  void commit_second() {
    open();
    serve_first(1);
    change(250);
    add(kV2);
    expect_loaded(load(kV2, kV1), true);
    commit(kV2);
  }
};

TEST_F(PatchSwitch, TwoRanksWriteOnlyWhatDiffers) {
  open();
  serve_first(2);
  for (const Version version : {kV2, kV3}) {
    change(version == kV2 ? 250 : 1000);
    add(version);
    EXPECT_NE(patch_bytes_, 0U);
    expect_loaded(load(version, version == kV2 ? kV1 : kV2), true);
    commit(version);
    expect_holds();
    serve();
    pause();
    hub_->remove_version(version == kV2 ? kV1 : kV2);
    EXPECT_EQ(patch_bytes_, 0U) << "nobody serves its base, and nothing leads back";
  }
}

TEST_F(PatchSwitch, TwoRanksGoBackByWhatLeadsBack) {
  open();
  serve_first(2);
  change(250);
  add(kV2);
  const std::uint64_t bytes = patch_bytes_;
  expect_loaded(load(kV2, kV1), true);
  EXPECT_EQ(made_, 1U) << "not while a load may use the processors";
  commit(kV2);
  serve();
  ASSERT_TRUE(bench_.until([&] { return made_ == 2; }));
  pause();
  EXPECT_EQ(patch_bytes_, bytes) << "it is there in place of what led there";
  expect_loaded(load(kV1, kV2), true);
  commit(kV1);
  serve();
  content_.pop_back();
  expect_holds();
  EXPECT_EQ(patch_bytes_, 0U);
  // A version that was taken back is not led to again.
  EXPECT_EQ(tried_, 2U);
}

// A rollback may be what such an engine needs.
TEST_F(PatchSwitch, AnEngineThatDoesNotServeAgainGoesBackByAPatchAsWell) {
  commit_second();
  ASSERT_TRUE(bench_.until([&] { return made_ == 2; }));
  expect_loaded(load(kV1, kV2), true);
  commit(kV1);
  content_.pop_back();
  expect_holds();
}

// A tensor that changes as a whole is replaced. What is replaced is read while the engine serves: a
// rank does not see any more what happens to it in the pause.
TEST_F(PatchSwitch, RanksReadThePatchBeforeTheyPause) {
  open();
  serve_first(1);
  // Small enough for a patch.
  const auto& tensors = ranks_[0]->engine.description.tensors;
  const auto changed = std::ranges::find_if(tensors, [&](const auto& tensor) {
    return tensor.destination.size() >= 4096 &&
           tensor.destination.size() < model_.plan.arena_bytes() / 20;
  });
  ASSERT_NE(changed, tensors.end());
  const auto index = model_.manifest.find(changed->description.name).value();
  for (const bool ahead : {true, false}) {
    const Version from = ahead ? kV1 : kV2;
    const Version to = ahead ? kV2 : kV3;
    content_.push_back(content_.back());
    for (const Piece& piece : model_.plan.tensor_pieces(index))
      for (auto& byte :
           std::span(content_.back()).subspan(model_.plan.arena_offset(piece), piece.bytes))
        byte ^= std::byte{1};
    serve();
    add(to);
    pause(to, ahead ? from : Version{});
    changed->destination[2] ^= std::byte{1};
    const auto loaded = load(to, from);
    if (!ahead) {
      EXPECT_THAT(loaded[0].failure, HasSubstr("were not those of the version before"));
      continue;
    }
    expect_loaded(loaded, true);
    commit(to);
    expect_holds();
  }
}

TEST_F(PatchSwitch, DamagedMemoryGoesBackInFull) {
  commit_second();
  serve();
  ASSERT_TRUE(bench_.until([&] { return made_ == 2; }));
  pause();
  // Memory that is found to differ is loaded in full, whatever leads there.
  damage(0);
  const auto loaded = load(kV1, kV2);
  EXPECT_THAT(loaded[0].failure, HasSubstr("were not those of the version before"));
  hub_->send("r0", reload::CancelLoad{.request = request_});
  expect_loaded(load(kV1), false);
  commit(kV1);
  content_.pop_back();
  expect_holds();
}

TEST_F(PatchSwitch, AnotherBaseIsFoundBeforeCommitAndEverythingIsLoaded) {
  open();
  serve_first(2);
  change(250);
  add(kV2);
  damage(1);
  const auto loaded = load(kV2, kV1);
  ASSERT_EQ(loaded.size(), 2U);
  EXPECT_EQ(loaded[0].failure, "") << "the sums are compared when all are there";
  EXPECT_THAT(loaded[1].failure, HasSubstr("were not those of the version before"));
  EXPECT_TRUE(loaded[1].is_of_replica);
  EXPECT_TRUE(loaded[1].by_patch);
  // Nothing of it can be committed.
  hub_->send("r0", reload::SendCommit{.rank = 0, .request = ++request_, .version = kV2});
  EXPECT_THAT(wait<reload::RankCommitted>(1).front().failure, HasSubstr("was not compared"));
  hub_->send("r0", reload::CancelLoad{.request = request_ - 1});
  expect_loaded(load(kV2), false);
  commit(kV2);
  expect_holds();
}

TEST_F(PatchSwitch, WithoutAPatchFromTheBaseEverythingIsLoaded) {
  commit_second();
  change(250);
  add(kV3);
  // Only the patch from 1.2 was made.
  expect_loaded(load(kV3, kV1), false);
  commit(kV3);
  expect_holds();
}

TEST_F(PatchSwitch, IsNotUsedWhereItDoesNotFit) {
  open();
  serve_first(1);
  change(250);
  add(kV2);
  EXPECT_EQ(made_, 1U);
  expect_loaded(load(kV2), false);  // a rank of the replica holds no version
  commit(kV2);
  serve();
  ASSERT_TRUE(bench_.until([&] { return made_ == 2; })) << "what leads back";
  pause();
  change(1);
  add(kV3);  // everything has changed
  EXPECT_EQ(tried_, 3U);
  EXPECT_EQ(made_, 2U);
  expect_loaded(load(kV3, kV2), false);
  commit(kV3);
  expect_holds();
}

TEST_F(PatchSwitch, GoesWithEitherVersion) {
  open();
  serve_first(1);
  change(250);
  add(kV2);
  EXPECT_NE(patch_bytes_, 0U);
  hub_->remove_version(kV1);
  EXPECT_EQ(patch_bytes_, 0U);
  expect_loaded(load(kV2, kV1), false);
  commit(kV2);
  expect_holds();
}

TEST_F(PatchSwitch, IsNotMadeIfItIsSwitchedOff) {
  open({.enabled = false});
  serve_first(1);
  change(250);
  add(kV2);
  EXPECT_EQ(tried_, 0U);
  expect_loaded(load(kV2, kV1), false);
}

TEST_F(PatchSwitch, IsNotMadeByComparingIfOnlyChangesAreTaken) {
  open({.compares = false});
  serve_first(1);
  change(250);
  add(kV2);
  EXPECT_EQ(tried_, 0U);
  expect_loaded(load(kV2, kV1), false);
}

TEST_F(PatchSwitch, NothingIsWrittenForAVersionWithTheSameContent) {
  open({.compares = false});
  serve_first(2);
  add(kV2);
  EXPECT_EQ(made_, 1U);
  const auto loaded = load(kV2, kV1);
  expect_loaded(loaded, true);
  for (const auto& one : loaded) EXPECT_EQ(one.written_bytes, 0U);
  commit(kV2);
  expect_holds();
  for (const auto& rank : verify()) {
    EXPECT_EQ(rank.version, kV2);
    EXPECT_TRUE(rank.failure.empty() && rank.mismatches.empty());
  }
}

TEST_F(PatchSwitch, IsNotMadeWithoutRoom) {
  open({.room = [] { return std::uint64_t{1000}; }});
  serve_first(1);
  change(250);
  add(kV2);
  EXPECT_EQ(tried_, 1U);
  EXPECT_EQ(made_, 0U);
  EXPECT_EQ(patch_bytes_, 0U);
  expect_loaded(load(kV2, kV1), false);
}

// What a patch leaves alone would stay wrong.
TEST_F(PatchSwitch, ARankThatWasFoundToDifferIsLoadedInFull) {
  open();
  serve_first(1);
  ranks_[0]->engine.memory[0][1] ^= std::byte{1};
  const auto found = verify();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front().mismatches.size(), 1U);
  change(250);
  add(kV2);
  expect_loaded(load(kV2, kV1), false);
  commit(kV2);
  expect_holds();
  change(250);
  add(kV3);
  expect_loaded(load(kV3, kV2), true);
}

// What was found in a rank is forgotten with its sidecar, and nothing serves, so that no scrub
// reads it again.
TEST_F(PatchSwitch, ARankThatAttachesWithAVersionIsLoadedInFull) {
  open();
  serve_first(2);
  ranks_[1]->engine.memory[0][1] ^= std::byte{1};
  hub_.reset();
  open();
  for (const auto& attached : wait<reload::RankAttached>(2)) EXPECT_EQ(attached.active, kV1);
  add(kV1);
  change(250);
  add(kV2);
  EXPECT_EQ(made_, 1U);
  expect_loaded(load(kV2, kV1), false);
  commit(kV2);
  expect_holds();
  change(250);
  add(kV3);
  expect_loaded(load(kV3, kV2), true);
}

}  // namespace
}  // namespace wsync::agent::test
