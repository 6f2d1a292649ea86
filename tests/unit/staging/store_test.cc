#include "inference_side/staging/store.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <sys/mman.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/stream_copy.h"
#include "shared/base/units.h"
#include "shared/base/weight_limits.h"
#include "shared/weights/parts.h"
#include "tests/support/bytes.h"
#include "tests/support/owner_loop.h"

namespace wsync::staging {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A layout and the arena bytes of one version of it, as a trainer would make them.
struct TestModel {
  explicit TestModel(std::uint64_t seed) {
    auto made = Manifest::create({{"embed.weight", DType::kBF16, {2000, 777}},
                                  {"layers.0.w", DType::kF32, {100, 30}},
                                  {"layers.1.w", DType::kU8, {limits::kMiB + 5}},
                                  {"layers.2.none", DType::kU8, {0}}});
    EXPECT_TRUE(made.has_value()) << made.error().message();
    manifest = std::make_shared<const Manifest>(std::move(*made));
    plan = std::make_shared<const BucketPlan>(
        std::move(*BucketPlan::create(*manifest, limits::kBucketBytesMin)));
    leaves = std::make_shared<const LeafTable>(*manifest, *plan);
    data.resize(plan->arena_bytes());
    std::mt19937_64 random(seed);
    ContentDigester digester(*manifest);
    for (const Piece& piece : plan->pieces()) {
      const auto bytes = std::span(data).subspan(plan->arena_offset(piece), piece.bytes);
      fill_random(random, bytes);
      EXPECT_TRUE(digester.add(piece.tensor, piece.tensor_offset, bytes).has_value());
    }
    digests = *digester.finish();
  }
  [[nodiscard]] StagingJob job(std::uint64_t step) const {
    return {.identity = {.fence_epoch = 3,
                         .version_epoch = 1,
                         .version_step = step,
                         .layout = manifest->layout_digest(),
                         .content = digests.root,
                         .bucket_bytes = plan->bucket_bytes()},
            .manifest = manifest,
            .plan = plan,
            .leaves = leaves};
  }
  // The arena of a trainer on this host that holds this version.
  [[nodiscard]] SharedArena arena(std::uint64_t step) const {
    auto made = SharedArena::create({.name = "trainer", .data_bytes = data.size()});
    auto lease = made->try_write_lease(job(step).identity);
    std::memcpy(lease->data().data(), data.data(), data.size());
    std::move(*lease).complete(digests.root);
    return std::move(*made);
  }

  // The same with the sums of its leaves, so that it is protected.
  [[nodiscard]] SharedArena protected_arena(std::uint64_t step) const {
    auto made = SharedArena::create(
        {.name = "trainer", .data_bytes = data.size(), .leaf_sums = digests.leaves.size()});
    auto lease = made->try_write_lease(job(step).identity);
    std::memcpy(lease->data().data(), data.data(), data.size());
    std::move(*lease).complete(digests.root, digests.leaves);
    return std::move(*made);
  }

  std::shared_ptr<const Manifest> manifest;
  std::shared_ptr<const BucketPlan> plan;
  std::shared_ptr<const LeafTable> leaves;
  std::vector<std::byte> data;
  ContentDigests digests;
};

Version step(std::uint64_t number) { return {.epoch = 1, .step = number}; }

class StoreTest : public ::testing::Test {
 protected:
  using Staged = Result<std::shared_ptr<const HeldVersion>>;
  [[nodiscard]] Store::OnStaged note() {
    return [this](Staged staged) { staged_ = std::move(staged); };
  }
  [[nodiscard]] bool finished() {
    return loop_.run_until([&] { return staged_.has_value(); });
  }
  [[nodiscard]] Store::OnMemory note_memory() {
    return [this](Result<Destination> memory) { memory_ = std::move(memory); };
  }
  // Begins to stage into an own arena, and waits for it.
  Result<Destination> begin_own(Store& store, const TestModel& model, std::uint64_t number) {
    memory_.reset();
    WSYNC_TRY(store.begin_own(model.job(number), note_memory(), note()));
    EXPECT_FALSE(memory_.has_value()) << "never inside the call";
    EXPECT_TRUE(store.makes_memory());
    EXPECT_TRUE(loop_.run_until([&] { return memory_.has_value(); }));
    EXPECT_FALSE(store.makes_memory());
    return *std::exchange(memory_, std::nullopt);
  }
  // As a transport reports it, with the sums of the bytes that are in the arena.
  static void bucket_arrived(Store& store, const TestModel& model, std::uint64_t bucket,
                             std::span<const std::byte> arena) {
    std::vector<WordSum> sums;
    for (const LeafPlace& leaf : model.leaves->bucket(bucket))
      sums.push_back(word_sum(arena.subspan(leaf.arena_offset, leaf.bytes), leaf.place));
    store.bucket_arrived(bucket, sums);
  }
  // Stages a version bucket by bucket, last one first, leaving out one bucket if asked.
  Staged stage_own(Store& store, const TestModel& model, std::uint64_t number,
                   std::uint64_t skip = ~0ULL) {
    staged_.reset();
    auto destination = begin_own(store, model, number);
    if (!destination) return fail(std::move(destination).error());
    for (std::uint64_t bucket = model.plan->bucket_count(); bucket-- > 0;) {
      if (bucket == skip) continue;
      const std::uint64_t at = model.plan->bucket_offset(bucket);
      std::memcpy(destination->data.data() + at, model.data.data() + at,
                  model.plan->bucket_size(bucket));
      bucket_arrived(store, model, bucket, destination->data);
    }
    store.all_arrived();
    EXPECT_TRUE(finished());
    return *staged_;
  }
  Staged stage_view(Store& store, const TestModel& model, std::uint64_t number,
                    const SharedArena& arena) {
    staged_.reset();
    WSYNC_TRY(store.begin(model.job(number), note()));
    store.view_arrived(std::move(*ArenaView::open(arena.share()->get())));
    EXPECT_TRUE(finished());
    return *staged_;
  }

  OwnerLoop loop_;
  TestModel model_{1};
  std::optional<Staged> staged_;
  std::optional<Result<Destination>> memory_;
};

TEST_F(StoreTest, OwnArenaHoldsTheVerifiedVersion) {
  Store store({}, loop_.post());
  const auto staged = stage_own(store, model_, 1);
  ASSERT_TRUE(staged.has_value()) << staged.error().message();
  const HeldVersion& held = **staged;
  EXPECT_EQ(held.version(), step(1));
  EXPECT_EQ(held.digests(), model_.digests);
  EXPECT_THAT(store.versions_held(), ElementsAre(step(1)));
  EXPECT_EQ(store.find(step(1)), *staged);
  EXPECT_FALSE(store.arriving().has_value());
  EXPECT_TRUE(same_bytes(held.data(), model_.data));
  const auto view =
      ArenaView::open(held.share()->get(), {.version = {{1, 1}}, .content = model_.digests.root});
  EXPECT_TRUE(view.has_value()) << view.error().message();
}

TEST_F(StoreTest, TrainersArenaIsVerifiedAndNotCopied) {
  const SharedArena arena = model_.arena(1);
  Store store({}, loop_.post());
  const auto staged = stage_view(store, model_, 1, arena);
  ASSERT_TRUE(staged.has_value()) << staged.error().message();
  EXPECT_EQ((*staged)->digests(), model_.digests);
  EXPECT_TRUE((*staged)->is_mapped());
}

// Where the writer could not be stopped from changing it.
void write_by_force(const SharedArena& arena, std::uint64_t at, std::byte value) {
  constexpr std::uintptr_t kPage = 4096;
  auto* byte = const_cast<std::byte*>(arena.data().data()) + at;
  auto* page = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(byte) / kPage * kPage);
  ASSERT_EQ(::mprotect(page, kPage, PROT_READ | PROT_WRITE), 0);
  *byte = value;
}

TEST_F(StoreTest, AProtectedArenaIsStagedByItsSumsAndVerifiedWhenItIsAskedFor) {
  const SharedArena arena = model_.protected_arena(1);
  Store store({}, loop_.post());
  const auto staged = stage_view(store, model_, 1, arena);
  ASSERT_TRUE(staged.has_value()) << staged.error().message();
  const HeldVersion& held = **staged;
  EXPECT_EQ(held.digests(), model_.digests);
  EXPECT_FALSE(held.is_verified());
  EXPECT_TRUE(held.verify(2).has_value());
  EXPECT_TRUE(held.is_verified());

  const SharedArena plain = model_.arena(2);
  const auto read = stage_view(store, model_, 2, plain);
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_TRUE((*read)->is_verified()) << "an arena that may be changed is read when it is staged";
}

TEST_F(StoreTest, AChangeOfAProtectedArenaIsFoundByTensorWhenItIsVerified) {
  const SharedArena arena = model_.protected_arena(1);
  Store store({}, loop_.post());
  const auto piece = model_.plan->tensor_pieces(*model_.manifest->find("layers.1.w")).back();
  write_by_force(arena, model_.plan->arena_offset(piece) + piece.bytes - 1, std::byte{0x5a});
  const auto staged = stage_view(store, model_, 1, arena);
  ASSERT_TRUE(staged.has_value()) << staged.error().message();
  const auto verified = (*staged)->verify(2);
  ASSERT_FALSE(verified.has_value());
  EXPECT_EQ(verified.error().code(), ErrorCode::kDigestMismatch);
  EXPECT_THAT(verified.error().message(),
              HasSubstr("version 1.1: tensor 'layers.1.w': bytes 1048576 to 1048581"));
  EXPECT_FALSE((*staged)->is_verified());
}

TEST_F(StoreTest, SumsOfOtherBytesThanWereAnnouncedAreNotStaged) {
  const TestModel other(2);
  const SharedArena arena = other.protected_arena(1);
  Store store({}, loop_.post());
  const auto staged = stage_view(store, model_, 1, arena);
  ASSERT_FALSE(staged.has_value());
  EXPECT_EQ(staged.error().code(), ErrorCode::kDigestMismatch);
  EXPECT_THAT(staged.error().message(),
              HasSubstr("the bytes have content digest " + other.digests.root.to_string() +
                        ", expected " + model_.digests.root.to_string()));
  EXPECT_TRUE(store.versions_held().empty());
}

TEST_F(StoreTest, WhoeverHasMappedAnOwnArenaIsToldWhenItIsFreed) {
  int freed = 0;
  Store store({.on_freed = [&] { ++freed; }}, loop_.post());
  ASSERT_TRUE(stage_own(store, model_, 1).has_value());
  staged_.reset();
  EXPECT_EQ(store.release_unused(), 0U);
  EXPECT_EQ(freed, 0);
  store.release(step(1));
  EXPECT_EQ(store.release_unused(), model_.data.size());
  EXPECT_EQ(freed, 1);
}

TEST_F(StoreTest, ReleaseDropsTheLeaseAndNothingElseDoes) {
  SharedArena arena = model_.arena(1);
  Store store({}, loop_.post());
  ASSERT_TRUE(stage_view(store, model_, 1, arena).has_value());
  staged_.reset();
  EXPECT_EQ(arena.try_write_lease({}).error().code(), ErrorCode::kBusy);
  store.release(step(1));
  EXPECT_TRUE(arena.try_write_lease({}).has_value());
  EXPECT_TRUE(store.versions_held().empty());
}

TEST_F(StoreTest, AReleasedMappingGoesWithoutItsOwnersThread) {
  const SharedArena arena = model_.arena(1);
  const std::byte* data = nullptr;
  // By name as well as by address: where it was, another thread's stack may lie by now.
  const auto mapped = [&] {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      std::uintptr_t begin = 0;
      std::uintptr_t end = 0;
      if (line.find("/memfd:trainer ") == std::string::npos ||
          std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2)
        continue;
      const auto at = reinterpret_cast<std::uintptr_t>(data);
      if (begin <= at && at < end) return true;
    }
    return false;
  };
  {
    Store store({}, loop_.post());
    ASSERT_TRUE(stage_view(store, model_, 1, arena).has_value());
    data = store.find(step(1))->data().data();
    staged_.reset();
    EXPECT_TRUE(mapped());
    store.release(step(1));
    const TimePoint deadline = now() + std::chrono::seconds(20);
    while (mapped() && now() < deadline) std::this_thread::yield();
    EXPECT_FALSE(mapped());

    // What outlives its store is unmapped by whoever lets it go.
    ASSERT_TRUE(stage_view(store, model_, 1, arena).has_value());
    data = store.find(step(1))->data().data();
  }
  EXPECT_TRUE(mapped());
  staged_.reset();
  EXPECT_FALSE(mapped());
}

TEST_F(StoreTest, BytesThatDifferFromTheAnnouncementAreNotStaged) {
  Store store({}, loop_.post());
  TestModel damaged(1);
  damaged.data[damaged.plan->arena_offset(damaged.plan->pieces().back())] ^= std::byte{1};
  const auto staged = stage_own(store, damaged, 1);
  ASSERT_FALSE(staged.has_value());
  EXPECT_EQ(staged.error().code(), ErrorCode::kDigestMismatch);
  EXPECT_THAT(staged.error().message(), HasSubstr("expected " + model_.digests.root.to_string()));
  EXPECT_TRUE(store.versions_held().empty());
  EXPECT_TRUE(stage_own(store, model_, 1).has_value());  // and the arena is free again
}

TEST_F(StoreTest, AVersionIsCompleteWhenItsDigestHasComeAfterItsBytes) {
  for (const bool is_right : {true, false}) {
    Store store({}, loop_.post());
    StagingJob job = model_.job(1);
    job.identity.content = {};
    staged_.reset();
    memory_.reset();
    ASSERT_TRUE(store.begin_own(std::move(job), note_memory(), note()).has_value());
    ASSERT_TRUE(loop_.run_until([&] { return memory_.has_value(); }));
    const Destination destination = **std::exchange(memory_, std::nullopt);
    std::ranges::copy(model_.data, destination.data.begin());
    for (std::uint64_t bucket = 0; bucket < model_.plan->bucket_count(); ++bucket)
      bucket_arrived(store, model_, bucket, destination.data);
    store.all_arrived();
    loop_.run_posted();
    EXPECT_FALSE(staged_.has_value()) << "a version is staged before its content digest is known";
    EXPECT_TRUE(store.arriving().has_value());
    store.expect_content(is_right ? model_.digests.root : Digest{.low = 3});
    ASSERT_TRUE(finished());
    ASSERT_EQ(staged_->has_value(), is_right) << "it is staged with another content digest";
    if (is_right) {
      EXPECT_EQ((*staged_)->get()->identity().content, model_.digests.root);
      store.expect_content({.low = 3});  // nothing is being staged
      EXPECT_THAT(store.versions_held(), ElementsAre(step(1)));
    } else {
      EXPECT_EQ(staged_->error().code(), ErrorCode::kDigestMismatch);
      EXPECT_TRUE(store.versions_held().empty());
    }
  }
}

TEST_F(StoreTest, TheDigestMayComeBeforeTheLastByte) {
  Store store({}, loop_.post());
  StagingJob job = model_.job(1);
  job.identity.content = {};
  staged_.reset();
  memory_.reset();
  ASSERT_TRUE(store.begin_own(std::move(job), note_memory(), note()).has_value());
  store.expect_content({});  // it is not known
  ASSERT_TRUE(loop_.run_until([&] { return memory_.has_value(); }));
  const Destination destination = **std::exchange(memory_, std::nullopt);
  std::ranges::copy(model_.data, destination.data.begin());
  for (std::uint64_t bucket = 0; bucket < model_.plan->bucket_count(); ++bucket) {
    if (bucket == 1) store.expect_content(model_.digests.root);
    bucket_arrived(store, model_, bucket, destination.data);
  }
  EXPECT_FALSE(staged_.has_value());
  store.all_arrived();
  ASSERT_TRUE(finished());
  EXPECT_TRUE(staged_->has_value());
}

TEST_F(StoreTest, MissingBucketIsFoundByCoverage) {
  Store store({}, loop_.post());
  const auto staged = stage_own(store, model_, 1, 1);
  ASSERT_FALSE(staged.has_value());
  EXPECT_EQ(staged.error().code(), ErrorCode::kDigestMismatch);
  EXPECT_THAT(staged.error().message(), HasSubstr("bucket 1 of 5 has not arrived"));
}

TEST_F(StoreTest, ReleasedArenaIsUsedAgainUnlessAnEngineStillMapsIt) {
  Store store({}, loop_.post());
  auto first = stage_own(store, model_, 1);
  ASSERT_TRUE(first.has_value());
  const auto* memory = (*first)->data().data();
  auto engine = ArenaView::open((*first)->share()->get());
  ASSERT_TRUE(engine.has_value());
  first = fail(ErrorCode::kCancelled, "dropped");
  staged_.reset();
  store.release(step(1));
  auto second = stage_own(store, TestModel(2), 2);
  ASSERT_TRUE(second.has_value());
  EXPECT_NE((*second)->data().data(), memory);
  EXPECT_TRUE(same_bytes(engine->data(), model_.data));

  engine = fail(ErrorCode::kCancelled, "unmapped");
  const auto third = stage_own(store, TestModel(3), 3);
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ((*third)->data().data(), memory);
}

TEST_F(StoreTest, ArenasMadeForLateEnginesAreGivenBackExceptOne) {
  Store store({}, loop_.post());
  const std::uint64_t bytes = model_.plan->arena_bytes();
  std::vector<ArenaView> engines;
  for (std::uint64_t number = 1; number <= 4; ++number) {
    const auto staged = stage_own(store, TestModel(number), number);
    ASSERT_TRUE(staged.has_value());
    engines.push_back(std::move(*ArenaView::open((*staged)->share()->get())));
    staged_.reset();
    store.release(step(number));
  }
  EXPECT_EQ(store.bytes(), 4 * bytes) << "one for each engine that still reads";
  engines.clear();
  ASSERT_TRUE(stage_own(store, TestModel(5), 5).has_value());
  EXPECT_EQ(store.bytes(), 2 * bytes) << "the new version's, and a spare one";
}

TEST_F(StoreTest, BudgetIsCheckedUpFrontAndNamesTheBytes) {
  const std::uint64_t bytes = model_.plan->arena_bytes();
  Store store({.memory_bytes = 2 * bytes}, loop_.post());
  EXPECT_TRUE(store.check_budget(bytes, 2).has_value());
  const auto refused = store.check_budget(bytes, 3);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr(std::to_string(3 * bytes)));
  ASSERT_TRUE(stage_own(store, model_, 1).has_value());
  ASSERT_TRUE(stage_view(store, model_, 2, model_.arena(2)).has_value());
  EXPECT_EQ(store.bytes(), 2 * bytes);
  EXPECT_EQ(stage_own(store, model_, 3).error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(store.begin(model_.job(3), note()).error().code(), ErrorCode::kResourceExhausted);
  staged_.reset();
  store.release(step(2));
  EXPECT_TRUE(stage_own(store, model_, 3).has_value());
}

// A layout of which nobody has the bytes.
StagingJob job_of(std::uint64_t bytes, std::uint64_t step) {
  auto manifest = Manifest::create({{"w", DType::kU8, {bytes}}});
  EXPECT_TRUE(manifest.has_value()) << manifest.error().message();
  auto plan = BucketPlan::create(*manifest, limits::kBucketBytesMax);
  EXPECT_TRUE(plan.has_value()) << plan.error().message();
  return {.identity = {.version_epoch = 1, .version_step = step},
          .manifest = std::make_shared<const Manifest>(std::move(*manifest)),
          .plan = std::make_shared<const BucketPlan>(std::move(*plan))};
}

// What is only useful for a rollback keeps no version out.
TEST_F(StoreTest, SparePatchesAreGivenUpForAVersion) {
  const std::uint64_t bytes = model_.plan->arena_bytes();
  for (const bool is_own : {true, false}) {
    Store store({.memory_bytes = 2 * bytes}, loop_.post());
    std::uint64_t given_up = 0;
    store.on_patches_given_up([&] {
      ++given_up;
      store.count_patches(1, 0);
    });
    const auto stage = [&](std::uint64_t number) {
      return is_own ? stage_own(store, model_, number)
                    : stage_view(store, model_, number, model_.arena(number));
    };
    ASSERT_TRUE(stage(1).has_value());
    store.count_patches(100, 99);
    EXPECT_FALSE(store.fits_beside(bytes)) << "one byte is not spare";
    EXPECT_FALSE(stage(2).has_value());
    EXPECT_EQ(given_up, 0U) << "it would not help";
    store.on_patches_given_up([&] {
      ++given_up;
      store.count_patches(0, 0);
    });
    store.count_patches(99, 99);
    EXPECT_TRUE(store.fits_beside(bytes));
    EXPECT_EQ(given_up, 0U);
    EXPECT_TRUE(stage(2).has_value());
    EXPECT_EQ(given_up, 1U);
  }
}

TEST_F(StoreTest, TheMachinesMemoryIsAskedForWhenAnArenaIsMadeAndNotBefore) {
  constexpr std::uint64_t kFarTooMuch = 1ULL << 43U;
  Store store({}, loop_.post());
  EXPECT_TRUE(store.check_budget(kFarTooMuch, 2).has_value()) << "it may come as a mapped arena";
  ASSERT_TRUE(store.begin_own(job_of(kFarTooMuch, 1), note_memory(), note()).has_value());
  EXPECT_EQ(store.bytes(), 0) << "nothing is made yet";
  ASSERT_TRUE(loop_.run_until([&] { return memory_.has_value(); }));
  ASSERT_FALSE(memory_->has_value());
  EXPECT_EQ(memory_->error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(memory_->error().message(), HasSubstr("stage version 1.1: arena wsync-staging"));
  EXPECT_FALSE(store.arriving().has_value());
  EXPECT_EQ(store.bytes(), 0);
  EXPECT_FALSE(staged_.has_value());
  EXPECT_TRUE(stage_own(store, model_, 1).has_value()) << "the next one is not in its way";
}

// ---- while its memory is being made ----

// With a thread for memory that is held up: it destroys what is left of a version that was aborted,
// which does not end until resume().
class StoreHeldUpTest : public StoreTest {
 protected:
  void hold_up(Store& store) {
    std::promise<void> entered;
    StagingJob job = model_.job(99);
    job.manifest = std::shared_ptr<const Manifest>(model_.manifest.get(),
                                                   [&entered, opened = opened_](const Manifest*) {
                                                     entered.set_value();
                                                     opened.wait();
                                                   });
    memory_.reset();
    ASSERT_TRUE(store.begin_own(std::move(job), note_memory(), note()).has_value());
    ASSERT_TRUE(loop_.run_until([&] { return memory_.has_value(); }));
    ASSERT_TRUE((*memory_).has_value()) << memory_->error().message();
    memory_.reset();
    store.abort();
    entered.get_future().wait();
  }
  void resume() { open_.set_value(); }

  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

TEST_F(StoreHeldUpTest, AnAbortDoesNotWaitAndTheNextVersionGetsTheSameArena) {
  Store store({}, loop_.post());
  hold_up(store);  // its abort has come back
  ASSERT_TRUE(store.begin_own(model_.job(1), note_memory(), note()).has_value());
  loop_.run_posted();
  EXPECT_TRUE(store.makes_memory());
  EXPECT_EQ(store.arriving(), step(1));
  EXPECT_EQ(store.begin_own(model_.job(2), note_memory(), note()).error().code(), ErrorCode::kBusy);
  EXPECT_EQ(store.begin(model_.job(2), note()).error().code(), ErrorCode::kBusy);
  store.bucket_arrived(0, {});  // of nothing: ignored
  store.all_arrived();
  store.view_arrived(std::move(*ArenaView::open(model_.arena(1).share()->get())));

  store.abort();  // of one that has no memory yet
  EXPECT_FALSE(store.arriving().has_value());
  EXPECT_FALSE(store.makes_memory());
  ASSERT_TRUE(store.begin_own(model_.job(2), note_memory(), note()).has_value());
  resume();
  ASSERT_TRUE(loop_.run_until([&] { return memory_.has_value(); }));
  ASSERT_TRUE((*memory_).has_value()) << memory_->error().message();
  memory_.reset();
  loop_.run_posted();
  EXPECT_FALSE(memory_.has_value()) << "the memory of 1 came all the same";
  EXPECT_EQ(store.bytes(), model_.plan->arena_bytes()) << "one arena is enough";
  store.abort();
  EXPECT_TRUE(stage_own(store, model_, 2).has_value());
}

TEST_F(StoreHeldUpTest, AReleasedVersionsArenaIsTheOneThatWasWaitedFor) {
  const std::uint64_t bytes = model_.plan->arena_bytes();
  Store store({.memory_bytes = 2 * bytes}, loop_.post());
  ASSERT_TRUE(stage_own(store, model_, 1).has_value());
  staged_.reset();
  ASSERT_TRUE(stage_own(store, model_, 2).has_value());
  staged_.reset();
  store.release(step(2));
  hold_up(store);
  ASSERT_TRUE(store.begin_own(model_.job(3), note_memory(), note()).has_value());
  const auto* memory = store.find(step(1))->data().data();
  store.release(step(1));
  resume();
  ASSERT_TRUE(loop_.run_until([&] { return memory_.has_value(); }));
  ASSERT_TRUE((*memory_).has_value()) << memory_->error().message();
  EXPECT_EQ((*memory_)->data.data(), memory);
  EXPECT_EQ(store.bytes(), 2 * bytes);
}

TEST_F(StoreHeldUpTest, ARefusalOfMemoryComesOnceAndEndsTheVersion) {
  Store store({.memory_bytes = model_.plan->arena_bytes()}, loop_.post());
  const auto held = stage_own(store, model_, 1);
  ASSERT_TRUE(held.has_value());
  ASSERT_TRUE(store.begin_own(model_.job(2), note_memory(), note()).has_value());
  staged_.reset();
  ASSERT_TRUE(loop_.run_until([&] { return memory_.has_value(); }));
  EXPECT_EQ(memory_->error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(memory_->error().message(), HasSubstr("host_memory allows"));
  EXPECT_FALSE(store.arriving().has_value());
  store.abort();
  loop_.run_posted();
  EXPECT_FALSE(staged_.has_value());
  EXPECT_THAT(store.versions_held(), ElementsAre(step(1)));
}

TEST_F(StoreHeldUpTest, AStoreThatGoesWhileItWaitsForMemoryTellsNobody) {
  {
    Store store({}, loop_.post());
    hold_up(store);
    ASSERT_TRUE(store.begin_own(model_.job(1), note_memory(), note()).has_value());
    resume();
  }
  loop_.run_posted();
  EXPECT_FALSE(memory_.has_value());
  EXPECT_FALSE(staged_.has_value());
}

// Large enough to be met in the middle: about half a second of work.
constexpr std::uint64_t kLarge = 1ULL << 30U;

bool is_being_made(std::string_view name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find(fmt::format("/memfd:{} ", name)) != std::string::npos) return true;
  return false;
}

TEST_F(StoreTest, AnAbortEndsTheMakingOfAnArena) {
  Store store({.name = "aborted"}, loop_.post());
  ASSERT_TRUE(store.begin_own(job_of(kLarge, 1), note_memory(), note()).has_value());
  const TimePoint deadline = now() + std::chrono::seconds(20);
  while (!is_being_made("aborted") && now() < deadline) loop_.run_posted();
  ASSERT_FALSE(memory_.has_value()) << "a GiB is needed";
  EXPECT_TRUE(store.makes_memory());
  EXPECT_EQ(store.bytes(), kLarge);
  store.abort();
  EXPECT_FALSE(store.makes_memory());
  EXPECT_EQ(store.bytes(), 0);
  ASSERT_TRUE(stage_own(store, model_, 2).has_value());
  EXPECT_EQ(store.bytes(), model_.plan->arena_bytes());
  EXPECT_FALSE(memory_.has_value());
}

TEST_F(StoreTest, AStoreThatGoesWhileItMakesAnArenaEndsThatToo) {
  {
    Store store({.name = "leaves"}, loop_.post());
    ASSERT_TRUE(store.begin_own(job_of(kLarge, 1), note_memory(), note()).has_value());
    const TimePoint deadline = now() + std::chrono::seconds(20);
    while (!is_being_made("leaves") && now() < deadline) loop_.run_posted();
  }
  loop_.run_posted();
  EXPECT_FALSE(memory_.has_value());
  EXPECT_FALSE(is_being_made("leaves"));
}

// The lease of an own arena is a descriptor.
TEST_F(StoreTest, AVersionIsNotStagedWhenThereIsNoDescriptorForItsLease) {
  Store store({}, loop_.post());
  auto destination = begin_own(store, model_, 1);
  ASSERT_TRUE(destination.has_value());
  std::memcpy(destination->data.data(), model_.data.data(), model_.data.size());
  for (std::uint64_t bucket = 0; bucket < model_.plan->bucket_count(); ++bucket)
    bucket_arrived(store, model_, bucket, destination->data);
  store.all_arrived();
  destination = fail(ErrorCode::kCancelled, "dropped");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd first_free(::dup(0));
  const rlimit none{.rlim_cur = static_cast<rlim_t>(first_free.get()), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool is_finished = finished();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(is_finished);
  ASSERT_FALSE(staged_->has_value());
  EXPECT_EQ(staged_->error().code(), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(store.versions_held().empty());
  EXPECT_TRUE(stage_own(store, model_, 1).has_value());
  EXPECT_EQ(store.bytes(), model_.data.size()) << "in the same arena";
}

TEST_F(StoreTest, OneVersionArrivesAtATimeAndAVersionNeverNamesTwoByteStrings) {
  Store store({}, loop_.post());
  ASSERT_TRUE(store.begin(model_.job(1), note()).has_value());
  EXPECT_EQ(store.arriving(), step(1));
  EXPECT_EQ(store.begin(model_.job(2), note()).error().code(), ErrorCode::kBusy);
  store.abort();
  ASSERT_TRUE(stage_own(store, model_, 1).has_value());
  const auto same = store.begin(model_.job(1), note());
  EXPECT_THAT(same.error().message(), HasSubstr("already held, with the same content"));
  const auto other = store.begin(TestModel(2).job(1), note());
  EXPECT_EQ(other.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(other.error().message(), HasSubstr("with another content"));
}

TEST_F(StoreTest, AbortedVersionIsNotReportedAndLeavesNothing) {
  Store store({}, loop_.post());
  {
    auto destination = begin_own(store, model_, 1);
    ASSERT_TRUE(destination.has_value());
    std::memcpy(destination->data.data(), model_.data.data(), model_.data.size());
    for (std::uint64_t bucket = 0; bucket < model_.plan->bucket_count(); ++bucket)
      bucket_arrived(store, model_, bucket, destination->data);
    store.all_arrived();
    store.abort();
    store.bucket_arrived(0, {});
    loop_.run_posted();
    EXPECT_FALSE(staged_.has_value());
    EXPECT_TRUE(store.versions_held().empty());
    // Somebody may still write to the old memory: another arena is taken.
    EXPECT_TRUE(stage_own(store, model_, 2).has_value());
    EXPECT_EQ(store.bytes(), 2 * model_.plan->arena_bytes());
  }
  staged_.reset();
  ASSERT_TRUE(stage_own(store, model_, 3).has_value());
  EXPECT_EQ(store.bytes(), 2 * model_.plan->arena_bytes());
}

TEST_F(StoreTest, AHeldCopyIsCheckedAgainAndOneChangedByteIsSeen) {
  auto arena = SharedArena::create({.name = "trainer", .data_bytes = model_.data.size()}).value();
  auto lease = arena.try_write_lease(model_.job(1).identity).value();
  const std::span<std::byte> memory = lease.data();
  std::memcpy(memory.data(), model_.data.data(), memory.size());
  std::move(lease).complete(model_.digests.root);
  Store store({}, loop_.post());
  EXPECT_EQ(store.recheck(step(1), {}).error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(stage_view(store, model_, 1, arena).has_value());
  staged_.reset();
  std::optional<Result<>> verdict;
  const auto check = [&] {
    verdict.reset();
    ASSERT_TRUE(store.recheck(step(1), [&](Result<> v) { verdict = v; }).has_value());
    EXPECT_EQ(store.recheck(step(1), {}).error().code(), ErrorCode::kBusy);
    ASSERT_TRUE(loop_.run_until([&] { return verdict.has_value(); }));
  };
  check();
  EXPECT_TRUE(verdict->has_value()) << verdict->error().message();
  memory[model_.plan->arena_offset(model_.plan->pieces().back())] ^= std::byte{1};
  check();
  ASSERT_FALSE(verdict->has_value());
  EXPECT_EQ(verdict->error().code(), ErrorCode::kDigestMismatch);
  verdict.reset();
  ASSERT_TRUE(store.recheck(step(1), [&](Result<> v) { verdict = v; }).has_value());
  store.release(step(1));
  EXPECT_TRUE(arena.try_write_lease({}).has_value()) << "a check keeps no lease";
  loop_.run_posted();
  EXPECT_FALSE(verdict.has_value());
}

// ---- parts ----

// Leaves that are cut between parts are put together, in any order of the buckets.
TEST_F(StoreTest, AVersionThatTravelsInPartsIsHeldAsAnyOther) {
  Store store({.name = "parts"}, loop_.post());
  const auto parts =
      Parts::create(*model_.manifest, {{.tensor = 0, .part = 1, .begin = 800, .end = 1'200'000},
                                       {.tensor = 2, .part = 2, .begin = 0, .end = 8}})
          .value();
  StagingJob job = model_.job(1);
  job.transfer = std::make_shared<const BucketPlan>(
      BucketPlan::create(*model_.manifest, model_.plan->bucket_bytes(), parts).value());
  job.transfer_leaves = std::make_shared<const LeafTable>(*model_.manifest, *job.transfer);
  const BucketPlan& transfer = *job.transfer;
  const LeafTable& leaves = *job.transfer_leaves;
  ASSERT_TRUE(store.begin_own(job, note_memory(), note()).has_value());
  ASSERT_TRUE(loop_.run_until([&] { return memory_.has_value(); }));
  const std::span<std::byte> into = memory_->value().data;
  const auto arrive = [&](std::size_t bucket) {
    std::vector<WordSum> sums;
    for (const LeafPlace& leaf : leaves.bucket(bucket)) {
      const auto bytes = std::span(model_.data).subspan(leaf.arena_offset, leaf.bytes);
      std::ranges::copy(bytes, into.begin() + static_cast<std::ptrdiff_t>(leaf.arena_offset));
      sums.push_back(word_sum(bytes, leaf.place));
    }
    store.bucket_arrived(bucket, sums);
  };
  for (std::size_t i = transfer.bucket_count(); i-- > 1;) arrive(i);
  EXPECT_LT(store.arrived_bytes(), transfer.arena_bytes());
  arrive(0);
  store.all_arrived();
  ASSERT_TRUE(finished());
  ASSERT_TRUE(staged_->has_value()) << staged_->error().message();
  const HeldVersion& held = ***staged_;
  EXPECT_EQ(held.plan(), model_.plan) << "engines know nothing of parts";
  EXPECT_EQ(held.leaves(), model_.leaves);
  EXPECT_EQ(held.digests().leaves, model_.digests.leaves);
  EXPECT_TRUE(held.verify(1).has_value());
}

}  // namespace
}  // namespace wsync::staging
