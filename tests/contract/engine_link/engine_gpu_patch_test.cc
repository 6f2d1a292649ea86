// Loads by a patch into weights on a GPU, over the emulated driver: what is written, what the rank
// answers, and what becomes of it when the patch fails halfway.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

#include "inference_side/engine_link/device_patch.h"
#include "shared/weights/patch/block_applier.h"
#include "tests/contract/engine_link/gpu_rank.h"
#include "tests/contract/engine_link/made_patch.h"
#include "tests/support/run_again.h"

namespace wsync::engine::test {
namespace {

using control::RankState;
using testing::HasSubstr;

// A rank that has stopped with the first version; the second one is prepared.
struct PatchedGpuRank : GpuRank {
  explicit PatchedGpuRank(const Model& of, std::uint32_t rank = 0, std::uint32_t world = 1)
      : GpuRank(of, rank, world),
        sidecar(of.plan.largest_bucket()),
        first(of.arena(kFirst)),
        second(changed_arena(of, first)) {
    start();
    EXPECT_TRUE(peer.accept().takes_patches);
    peer.send(welcome({}));
    load(sidecar, first, kFirst, sidecar.handles());
    commit(kFirst);
    EXPECT_EQ(peer.ask<control::Prepared>(prepare(kSecond)).failure, "");
    engine.calls.clear();
  }
  control::Loaded load_patch(std::uint32_t deadline_ms = 20'000) {
    const Bytes bytes = MadePatch(model, first, second).bytes();
    control::Load message = load_by(bytes);
    message.deadline_ms = deadline_ms;
    return peer.ask<control::Loaded>(message, sealed(bytes));
  }
  // All bytes, after which the rank holds the second version.
  void repair() {
    load(sidecar, second, kSecond, sidecar.handles());
    commit(kSecond);
    expect_holds(second);
  }
  GpuSidecar sidecar;
  SharedArena first;
  SharedArena second;
};

// Rows of one tensor, columns of another one, and rows that begin within words.
TEST(PatchOnGpu, WritesWhatDiffersAndReturnsBothSums) {
  const Model model = with_odd_rows();
  for (const std::uint32_t world : {1U, 2U})
    for (std::uint32_t number = 0; number < world; ++number) {
      PatchedGpuRank rank(model, number, world);
      const auto loaded = rank.load_patch();
      EXPECT_EQ(loaded.failure, "");
      EXPECT_EQ(rank.link->status().state, RankState::kLoaded);
      rank.commit(kSecond);
      rank.expect_holds(rank.second);
      ASSERT_EQ(loaded.sums.size(), model.manifest.size());
      ASSERT_EQ(loaded.before.size(), model.manifest.size());
      // Those of a rank in host memory.
      const MadePatch made(model, rank.first, rank.second);
      const auto plan = plan_of(model, rank.engine);
      std::uint64_t written = 0;
      for (std::uint32_t t = 0; t < plan.tensors().size(); ++t) {
        const std::uint32_t index = plan.tensors()[t].manifest_index;
        std::vector<patch::PartRange> ranges;
        for (const auto& range : rank.engine.description.tensors[t].description.ranges)
          ranges.push_back({.dim = range.dim, .begin = range.begin, .length = range.length});
        const auto part = patch::TensorPart::create(model.manifest.tensor(index), ranges).value();
        Bytes own(part.bytes());
        const auto all = tensor_in(model, rank.first, index);
        for (auto run = part.run_from(0); run; run = part.run_from(run->end))
          std::ranges::copy(all.subspan(run->begin, run->end - run->begin),
                            own.begin() + static_cast<std::ptrdiff_t>(run->offset));
        SplitSum before;
        SplitSum after;
        patch::BlockApplier host(made.layout);
        for (const auto& block : made.reader->blocks(index, 0, made.layout.block_count(index))) {
          const auto sums = host.apply_to_part(block, part, own);
          before += sums.before;
          after += sums.after;
          written += sums.written_bytes;
        }
        EXPECT_EQ(loaded.before[t], before) << t;
        EXPECT_EQ(loaded.sums[t], after) << t;
      }
      EXPECT_EQ(loaded.written_bytes, written);
    }
}

// The buffers stay, and the next patch finds them.
TEST(PatchOnGpu, OnePatchAfterTheOtherAndAFullLoadBetween) {
  const Model model = Model::make();
  PatchedGpuRank rank(model);
  EXPECT_EQ(rank.load_patch().failure, "");
  rank.commit(kSecond);
  rank.expect_holds(rank.second);
  rank.load(rank.sidecar, rank.first, kFirst, rank.sidecar.handles());
  rank.commit(kFirst);
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kSecond)).failure, "");
  EXPECT_EQ(rank.load_patch().failure, "");
  rank.commit(kSecond);
  rank.expect_holds(rank.second);
}

TEST(PatchOnGpu, ADamagedPatchIsRefusedBeforeAnythingChanges) {
  const Model model = Model::make();
  PatchedGpuRank rank(model);
  Bytes bytes = MadePatch(model, rank.first, rank.second).bytes();
  bytes.back() ^= std::byte{1};
  EXPECT_THAT(rank.peer.ask<control::Loaded>(load_by(bytes), sealed(bytes)).failure,
              HasSubstr("patch"));
  EXPECT_EQ(rank.link->status().state, RankState::kPaused);
  rank.expect_holds(rank.first);
  rank.repair();
}

TEST(PatchOnGpu, APatchPastItsDeadlineTaintsTheRankUntilAllBytesAreLoaded) {
  const Model model = Model::make();
  PatchedGpuRank rank(model);
  rank.engine.on_begin = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  EXPECT_THAT(rank.load_patch(1).failure, HasSubstr("the deadline passed"));
  rank.engine.on_begin = {};
  EXPECT_EQ(rank.link->status().state, RankState::kTainted);
  EXPECT_THAT(rank.load_patch().failure, HasSubstr("the rank is tainted"));
  rank.repair();
}

// The sidecar is lost while the engine has not committed: the rank is not what it was.
TEST(PatchOnGpu, ASidecarThatIsLostAfterThePatchFindsARankToBeLoaded) {
  const Model model = Model::make();
  PatchedGpuRank rank(model);
  EXPECT_EQ(rank.load_patch().failure, "");
  rank.peer.hang_up();
  const auto hello = rank.peer.accept();
  EXPECT_NE(hello.state, RankState::kServing);
  rank.peer.send(rank.welcome({}));
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kSecond)).failure, "");
  rank.repair();
}

// As it gives its memory away, so does the library: the next patch allocates anew.
TEST(PatchOnGpu, AnEngineThatSleepsTakesTheBuffersOfPatchesAway) {
  const Model model = Model::make();
  PatchedGpuRank rank(model);
  const std::uint64_t before = rank.free_bytes();
  EXPECT_EQ(rank.load_patch().failure, "");
  rank.commit(kSecond);
  EXPECT_EQ(rank.free_bytes(), before - 2 * DevicePatch::kBufferBytes);
  ASSERT_TRUE(rank.link->suspend());
  EXPECT_GE(rank.free_bytes(), before);
  ASSERT_TRUE(rank.link->resume());
}

// Of a process of its own (the test below): a GPU whose kernel has failed does nothing more in it.
TEST(PatchOnFailingGpu, DISABLED_TheKernelFailsAndTheLinkStays) {
  const Model model = Model::of({{.name = "a", .dtype = DType::kBF16, .shape = {100, 100}}});
  PatchedGpuRank rank(model);
  EXPECT_THAT(rank.load_patch().failure, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  EXPECT_EQ(rank.link->status().state, RankState::kTainted);
  EXPECT_THAT(rank.peer
                  .ask<control::Loaded>(
                      control::Load{.version = kSecond, .buffers = rank.sidecar.handles()},
                      rank.sidecar.fds())
                  .failure,
              HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST(PatchOnFailingGpu, TheKernelFailsAndTheLinkStays) {
  // After two that warm the stream up, and one for the only bucket of the first version.
  EXPECT_EQ(run_again("PatchOnFailingGpu.DISABLED_TheKernelFailsAndTheLinkStays",
                      {"WSYNC_EMULATED_CUDA_FAULTS=kernel:5:CUDA_ERROR_ILLEGAL_ADDRESS",
                       "WSYNC_EMULATED_CUDA_REPORT="}),  // to the error stream
            0);
}

}  // namespace
}  // namespace wsync::engine::test
