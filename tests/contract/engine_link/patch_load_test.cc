// Loads by a patch: what a rank writes, what it answers, and what it refuses before anything
// changes.
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include "tests/contract/engine_link/attached_rank.h"
#include "tests/contract/engine_link/made_patch.h"

namespace wsync::engine::test {
namespace {

using control::RankState;
using control::TakeMode;
using testing::ElementsAre;
using testing::HasSubstr;

// A rank that has stopped with the first version; the second one is prepared.
struct PatchedRank : RankOfTwoVersions {
  explicit PatchedRank(const Model& model, std::uint32_t rank = 0, std::uint32_t world = 1)
      : RankOfTwoVersions(model, TakeMode::kPieces, rank, world) {
    start();
    EXPECT_TRUE(peer.accept().takes_patches);
    stop_with_first(model);
  }
};

TEST(PatchLoad, WritesWhatDiffersAndReturnsBothSums) {
  const Model model = Model::make();
  PatchedRank rank(model);
  const MadePatch made(model, rank.first, rank.second);
  const Bytes bytes = made.bytes();
  const auto loaded = rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes));
  EXPECT_EQ(loaded.failure, "");
  EXPECT_EQ(rank.link->status().state, RankState::kLoaded);
  expect_holds(model, rank.engine, rank.second);
  ASSERT_EQ(loaded.sums.size(), model.manifest.size());
  ASSERT_EQ(loaded.before.size(), model.manifest.size());
  std::vector<SplitSum> before(model.manifest.size());
  std::vector<SplitSum> after(model.manifest.size());
  std::uint64_t values = 0;
  for (const patch::BlockView& block : made.reader->blocks()) {
    before[block.place.tensor].words += block.before;
    after[block.place.tensor].words += block.after;
    values += block.values.size();
  }
  EXPECT_EQ(loaded.before, before);
  EXPECT_EQ(loaded.sums, after);
  EXPECT_EQ(loaded.written_bytes, values);
  EXPECT_EQ(loaded.bytes, plan_of(model, rank.engine).bytes());
  EXPECT_EQ(rank.peer.ask<control::Committed>(control::Commit{.version = kSecond}).failure, "");
  EXPECT_EQ(rank.link->status().active, kSecond);
  // As in any other load, also for the layer in which nothing changes.
  EXPECT_THAT(rank.engine.calls, ElementsAre("begin 1.2", "layer 0", "layer 1", "layer 2",
                                             "layer 3", "layer 4", "commit 1.2"));
}

// Rows of one tensor and columns of another one.
TEST(PatchLoad, RanksWriteTheirParts) {
  const Model model = Model::make();
  for (std::uint32_t number = 0; number < 2; ++number) {
    PatchedRank rank(model, number, 2);
    const MadePatch made(model, rank.first, rank.second);
    const Bytes bytes = made.bytes();
    const auto loaded = rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes));
    EXPECT_EQ(loaded.failure, "");
    expect_holds(model, rank.engine, rank.second);
    const auto q_proj = model.manifest.find("model.layers.0.self_attn.q_proj.weight").value();
    WordSum all;
    for (const patch::BlockView& block :
         made.reader->blocks(q_proj, 0, made.layout.block_count(q_proj)))
      all += block.after;
    EXPECT_NE(loaded.sums[q_proj].words, all);
  }
}

TEST(PatchLoad, TensorsOfOddSizesAndUnalignedColumns) {
  const Model model =
      Model::of({{.name = "odd", .dtype = DType::kU8, .shape = {70'001, 13}},
                 {.name = "mlp.down_proj", .dtype = DType::kBF16, .shape = {999, 6}},
                 {.name = "end", .dtype = DType::kF32, .shape = {3}}});
  for (std::uint32_t number = 0; number < 2; ++number) {
    PatchedRank rank(model, number, 2);
    const Bytes bytes = MadePatch(model, rank.first, rank.second).bytes();
    EXPECT_EQ(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure, "");
    expect_holds(model, rank.engine, rank.second);
  }
}

// Nothing has changed, and the same version can be loaded in full at once.
void expect_refused(PatchedRank& rank, const Model& model, const std::string& why,
                    control::Load load, std::vector<UniqueFd> fds) {
  const RankState state = rank.link->status().state;
  const auto loaded = rank.peer.ask<control::Loaded>(std::move(load), std::move(fds));
  EXPECT_THAT(loaded.failure, HasSubstr(why));
  EXPECT_TRUE(loaded.sums.empty());
  EXPECT_EQ(rank.link->status().state, state);
  expect_holds(model, rank.engine, rank.first);
}

TEST(PatchLoad, ARankThatHoldsAnotherVersionRefuses) {
  const Model model = Model::make();
  PatchedRank rank(model);
  const Bytes bytes = MadePatch(model, rank.first, rank.second).bytes();
  expect_refused(rank, model, "the patch begins at 1.3, but the rank is paused and holds 1.1",
                 load_by(bytes, {.epoch = 1, .step = 3}), sealed(bytes));
  rank.switch_to(kSecond);
  expect_holds(model, rank.engine, rank.second);
}

TEST(PatchLoad, ARankThatServesRefuses) {
  const Model model = Model::make();
  PatchedRank rank(model);
  const Bytes bytes = MadePatch(model, rank.first, rank.second).bytes();
  rank.peer.ask<control::Resumed>(control::Resume{});
  expect_refused(rank, model, "serving", load_by(bytes), sealed(bytes));
}

TEST(PatchLoad, ATaintedRankRefuses) {
  const Model model = Model::make();
  PatchedRank rank(model);
  const Bytes bytes = MadePatch(model, rank.first, rank.second).bytes();
  rank.engine.fail_layer = 1;
  EXPECT_THAT(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure,
              HasSubstr("no room for this layer"));
  EXPECT_EQ(rank.link->status().state, RankState::kTainted);
  rank.engine.fail_layer = UINT32_MAX;
  EXPECT_THAT(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure,
              HasSubstr("the rank is tainted"));
  rank.switch_to(kSecond);
  expect_holds(model, rank.engine, rank.second);
}

TEST(PatchLoad, AVersionThatIsLoadedButNotCommittedIsNoBase) {
  const Model model = Model::make();
  PatchedRank rank(model);
  const Bytes bytes = MadePatch(model, rank.first, rank.second).bytes();
  EXPECT_EQ(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure, "");
  EXPECT_THAT(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure,
              HasSubstr("the rank is loaded"));
}

TEST(PatchLoad, NothingIsWrittenBeforeAllOfThePatchIsProven) {
  const Model model = Model::make();
  PatchedRank rank(model);
  const MadePatch made(model, rank.first, rank.second);
  const Bytes bytes = made.bytes();
  Bytes damaged = bytes;
  damaged.back() ^= std::byte{1};  // of the last bucket
  expect_refused(rank, model, "patch", load_by(damaged), sealed(damaged));
  damaged = bytes;
  damaged[60] ^= std::byte{1};  // of the index
  expect_refused(rank, model, "patch", load_by(damaged), sealed(damaged));
  damaged.assign(bytes.begin(), bytes.end() - 1);
  expect_refused(rank, model, "expected", load_by(damaged), sealed(damaged));
  damaged.assign(bytes.begin(), bytes.begin() + 120);
  expect_refused(rank, model, "ends within its index", load_by(damaged), sealed(damaged));
  expect_refused(rank, model, "expected 1", load_by(bytes), {});
  expect_refused(rank, model, "sealed content", load_by(bytes), share(rank.first));
  control::Load wrong_size = load_by(bytes);
  wrong_size.patch_bytes += 1;
  expect_refused(rank, model, "as announced", wrong_size, sealed(bytes));
  // A patch for tensors of other names.
  const Model other = Model::of({{.name = "other", .dtype = DType::kBF16, .shape = {1200, 512}}});
  const SharedArena a = other.arena(kFirst);
  const Bytes foreign = MadePatch(other, a, other.arena(kSecond)).bytes();
  expect_refused(rank, model, "patch", load_by(foreign), sealed(foreign));
  EXPECT_EQ(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure, "");
  expect_holds(model, rank.engine, rank.second);
}

// The sums say what was there, whatever it was; the sidecar compares them.
TEST(PatchLoad, MemoryThatTheEngineHasChangedShowsInTheSumsBefore) {
  const Model model = Model::make();
  PatchedRank rank(model);
  const MadePatch made(model, rank.first, rank.second);
  const Bytes bytes = made.bytes();
  rank.engine.memory[0][2] ^= std::byte{1};  // beside the first element, which changes
  const auto loaded = rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes));
  EXPECT_EQ(loaded.failure, "");
  WordSum before;
  for (const patch::BlockView& block : made.reader->blocks(0, 0, made.layout.block_count(0)))
    before += block.before;
  EXPECT_NE(loaded.before[0].words, before);
}

control::PatchAhead ahead_of(const Bytes& patch, Version base = kFirst) {
  return {.version = kSecond, .patch_base = base, .patch_bytes = patch.size(), .copy_threads = 2};
}

// The second version differs from the first one in all bytes of tensor 0, and in nothing else.
SharedArena with_a_new_tensor(const Model& model, const SharedArena& first) {
  return second_arena(model, first, [](const Piece& piece, std::span<std::byte> bytes) {
    if (piece.tensor != 0) return;
    for (std::byte& byte : bytes) byte ^= std::byte{1};
  });
}

// The memory of a patch, which is given to a rank several times.
struct SharedPatch {
  explicit SharedPatch(const Bytes& bytes)
      : memory(SealedMemory::create("patch", std::array<std::span<const std::byte>, 1>{bytes})
                   .value()) {}
  [[nodiscard]] std::vector<UniqueFd> share() const {
    std::vector<UniqueFd> fds;
    fds.push_back(memory.share().value());
    return fds;
  }
  SealedMemory memory;
};

// It is told what a rank that serves is told, and stops then.
struct RankThatReadsAhead : PatchedRank {
  explicit RankThatReadsAhead(const Model& model) : PatchedRank(model) {
    peer.ask<control::Resumed>(control::Resume{});
    engine.calls.clear();
  }
  void read_and_pause(control::PatchAhead message, std::vector<UniqueFd> fds) {
    peer.send(std::move(message), std::move(fds));
    EXPECT_EQ(peer.ask<control::Paused>(control::Pause{}).step, 7U);
  }
};

TEST(PatchLoad, WhatWasReadAheadWritesTheSame) {
  const Model model = Model::make();
  for (const bool whole : {false, true}) {
    std::vector<control::Loaded> answers;
    for (const bool ahead : {false, true}) {
      RankThatReadsAhead rank(model);
      if (whole) rank.second = with_a_new_tensor(model, rank.first);
      const Bytes bytes = MadePatch(model, rank.first, rank.second).bytes();
      const SharedPatch memory(bytes);
      if (ahead)
        rank.read_and_pause(ahead_of(bytes), memory.share());
      else
        rank.peer.ask<control::Paused>(control::Pause{});
      answers.push_back(rank.peer.ask<control::Loaded>(load_by(bytes), memory.share()));
      EXPECT_EQ(answers.back().failure, "");
      expect_holds(model, rank.engine, rank.second);
    }
    EXPECT_EQ(answers[0].before, answers[1].before);
    EXPECT_EQ(answers[0].sums, answers[1].sums);
    EXPECT_EQ(answers[0].written_bytes, answers[1].written_bytes);
  }
}

// It would return sums of bytes that are there no more.
TEST(PatchLoad, WhatWasReadAheadIsForgottenWithTheNextLoad) {
  const Model model = Model::make();
  RankThatReadsAhead rank(model);
  const SharedArena second = with_a_new_tensor(model, rank.first);
  const MadePatch made(model, rank.first, second);
  const Bytes bytes = made.bytes();
  const SharedPatch memory(bytes);
  rank.engine.memory[0][2] ^= std::byte{1};
  rank.read_and_pause(ahead_of(bytes), memory.share());
  rank.switch_to(kFirst);  // this mends the byte
  const auto loaded = rank.peer.ask<control::Loaded>(load_by(bytes), memory.share());
  EXPECT_EQ(loaded.failure, "");
  WordSum before;
  for (const patch::BlockView& block : made.reader->blocks(0, 0, made.layout.block_count(0)))
    before += block.before;
  EXPECT_EQ(loaded.before[0].words, before) << "the sum of bytes that are there no more";
}

std::size_t mapped_patches() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:patch") != std::string::npos ? 1U : 0U;
  return count;
}

// The sidecar counts its patches without what engines still map.
TEST(PatchLoad, WhatWasReadIsMappedNoLongerThanItIsNeeded) {
  const Model model = Model::make();
  RankThatReadsAhead rank(model);
  const Bytes bytes = MadePatch(model, rank.first, rank.second).bytes();
  const SharedPatch memory(bytes);
  const auto mapped = [&] {
    rank.peer.ask<control::Pong>(control::Ping{});  // everything before it is over
    return mapped_patches() - 1;
  };
  for (int time = 0; time < 2; ++time) rank.peer.send(ahead_of(bytes), memory.share());
  EXPECT_EQ(mapped(), 1U);
  // The version is released, and prepared again.
  rank.peer.send(control::Release{.version = kSecond});
  EXPECT_EQ(mapped(), 0U);
  const auto prepare = [&] {
    EXPECT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kSecond, true), share(rank.second))
                  .failure,
              "");
  };
  prepare();
  rank.peer.send(ahead_of(bytes), memory.share());
  EXPECT_EQ(mapped(), 1U);
  prepare();
  EXPECT_EQ(mapped(), 0U);
  // The pause is withdrawn.
  rank.read_and_pause(ahead_of(bytes), memory.share());
  EXPECT_EQ(mapped(), 1U);
  rank.peer.ask<control::Resumed>(control::Resume{});
  EXPECT_EQ(mapped(), 0U);
  // It is loaded, and served.
  rank.read_and_pause(ahead_of(bytes), memory.share());
  EXPECT_EQ(rank.peer.ask<control::Loaded>(load_by(bytes), memory.share()).failure, "");
  EXPECT_EQ(rank.peer.ask<control::Committed>(control::Commit{.version = kSecond}).failure, "");
  EXPECT_EQ(mapped(), 1U) << "unmapping would prolong the pause";
  rank.peer.ask<control::Resumed>(control::Resume{});
  EXPECT_EQ(mapped(), 0U);
  expect_holds(model, rank.engine, rank.second);
}

// Nothing answers it. A load that follows is not worse off.
TEST(PatchLoad, WhatCannotBeReadAheadIsNoFailure) {
  const Model model = Model::make();
  RankThatReadsAhead rank(model);
  const Bytes bytes = MadePatch(model, rank.first, rank.second).bytes();
  Bytes damaged = bytes;
  damaged.back() ^= std::byte{1};
  rank.peer.send(ahead_of(damaged), sealed(damaged));
  rank.peer.send(ahead_of(bytes), {});
  control::PatchAhead longer = ahead_of(bytes);
  longer.patch_bytes += 1;
  rank.peer.send(longer, sealed(bytes));
  rank.peer.send(ahead_of(bytes, {.epoch = 1, .step = 3}), sealed(bytes));
  control::PatchAhead unknown = ahead_of(bytes);
  unknown.version = {.epoch = 1, .step = 9};
  rank.peer.send(unknown, sealed(bytes));
  rank.read_and_pause(ahead_of(bytes), sealed(bytes));
  // Other memory than that which was read.
  EXPECT_THAT(rank.peer.ask<control::Loaded>(load_by(damaged), sealed(damaged)).failure,
              HasSubstr("patch"));
  EXPECT_EQ(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure, "");
  expect_holds(model, rank.engine, rank.second);
}

TEST(PatchLoad, AnEngineThatDoesNotBeginTheLoadKeepsItsBytes) {
  const Model model = Model::make();
  PatchedRank rank(model);
  const Bytes bytes = MadePatch(model, rank.first, rank.second).bytes();
  rank.engine.fail_begin = true;
  EXPECT_THAT(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure,
              HasSubstr("not now"));
  expect_holds(model, rank.engine, rank.first);
}

TEST(PatchLoad, OnlyRanksWithTheBytesOfTheVersionTakePatches) {
  const Model model = Model::make();
  for (const TakeMode take : {TakeMode::kWhole, TakeMode::kAdopt, TakeMode::kBorrow}) {
    Rank rank(model, take);
    rank.start();
    EXPECT_FALSE(rank.peer.accept().takes_patches);
  }
  Rank rank(model, TakeMode::kPieces);
  rank.engine.memory[0].resize(rank.engine.memory[0].size() * 2);
  rank.engine.description.tensors[0].destination = rank.engine.memory[0];
  rank.engine.description.tensors[0].held_as = DType::kF32;
  rank.start();
  EXPECT_FALSE(rank.peer.accept().takes_patches);
}

}  // namespace
}  // namespace wsync::engine::test
