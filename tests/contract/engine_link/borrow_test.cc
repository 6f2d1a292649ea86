// Engines that read the staged version themselves until its commit (TakeMode::kBorrow), that answer
// later, and that take any layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/contract/engine_link/attached_rank.h"

namespace wsync::engine::test {
namespace {

using control::RankState;
using control::TakeMode;
using testing::HasSubstr;

// A probe of an arena that nobody reads ends what is in it, so nothing can be loaded from it then.
bool is_read(SharedArena& arena) {
  const auto writing = arena.try_write_lease(arena.identity());
  return !writing && writing.error().code() == ErrorCode::kBusy;
}

void prepare(Rank& rank, const Model& model, Version version, const SharedArena& arena) {
  ASSERT_EQ(rank.peer.ask<control::Prepared>(prepare_of(model, version), share(arena)).failure, "");
}

void expect_committed(Rank& rank, Version version) {
  EXPECT_EQ(rank.peer.ask<control::Committed>(control::Commit{.version = version}).failure, "");
}

TEST(Borrow, TheLeaseEndsWithTheCommit) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kBorrow);
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  prepare(rank, model, kFirst, arena);
  const auto loaded = rank.peer.ask<control::Loaded>(control::Load{.version = kFirst});
  EXPECT_EQ(loaded.failure, "");
  EXPECT_TRUE(loaded.sums.empty()) << "the sidecar has verified the version";
  EXPECT_TRUE(is_read(arena)) << "the engine reads it until its commit";
  EXPECT_EQ(rank.link->status().state, RankState::kLoaded);
  expect_committed(rank, kFirst);
  EXPECT_FALSE(is_read(arena)) << "an engine that hangs now would keep the arena";
  expect_holds(model, rank.engine, arena);
}

TEST(Borrow, ALoadThatFailsLeavesMemoryOfNoVersion) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kBorrow);
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  prepare(rank, model, kFirst, arena);
  rank.engine.fail_layer = 2;
  EXPECT_THAT(rank.peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure,
              HasSubstr("no room for this layer"));
  EXPECT_EQ(rank.link->status().state, RankState::kTainted) << "it may have fused two layers";
  rank.engine.fail_layer = UINT32_MAX;
  rank.switch_to(kFirst);
  expect_holds(model, rank.engine, arena);
}

TEST(Borrow, ALossBeforeTheCommitKeepsTheBytes) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kBorrow);
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  prepare(rank, model, kFirst, arena);
  ASSERT_EQ(rank.peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure, "");
  rank.peer.hang_up();
  EXPECT_EQ(rank.peer.accept().state, RankState::kLoaded);
  rank.peer.welcome_unified();
  EXPECT_TRUE(is_read(arena)) << "the engine has pointers into it";
  expect_committed(rank, kFirst);
  expect_holds(model, rank.engine, arena);
  EXPECT_FALSE(is_read(arena));
}

TEST(Later, TheLoadAndTheCommitEndWithTheReports) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kBorrow);
  rank.engine.late_layers = {1, 3};
  rank.engine.late_commit = true;
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  prepare(rank, model, kFirst, arena);
  rank.peer.send(control::Load{.version = kFirst});
  const std::uint64_t load = rank.peer.envelope.request;
  rank.peer.ask<control::Pong>(control::Ping{});  // the link goes on meanwhile
  EXPECT_EQ(rank.engine.calls.back(), "layer 4") << "every layer is passed";
  EXPECT_TRUE(is_read(arena));
  rank.link->report_loaded(kSecond, {});  // nobody has asked for that
  rank.peer.ask<control::Pong>(control::Ping{});
  EXPECT_THAT(rank.link->status().last_error, HasSubstr("has loaded 1.2, but 1.1 is awaited"));
  rank.link->report_loaded(kFirst, {});
  EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
  EXPECT_EQ(rank.peer.last_envelope.request, load);
  rank.peer.send(control::Commit{.version = kFirst});
  rank.peer.send(control::Commit{.version = kFirst});  // the sidecar asks again
  const std::uint64_t commit = rank.peer.envelope.request;
  rank.peer.ask<control::Pong>(control::Ping{});
  EXPECT_EQ(rank.engine.calls.back(), "commit 1.1");
  EXPECT_EQ(std::ranges::count(rank.engine.calls, "commit 1.1"), 1);
  EXPECT_TRUE(is_read(arena));
  rank.link->report_committed(kFirst, {});
  EXPECT_EQ(rank.peer.expect<control::Committed>().failure, "");
  EXPECT_EQ(rank.peer.last_envelope.request, commit);
  EXPECT_FALSE(is_read(arena));
  EXPECT_EQ(rank.link->status().active, kFirst);
}

TEST(Later, AFailureThatIsReportedIsTheAnswer) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kBorrow);
  rank.engine.late_layers = {0};
  rank.engine.late_commit = true;
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  prepare(rank, model, kFirst, arena);
  rank.peer.send(control::Load{.version = kFirst});
  rank.peer.ask<control::Pong>(control::Ping{});
  rank.link->report_loaded(kFirst, fail(ErrorCode::kRefused, "expert 7 does not fit"));
  EXPECT_THAT(rank.peer.expect<control::Loaded>().failure, HasSubstr("expert 7 does not fit"));
  EXPECT_EQ(rank.link->status().state, RankState::kTainted);
  rank.peer.send(control::Load{.version = kFirst});
  rank.peer.ask<control::Pong>(control::Ping{});
  rank.link->report_loaded(kFirst, {});
  EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
  rank.peer.send(control::Commit{.version = kFirst});
  rank.peer.ask<control::Pong>(control::Ping{});
  rank.link->report_committed(kFirst, fail(ErrorCode::kRefused, "the head could not be packed"));
  EXPECT_THAT(rank.peer.expect<control::Committed>().failure,
              HasSubstr("the head could not be packed"));
  EXPECT_EQ(rank.link->status().state, RankState::kTainted);
}

TEST(Later, ALayerThatFailsAfterOneThatIsReadWaitsForTheReport) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kBorrow);
  rank.engine.late_layers = {0};
  rank.engine.fail_layer = 2;
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  prepare(rank, model, kFirst, arena);
  rank.peer.send(control::Load{.version = kFirst});
  rank.peer.ask<control::Pong>(control::Ping{});
  EXPECT_TRUE(is_read(arena)) << "the engine still reads layer 0";
  rank.link->report_loaded(kFirst, {});
  EXPECT_THAT(rank.peer.expect<control::Loaded>().failure, HasSubstr("no room for this layer"));
  EXPECT_FALSE(is_read(arena));
}

// The engine's thread still reads when the sidecar is lost and comes back.
TEST(Later, NoByteIsGivenUpBeforeTheReport) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kBorrow);
  rank.engine.late_layers = {0};
  rank.attach_unified();
  SharedArena arena = model.arena(kFirst);
  prepare(rank, model, kFirst, arena);
  rank.peer.send(control::Load{.version = kFirst});
  rank.peer.ask<control::Pong>(control::Ping{});
  rank.peer.hang_up();
  EXPECT_EQ(rank.peer.accept().state, RankState::kTainted);
  rank.peer.welcome_unified();
  prepare(rank, model, kFirst, arena);
  EXPECT_TRUE(is_read(arena)) << "the engine's thread still reads";
  rank.peer.send(control::Load{.version = kFirst});
  const std::uint64_t again = rank.peer.envelope.request;
  rank.peer.ask<control::Pong>(control::Ping{});
  EXPECT_EQ(std::ranges::count(rank.engine.calls, "begin 1.1"), 1) << "two loads at once";
  EXPECT_TRUE(is_read(arena));
  rank.link->report_loaded(kFirst, fail(ErrorCode::kRefused, "of the load that was given up"));
  rank.peer.ask<control::Pong>(control::Ping{});
  EXPECT_EQ(std::ranges::count(rank.engine.calls, "begin 1.1"), 2);
  EXPECT_EQ(rank.link->status().state, RankState::kTainted);
  rank.link->report_loaded(kFirst, {});
  EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "");
  EXPECT_EQ(rank.peer.last_envelope.request, again);
  expect_committed(rank, kFirst);
  expect_holds(model, rank.engine, arena);
  EXPECT_FALSE(is_read(arena));
}

TEST(Later, ALoadThatComesMeanwhileBeginsAfterTheReport) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kBorrow);
  rank.engine.late_layers = {0};
  rank.engine.fail_layer = 2;
  rank.attach_unified();
  const SharedArena first = model.arena(kFirst);
  const SharedArena second = model.arena(kSecond);
  prepare(rank, model, kFirst, first);
  EXPECT_EQ(
      rank.peer.ask<control::Prepared>(prepare_of(model, kSecond, false), share(second)).failure,
      "");
  rank.peer.send(control::Load{.version = kFirst});
  rank.peer.ask<control::Pong>(control::Ping{});
  rank.engine.late_layers = {};
  rank.engine.fail_layer = UINT32_MAX;
  rank.peer.send(control::Load{.version = kSecond});
  const std::uint64_t load = rank.peer.envelope.request;
  rank.peer.ask<control::Pong>(control::Ping{});
  rank.link->report_loaded(kFirst, {});
  EXPECT_EQ(rank.peer.expect<control::Loaded>().failure, "") << "nothing is left of the first load";
  EXPECT_EQ(rank.peer.last_envelope.request, load);
  expect_committed(rank, kSecond);
  expect_holds(model, rank.engine, second);
}

// A load that waits for the report of the one before it begins only if its version is still there.
TEST(Later, ALoadThatIsGivenUpBeforeItBeginsNeverBegins) {
  const Model model = Model::make();
  for (const auto& [take, is_aborted] :
       {std::pair(TakeMode::kBorrow, true), std::pair(TakeMode::kBorrow, false),
        std::pair(TakeMode::kAdopt, true), std::pair(TakeMode::kAdopt, false)}) {
    Rank rank(model, take);
    rank.engine.late_layers = {0};
    rank.attach_unified();
    SharedArena first = model.arena(kFirst);
    const SharedArena second = model.arena(kSecond);
    prepare(rank, model, kFirst, first);
    prepare(rank, model, kSecond, second);
    rank.peer.send(control::Load{.version = kFirst});
    rank.peer.ask<control::Pong>(control::Ping{});
    rank.peer.send(control::Load{.version = kSecond});
    const std::uint64_t load = rank.peer.envelope.request;
    if (is_aborted) {
      rank.peer.send(control::Abort{.version = kSecond});
      EXPECT_THAT(rank.peer.expect<control::Loaded>().failure, HasSubstr("cancelled"));
      EXPECT_EQ(rank.peer.last_envelope.request, load);
    } else {
      rank.peer.send(control::Release{.version = kSecond});
    }
    rank.peer.ask<control::Pong>(control::Ping{});
    EXPECT_TRUE(is_read(first)) << "the engine still reads";
    rank.link->report_loaded(kFirst, {});
    if (!is_aborted) {
      EXPECT_THAT(rank.peer.expect<control::Loaded>().failure,
                  HasSubstr("version 1.2 was released before its load could begin"));
      EXPECT_EQ(rank.peer.last_envelope.request, load);
    }
    rank.peer.ask<control::Pong>(control::Ping{});
    EXPECT_EQ(std::ranges::count(rank.engine.calls, "begin 1.2"), 0);
    EXPECT_EQ(rank.link->status().state,
              take == TakeMode::kBorrow ? RankState::kTainted : RankState::kLoading);
    EXPECT_FALSE(is_read(first));
    rank.engine.late_layers = {};
    const SharedArena again = model.arena(kFirst);
    prepare(rank, model, kFirst, again);
    rank.switch_to(kFirst);
    expect_holds(model, rank.engine, again);
  }
}

TEST(Later, NothingIsLoadedBeforeACommitIsAnswered) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kAdopt);
  rank.engine.late_commit = true;
  rank.attach_unified();
  const SharedArena arena = model.arena(kFirst);
  prepare(rank, model, kFirst, arena);
  ASSERT_EQ(rank.peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure, "");
  rank.peer.send(control::Commit{.version = kFirst});
  EXPECT_THAT(rank.peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure,
              HasSubstr("the engine has not reported yet that it has committed 1.1"));
  rank.peer.hang_up();
  EXPECT_EQ(rank.peer.accept().state, RankState::kLoaded);
  rank.peer.welcome_unified();
  rank.peer.send(control::Commit{.version = kFirst});
  rank.peer.ask<control::Pong>(control::Ping{});
  rank.link->report_committed(kFirst, {});
  EXPECT_EQ(rank.peer.expect<control::Committed>().failure, "");
  EXPECT_EQ(rank.link->status().active, kFirst);
  expect_holds(model, rank.engine, arena);
}

TEST(Later, IsForRanksThatReadTheVersionThemselves) {
  const Model model = Model::make();
  for (const TakeMode take : {TakeMode::kPieces, TakeMode::kWhole}) {
    Rank rank(model, take);
    rank.engine.late_layers = {0};
    rank.attach_unified();
    const SharedArena arena = model.arena(kFirst);
    prepare(rank, model, kFirst, arena);
    EXPECT_THAT(rank.peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure,
                HasSubstr("only a rank that borrows or adopts can"));
  }
}

TEST(CheckVersion, ARefusalIsTheAnswerToThePreparation) {
  const Model model = Model::make();
  Rank rank(model, TakeMode::kBorrow);
  rank.engine.unfit = "the model has 8 experts, the version 16";
  rank.attach_unified();
  const SharedArena arena = model.arena(kFirst);
  const auto prepared = rank.peer.ask<control::Prepared>(prepare_of(model, kFirst), share(arena));
  EXPECT_EQ(prepared.failure, "the model has 8 experts, the version 16");
  EXPECT_TRUE(prepared.is_refused);
  EXPECT_EQ(rank.link->layout(kFirst), nullptr);
  EXPECT_THAT(rank.peer.ask<control::Loaded>(control::Load{.version = kFirst}).failure,
              HasSubstr("has not been prepared"));
}

struct AnyLayout : testing::TestWithParam<TakeMode> {};
INSTANTIATE_TEST_SUITE_P(Engine, AnyLayout, testing::Values(TakeMode::kBorrow, TakeMode::kAdopt));

TEST_P(AnyLayout, TheTensorsAreThoseOfEachVersion) {
  const Model one = Model::make();
  const Model two = Model::of({{.name = "fused.weight", .dtype = DType::kF32, .shape = {3, 5}},
                               {.name = "head", .dtype = DType::kBF16, .shape = {7}}});
  Rank rank(one, GetParam());
  rank.engine.description.tensors.clear();
  rank.engine.description.any_layout = true;
  rank.start();
  const auto hello = rank.peer.accept();
  EXPECT_TRUE(hello.any_layout);
  EXPECT_TRUE(hello.tensors.empty());
  rank.peer.welcome_unified();
  EXPECT_EQ(rank.link->layout(kFirst), nullptr);
  const SharedArena first = one.arena(kFirst);
  prepare(rank, one, kFirst, first);
  rank.switch_to(kFirst);
  rank.engine.adopted.assign(two.manifest.size(), {});
  rank.engine.memory.assign(two.manifest.size(), {});
  const SharedArena second = two.arena(kSecond);
  prepare(rank, two, kSecond, second);
  EXPECT_EQ(rank.link->layout(kFirst)->tensors.size(), one.manifest.size());
  rank.switch_to(kSecond);
  const auto layout = rank.link->layout(kSecond);
  ASSERT_EQ(layout->tensors.size(), 2U);
  const auto digests = rank.peer.ask<control::Digests>(control::ReadDigests{});
  ASSERT_EQ(digests.tensors.size(), 2U) << digests.failure;
  for (std::size_t t = 0; t < 2; ++t) {
    EXPECT_EQ(layout->tensors[t].name, two.manifest.tensor(t).name);
    EXPECT_EQ(layout->tensors[t].shape, two.manifest.tensor(t).shape);
    EXPECT_EQ(digests.tensors[t].name, two.manifest.tensor(t).name);
    EXPECT_EQ(digests.tensors[t].digest,
              reload::expected_digest(layout->plan.tensors()[t], second.data()));
  }
}

TEST(AnyLayoutRules, NeedsARankThatReadsTheVersionItself) {
  const Model model = Model::make();
  FakeEngine engine(model, TakeMode::kWhole, 0, 1);
  engine.description.any_layout = true;
  EXPECT_THAT(EngineLink::create(engine.description, "/tmp/none.sock", engine).error().message(),
              HasSubstr("only a rank that borrows or adopts can take any layout"));
  engine.description.take = TakeMode::kBorrow;
  EXPECT_THAT(EngineLink::create(engine.description, "/tmp/none.sock", engine).error().message(),
              HasSubstr("tensors were described for it"));
}

}  // namespace
}  // namespace wsync::engine::test
