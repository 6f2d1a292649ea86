// The reference engine, whole: real checkpoints, a real link to a sidecar that the test plays, real
// steps between its ranks.
#include "inference_side/reference_engine/reference_engine.h"

#include <condition_variable>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <random>

#include "shared/weights/checkpoint_dir.h"
#include "tests/contract/engine_link/sidecar_peer.h"

namespace wsync::engine::reference {
namespace {

using control::RankState;
using control::TakeMode;
using test::soon;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr Version kV1{.epoch = 1, .step = 1};
constexpr Version kV2{.epoch = 1, .step = 2};

// Events of one rank, in order; waits for them.
class EventLog {
 public:
  EventSink sink() {
    return [this](const EngineEvent& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
      changed_.notify_all();
    };
  }
  // Waits for the count-th event of that name and returns it.
  EngineEvent wait(const std::string& name, std::size_t count = 1) {
    std::unique_lock lock(mutex_);
    EngineEvent found;
    const bool came = changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      std::size_t seen = 0;
      for (const EngineEvent& event : events_)
        if (event.name == name && ++seen == count) {
          found = event;
          return true;
        }
      return false;
    });
    EXPECT_TRUE(came) << name << " did not happen";
    return found;
  }
  std::vector<std::string> names() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const EngineEvent& event : events_) names.push_back(event.name);
    return names;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<EngineEvent> events_;
};

std::uint64_t number(const EngineEvent& event, const std::string& key) {
  for (const auto& [name, value] : event.fields)
    if (name == key) return std::get<std::uint64_t>(value);
  ADD_FAILURE() << event.name << " has no " << key;
  return 0;
}

// The test's model as a checkpoint directory and as arenas of versions.
class World {
 public:
  World() : model_(test::Model::make()), directory_(testing::TempDir() + "wsync-ref-XXXXXX") {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    const auto written = write_checkpoint_directory(
        checkpoint(), model_.manifest,
        [](std::size_t index, std::uint64_t offset, std::span<std::byte> out) -> Result<> {
          for (std::size_t i = 0; i < out.size(); ++i) out[i] = content(index, offset + i);
          return {};
        });
    EXPECT_TRUE(written) << written.error().message();
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() { std::filesystem::remove_all(directory_); }

  static std::byte content(std::size_t tensor, std::uint64_t at) {
    return static_cast<std::byte>(tensor * 37 + at * 11 + at / 509);
  }
  [[nodiscard]] std::string checkpoint() const { return directory_ + "/checkpoint"; }
  [[nodiscard]] const test::Model& model() const { return model_; }
  [[nodiscard]] ReferenceEngineOptions options(const std::string& socket, TakeMode take,
                                               std::uint32_t rank = 0,
                                               std::uint32_t world_size = 1) const {
    return {.sidecar_socket = socket,
            .run_directory = directory_,
            .replica = "r0",
            .rank = rank,
            .world_size = world_size,
            .checkpoint = checkpoint(),
            .take = take,
            .step_interval = std::chrono::microseconds(200)};
  }
  [[nodiscard]] reload::LoadPlan plan(const control::EngineHello& hello) const {
    return reload::LoadPlan::make(model_.manifest, model_.plan, hello.tensors).value();
  }

 private:
  test::Model model_;
  std::string directory_;
};

// One rank, the sidecar's end of its link, and what it says.
struct RankUnderTest {
  RankUnderTest(const World& world, TakeMode take, std::uint32_t rank = 0,
                std::uint32_t world_size = 1, bool load_weights = false)
      : world_(&world) {
    ReferenceEngineOptions options = world.options(peer.path(), take, rank, world_size);
    options.load_weights = load_weights;
    auto made = ReferenceEngine::create(std::move(options), log.sink());
    EXPECT_TRUE(made) << made.error().message();
    engine = std::move(*made);
    engine->start();
    peer.envelope.rank = rank;
    hello = peer.accept();
    peer.welcome_unified();
    log.wait("attached");
  }
  void prepare(const SharedArena& arena, Version version) {
    ByteWriter layout;
    world_->model().manifest.encode(layout);
    const auto prepared = peer.ask<control::Prepared>(
        control::Prepare{.version = version,
                         .layout_digest = world_->model().manifest.layout_digest(),
                         .layout = std::move(layout).take(),
                         .bucket_bytes = world_->model().plan.bucket_bytes(),
                         .arena_bytes = world_->model().plan.arena_bytes(),
                         .is_verified = true},
        test::share(arena));
    EXPECT_EQ(prepared.failure, "");
  }
  void load_and_commit(Version version) {
    EXPECT_EQ(peer.ask<control::Loaded>(control::Load{.version = version}).failure, "");
    EXPECT_EQ(peer.ask<control::Committed>(control::Commit{.version = version}).failure, "");
  }
  void expect_digests(const SharedArena& arena, Version version) {
    const auto digests = peer.ask<control::Digests>(control::ReadDigests{});
    EXPECT_EQ(digests.failure, "");
    EXPECT_EQ(digests.version, version);
    const reload::LoadPlan plan = world_->plan(hello);
    ASSERT_EQ(digests.tensors.size(), plan.tensors().size());
    for (std::size_t t = 0; t < plan.tensors().size(); ++t)
      EXPECT_EQ(digests.tensors[t].digest, reload::expected_digest(plan.tensors()[t], arena.data()))
          << digests.tensors[t].name;
  }
  // Steps beyond those that were counted before, and none that was refused but those that the test
  // has brought about.
  void expect_steps(std::uint64_t refused = 0) {
    const std::uint64_t before = engine->stats().steps;
    const TimePoint until = soon();
    while (engine->stats().steps < before + 3 && engine->stats().aborted == refused &&
           now() < until)
      std::this_thread::yield();
    EXPECT_EQ(engine->stats().aborted, refused) << "a rank refused a step";
    EXPECT_GE(engine->stats().steps, before + 3);
  }

  const World* world_;
  test::SidecarPeer peer;
  EventLog log;
  control::EngineHello hello;
  std::unique_ptr<ReferenceEngine> engine;  // ends before its log
};

class EveryTakeMode : public testing::TestWithParam<TakeMode> {};
INSTANTIATE_TEST_SUITE_P(ReferenceEngine, EveryTakeMode,
                         testing::Values(TakeMode::kPieces, TakeMode::kWhole, TakeMode::kAdopt));

TEST_P(EveryTakeMode, two_versions_are_served_one_after_the_other) {
  const World world;
  const SharedArena first = world.model().arena(kV1);
  const SharedArena second = world.model().arena(kV2);
  RankUnderTest rank(world, GetParam());
  EXPECT_EQ(rank.hello.state, RankState::kLoading);
  EXPECT_EQ(rank.hello.take, GetParam());
  rank.prepare(first, kV1);
  rank.load_and_commit(kV1);
  EXPECT_EQ(rank.engine->stats().steps, 0U);  // committed is not resumed
  rank.peer.ask<control::Resumed>(control::Resume{});
  rank.expect_steps();
  rank.prepare(second, kV2);  // while it serves
  rank.expect_steps();
  const auto paused = rank.peer.ask<control::Paused>(control::Pause{.deadline_ms = 10'000});
  const std::uint64_t at = rank.engine->stats().steps;
  EXPECT_EQ(paused.step, at);
  rank.load_and_commit(kV2);
  EXPECT_EQ(rank.engine->stats().steps, at);  // not one step in between
  rank.expect_digests(second, kV2);
  rank.peer.ask<control::Resumed>(control::Resume{});
  rank.expect_steps();
  rank.engine->stop();
  const ServingStats stats = rank.engine->stats();
  EXPECT_EQ(stats.torn, 0U);
  EXPECT_EQ(stats.by_version.at(kV1), at);
  EXPECT_EQ(stats.by_version.at(kV1) + stats.by_version.at(kV2), stats.steps);
}

TEST(ReferenceEngine, serving_rank_refuses_a_load) {
  const World world;
  const SharedArena first = world.model().arena(kV1);
  RankUnderTest rank(world, TakeMode::kPieces);
  rank.prepare(first, kV1);
  rank.load_and_commit(kV1);
  rank.peer.ask<control::Resumed>(control::Resume{});
  rank.expect_steps();
  const auto loaded = rank.peer.ask<control::Loaded>(control::Load{.version = kV1});
  EXPECT_THAT(loaded.failure, HasSubstr("serving"));
  rank.expect_steps();
  EXPECT_EQ(rank.engine->stats().torn, 0U);
}

TEST(ReferenceEngine, every_bucket_is_told_before_the_version_is_loaded) {
  const World world;
  const SharedArena first = world.model().arena(kV1);
  RankUnderTest rank(world, TakeMode::kPieces);
  rank.prepare(first, kV1);
  rank.load_and_commit(kV1);
  rank.log.wait("committed");
  const std::vector<std::string> names = rank.log.names();
  const std::size_t buckets = world.model().plan.bucket_count();
  ASSERT_GT(buckets, 1U);
  EXPECT_EQ(std::ranges::count(names, "bucket"), static_cast<std::ptrdiff_t>(buckets));
  EXPECT_EQ(std::ranges::count(names, "layer"),
            static_cast<std::ptrdiff_t>(world.model().manifest.layer_count()));
  const auto place = [&](const char* name) { return std::ranges::find(names, name); };
  EXPECT_LT(place("prepared"), place("loading"));
  EXPECT_LT(place("loading"), place("bucket"));
  EXPECT_LT(place("bucket"), place("loaded"));
  EXPECT_LT(place("loaded"), place("committed"));
  const EngineEvent last = rank.log.wait("bucket", buckets);
  EXPECT_EQ(number(last, "bucket"), buckets - 1);
  EXPECT_EQ(number(last, "of"), buckets);
}

TEST(ReferenceEngine, weights_of_its_own_are_the_checkpoints_and_are_served_at_once) {
  const World world;
  RankUnderTest rank(world, TakeMode::kPieces, 0, 1, true);
  EXPECT_EQ(rank.hello.state, RankState::kServing);
  EXPECT_TRUE(rank.hello.active.none());
  rank.expect_steps();
  for (std::size_t t = 0; t < world.model().manifest.size(); ++t) {
    const auto held = rank.engine->model().memory(t);
    ASSERT_EQ(held.size(), world.model().manifest.byte_size(t));
    for (std::size_t i = 0; i < held.size(); ++i)
      ASSERT_EQ(held[i], World::content(t, i)) << world.model().manifest.tensor(t).name;
  }
}

TEST(ReferenceEngine, two_ranks_switch_half_shards_at_one_step) {
  const World world;
  const SharedArena first = world.model().arena(kV1);
  const SharedArena second = world.model().arena(kV2);
  RankUnderTest leader(world, TakeMode::kPieces, 0, 2);
  RankUnderTest follower(world, TakeMode::kPieces, 1, 2);
  leader.log.wait("together");
  EXPECT_FALSE(follower.hello.leader);
  EXPECT_LT(leader.engine->model().bytes(), world.model().manifest.total_bytes());
  for (RankUnderTest* rank : {&leader, &follower}) {
    rank->prepare(first, kV1);
    rank->load_and_commit(kV1);
  }
  leader.peer.ask<control::Resumed>(control::Resume{});
  leader.expect_steps();
  follower.expect_steps();
  for (RankUnderTest* rank : {&leader, &follower}) rank->prepare(second, kV2);
  const auto paused = leader.peer.ask<control::Paused>(control::Pause{.deadline_ms = 10'000});
  const auto followed = follower.peer.expect<control::Paused>();
  EXPECT_EQ(paused.step, followed.step);
  EXPECT_EQ(follower.peer.last_envelope.request, 0U);  // nobody asked it; its leader told it
  EXPECT_EQ(leader.engine->stats().last_step, follower.engine->stats().last_step);
  EXPECT_EQ(leader.engine->stats().last_total, follower.engine->stats().last_total);
  for (RankUnderTest* rank : {&leader, &follower}) {
    rank->load_and_commit(kV2);
    rank->expect_digests(second, kV2);
  }
  leader.peer.ask<control::Resumed>(control::Resume{});
  leader.expect_steps();
  for (RankUnderTest* rank : {&leader, &follower}) {
    rank->engine->stop();
    const ServingStats stats = rank->engine->stats();
    EXPECT_EQ(stats.torn, 0U);
    EXPECT_EQ(stats.aborted, 0U);
    EXPECT_EQ(stats.by_version.at(kV1), paused.step);
  }
}

TEST(ReferenceEngine, a_follower_on_another_version_stops_the_replica_until_it_is_resumed) {
  const World world;
  const SharedArena first = world.model().arena(kV1);
  const SharedArena second = world.model().arena(kV2);
  RankUnderTest leader(world, TakeMode::kPieces, 0, 2);
  RankUnderTest follower(world, TakeMode::kPieces, 1, 2);
  leader.log.wait("together");
  leader.prepare(first, kV1);
  leader.load_and_commit(kV1);
  follower.prepare(second, kV2);
  follower.load_and_commit(kV2);
  leader.peer.ask<control::Resumed>(control::Resume{});  // no sidecar of ours would
  const auto paused = leader.peer.expect<control::Paused>();
  EXPECT_EQ(leader.peer.last_envelope.request, 0U);  // unasked
  (void)follower.peer.expect<control::Paused>();
  EXPECT_EQ(leader.engine->stats().steps, 0U);
  EXPECT_EQ(leader.engine->stats().aborted, 1U);  // it did not try again
  EXPECT_EQ(follower.engine->stats().steps, 0U);
  EXPECT_EQ(paused.step, 1U);
  // Both on one version again, and resumed: it serves.
  leader.prepare(second, kV2);
  leader.load_and_commit(kV2);
  leader.peer.ask<control::Resumed>(control::Resume{});
  leader.expect_steps(1);
}

TEST(ReferenceEngine, a_rank_that_has_loaded_runs_no_step_before_its_commit) {
  const World world;
  const SharedArena first = world.model().arena(kV1);
  RankUnderTest leader(world, TakeMode::kPieces, 0, 2);
  RankUnderTest follower(world, TakeMode::kPieces, 1, 2);
  leader.log.wait("together");
  leader.prepare(first, kV1);
  leader.load_and_commit(kV1);
  follower.prepare(first, kV1);
  EXPECT_EQ(follower.peer.ask<control::Loaded>(control::Load{.version = kV1}).failure, "");
  leader.peer.ask<control::Resumed>(control::Resume{});  // too early
  const TimePoint until = soon();
  while (leader.engine->stats().aborted == 0 && follower.engine->stats().steps == 0 &&
         now() < until)
    std::this_thread::yield();
  ASSERT_EQ(follower.engine->stats().steps, 0U) << "it served what nobody has committed";
  (void)leader.peer.expect<control::Paused>();
  EXPECT_EQ(leader.engine->stats().aborted, 1U);
  EXPECT_EQ(follower.engine->stats().steps, 0U);
  EXPECT_EQ(follower.peer.ask<control::Committed>(control::Commit{.version = kV1}).failure, "");
  leader.peer.ask<control::Resumed>(control::Resume{});
  follower.expect_steps(1);
}

TEST(ReferenceEngine, a_follower_that_restarts_is_loading_and_the_rest_waits_for_it) {
  const World world;
  const SharedArena first = world.model().arena(kV1);
  RankUnderTest leader(world, TakeMode::kPieces, 0, 2);
  auto follower = std::make_unique<RankUnderTest>(world, TakeMode::kPieces, 1, 2);
  leader.log.wait("together");
  for (RankUnderTest* rank : {&leader, follower.get()}) {
    rank->prepare(first, kV1);
    rank->load_and_commit(kV1);
  }
  leader.peer.ask<control::Resumed>(control::Resume{});
  leader.expect_steps();
  follower.reset();
  (void)leader.peer.expect<control::Paused>();
  EXPECT_EQ(leader.peer.last_envelope.request, 0U);
  const std::uint64_t at = leader.engine->stats().steps;
  // Without its follower the leader does not resume, and says so.
  const auto refused = leader.peer.ask<control::ErrorReply>(control::Resume{});
  EXPECT_THAT(refused.message, HasSubstr("1 of the replica's 2 ranks"));
  follower = std::make_unique<RankUnderTest>(world, TakeMode::kPieces, 1, 2);
  leader.log.wait("together", 2);
  EXPECT_EQ(follower->hello.state, RankState::kLoading);
  EXPECT_EQ(leader.engine->stats().steps, at);
  follower->prepare(first, kV1);
  follower->load_and_commit(kV1);
  leader.peer.ask<control::Resumed>(control::Resume{});
  leader.expect_steps();
  EXPECT_EQ(leader.engine->stats().broken, 1U);
  EXPECT_EQ(leader.engine->stats().torn, 0U);
}

TEST(ReferenceEngine, options_that_make_no_sense_are_refused_with_a_sentence) {
  const World world;
  const auto problem = [&](auto change) {
    ReferenceEngineOptions options = world.options("/tmp/none.sock", TakeMode::kPieces);
    change(options);
    auto made = ReferenceEngine::create(std::move(options), [](const EngineEvent&) {});
    return made ? std::string("it was made") : made.error().message();
  };
  EXPECT_THAT(problem([](auto& o) { o.rank = 2, o.world_size = 2; }), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(problem([](auto& o) { o.replica.clear(); }), HasSubstr("replica's name"));
  EXPECT_THAT(problem([](auto& o) { o.take = TakeMode::kAdopt, o.load_weights = true; }),
              HasSubstr("adopts versions"));
  EXPECT_THAT(problem([](auto& o) { o.checkpoint += "/nowhere"; }), HasSubstr("nowhere"));
  EXPECT_THAT(problem([](auto& o) { o.sidecar_socket = "relative"; }), HasSubstr("absolute"));
}

}  // namespace
}  // namespace wsync::engine::reference
