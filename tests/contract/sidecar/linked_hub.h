// LinkedHub: a sidecar's hub with real engine links in this process, from the versions that are
// held to the bytes in the memory of the ranks.
#pragma once

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "inference_side/engine_link/engine_link.h"
#include "inference_side/sidecar/engine_hub.h"
#include "tests/contract/engine_link/sidecar_peer.h"
#include "tests/contract/sidecar/sidecar_fixture.h"
#include "tests/support/owner_loop.h"
#include "tests/support/versions.h"

namespace wsync::agent::test {

using EngineModel = engine::test::Model;

// An engine that has a link to the hub.
struct LinkedRank {
  // `unreadable`: as Engine::why_unreadable().
  LinkedRank(const EngineModel& model, const std::string& socket, std::uint32_t rank,
             std::uint32_t world, control::TakeMode take, std::string unreadable = {},
             bool takes_changed_layers = false)
      : engine(model, take, rank, world) {
    engine.description.takes_changed_layers = takes_changed_layers;
    engine.unreadable = std::move(unreadable);
    link = engine::EngineLink::create(engine.description, socket, engine).value();
    engine.on_pause = [this]() -> Result<> {
      link->report_paused(1);
      return {};
    };
    EXPECT_TRUE(link->start());
  }
  engine::test::FakeEngine engine;
  std::unique_ptr<engine::EngineLink> link;  // destroyed first
};

class LinkedHub : public testing::Test {
 protected:
  LinkedHub() : model_(EngineModel::make()) {
    for (auto& byte : content_.emplace_back(model_.plan.arena_bytes()))
      byte = static_cast<std::byte>(random_());
  }
  ~LinkedHub() override {
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
    options.scrub = scrub_;
    options.on_scrubbed = [this](bool is_equal, std::chrono::nanoseconds cpu) {
      ++(is_equal ? equal_ : damaged_);
      cpu_ += cpu;
    };
    patches.on_bytes = [this](std::uint64_t bytes, std::uint64_t) { patch_bytes_ = bytes; };
    options.patches = std::move(patches);
    hub_ = EngineHub::create(bench_.loop(), std::move(options),
                             [this](const std::string&, std::uint32_t, RankEvent event) {
                               events_.push_back(std::move(event));
                             })
               .value();
  }
  void attach(std::uint32_t world, control::TakeMode take = control::TakeMode::kPieces,
              const std::string& unreadable = {}, bool takes_changed_layers = false) {
    for (std::uint32_t rank = 0; rank < world; ++rank)
      ranks_.push_back(std::make_unique<LinkedRank>(model_, hub_->socket(), rank, world, take,
                                                    unreadable, takes_changed_layers));
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
    arenas_[version] = lease.data();
    std::move(lease).complete(digests.root);
    const auto held = staging::HeldVersion::make(
        job, digests, ArenaView::open(arena.share()->get()).value(), false, nullptr);
    bool ready = false;
    hub_->add_version(held, [&] { ready = true; });
    EXPECT_TRUE(bench_.until([&] { return ready; }));
    kept_.push_back(std::move(arena));
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
  void serve_first(std::uint32_t world, control::TakeMode take = control::TakeMode::kPieces) {
    attach(world, take);
    add(kV1);
    load_all(kV1);
  }
  // Loads all bytes of a version, and commits it.
  void load_all(Version version) {
    for (const auto& one : load(version)) {
      EXPECT_EQ(one.failure, "");
      EXPECT_FALSE(one.by_patch);
    }
    commit(version);
  }

  // The ranks serve what they have committed.
  void serve() {
    hub_->send("r0", reload::SendResume{.rank = 0, .request = ++request_});
    EXPECT_EQ(wait<reload::RankResumed>(1).size(), 1U);
    for (std::size_t rank = 1; rank < ranks_.size(); ++rank) ranks_[rank]->link->report_running(1);
  }
  // They stop, to be switched from one version to another.
  void pause(Version to = {}, Version from = {}) {
    hub_->send(
        "r0",
        reload::SendPause{
            .rank = 0, .request = ++request_, .deadline_ms = 60'000, .version = to, .base = from});
    for (std::size_t rank = 1; rank < ranks_.size(); ++rank) ranks_[rank]->link->report_paused(1);
    EXPECT_EQ(wait<reload::RankPaused>(ranks_.size()).size(), ranks_.size());
  }
  // As `wsync verify`.
  std::vector<control::VerifyRank> verify() {
    std::optional<std::vector<control::VerifyRank>> found;
    hub_->verify(std::chrono::seconds(20), [&](const auto& ranks) { found = ranks; });
    EXPECT_TRUE(bench_.until([&] { return found.has_value(); }));
    return found.value_or(std::vector<control::VerifyRank>());
  }
  // What is known of the memory of the replica.
  [[nodiscard]] control::ReplicaReport proof() const {
    std::vector<control::ReplicaReport> reports{{.replica = "r0"}};
    hub_->add_to(reports);
    return reports.front();
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
  ScrubTimes scrub_;                                // of the hub that is opened next
  std::map<Version, std::span<std::byte>> arenas_;  // what is staged
  std::vector<SharedArena> kept_;                   // the same
  std::size_t equal_ = 0;                           // passes
  std::size_t damaged_ = 0;
  std::chrono::nanoseconds cpu_{0};
};

}  // namespace wsync::agent::test
