// The engine library against a sidecar's end that speaks real frames and hands over real arenas.
#include "inference_side/engine_link/engine_link.h"

#include <atomic>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <semaphore>
#include <set>
#include <sys/mman.h>

#include "shared/base/format.h"
#include "tests/contract/engine_link/separate_rank.h"

namespace wsync::engine::test {
namespace {

using control::RankState;
using control::TakeMode;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

class EveryTakeMode : public testing::TestWithParam<TakeMode> {};
INSTANTIATE_TEST_SUITE_P(Engine, EveryTakeMode,
                         testing::Values(TakeMode::kPieces, TakeMode::kWhole, TakeMode::kAdopt,
                                         TakeMode::kBorrow));

TEST_P(EveryTakeMode, TwoVersionsOnAUnifiedDevice) {
  const Model model = Model::make();
  Rank rank(model, GetParam());
  rank.start();
  const auto hello = rank.peer.accept();
  EXPECT_EQ(hello.state, RankState::kLoading);
  EXPECT_EQ(hello.take, GetParam());
  EXPECT_EQ(hello.tensors.size(), model.manifest.size());
  rank.peer.welcome_unified();
  const SharedArena first = model.arena(kFirst);
  EXPECT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(first)).failure, "");
  rank.switch_to(kFirst);
  rank.peer.ask<control::Resumed>(control::Resume{});
  expect_holds(model, rank.engine, first);
  EXPECT_EQ(rank.link->status().state, RankState::kServing);

  const SharedArena second = model.arena(kSecond);
  // The layout is known by now.
  EXPECT_EQ(
      rank.peer.ask<control::Prepared>(prepare_of(model, kSecond, false), share(second)).failure,
      "");
  EXPECT_THAT(rank.peer.ask<control::Loaded>(control::Load{.version = kSecond}).failure,
              HasSubstr("serving"));
  EXPECT_EQ(rank.peer.ask<control::Paused>(control::Pause{}).step, 7U);
  rank.switch_to(kSecond);
  rank.peer.ask<control::Resumed>(control::Resume{});
  expect_holds(model, rank.engine, second);
  EXPECT_EQ(rank.link->status().active, kSecond);
  EXPECT_THAT(rank.engine.calls,
              testing::ElementsAre("check 1.1", "begin 1.1", "layer 0", "layer 1", "layer 2",
                                   "layer 3", "layer 4", "commit 1.1", "resume", "check 1.2",
                                   "pause", "begin 1.2", "layer 0", "layer 1", "layer 2", "layer 3",
                                   "layer 4", "commit 1.2", "resume"));
}

TEST_P(EveryTakeMode, DigestsAreOfTheBytesAsHeld) {
  const Model model = Model::make();
  Rank rank(model, GetParam());
  rank.attach_unified();
  EXPECT_THAT(rank.peer.ask<control::Digests>(control::ReadDigests{}).failure,
              HasSubstr("it has loaded no version yet"));
  const SharedArena arena = model.arena(kFirst);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
  rank.switch_to(kFirst);
  const auto plan = plan_of(model, rank.engine);
  auto digests = rank.peer.ask<control::Digests>(control::ReadDigests{});
  ASSERT_EQ(digests.tensors.size(), plan.tensors().size());
  EXPECT_EQ(digests.version, kFirst);
  for (std::size_t t = 0; t < digests.tensors.size(); ++t) {
    EXPECT_EQ(digests.tensors[t].digest, reload::expected_digest(plan.tensors()[t], arena.data()));
    EXPECT_EQ(digests.tensors[t].bytes, plan.tensors()[t].shard.bytes());
  }
  if (GetParam() == TakeMode::kAdopt) return;  // nobody can change those bytes
  rank.engine.memory[2][100] ^= std::byte{1};
  digests = rank.peer.ask<control::Digests>(control::ReadDigests{});
  for (std::size_t t = 0; t < digests.tensors.size(); ++t)
    EXPECT_EQ(digests.tensors[t].digest == reload::expected_digest(plan.tensors()[t], arena.data()),
              t != 2);
}

TEST(EngineLink, APauseDoesNotWaitUntilEveryTensorHasBeenRead) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.attach_unified();
  const SharedArena arena = model.arena(kFirst);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
  rank.switch_to(kFirst);
  rank.peer.ask<control::Resumed>(control::Resume{});
  rank.link->stop();  // from here on the test polls
  rank.peer.send(control::ReadDigests{});
  const std::uint64_t reading = rank.peer.envelope.request;
  rank.peer.send(control::Pause{});
  const std::uint64_t pausing = rank.peer.envelope.request;
  for (int turn = 0; turn < 100; ++turn) ASSERT_TRUE(rank.link->poll(0).has_value());
  rank.peer.expect<control::Paused>();
  EXPECT_EQ(rank.peer.last_envelope.request, pausing);
  const auto digests = rank.peer.expect<control::Digests>();
  EXPECT_EQ(rank.peer.last_envelope.request, reading);
  EXPECT_EQ(digests.failure, "");
  EXPECT_EQ(digests.tensors.size(), rank.engine.description.tensors.size());
}

TEST(EngineLink, ALoadEndsAReadingThatIsNotComplete) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kWhole);
  rank.attach_unified();
  const SharedArena arena = model.arena(kFirst);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
  rank.switch_to(kFirst);
  rank.link->stop();  // from here on the test polls
  std::set<std::uint32_t> read;
  rank.engine.on_read = [&](std::uint32_t tensor) {
    if (read.insert(tensor).second && read.size() == 1)
      rank.peer.send(control::Load{.version = kFirst});
  };
  rank.peer.send(control::ReadDigests{});
  ASSERT_TRUE(rank.link->poll(0).has_value());
  EXPECT_EQ(read.size(), 1U) << "read on while the sidecar had something to say";
  for (int turn = 0; turn < 100; ++turn) ASSERT_TRUE(rank.link->poll(0).has_value());
  EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
  const auto digests = rank.peer.expect<control::Digests>();
  EXPECT_THAT(digests.failure, HasSubstr("it has loaded 1.1 and does not serve it yet"));
  EXPECT_TRUE(digests.tensors.empty());
}

// An engine that polls once for each of its steps, which are longer than such a tensor takes.
TEST(EngineLink, OnePollReadsMoreThanOneSmallTensor) {
  constexpr int kTensors = 1000;
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < kTensors; ++i)
    tensors.push_back({.name = fmt::format("t{}", i), .dtype = DType::kU8, .shape = {4}});
  const Model model = Model::of(std::move(tensors));
  Rank rank(model, TakeMode::kPieces);
  rank.attach_unified();
  const SharedArena arena = model.arena(kFirst);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
  rank.switch_to(kFirst);
  rank.link->stop();  // from here on the test polls
  rank.peer.send(control::ReadDigests{});
  pollfd answer{.fd = rank.peer.socket(), .events = POLLIN, .revents = 0};
  int polls = 0;
  for (; polls < kTensors && ::poll(&answer, 1, 0) == 0; ++polls)
    ASSERT_TRUE(rank.link->poll(0).has_value());
  ASSERT_LT(polls, kTensors);
  const auto digests = rank.peer.expect<control::Digests>();
  EXPECT_EQ(digests.failure, "");
  EXPECT_EQ(digests.tensors.size(), model.manifest.size());
}

TEST(EngineLink, HalfShardsOfTwoRanks) {
  const Model model = Model::make();
  const SharedArena arena = model.arena(kFirst);
  for (const std::uint32_t r : {0U, 1U}) {
    Rank rank(model, TakeMode::kPieces, r, 2);
    rank.attach_unified();
    EXPECT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena)).failure,
              "");
    rank.switch_to(kFirst);
    expect_holds(model, rank.engine, arena);
    if (r == 0) continue;
    // Only a leader is paused and resumed; a follower tells what its leader made it do.
    rank.peer.ask<control::ErrorReply>(control::Resume{});
    rank.link->report_running(20);
    rank.link->report_paused(31);
    EXPECT_EQ(rank.peer.expect<control::Paused>().step, 31U);
    EXPECT_EQ(rank.peer.last_envelope.request, 0U);
  }
}

TEST(EngineLink, TheLeaseIsHeldDuringALoadOnly) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kWhole);
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  const auto is_read = [&] {
    const auto writing = arena.try_write_lease(arena.identity());
    return !writing && writing.error().code() == ErrorCode::kBusy;
  };
  std::vector<bool> during_load;
  rank.engine.on_layer = [&] { during_load.push_back(is_read()); };
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
  const auto loaded = rank.peer.ask<control::Loaded>(control::Load{.version = kFirst});
  EXPECT_EQ(loaded.failure, "");
  EXPECT_FALSE(during_load.empty());
  EXPECT_THAT(during_load, Each(true)) << "an engine reads this arena without a lease";
  EXPECT_FALSE(is_read()) << "an engine that hangs now would keep the arena";
}

TEST(EngineLink, AnArenaThatWasReusedAfterThePreparationIsNotLoaded) {
  const Model model = Model::make();
  for (const TakeMode take : {TakeMode::kPieces, TakeMode::kAdopt}) {
    Rank rank(model, take);
    rank.attach_unified();
    SharedArena arena = model.arena(kFirst);
    rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
    model.fill(arena, kSecond);
    const auto loaded = rank.peer.ask<control::Loaded>(control::Load{.version = kFirst});
    EXPECT_THAT(loaded.failure,
                HasSubstr("the arena no longer contains version 1.1: its writer has "
                          "reused it for version 1.2"));
  }
}

TEST(EngineLink, AnArenaIsMappedOnceForAllItsVersionsUntilArenasHaveBeenFreed) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.attach_unified();
  // As a reader maps it; its creator can write it.
  const auto mapped = [] {
    std::ifstream maps("/proc/self/maps");
    std::vector<std::string> places;
    for (std::string line; std::getline(maps, line);)
      if (line.find("r--s") != std::string::npos && line.find("/memfd:test ") != std::string::npos)
        places.push_back(line.substr(0, line.find(' ')));
    return places;
  };
  SharedArena arena = model.arena(kFirst);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
  rank.switch_to(kFirst);
  const auto places = mapped();
  EXPECT_EQ(places.size(), 1U);
  rank.peer.send(control::Release{.version = kFirst});
  model.fill(arena, kSecond);
  rank.peer.ask<control::Prepared>(prepare_of(model, kSecond), share(arena));
  EXPECT_EQ(mapped(), places);
  rank.peer.send(control::UnmapArenas{});
  rank.peer.ask<control::Pong>(control::Ping{});
  EXPECT_EQ(mapped(), places) << "a version that is prepared is in it";
  rank.switch_to(kSecond);
  expect_holds(model, rank.engine, arena);
  rank.peer.send(control::Release{.version = kSecond});
  rank.peer.ask<control::Pong>(control::Ping{});
  EXPECT_TRUE(mapped().empty());
}

TEST(EngineLink, AnAdoptedVersionStaysLeasedAfterReleaseAndLoss) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kAdopt);
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
  rank.switch_to(kFirst);
  rank.peer.send(control::Release{.version = kFirst});
  rank.peer.hang_up();
  EXPECT_EQ(rank.peer.accept().active, kFirst);
  ASSERT_FALSE(arena.try_write_lease({})) << "the engine still serves from this arena";
  expect_holds(model, rank.engine, arena);
}

// The sidecar compares them. It commits nothing that differs, and the next load begins anew.
TEST(EngineLink, WhatARankHasReadIsWhatItReturns) {
  const Model model = Model::make();
  for (const TakeMode take : {TakeMode::kPieces, TakeMode::kWhole}) {
    Rank rank(model, take);
    rank.attach_unified();
    const SharedArena arena = model.arena(kFirst);
    rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
    const auto plan = plan_of(model, rank.engine);
    for (const std::uint64_t changed : {std::uint64_t{0}, plan.tensors().back().arena_offset}) {
      const_cast<std::byte&>(arena.data()[changed]) ^= std::byte{1};
      const auto loaded = rank.peer.ask<control::Loaded>(control::Load{.version = kFirst});
      EXPECT_EQ(loaded.failure, "");
      ASSERT_EQ(loaded.sums.size(), plan.tensors().size());
      for (std::size_t t = 0; t < loaded.sums.size(); ++t)
        EXPECT_EQ(loaded.sums[t], reload::expected_sum(plan.tensors()[t], arena.data())) << t;
    }
  }
}

TEST(EngineLink, AnAdoptingEngineTakesOnlyWhatTheSidecarHasVerified) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kAdopt);
  rank.attach_unified();
  const SharedArena arena = model.arena(kFirst);
  auto prepare = prepare_of(model, kFirst);
  prepare.is_verified = false;
  EXPECT_THAT(rank.peer.ask<control::Prepared>(prepare, share(arena)).failure,
              HasSubstr("has not verified the staged bytes"));
  prepare.is_verified = true;
  EXPECT_EQ(rank.peer.ask<control::Prepared>(prepare, share(arena)).failure, "");
  EXPECT_TRUE(rank.peer.ask<control::Loaded>(control::Load{.version = kFirst}).sums.empty());
}

TEST(EngineLink, AFailedLoadTaintsTheRankUntilACompleteOne) {
  const Model model = Model::make();
  for (const TakeMode take : {TakeMode::kPieces, TakeMode::kWhole}) {
    Rank rank(model, take);
    rank.engine.fail_layer = 2;
    rank.attach_unified();
    const SharedArena arena = model.arena(kFirst);
    rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
    const auto loaded = rank.peer.ask<control::Loaded>(control::Load{.version = kFirst});
    EXPECT_THAT(loaded.failure, HasSubstr("no room"));
    EXPECT_TRUE(loaded.sums.empty());
    EXPECT_EQ(rank.link->status().state, RankState::kTainted);
    EXPECT_THAT(rank.peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure,
                HasSubstr("tainted"));
    rank.peer.ask<control::ErrorReply>(control::Resume{});
    rank.engine.fail_layer = UINT32_MAX;
    rank.switch_to(kFirst);
    expect_holds(model, rank.engine, arena);
  }
}

TEST(EngineLink, APauseThatIsNotHonouredYetIsWithdrawnByResume) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.engine.description.serving = true;
  rank.start();
  rank.engine.on_pause = [] { return Result<>{}; };  // its step does not end
  EXPECT_EQ(rank.peer.accept().state, RankState::kServing);
  rank.peer.welcome_unified();
  rank.peer.send(control::Pause{});
  rank.peer.ask<control::Resumed>(control::Resume{});
  EXPECT_EQ(rank.link->status().state, RankState::kServing);
  EXPECT_THAT(rank.engine.calls, testing::ElementsAre("pause", "resume"));
}

TEST(EngineLink, APauseThatEndsWhileAResumeOvertakesItIsAnsweredFirstAndChangesNothing) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.engine.description.serving = true;
  rank.start();
  rank.engine.on_pause = [&, asked = 0]() mutable -> Result<> {
    if (++asked == 1) return {};   // its step does not end
    rank.link->report_stopped(9);  // nobody asked for that: its group broke
    rank.link->report_paused(9);
    return {};
  };
  rank.engine.on_resume = [&]() -> Result<> {
    rank.link->report_paused(7);  // it did end, just before serving goes on
    rank.link->report_running(8);
    return {};
  };
  EXPECT_EQ(rank.peer.accept().state, RankState::kServing);
  rank.peer.welcome_unified();
  rank.peer.send(control::Pause{});
  const std::uint64_t pause = rank.peer.envelope.request;
  rank.peer.send(control::Resume{});
  EXPECT_EQ(rank.peer.expect<control::Paused>().step, 7U);
  EXPECT_EQ(rank.peer.last_envelope.request, pause);
  rank.peer.expect<control::Resumed>();
  EXPECT_EQ(rank.peer.last_envelope.request, rank.peer.envelope.request);
  EXPECT_EQ(rank.link->status().state, RankState::kServing);

  rank.peer.send(control::Pause{});
  rank.peer.expect<control::Paused>();
  EXPECT_EQ(rank.peer.last_envelope.request, 0U);
  rank.peer.expect<control::Paused>();
  EXPECT_EQ(rank.peer.last_envelope.request, rank.peer.envelope.request);
  EXPECT_EQ(rank.link->status().state, RankState::kPaused);
}

// ---- separate devices ----

TEST(EngineLink, BucketsThroughTwoIpcBuffersOfASeparateDevice) {
  const Model model = Model::make();
  const SharedArena arena = model.arena(kFirst);
  for (const TakeMode take : {TakeMode::kPieces, TakeMode::kWhole}) {
    SeparateRank rank(model, take, 1, 2);
    rank.attach(model);
    EXPECT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kFirst)).failure, "");
    rank.peer.send(control::Load{.version = kFirst});
    const auto load_request = rank.peer.envelope.request;
    for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket)
      EXPECT_EQ(rank.give(model, arena, bucket).failure, "");
    const auto loaded = rank.peer.expect<control::Loaded>();
    EXPECT_EQ(rank.peer.last_envelope.request, load_request);
    EXPECT_EQ(loaded.failure, "");
    EXPECT_EQ(loaded.bytes, plan_of(model, rank.engine).bytes());
    // The last acknowledgement may get lost; the bucket then comes again.
    EXPECT_EQ(rank.give(model, arena, model.plan.bucket_count() - 1).failure, "");
    EXPECT_EQ(rank.peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure, "");
    expect_holds(model, rank.engine, arena);
  }
}

TEST(EngineLink, ABucketIsAcknowledgedAfterItsCopyAndNotBefore) {
  const Model model = Model::make();
  const SharedArena arena = model.arena(kFirst);
  std::counting_semaphore<> copied(0);
  std::atomic<std::uint64_t> early = 0;
  SeparateRank rank(model, TakeMode::kPieces);
  rank.engine.after_copy = [&] {
    pollfd answer{.fd = rank.peer.socket(), .events = POLLIN, .revents = 0};
    if (::poll(&answer, 1, 0) != 0) ++early;
    copied.release();
  };
  rank.attach(model);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst));
  rank.peer.send(control::Load{.version = kFirst});
  for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket) {
    rank.put(model, arena, bucket);
    ASSERT_TRUE(copied.try_acquire_for(std::chrono::seconds(20)));  // nothing is read before
    EXPECT_EQ(rank.peer.expect<control::BucketAck>().failure, "");
  }
  EXPECT_EQ(early, 0U) << "acknowledgements that were there before the copy was complete";
}

TEST(EngineLink, ABucketThatNeverCameKeepsTheVersionFromBeingCommitted) {
  const Model model = Model::make();
  const SharedArena arena = model.arena(kFirst);
  SeparateRank rank(model, TakeMode::kPieces);
  rank.attach(model);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst));
  rank.peer.send(control::Load{.version = kFirst});
  for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket)
    if (bucket != 1) rank.give(model, arena, bucket);
  EXPECT_NE(rank.peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure, "");
  EXPECT_EQ(rank.link->status().state, RankState::kTainted);
}

TEST(EngineLink, LosingTheSidecarInsideALoadLeavesTheRankTainted) {
  const Model model = Model::make();
  const SharedArena arena = model.arena(kFirst);
  SeparateRank rank(model, TakeMode::kPieces);
  rank.attach(model);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst));
  rank.peer.send(control::Load{.version = kFirst});
  rank.give(model, arena, 0);
  rank.peer.hang_up();
  EXPECT_EQ(rank.peer.accept().state, RankState::kTainted);
  rank.welcome(model);
  EXPECT_NE(rank.peer.ask<control::BucketAck>(control::BucketReady{.bucket = 1}).failure, "");
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst, false));
  rank.peer.send(control::Load{.version = kFirst});
  for (std::uint64_t bucket = 0; bucket < model.plan.bucket_count(); ++bucket)
    rank.give(model, arena, bucket);
  EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
  EXPECT_EQ(rank.peer.ask<control::Committed>(control::Commit{.version = kFirst}).failure, "");
  expect_holds(model, rank.engine, arena);
}

// ---- loss, and bad frames ----

TEST(EngineLink, AfterALossTheHelloTellsTheStateAndNothingResumesByItself) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
  rank.switch_to(kFirst);
  rank.peer.hang_up();
  auto hello = rank.peer.accept();
  EXPECT_EQ(hello.state, RankState::kPaused);
  EXPECT_EQ(hello.active, kFirst);
  EXPECT_TRUE(arena.try_write_lease({})) << "leases outlive the sidecar that would release them";
  rank.peer.welcome_unified();
  rank.peer.ask<control::Resumed>(control::Resume{});
  rank.peer.ask<control::Paused>(control::Pause{});
  rank.peer.ask<control::Resumed>(control::Resume{});
  rank.peer.hang_up();
  hello = rank.peer.accept();
  EXPECT_EQ(hello.state, RankState::kServing);
  EXPECT_EQ(hello.step, 7U);
  EXPECT_EQ(rank.peer.last_envelope.fence, rank.peer.envelope.fence);
}

TEST(EngineLink, GarbageEndsTheConnectionAndChangesNothing) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.attach_unified();
  const SharedArena arena = model.arena(kFirst);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
  rank.switch_to(kFirst);
  const std::vector<std::byte> noise(300, std::byte{0xe7});
  ASSERT_TRUE(send_some(rank.peer.socket(), noise));
  rank.peer.expect_closed();
  EXPECT_EQ(rank.peer.accept().state, RankState::kPaused);
  EXPECT_GE(rank.link->status().refusals, 1U);
  expect_holds(model, rank.engine, arena);

  // A frame that is cut off by the end of the connection.
  auto bytes = control::encode(rank.peer.envelope, control::Resume{}).value();
  ASSERT_TRUE(send_some(rank.peer.socket(), std::span<const std::byte>(bytes).first(20)));
  rank.peer.hang_up();
  EXPECT_EQ(rank.peer.accept().state, RankState::kPaused);
}

TEST(EngineLink, OldFencesOtherRanksAndStrangeMessagesAreRefused) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.start();
  rank.peer.accept();
  EXPECT_THAT(rank.peer.ask<control::ErrorReply>(control::Resume{}).message,
              HasSubstr("before the welcome"));
  rank.peer.welcome_unified();
  EXPECT_THAT(rank.peer.ask<control::ErrorReply>(control::Push{}).message,
              HasSubstr("an engine does not accept the message"));
  rank.peer.envelope.rank = 5;
  EXPECT_THAT(rank.peer.ask<control::ErrorReply>(control::Pause{}).message, HasSubstr("rank 5"));
  rank.peer.envelope.rank = 0;
  rank.peer.envelope.fence.epoch = 2;
  const auto fenced = rank.peer.ask<control::ErrorReply>(control::Pause{});
  EXPECT_EQ(fenced.code, ErrorCode::kFenced);
  EXPECT_TRUE(rank.engine.calls.empty());
}

TEST(EngineLink, AGpusBuffersAreRefusedByWeightsInHostMemory) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.start();
  EXPECT_EQ(rank.peer.accept().gpu, "");
  rank.peer.send(control::EngineWelcome{.generation = 1,
                                        .device_kind = DeviceKind::kCuda,
                                        .buffer_bytes = model.plan.largest_bucket()});
  EXPECT_THAT(rank.peer.expect<control::ErrorReply>().message,
              AllOf(HasSubstr("device 0 of the sidecar is a GPU"), HasSubstr("--device cuda")));
  rank.peer.expect_closed();
  rank.peer.accept();
  rank.peer.welcome_unified();
  const SharedArena arena = model.arena(kFirst);
  rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
  EXPECT_THAT(
      rank.peer.ask<control::Loaded>(control::Load{.version = kFirst, .buffers = {{.opaque = {}}}})
          .failure,
      HasSubstr("handles of GPU buffers"));
  EXPECT_EQ(rank.link->status().state, RankState::kLoading);
  rank.switch_to(kFirst);
}

TEST(EngineLink, OnlyAGpuHoldsWeightsOutsideOfHostMemory) {
  const Model model = Model::make();
  const auto host = device::make_device({.kind = DeviceKind::kSeparate}).value();
  FakeEngine engine(model, TakeMode::kPieces, 0, 1);
  engine.description.gpu = host.get();
  const auto made = EngineLink::create(engine.description, "/tmp/engine.sock", engine);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(),
              AllOf(HasSubstr("separate host device 0"), HasSubstr("not a GPU")));
}

TEST(EngineLink, APrepareThatDoesNotFitIsRefusedWithItsReason) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.attach_unified();
  const SharedArena arena = model.arena(kFirst);
  const auto good = prepare_of(model, kFirst);
  const auto refused = [&](control::Prepare prepare) {
    return rank.peer.ask<control::Prepared>(std::move(prepare), share(arena)).failure;
  };
  auto bad = good;
  bad.layout.clear();
  EXPECT_THAT(refused(bad), HasSubstr("does not know layout"));
  bad = good;
  bad.layout[bad.layout.size() / 2] ^= std::byte{1};
  EXPECT_NE(refused(bad), "");
  bad = good;
  bad.version = kSecond;  // the arena says 1.1
  EXPECT_NE(refused(bad), "");
  bad = good;
  bad.bucket_bytes = 1000;
  EXPECT_NE(refused(bad), "");
  EXPECT_THAT(rank.peer.ask<control::Prepared>(good).failure, HasSubstr("descriptors"));
  EXPECT_THAT(rank.peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure,
              HasSubstr("not been prepared"));
  EXPECT_EQ(refused(good), "");
}

// ---- suspension ----

TEST(Suspend, NothingIsTouchedMeanwhileAndTheRankHoldsNothingAfterwards) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  ASSERT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena)).failure, "");
  rank.switch_to(kFirst);
  ASSERT_TRUE(rank.link->suspend());
  rank.peer.expect_closed();
  EXPECT_EQ(rank.link->status().active, Version{});
  EXPECT_EQ(rank.link->status().state, RankState::kLoading);
  EXPECT_TRUE(arena.try_write_lease(arena.identity())) << "a suspended engine keeps the arena";
  EXPECT_EQ(rank.link->suspend().error().message(),
            "r0 rank 0 is suspended already; call resume when its memory is there again");
  rank.engine.calls.clear();
  rank.link->report_paused(9);  // of a thread that is late
  ASSERT_TRUE(rank.link->resume());
  const auto hello = rank.peer.accept();
  EXPECT_EQ(hello.state, RankState::kLoading);
  EXPECT_TRUE(hello.active.none()) << "what it held was given away";
  EXPECT_THAT(rank.engine.calls, testing::IsEmpty());
  rank.peer.welcome_unified();
  SharedArena second = model.arena(kSecond);
  ASSERT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kSecond), share(second)).failure,
            "");
  rank.switch_to(kSecond);
  expect_holds(model, rank.engine, second);
  EXPECT_EQ(rank.link->resume().error().message(), "r0 rank 0 is not suspended");
}

TEST(Suspend, TheMemoryMayComeBackAtOtherAddresses) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  ASSERT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena)).failure, "");
  EXPECT_THAT(rank.link->move_destination(0, nullptr).error().message(),
              HasSubstr("the memory of tensor 0 cannot be moved: the rank is not suspended"));
  ASSERT_TRUE(rank.link->suspend());
  const std::size_t count = rank.engine.memory.size();
  EXPECT_THAT(rank.link->move_destination(count, nullptr).error().message(),
              HasSubstr(fmt::format("the rank has {} tensors", count)));
  EXPECT_THAT(rank.link->move_destination(0, nullptr).error().message(),
              HasSubstr("the new address is NULL"));
  for (std::size_t t = 0; t < count; ++t) {
    std::vector<std::byte> other(rank.engine.memory[t].size());
    rank.engine.memory[t].swap(other);
    ASSERT_TRUE(rank.link->move_destination(t, rank.engine.memory[t].data()));
  }
  ASSERT_TRUE(rank.link->resume());
  rank.peer.accept();
  rank.peer.welcome_unified();
  ASSERT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena)).failure, "");
  rank.switch_to(kFirst);
  expect_holds(model, rank.engine, arena);
}

TEST(Suspend, AnOldFenceIsStillRefusedAfterwards) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  ASSERT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena)).failure, "");
  ASSERT_TRUE(rank.link->suspend());
  ASSERT_TRUE(rank.link->resume());
  rank.peer.accept();
  rank.peer.envelope.fence.epoch -= 1;
  rank.peer.welcome_unified();
  EXPECT_THAT(rank.peer.expect<control::ErrorReply>().message, HasSubstr("is older than epoch"));
}

TEST(Suspend, NotWhileThreadsOfTheEngineReadTheVersion) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kBorrow);
  rank.engine.late_layers = {1};
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  ASSERT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena)).failure, "");
  rank.peer.send(control::Load{.version = kFirst});
  while (rank.link->status().state != RankState::kTainted) std::this_thread::yield();
  const auto refused = rank.link->suspend();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kBusy);
  EXPECT_THAT(refused.error().message(), HasSubstr("has not answered the load of 1.1 yet"));
  EXPECT_EQ(arena.try_write_lease(arena.identity()).error().code(), ErrorCode::kBusy);
  // Nothing has changed: the load goes on.
  rank.link->report_loaded(kFirst, {});
  EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
  ASSERT_TRUE(rank.link->suspend());
  EXPECT_TRUE(arena.try_write_lease(arena.identity()));
}

TEST(Suspend, ALinkThatIsStoppedMeanwhileDoesNotRunAgain) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kPieces);
  rank.attach_unified();
  ASSERT_TRUE(rank.link->suspend());
  rank.link->stop();
  ASSERT_TRUE(rank.link->resume());
  EXPECT_FALSE(rank.link->start());
}

}  // namespace
}  // namespace wsync::engine::test
