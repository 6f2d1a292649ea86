// What the engine library does with the memory of a GPU, on a device in host memory: for builds
// without CUDA, and for planted faults. engine_gpu_memory_test.cc and engine_gpu_whole_test.cc have
// more, over the emulated driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/contract/engine_link/made_patch.h"
#include "tests/contract/engine_link/separate_rank.h"
#include "tests/support/bytes.h"
#include "tests/support/gpu_like_device.h"

namespace wsync::engine::test {
namespace {

using control::RankState;
using control::TakeMode;
using testing::AllOf;
using testing::HasSubstr;

struct GpuLikeRank : SeparateRank {
  GpuLikeRank(const Model& of, TakeMode take) : SeparateRank(of, take), model(of) {
    engine.description.gpu = &device;
  }
  void attach() {
    start();
    EXPECT_EQ(peer.accept().gpu, device.uuid());
    welcome();
  }
  void welcome() {
    std::vector<UniqueFd> fds;
    for (const auto& buffer : buffers) fds.push_back(buffer.duplicate());
    peer.send(control::EngineWelcome{.generation = 1,
                                     .device_kind = DeviceKind::kCuda,
                                     .buffer_bytes = model.plan.largest_bucket(),
                                     .buffers = {{.opaque = {}, .generation = 1},
                                                 {.opaque = {}, .generation = 1}}},
              std::move(fds));
  }
  void begin(Version version) {
    EXPECT_EQ(peer.ask<control::Prepared>(prepare_of(model, version)).failure, "");
    peer.send(control::Load{.version = version});
  }
  void load(const SharedArena& arena, Version version) {
    begin(version);
    for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket)
      EXPECT_EQ(give(model, arena, bucket).failure, "");
    EXPECT_EQ(peer.expect<control::Loaded>().failure, "");
    EXPECT_EQ(peer.ask<control::Committed>(control::Commit{.version = version}).failure, "");
  }
  const Model& model;
  GpuLikeDevice device;
};

TEST(GpuLike, EveryWayToTakeAVersion) {
  const Model model = Model::make();
  for (const TakeMode take : {TakeMode::kPieces, TakeMode::kWhole, TakeMode::kBorrow}) {
    GpuLikeRank rank(model, take);
    rank.attach();
    for (const Version version : {kFirst, kSecond}) {
      const SharedArena arena = model.arena(version);
      rank.load(arena, version);
      expect_holds(model, rank.engine, arena);
    }
    rank.link.reset();  // before its device
  }
}

TEST(GpuLike, MemoryThatWasFreedIsNotWrittenTo) {
  const Model model = Model::make();
  GpuLikeRank rank(model, TakeMode::kPieces);
  rank.attach();
  const SharedArena first = model.arena(kFirst);
  const SharedArena second = model.arena(kSecond);
  rank.load(first, kFirst);
  rank.device.free_range(rank.engine.memory[2]);
  EXPECT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kSecond)).failure, "");
  rank.peer.send(control::Load{.version = kSecond});
  rank.peer.send(control::Ping{});
  auto answered = rank.peer.expect<control::Loaded>();
  EXPECT_THAT(answered.failure,
              AllOf(HasSubstr("the destination of tensor " +
                              rank.engine.description.tensors[2].description.name),
                    HasSubstr("no memory of it is there")));
  rank.peer.expect<control::Pong>();
  EXPECT_EQ(rank.link->status().state, RankState::kPaused);
  expect_holds(model, rank.engine, first);
  EXPECT_THAT(rank.peer.ask<control::Digests>(control::ReadDigests{}).failure,
              HasSubstr("no memory of it is there"));
  ASSERT_TRUE(rank.link->suspend());
  EXPECT_FALSE(rank.link->resume());
  rank.device.allocate_again();
  ASSERT_TRUE(rank.link->resume());
  EXPECT_TRUE(rank.peer.accept().active.none());
  rank.welcome();
  rank.load(second, kSecond);
  expect_holds(model, rank.engine, second);
  rank.link.reset();
}

// A rank that has stopped with the first version; the second one is prepared.
struct PatchedGpuLikeRank : GpuLikeRank {
  explicit PatchedGpuLikeRank(const Model& of)
      : GpuLikeRank(of, TakeMode::kPieces),
        first(of.arena(kFirst)),
        second(changed_arena(of, first)) {
    attach();
    load(first, kFirst);
    EXPECT_EQ(peer.ask<control::Prepared>(prepare_of(model, kSecond, false)).failure, "");
  }
  ~PatchedGpuLikeRank() { link.reset(); }  // before its device
  control::Loaded load_patch() {
    const Bytes bytes = MadePatch(model, first, second).bytes();
    return peer.ask<control::Loaded>(load_by(bytes), sealed(bytes));
  }
  // Nothing has changed, and all bytes can be loaded at once.
  void expect_refused(const std::string& why) {
    EXPECT_THAT(load_patch().failure, HasSubstr(why));
    EXPECT_EQ(link->status().state, RankState::kPaused);
    expect_holds(model, engine, first);
  }
  SharedArena first;
  SharedArena second;
};

TEST(GpuLike, APatchIsWrittenAndBothSumsAreReturned) {
  const Model model = Model::make();
  PatchedGpuLikeRank rank(model);
  const MadePatch made(model, rank.first, rank.second);
  const auto loaded = rank.load_patch();
  EXPECT_EQ(loaded.failure, "");
  std::vector<SplitSum> before(model.manifest.size());
  std::vector<SplitSum> after(model.manifest.size());
  for (const patch::BlockView& block : made.reader->blocks()) {
    before[block.place.tensor].words += block.before;
    after[block.place.tensor].words += block.after;
  }
  EXPECT_EQ(loaded.before, before);
  EXPECT_EQ(loaded.sums, after);
  expect_holds(model, rank.engine, rank.second);
}

TEST(GpuLike, APatchIsNotWrittenToMemoryThatWasFreed) {
  const Model model = Model::make();
  PatchedGpuLikeRank rank(model);
  rank.device.free_range(rank.engine.memory[2]);
  rank.expect_refused("the destination of tensor " +
                      rank.engine.description.tensors[2].description.name);
  rank.device.allocate_again();
  EXPECT_EQ(rank.load_patch().failure, "");
  expect_holds(model, rank.engine, rank.second);
}

TEST(GpuLike, APatchWithoutRoomForItsBuffersIsRefused) {
  const Model model = Model::make();
  PatchedGpuLikeRank rank(model);
  rank.device.fill_up(true);
  rank.expect_refused("bytes for the words of patches");
  rank.load(rank.second, kSecond);
  expect_holds(model, rank.engine, rank.second);
}

TEST(GpuLike, WhatIsBorrowedOfALostLoadStaysUntilTheNextOneBegins) {
  const Model model = Model::make();
  GpuLikeRank rank(model, TakeMode::kBorrow);
  rank.attach();
  const SharedArena first = model.arena(kFirst);
  const SharedArena second = model.arena(kSecond);
  rank.begin(kFirst);
  for (const std::uint64_t bucket : {0U, 1U})
    EXPECT_EQ(rank.give(model, first, bucket).failure, "");
  rank.peer.hang_up();
  EXPECT_EQ(rank.peer.accept().state, RankState::kTainted);
  // Its first layer. Freed memory is no longer mapped, and the kernel says so.
  const auto borrowed = rank.engine.adopted[0];
  unsigned char page = 0;
  const auto address = reinterpret_cast<std::uintptr_t>(borrowed.data()) & ~std::uintptr_t{4095};
  ASSERT_EQ(::mincore(reinterpret_cast<void*>(address), 1, &page), 0)
      << "the engine's work still reads";
  EXPECT_TRUE(
      same_bytes(borrowed, first.data().subspan(model.plan.bucket_offset(0), borrowed.size())));
  rank.welcome();
  rank.load(second, kSecond);
  expect_holds(model, rank.engine, second);
  rank.link.reset();
}

}  // namespace
}  // namespace wsync::engine::test
