// Led steps through the C API: each rank has a sidecar's end of its own, with real frames.
#include <array>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <wsync/engine.h>

#include "tests/contract/engine_link/attached_rank.h"

namespace wsync::engine::test {
namespace {

using testing::HasSubstr;

Model small_model() {
  return Model::of({{.name = "model.w", .dtype = DType::kF32, .shape = {64}}});
}

struct LedRank {
  // `rank` 0 leads. It has no callback for a pause or a resume.
  explicit LedRank(std::uint32_t rank, bool is_led = true, bool is_attached = true) {
    const std::string path = peer.path();
    wsync_engine_options options{};
    options.socket_path = path.c_str();
    options.replica = "r0";
    options.rank = rank;
    options.world_size = 2;
    options.leader = rank == 0 ? 1 : 0;
    options.led_steps = is_led ? 1 : 0;
    options.callbacks.commit = [](void*, wsync_version) { return 0; };
    if (!is_led) {
      options.callbacks.pause = [](void*, const wsync_pause*) { return 0; };
      options.callbacks.resume = [](void*) { return 0; };
    }
    engine = wsync_engine_create(&options);
    EXPECT_NE(engine, nullptr);
    wsync_tensor tensor{};
    const std::uint64_t shape = 64;
    tensor.name = "model.w";
    tensor.dtype = "F32";
    tensor.shape = &shape;
    tensor.shape_count = 1;
    tensor.destination = memory.data();
    EXPECT_EQ(wsync_engine_add_tensor(engine, &tensor), 0);
    if (!is_attached) return;
    EXPECT_EQ(wsync_engine_attach(engine), 0) << wsync_engine_error(engine);
    EXPECT_EQ(wsync_engine_start(engine), 0);
    peer.envelope.rank = rank;
    peer.accept();
    peer.welcome_unified();
  }
  ~LedRank() { wsync_engine_destroy(engine); }

  void load(Version version) {
    arenas.push_back(std::make_unique<SharedArena>(model.arena(version)));
    EXPECT_EQ(
        peer.ask<control::Prepared>(prepare_of(model, version), share(*arenas.back())).failure, "");
    EXPECT_EQ(peer.ask<control::Loaded>(control::Load{.version = version}).failure, "");
    EXPECT_EQ(peer.ask<control::Committed>(control::Commit{.version = version}).failure, "");
  }
  wsync_step_header lead() {
    wsync_step_header header{};
    EXPECT_EQ(wsync_engine_lead_step(engine, &header), 0) << wsync_engine_error(engine);
    return header;
  }
  // "go", "stand", or why it refuses.
  std::string follow(const wsync_step_header& header) {
    int go = 7;
    if (wsync_engine_follow_step(engine, &header, &go) != 0) {
      EXPECT_EQ(go, 0) << "a rank that refuses is told to step";
      return wsync_engine_error(engine);
    }
    return go == 1 ? "go" : "stand";
  }
  // That the rank has sent nothing else until now.
  void expect_silent() { peer.ask<control::Pong>(control::Ping{}); }

  const Model model = small_model();
  SidecarPeer peer;
  std::vector<std::unique_ptr<SharedArena>> arenas;
  std::array<float, 64> memory{};
  wsync_engine* engine = nullptr;
};

TEST(LedStepsCApi, TheLibraryReportsThePauseOfEachRankWhenItsStepHasEnded) {
  LedRank leader(0);
  LedRank follower(1);
  auto header = leader.lead();
  EXPECT_EQ(header.word, static_cast<std::uint32_t>(WSYNC_STEP_STOP)) << "it has no weights yet";
  EXPECT_EQ(follower.follow(header), "stand");
  leader.load(kFirst);
  follower.load(kFirst);
  leader.peer.ask<control::Resumed>(control::Resume{});
  header = leader.lead();
  EXPECT_EQ(header.word, static_cast<std::uint32_t>(WSYNC_STEP_GO));
  EXPECT_EQ(header.step, 1U);
  EXPECT_EQ(header.version_step, 1U);
  EXPECT_EQ(follower.follow(header), "go");
  follower.expect_silent();
  EXPECT_EQ(wsync_engine_status(follower.engine).state, WSYNC_STATE_SERVING);

  leader.peer.send(control::Pause{});
  const std::uint64_t pausing = leader.peer.envelope.request;
  leader.peer.ask<control::Pong>(control::Ping{});  // its step has not ended
  follower.expect_silent();
  header = leader.lead();
  EXPECT_EQ(header.word, static_cast<std::uint32_t>(WSYNC_STEP_STOP)) << "it steps while paused";
  EXPECT_EQ(header.step, 1U);
  EXPECT_EQ(leader.peer.expect<control::Paused>().step, 1U);
  EXPECT_EQ(leader.peer.last_envelope.request, pausing);
  follower.expect_silent();  // nobody has told it
  EXPECT_EQ(follower.follow(header), "stand");
  EXPECT_EQ(follower.peer.expect<control::Paused>().step, 1U);
  EXPECT_EQ(wsync_engine_status(follower.engine).state, WSYNC_STATE_PAUSED);

  const auto again = leader.lead();
  EXPECT_EQ(again.word, static_cast<std::uint32_t>(WSYNC_STEP_STOP))
      << "it goes on after it has stopped";
  EXPECT_EQ(std::memcmp(&again, &header, sizeof again), 0);
  EXPECT_EQ(follower.follow(again), "stand");
  leader.expect_silent();
  follower.expect_silent();  // it has paused once
  leader.load(kSecond);
  follower.load(kSecond);
  leader.peer.ask<control::Resumed>(control::Resume{});
  header = leader.lead();
  EXPECT_EQ(header.step, 2U);
  EXPECT_EQ(header.version_step, 2U);
  EXPECT_EQ(follower.follow(header), "go");
}

TEST(LedStepsCApi, ARankThatWouldStepUnderAnotherVersionIsFound) {
  LedRank leader(0);
  LedRank follower(1);
  leader.load(kFirst);
  leader.peer.ask<control::Resumed>(control::Resume{});
  // A follower that came late: it has loaded nothing.
  EXPECT_EQ(follower.follow(leader.lead()),
            "replica r0 rank 1 holds no whole version: it is loading, and held no version before, "
            "but its leader begins step 1 under version 1.1");
  follower.load(kFirst);
  EXPECT_EQ(follower.follow(leader.lead()), "go") << "it has loaded the version of the next step";
  EXPECT_EQ(follower.follow(leader.lead()), "go");
  // The leader's rank is left out of a switch, as a mistake in an engine could do.
  leader.peer.send(control::Pause{});
  leader.peer.ask<control::Pong>(control::Ping{});
  EXPECT_EQ(follower.follow(leader.lead()), "stand");
  follower.peer.expect<control::Paused>();
  follower.load(kSecond);
  leader.peer.expect<control::Paused>();
  leader.peer.ask<control::Resumed>(control::Resume{});
  EXPECT_EQ(follower.follow(leader.lead()),
            "replica r0 rank 1 holds version 1.2, but its leader begins step 4 under version 1.1");
  EXPECT_EQ(wsync_engine_status(follower.engine).state, WSYNC_STATE_PAUSED);
  // The engine ends that step. Both ranks then stand, and the fleet knows it.
  wsync_engine_report_paused(leader.engine, 3);
  leader.peer.expect<control::Paused>();
  EXPECT_EQ(follower.follow(leader.lead()), "stand");
  EXPECT_EQ(follower.peer.expect<control::Paused>().step, 4U);
}

TEST(LedStepsCApi, APauseThatIsCancelled) {
  LedRank leader(0);
  LedRank follower(1);
  leader.load(kFirst);
  follower.load(kFirst);
  leader.peer.ask<control::Resumed>(control::Resume{});
  EXPECT_EQ(follower.follow(leader.lead()), "go");
  // Before it has taken effect.
  leader.peer.send(control::Pause{});
  leader.peer.ask<control::Resumed>(control::Resume{});
  EXPECT_EQ(follower.follow(leader.lead()), "go");
  // Twice, and after it has taken effect in one rank.
  leader.peer.send(control::Pause{});
  leader.peer.send(control::Pause{});
  leader.peer.ask<control::Pong>(control::Ping{});
  const auto stop = leader.lead();
  EXPECT_EQ(leader.peer.expect<control::Paused>().step, 2U);
  EXPECT_EQ(leader.peer.last_envelope.request, leader.peer.envelope.request - 1);
  leader.peer.ask<control::Resumed>(control::Resume{});
  const auto go = leader.lead();
  EXPECT_EQ(go.step, 3U);
  EXPECT_EQ(follower.follow(stop), "stand");
  EXPECT_EQ(follower.peer.expect<control::Paused>().step, 2U);
  EXPECT_EQ(follower.follow(go), "go");
  EXPECT_THAT(follower.follow(go), HasSubstr("must not step twice"));
  EXPECT_EQ(follower.peer.expect<control::Paused>().step, 3U);
}

TEST(LedStepsCApi, ALeaderThatRestartsStopsWhoeverStillRuns) {
  auto leader = std::make_unique<LedRank>(0);
  LedRank follower(1);
  leader->load(kFirst);
  follower.load(kFirst);
  leader->peer.ask<control::Resumed>(control::Resume{});
  EXPECT_EQ(follower.follow(leader->lead()), "go");
  leader = std::make_unique<LedRank>(0);
  EXPECT_EQ(follower.follow(leader->lead()), "stand");
  follower.peer.expect<control::Paused>();
  leader->load(kFirst);
  leader->peer.ask<control::Resumed>(control::Resume{});
  const auto header = leader->lead();
  EXPECT_EQ(header.step, 1U);
  EXPECT_EQ(follower.follow(header), "go");
}

TEST(LedStepsCApi, WrongUseIsRefusedWithASentence) {
  LedRank leader(0);
  LedRank follower(1);
  LedRank not_led(1, false);
  LedRank not_attached(0, true, false);
  wsync_step_header header{};
  int go = 0;
  EXPECT_NE(wsync_engine_lead_step(follower.engine, &header), 0);
  EXPECT_THAT(wsync_engine_error(follower.engine), HasSubstr("only the leader"));
  EXPECT_NE(wsync_engine_follow_step(leader.engine, &header, &go), 0);
  EXPECT_THAT(wsync_engine_error(leader.engine), HasSubstr("does not follow"));
  EXPECT_NE(wsync_engine_lead_step(not_led.engine, &header), 0);
  EXPECT_THAT(wsync_engine_error(not_led.engine), HasSubstr("set led_steps"));
  EXPECT_NE(wsync_engine_lead_step(not_attached.engine, &header), 0);
  EXPECT_THAT(wsync_engine_error(not_attached.engine), HasSubstr("wsync_engine_attach"));
  EXPECT_THAT(follower.follow(header), HasSubstr("no header of a step"));
  EXPECT_NE(wsync_engine_lead_step(leader.engine, nullptr), 0);
  EXPECT_NE(wsync_engine_lead_step(nullptr, &header), 0);
  EXPECT_NE(wsync_engine_follow_step(follower.engine, nullptr, &go), 0);
  EXPECT_NE(wsync_engine_follow_step(follower.engine, &header, nullptr), 0);
}

}  // namespace
}  // namespace wsync::engine::test
