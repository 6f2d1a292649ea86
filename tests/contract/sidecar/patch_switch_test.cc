// Switches by a patch: the sidecar's hub with real engine links in this process, from the versions
// that are held to the bytes in the memory of the ranks.
#include <cstring>
#include <gmock/gmock.h>

#include "inference_side/engine_link/engine_link.h"
#include "inference_side/sidecar/engine_hub.h"
#include "tests/contract/engine_link/sidecar_peer.h"
#include "tests/contract/sidecar/sidecar_fixture.h"
#include "tests/support/owner_loop.h"
#include "tests/support/versions.h"

namespace wsync::agent::test {
namespace {

using engine::test::FakeEngine;
using testing::HasSubstr;
using EngineModel = engine::test::Model;

// An engine that has a link to the hub.
struct LinkedRank {
  LinkedRank(const EngineModel& model, const std::string& socket, std::uint32_t rank,
             std::uint32_t world)
      : engine(model, control::TakeMode::kPieces, rank, world) {
    link = engine::EngineLink::create(engine.description, socket, engine).value();
    engine.on_pause = [this]() -> Result<> {
      link->report_paused(1);
      return {};
    };
    EXPECT_TRUE(link->start());
  }
  FakeEngine engine;
  std::unique_ptr<engine::EngineLink> link;  // destroyed first
};

class PatchSwitch : public testing::Test {
 protected:
  PatchSwitch() : model_(EngineModel::make()) {
    for (auto& byte : content_.emplace_back(model_.plan.arena_bytes()))
      byte = static_cast<std::byte>(random_());
  }
  ~PatchSwitch() override {
    for (const auto& rank : ranks_) rank->link->stop();
  }
  void open(PatchOptions patches = {}) {
    EngineHubOptions options;
    options.socket = bench_.directory() + "/engines";
    patches.on_made = [this](const Version&, const Version&, const staging::HeldPatch* patch,
                             TimePoint, TimePoint) {
      made_ += patch != nullptr ? 1U : 0U;
      ++tried_;
    };
    patches.on_bytes = [this](std::uint64_t bytes) { patch_bytes_ = bytes; };
    options.patches = std::move(patches);
    hub_ = EngineHub::create(bench_.loop(), std::move(options),
                             [this](const std::string&, std::uint32_t, RankEvent event) {
                               events_.push_back(std::move(event));
                             })
               .value();
  }
  void attach(std::uint32_t world) {
    for (std::uint32_t rank = 0; rank < world; ++rank)
      ranks_.push_back(std::make_unique<LinkedRank>(model_, hub_->socket(), rank, world));
    EXPECT_EQ(wait<reload::RankAttached>(world).size(), world);
  }
  // Waits for so many events of a kind.
  template <class T>
  [[nodiscard]] std::vector<T> wait(std::size_t count) {
    std::vector<T> found;
    EXPECT_TRUE(bench_.until([&] {
      std::erase_if(events_, [&](RankEvent& event) {
        T* one = std::get_if<T>(&event);
        if (one != nullptr) found.push_back(std::move(*one));
        return one != nullptr;
      });
      return found.size() >= count;
    }));
    return found;
  }
  // The next version: each `every`-th element of two bytes is another one.
  void change(std::size_t every) {
    content_.push_back(content_.back());
    for (const Piece& piece : model_.plan.pieces()) {
      const auto bytes =
          std::span(content_.back()).subspan(model_.plan.arena_offset(piece), piece.bytes);
      for (std::size_t at = 0; at < bytes.size(); at += 2 * every) bytes[at] ^= std::byte{1};
    }
  }
  // Holds the newest content under this name, and prepares the ranks for it.
  void add(Version version) {
    const auto manifest = std::make_shared<const Manifest>(model_.manifest);
    const auto plan = std::make_shared<const BucketPlan>(model_.plan);
    ContentDigester digester(model_.manifest);
    for (const Piece& piece : plan->pieces())
      EXPECT_TRUE(
          digester.add(piece.tensor, piece.tensor_offset,
                       std::span(content_.back()).subspan(plan->arena_offset(piece), piece.bytes)));
    const ContentDigests digests = digester.finish().value();
    const staging::StagingJob job{.identity = {.version_epoch = version.epoch,
                                               .version_step = version.step,
                                               .layout = manifest->layout_digest(),
                                               .content = digests.root,
                                               .bucket_bytes = plan->bucket_bytes()},
                                  .manifest = manifest,
                                  .plan = plan,
                                  .leaves = std::make_shared<const LeafTable>(*manifest, *plan)};
    auto arena =
        SharedArena::create({.name = "trainer", .data_bytes = plan->arena_bytes()}).value();
    auto lease = arena.try_write_lease(job.identity).value();
    std::ranges::copy(content_.back(), lease.data().begin());
    std::move(lease).complete(digests.root);
    const auto held = staging::HeldVersion::make(
        job, digests, ArenaView::open(arena.share()->get()).value(), false, nullptr);
    bool ready = false;
    hub_->add_version(held, [&] { ready = true; });
    EXPECT_TRUE(bench_.until([&] { return ready; }));
  }
  // Loads a version into every rank, and returns what they have answered.
  std::vector<reload::RankLoaded> load(Version version, Version base = {}) {
    hub_->send("r0",
               reload::BeginLoad{
                   .request = ++request_, .version = version, .deadline_ms = 60'000, .base = base});
    return wait<reload::RankLoaded>(ranks_.size());
  }
  void commit(Version version) {
    ++request_;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
      hub_->send("r0", reload::SendCommit{.rank = rank, .request = request_, .version = version});
    for (const auto& committed : wait<reload::RankCommitted>(ranks_.size()))
      EXPECT_EQ(committed.failure, "");
  }
  void expect_loaded(const std::vector<reload::RankLoaded>& loaded, bool by_patch) {
    for (const auto& one : loaded) {
      EXPECT_EQ(one.failure, "");
      EXPECT_EQ(one.by_patch, by_patch);
      if (by_patch)
        EXPECT_LT(one.written_bytes, one.bytes / 2);
      else
        EXPECT_EQ(one.written_bytes, one.bytes);
    }
  }
  void expect_holds() {
    for (const auto& rank : ranks_) {
      const auto plan = engine::test::plan_of(model_, rank->engine);
      for (std::size_t t = 0; t < plan.tensors().size(); ++t)
        EXPECT_EQ(tensor_digest(plan.tensors()[t].seed, rank->engine.held(t)),
                  reload::expected_digest(plan.tensors()[t], content_.back()));
    }
  }
  // A rank's own byte beside the first element of the embedding, which changes in each version.
  void damage(std::size_t rank) { ranks_[rank]->engine.memory[0][2] ^= std::byte{1}; }
  void serve_first(std::uint32_t world) {
    attach(world);
    add(kV1);
    expect_loaded(load(kV1), false);
    commit(kV1);
  }

  std::mt19937_64 random_{5};
  Bench bench_;
  EngineModel model_;
  std::vector<std::vector<std::byte>> content_;
  std::unique_ptr<EngineHub> hub_;
  std::vector<std::unique_ptr<LinkedRank>> ranks_;
  std::vector<RankEvent> events_;
  std::uint64_t request_ = 0;
  std::size_t made_ = 0;
  std::size_t tried_ = 0;
  std::uint64_t patch_bytes_ = 0;
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
    EXPECT_TRUE(bench_.until([&] { return patch_bytes_ == 0; })) << "nobody serves its base";
  }
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
  open();
  serve_first(1);
  change(250);
  add(kV2);
  expect_loaded(load(kV2, kV1), true);
  commit(kV2);
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
  change(1);
  add(kV3);  // everything has changed
  EXPECT_EQ(tried_, 2U);
  EXPECT_EQ(made_, 1U);
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
  std::optional<std::vector<control::VerifyRank>> found;
  hub_->verify(std::chrono::seconds(20), [&](const auto& ranks) { found = ranks; });
  ASSERT_TRUE(bench_.until([&] { return found.has_value(); }));
  ASSERT_EQ(found->size(), 1U);
  EXPECT_EQ(found->front().mismatches.size(), 1U);
  change(250);
  add(kV2);
  expect_loaded(load(kV2, kV1), false);
  commit(kV2);
  expect_holds();
  change(250);
  add(kV3);
  expect_loaded(load(kV3, kV2), true);
}

}  // namespace
}  // namespace wsync::agent::test
