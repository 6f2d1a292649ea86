// The memory of an engine's weights on a GPU is its own: it may be freed, or be given away for a
// time. Over the emulated driver (tests/emulated_cuda), which reports an address that is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <semaphore>
#include <wsync/engine.h>

#include "tests/contract/engine_link/gpu_rank.h"
#include "tests/emulated_cuda/sleeping_memory.h"

namespace wsync::engine::test {
namespace {

using control::RankState;
using testing::AllOf;
using testing::HasSubstr;

// The tensors of the rank lie in memory that comes and goes.
struct SleepingRank {
  explicit SleepingRank(const Model& model) : rank(model), memory(0, rank.weights->bytes()) {
    std::byte* const before = rank.weights->address();
    for (RankTensor& tensor : rank.engine.description.tensors)
      tensor.destination = {memory.range().data() + (tensor.destination.data() - before),
                            tensor.destination.size()};
    rank.weights.reset();
  }
  void attach(const GpuSidecar& sidecar) {
    rank.start();
    rank.peer.accept();
    rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
  }
  [[nodiscard]] std::uint64_t free_bytes() const {
    return rank.device->memory_info().value().free_bytes;
  }
  // What the library says of the memory.
  void expect_digests(const SharedArena& arena) {
    const auto plan = plan_of(rank.model, rank.engine);
    const auto digests = rank.peer.ask<control::Digests>(control::ReadDigests{});
    EXPECT_EQ(digests.failure, "");
    ASSERT_EQ(digests.tensors.size(), plan.tensors().size());
    for (std::size_t t = 0; t < plan.tensors().size(); ++t)
      EXPECT_EQ(digests.tensors[t].digest,
                reload::expected_digest(plan.tensors()[t], arena.data()));
  }
  GpuRank rank;
  SleepingMemory memory;
};

const char* const kFirstTensor = "the destination of tensor model.embed_tokens.weight";

TEST(EngineMemoryOnGpu, MemoryThatIsGoneIsASentenceAndNoLoadBeginsThere) {
  const Model model = Model::make();
  GpuSidecar sidecar(model.plan.largest_bucket());
  SleepingRank engine(model);
  engine.attach(sidecar);
  GpuRank& rank = engine.rank;
  const SharedArena first = model.arena(kFirst);
  const SharedArena second = model.arena(kSecond);
  rank.load(sidecar, first, kFirst);
  rank.commit(kFirst);
  engine.memory.sleep();
  EXPECT_THAT(rank.peer.ask<control::Digests>(control::ReadDigests{}).failure,
              AllOf(HasSubstr(kFirstTensor), HasSubstr("cannot be borrowed")));
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kSecond)).failure, "");
  for (int turn = 0; turn < 2; ++turn)
    EXPECT_THAT(rank.peer.ask<control::Loaded>(control::Load{.version = kSecond}).failure,
                AllOf(HasSubstr(kFirstTensor), HasSubstr("cannot be borrowed")));
  EXPECT_EQ(rank.link->status().state, RankState::kPaused) << "nothing of it has changed";
  engine.memory.wake();
  rank.load(sidecar, second, kSecond);
  rank.commit(kSecond);
  engine.expect_digests(second);
}

// Another load that is refused leaves the one that runs as it is, but for the memory that is gone.
TEST(EngineMemoryOnGpu, ALoadWhoseMemoryIsGoneMeanwhileFails) {
  const Model model = Model::make();
  GpuSidecar sidecar(model.plan.largest_bucket());
  std::counting_semaphore<> begun(0);
  SleepingRank engine(model);
  engine.attach(sidecar);
  GpuRank& rank = engine.rank;
  const SharedArena first = model.arena(kFirst);
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kSecond)).failure, "");
  rank.engine.on_begin = [&] { begun.release(); };
  rank.peer.send(control::Load{.version = kFirst});
  begun.acquire();
  engine.memory.sleep();
  EXPECT_THAT(rank.peer.ask<control::Loaded>(control::Load{.version = kSecond}).failure,
              AllOf(HasSubstr(kFirstTensor), HasSubstr("cannot be borrowed")));
  engine.memory.wake();
  EXPECT_THAT(rank.give(sidecar, first, 0).failure,
              AllOf(HasSubstr(kFirstTensor), HasSubstr("was not there when it was last checked")));
  EXPECT_NE(rank.peer.expect<control::Loaded>().failure, "");
  rank.load(sidecar, first, kFirst);
  rank.commit(kFirst);
  engine.expect_digests(first);
}

TEST(EngineMemoryOnGpu, NothingIsTouchedWhileItIsSuspended) {
  const Model model = Model::make();
  GpuSidecar sidecar(model.plan.largest_bucket());
  SleepingRank engine(model);
  const std::uint64_t before = engine.free_bytes();
  engine.attach(sidecar);
  GpuRank& rank = engine.rank;
  const SharedArena first = model.arena(kFirst);
  rank.load(sidecar, first, kFirst);
  rank.commit(kFirst);
  EXPECT_LT(engine.free_bytes(), before) << "a stream has tables on the GPU";
  ASSERT_TRUE(rank.link->suspend());
  rank.peer.expect_closed();
  EXPECT_EQ(engine.free_bytes(), before) << "a suspended engine keeps memory of the GPU";
  engine.memory.sleep();
  EXPECT_TRUE(rank.link->status().active.none());
  const auto too_early = rank.link->resume();
  ASSERT_FALSE(too_early);
  EXPECT_THAT(too_early.error().message(),
              AllOf(HasSubstr(kFirstTensor), HasSubstr("cannot be borrowed")));
  EXPECT_TRUE(rank.link->is_suspended());
  engine.memory.wake();
  ASSERT_TRUE(rank.link->resume());
  const auto hello = rank.peer.accept();
  EXPECT_EQ(hello.state, RankState::kLoading);
  EXPECT_TRUE(hello.active.none()) << "what it held was given away";
  rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
  const SharedArena second = model.arena(kSecond);
  rank.load(sidecar, second, kSecond);
  rank.commit(kSecond);
  engine.expect_digests(second);
}

TEST(EngineMemoryOnGpu, TheMemoryMayComeBackAtOtherAddresses) {
  const Model model = Model::make();
  GpuSidecar sidecar(model.plan.largest_bucket());
  SleepingRank engine(model);
  engine.attach(sidecar);
  GpuRank& rank = engine.rank;
  const SharedArena first = model.arena(kFirst);
  const SharedArena second = model.arena(kSecond);
  rank.load(sidecar, first, kFirst);
  rank.commit(kFirst);
  ASSERT_TRUE(rank.link->suspend());
  engine.memory.sleep();
  const SleepingMemory other(0, engine.memory.range().size());
  std::byte* const before = engine.memory.range().data();
  for (std::size_t t = 0; t < rank.engine.description.tensors.size(); ++t) {
    std::byte* const address = rank.engine.description.tensors[t].destination.data();
    ASSERT_TRUE(rank.link->move_destination(t, other.range().data() + (address - before)));
  }
  ASSERT_TRUE(rank.link->resume());
  rank.peer.accept();
  rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
  rank.load(sidecar, second, kSecond);
  rank.commit(kSecond);
  engine.expect_digests(second);
  rank.link.reset();  // before that memory
}

// In the middle of a load: what has been copied is forgotten with the memory.
TEST(EngineMemoryOnGpu, ALoadThatRunsEndsWhenItIsSuspended) {
  const Model model = Model::make();
  GpuSidecar sidecar(model.plan.largest_bucket());
  SleepingRank engine(model);
  engine.attach(sidecar);
  GpuRank& rank = engine.rank;
  const SharedArena first = model.arena(kFirst);
  EXPECT_EQ(rank.peer.ask<control::Prepared>(rank.prepare(kFirst)).failure, "");
  rank.peer.send(control::Load{.version = kFirst});
  EXPECT_EQ(rank.give(sidecar, first, 0).failure, "");
  sidecar.put(1, first.data().subspan(model.plan.bucket_offset(1), model.plan.bucket_size(1)));
  rank.peer.send(control::BucketReady{.bucket = 1, .slot = 1});
  ASSERT_TRUE(rank.link->suspend());  // the copy may be running
  engine.memory.sleep();
  engine.memory.wake();
  ASSERT_TRUE(rank.link->resume());
  EXPECT_EQ(rank.peer.accept().state, RankState::kLoading);
  rank.peer.send(rank.welcome(sidecar.handles()), sidecar.fds());
  rank.load(sidecar, first, kFirst);
  rank.commit(kFirst);
  engine.expect_digests(first);
}

}  // namespace
}  // namespace wsync::engine::test
