// The switch of one replica: its way through a switch, what each failure does to it, and every
// event in every phase.
#include "inference_side/reload/replica_switch.h"

#include <functional>
#include <gtest/gtest.h>

#include "shared/base/format.h"
#include "shared/base/switch_deadlines.h"
#include "tests/support/versions.h"

namespace wsync::reload {
namespace {

using control::RankState;
using control::ReplicaState;
using control::SwitchOutcome;
using std::chrono::milliseconds;
using std::chrono::seconds;

class Switch : public testing::Test {
 protected:
  explicit Switch(std::uint32_t world_size = 2)
      : machine({.replica = "r", .world_size = world_size}) {}

  // Two ranks that serve V1; V2 is staged beside it.
  void serve_v1() {
    for (std::uint32_t rank = 0; rank < machine.world_size(); ++rank)
      attach(rank, RankState::kServing, kV1);
    decide(kV1, {}, false);
    step(StagedSet{{kV1, kV2}});
    ASSERT_TRUE(machine.report(now).ready);
  }
  void attach(std::uint32_t rank, RankState state, Version active = {}) {
    step(RankAttached{.rank = rank, .leader = rank == 0, .state = state, .active = active});
  }
  void decide(Version target, std::vector<Version> withdrawn = {}, bool owed = true) {
    step(TargetSet{.decision = {.fence = {.epoch = 1}, .number = ++number},
                   .target = target,
                   .withdrawn = std::move(withdrawn),
                   .owed = owed});
  }
  template <class T>
  void step(T what) {
    now = now + milliseconds(1);
    last = machine.step({.now = now, .what = std::move(what)});
    for (const SwitchCommand& command : last)
      std::visit([this](const auto& c) { this->note(c); }, command);
  }
  void note(const SendPause& c) { request = c.request; }
  void note(const BeginLoad& c) { request = c.request; }
  void note(const SendCommit& c) { request = c.request; }
  void note(const SendResume& c) { request = c.request; }
  void note(const CancelLoad&) { ++cancelled; }
  void note(const CopySuspect& c) { suspect.push_back(c.version); }
  void note(const Done& c) { done.push_back(c.outcome); }
  void tick_after(std::chrono::nanoseconds wait) {
    now = now + wait;
    step(Tick{});
  }
  void paused() {
    for (std::uint32_t rank = 0; rank < machine.world_size(); ++rank)
      step(RankPaused{.rank = rank, .request = rank == 0 ? request : 0});
  }
  void loaded(Version version) {
    const std::uint64_t asked = request;
    for (std::uint32_t rank = 0; rank < machine.world_size(); ++rank)
      step(RankLoaded{.rank = rank, .request = asked, .version = version, .bytes = 100});
  }
  void committed(Version version) {
    const std::uint64_t asked = request;
    for (std::uint32_t rank = 0; rank < machine.world_size(); ++rank)
      step(RankCommitted{.rank = rank, .request = asked, .version = version});
  }
  void resumed() { step(RankResumed{.rank = 0, .request = request}); }
  template <class T>
  [[nodiscard]] std::size_t count() const {
    std::size_t n = 0;
    for (const SwitchCommand& command : last) n += std::holds_alternative<T>(command) ? 1U : 0U;
    return n;
  }

  ReplicaSwitch machine;
  TimePoint now{1'000'000'000};
  std::uint64_t number = 0;
  std::uint64_t request = 0;
  std::size_t cancelled = 0;
  std::vector<Version> suspect;
  std::vector<control::ReplicaOutcome> done;
  std::vector<SwitchCommand> last;
};

// A version whose bytes are not here yet is tried like any other one: an engine that answers what
// it was not asked cannot make the replica begin it again and again.
TEST_F(Switch, FailedLoadsOfVersionsThatAreNotHereYetEndAsThoseOfOthers) {
  serve_v1();
  step(StagedSet{.versions = {kV2}, .changes = {kV1}});
  decide(kV2);
  paused();
  step(StagedSet{.versions = {}, .coming = kV2, .changes = {kV1}});
  std::size_t loads = 1;
  for (; loads < 20 && machine.phase() == SwitchPhase::kLoading; ++loads)
    step(RankLoaded{.rank = 0, .request = request, .failure = "no memory"});
  EXPECT_EQ(machine.phase(), SwitchPhase::kIdle);
  EXPECT_LT(loads, 6U);
}

TEST_F(Switch, PausesLoadsCommitsAndResumesInThisOrder) {
  serve_v1();
  decide(kV2);
  ASSERT_EQ(count<SendPause>(), 1U);
  EXPECT_EQ(std::get<SendPause>(last[0]).rank, 0U);
  EXPECT_FALSE(machine.report(now).ready);
  step(RankPaused{.rank = 0, .request = request});
  EXPECT_EQ(count<BeginLoad>(), 0U) << "rank 1 may still be inside its step";
  step(RankPaused{.rank = 1});
  ASSERT_EQ(count<BeginLoad>(), 1U);
  EXPECT_EQ(machine.report(now).state, ReplicaState::kLoading);
  EXPECT_TRUE(machine.report(now).version.none());
  const std::uint64_t load = request;
  step(RankLoaded{.rank = 1, .request = load, .version = kV2, .bytes = 7});
  EXPECT_EQ(count<SendCommit>(), 0U) << "a rank may not flip before its partners have loaded";
  step(RankLoaded{.rank = 0, .request = load, .version = kV2, .bytes = 5});
  EXPECT_EQ(count<SendCommit>(), 2U);
  const std::uint64_t commit = request;
  step(RankCommitted{.rank = 0, .request = commit, .version = kV2});
  EXPECT_EQ(count<SendResume>(), 0U) << "resume only after every rank has committed";
  step(RankCommitted{.rank = 1, .request = commit, .version = kV2});
  EXPECT_EQ(count<SendResume>(), 1U);
  EXPECT_TRUE(done.empty());
  resumed();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kCommitted);
  EXPECT_EQ(done[0].version, kV2);
  EXPECT_EQ(done[0].bytes, 12U);
  EXPECT_EQ(done[0].wait_ns, 2'000'000U);
  EXPECT_EQ(done[0].load_ns, 2'000'000U);
  EXPECT_EQ(done[0].paused_ns, 4'000'000U);
  EXPECT_TRUE(machine.report(now).ready);
  EXPECT_FALSE(machine.next_wake().has_value());
}

// ---- by a patch ----

const BeginLoad& begun(const std::vector<SwitchCommand>& commands) {
  for (const SwitchCommand& command : commands)
    if (const auto* load = std::get_if<BeginLoad>(&command)) return *load;
  ADD_FAILURE() << "no load has begun";
  static const BeginLoad kNothing;
  return kNothing;
}

TEST_F(Switch, SaysFromWhichVersionAPatchMayBeWritten) {
  serve_v1();
  decide(kV2);
  paused();
  EXPECT_EQ(begun(last).base, kV1);
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    step(RankLoaded{.rank = rank,
                    .request = request,
                    .version = kV2,
                    .bytes = 100,
                    .by_patch = true,
                    .written_bytes = 3});
  EXPECT_EQ(machine.report(now).last_load, control::LoadKind::kNone) << "nothing is committed";
  committed(kV2);
  resumed();
  const auto report = machine.report(now);
  EXPECT_EQ(report.last_load, control::LoadKind::kPatch);
  EXPECT_EQ(report.last_written_bytes, 6U);
  EXPECT_EQ(report.last_load_bytes, 200U);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].reason, "");
}

TEST_F(Switch, APatchThatFailsIsFollowedByALoadOfEverythingInTheSamePause) {
  serve_v1();
  decide(kV2);
  paused();
  step(RankLoaded{.rank = 0, .request = request, .version = kV2, .bytes = 100, .by_patch = true});
  step(RankLoaded{.rank = 1,
                  .request = request,
                  .version = kV2,
                  .failure = "its base is another one",
                  .by_patch = true});
  EXPECT_EQ(cancelled, 1U);
  EXPECT_EQ(begun(last).version, kV2);
  EXPECT_TRUE(begun(last).base.none()) << "no rank holds a version any more";
  EXPECT_EQ(count<SendCommit>(), 0U);
  EXPECT_TRUE(suspect.empty());
  // It counts as no failed attempt: the load of everything may still fail once.
  step(RankLoaded{.rank = 0, .request = request, .version = kV2, .failure = "no room"});
  EXPECT_EQ(begun(last).version, kV2);
  EXPECT_TRUE(suspect.empty());
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    step(RankLoaded{
        .rank = rank, .request = request, .version = kV2, .bytes = 100, .written_bytes = 100});
  committed(kV2);
  resumed();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kCommitted);
  EXPECT_EQ(done[0].reason,
            "its patch to 1.2 did not fit, so all bytes were loaded: rank 1: its base is another "
            "one");
  EXPECT_EQ(machine.report(now).last_load, control::LoadKind::kFull);
  EXPECT_EQ(machine.report(now).last_written_bytes, 200U);
}

// ---- damaged memory ----

TEST_F(Switch, ADamagedRankMakesItsReplicaLoadEverythingAgain) {
  serve_v1();
  step(RankDamaged{.rank = 1, .why = "damaged memory: rank 1: tensor w"});
  ASSERT_EQ(count<SendPause>(), 1U);
  auto report = machine.report(now);
  EXPECT_FALSE(report.ready);
  EXPECT_EQ(report.state, ReplicaState::kTainted);
  EXPECT_EQ(report.reason, "damaged memory: rank 1: tensor w");
  EXPECT_TRUE(report.version.none());
  EXPECT_EQ(count<BeginLoad>(), 0U) << "the ranks may be inside of a step";
  paused();
  EXPECT_EQ(begun(last).version, kV1);
  EXPECT_TRUE(begun(last).base.none()) << "a patch would leave the damage alone";
  loaded(kV1);
  committed(kV1);
  resumed();
  report = machine.report(now);
  EXPECT_TRUE(report.ready);
  EXPECT_EQ(report.version, kV1);
  EXPECT_TRUE(done.empty()) << "nobody has asked for it";
  EXPECT_TRUE(suspect.empty());
  EXPECT_FALSE(machine.next_wake().has_value());
}

TEST_F(Switch, DamageThatIsFoundWhileAPatchIsLoadedIsFollowedByALoadOfEverything) {
  serve_v1();
  decide(kV2);
  paused();
  EXPECT_EQ(begun(last).base, kV1);
  step(RankDamaged{.rank = 0, .why = "tensor w"});
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    step(RankLoaded{
        .rank = rank, .request = request, .version = kV2, .bytes = 100, .by_patch = true});
  committed(kV2);
  EXPECT_EQ(count<SendResume>(), 0U);
  EXPECT_EQ(begun(last).version, kV2);
  EXPECT_TRUE(begun(last).base.none());
  loaded(kV2);
  committed(kV2);
  resumed();
  EXPECT_TRUE(machine.report(now).ready);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kCommitted);
}

TEST_F(Switch, DamageThatIsFoundWhileEverythingIsLoadedIsMendedByThat) {
  serve_v1();
  decide(kV2);
  paused();
  step(RankDamaged{.rank = 0, .why = "tensor w"});
  loaded(kV2);
  committed(kV2);
  EXPECT_EQ(count<SendResume>(), 1U);
  resumed();
  EXPECT_TRUE(machine.report(now).ready);
}

TEST_F(Switch, DamageThatIsFoundWhileItResumesIsNoSuccess) {
  serve_v1();
  decide(kV2);
  paused();
  loaded(kV2);
  committed(kV2);
  step(RankDamaged{.rank = 0, .why = "tensor w"});
  resumed();
  EXPECT_TRUE(done.empty());
  ASSERT_EQ(count<SendPause>(), 1U);
  paused();
  EXPECT_TRUE(begun(last).base.none());
  loaded(kV2);
  committed(kV2);
  resumed();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kCommitted);
}

TEST_F(Switch, DamageThatComesBackAgainAndAgainIsGivenUp) {
  serve_v1();
  step(RankDamaged{.rank = 1, .why = "tensor w, the third time", .is_mendable = false});
  EXPECT_TRUE(last.empty());
  tick_after(seconds(600));
  EXPECT_TRUE(last.empty());
  EXPECT_FALSE(machine.report(now).ready);
  EXPECT_EQ(machine.report(now).reason, "tensor w, the third time");
  EXPECT_EQ(machine.report(now).state, ReplicaState::kTainted);
  // Another target is tried.
  decide(kV2);
  ASSERT_EQ(count<SendPause>(), 1U);
  paused();
  EXPECT_TRUE(begun(last).base.none());
  loaded(kV2);
  committed(kV2);
  resumed();
  EXPECT_TRUE(machine.report(now).ready);
}

TEST_F(Switch, AnotherProcessTakesThePlaceOfTheDamagedRank) {
  serve_v1();
  step(RankDamaged{.rank = 1, .why = "tensor w", .is_mendable = false});
  step(RankDetached{.rank = 1});
  attach(1, RankState::kServing, kV1);
  EXPECT_TRUE(machine.report(now).ready);
}

// The decision for the target that it was given up with is owed an answer.
TEST_F(Switch, AGivenUpReplicaAnswersADecision) {
  serve_v1();
  step(RankDamaged{.rank = 1, .why = "tensor w", .is_mendable = false});
  decide(kV1);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kTainted);
  EXPECT_EQ(done[0].reason, "tensor w");
}

TEST_F(Switch, ACopyThatIsAsWrongAsTheMemoryIsNotLoaded) {
  serve_v1();
  step(RankDamaged{.rank = 1, .why = "tensor w", .is_copy_suspect = true});
  EXPECT_EQ(suspect, std::vector{kV1});
  EXPECT_EQ(count<SendPause>(), 0U);
  EXPECT_FALSE(machine.report(now).ready);
  // It has left the set, and another copy has come.
  step(StagedSet{{kV2}});
  EXPECT_EQ(count<SendPause>(), 0U);
  step(StagedSet{{kV1, kV2}});
  EXPECT_EQ(count<SendPause>(), 1U);
}

TEST_F(Switch, DamageOfARankThatIsGoneIsDropped) {
  serve_v1();
  step(RankDetached{.rank = 1});
  const std::uint64_t dropped = machine.dropped();
  step(RankDamaged{.rank = 1, .why = "tensor w"});
  EXPECT_EQ(machine.dropped(), dropped + 1);
}

// The replica serves the wrong bytes until it has paused; it is asked again.
TEST_F(Switch, ADamagedReplicaThatDoesNotPauseIsAskedAgain) {
  serve_v1();
  step(RankDamaged{.rank = 0, .why = "tensor w"});
  tick_after(milliseconds(limits::kPauseDeadlineMs));
  EXPECT_EQ(count<SendResume>(), 1U) << "the pause is withdrawn";
  resumed();
  EXPECT_FALSE(machine.report(now).ready);
  tick_after(milliseconds(limits::kSwitchRetryMs));
  EXPECT_EQ(count<SendPause>(), 1U);
}

TEST_F(Switch, RanksThatDoNotAllHoldOneVersionHaveNoBase) {
  attach(0, RankState::kServing, kV1);
  attach(1, RankState::kLoading);
  step(StagedSet{{kV1, kV2}});
  decide(kV2);
  step(RankPaused{.rank = 0, .request = request});
  EXPECT_TRUE(begun(last).base.none());
}

TEST_F(Switch, APatchThatFailsWhenItsVersionIsGoneEndsAsALoadDoes) {
  serve_v1();
  decide(kV2);
  paused();
  step(StagedSet{{kV1}});
  step(RankLoaded{
      .rank = 0, .request = request, .version = kV2, .failure = "no room", .by_patch = true});
  EXPECT_EQ(begun(last).version, kV1) << "the version before is loaded";
}

// ---- in turns ----

class SwitchInTurns : public Switch {
 protected:
  void decide_in_turns(Version target) {
    step(TargetSet{.decision = {.fence = {.epoch = 1}, .number = ++number},
                   .target = target,
                   .in_turns = true});
  }
};

TEST_F(SwitchInTurns, ServesReadyUntilItsTurn) {
  serve_v1();
  decide_in_turns(kV2);
  EXPECT_TRUE(last.empty());
  tick_after(std::chrono::hours(1));
  EXPECT_TRUE(last.empty());
  EXPECT_TRUE(machine.owes());
  EXPECT_FALSE(machine.next_wake()) << "its deadline begins with its turn";
  const control::ReplicaReport waiting = machine.report(now);
  EXPECT_TRUE(waiting.ready) << "the time for which it waits makes it no older";
  EXPECT_EQ(waiting.turn, control::ReplicaTurn::kWaiting);
  EXPECT_EQ(waiting.reason, "it serves 1.1 and is waiting for its turn to switch to 1.2");
  step(TurnGiven{});
  EXPECT_EQ(count<SendPause>(), 1U);
  EXPECT_EQ(machine.turn(), control::ReplicaTurn::kHeld);
  EXPECT_EQ(machine.turns_taken(), 1U);
  paused();
  loaded(kV2);
  committed(kV2);
  EXPECT_EQ(machine.turn(), control::ReplicaTurn::kHeld);
  resumed();
  EXPECT_EQ(machine.turn(), control::ReplicaTurn::kNone);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kCommitted);
  const std::uint64_t before = machine.dropped();
  step(TurnGiven{});
  EXPECT_EQ(machine.dropped(), before + 1);
}

TEST_F(SwitchInTurns, AnotherAttemptNeedsAnotherTurn) {
  serve_v1();
  decide_in_turns(kV2);
  step(TurnGiven{});
  tick_after(milliseconds(limits::kPauseDeadlineMs));
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kBehind);
  resumed();
  EXPECT_EQ(machine.turn(), control::ReplicaTurn::kNone) << "it tries again later";
  tick_after(milliseconds(limits::kSwitchRetryMs));
  EXPECT_EQ(count<SendPause>(), 0U);
  EXPECT_EQ(machine.turn(), control::ReplicaTurn::kWaiting);
  step(TurnGiven{});
  EXPECT_EQ(count<SendPause>(), 1U);
}

TEST_F(SwitchInTurns, OneThatCannotSwitchOwesNothingForLong) {
  serve_v1();
  step(RankSilent{.rank = 1, .why = "it hangs"});
  decide_in_turns(kV2);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kBehind);
  EXPECT_EQ(machine.turn(), control::ReplicaTurn::kNone);
  step(RankHeard{.rank = 1});
  EXPECT_EQ(machine.turn(), control::ReplicaTurn::kWaiting) << "it still serves the version before";
}

TEST_F(SwitchInTurns, OneThatIsLostWhileItWaitsOwesNothing) {
  serve_v1();
  decide_in_turns(kV2);
  step(RankDetached{.rank = 1});
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kFailed);
}

TEST_F(SwitchInTurns, OneThatHasStoppedNeedsNoTurn) {
  attach(0, RankState::kLoading);
  attach(1, RankState::kLoading);
  step(StagedSet{{kV2}});
  decide_in_turns(kV2);
  EXPECT_EQ(count<BeginLoad>(), 1U);
}

TEST_F(SwitchInTurns, ANewerTargetThatItServesEndsTheWait) {
  serve_v1();
  decide_in_turns(kV2);
  decide(kV1, {kV2});
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kCommitted);
  EXPECT_EQ(count<SendPause>(), 0U);
  EXPECT_EQ(machine.turn(), control::ReplicaTurn::kNone);
}

TEST_F(SwitchInTurns, ANewerDecisionWhileItResumesWaitsForAnotherTurn) {
  serve_v1();
  decide(kV2);
  paused();
  loaded(kV2);
  committed(kV2);
  step(StagedSet{{kV1, kV2, kV3}});
  decide_in_turns(kV3);
  EXPECT_TRUE(last.empty());
  resumed();
  EXPECT_EQ(count<SendPause>(), 0U);
  EXPECT_EQ(machine.turn(), control::ReplicaTurn::kWaiting);
  EXPECT_TRUE(machine.owes());
}

TEST_F(SwitchInTurns, OneThatIsInTheMiddleOfASwitchHoldsATurn) {
  serve_v1();
  decide(kV2);
  decide_in_turns(kV2);
  EXPECT_EQ(machine.turn(), control::ReplicaTurn::kHeld);
}

TEST_F(Switch, PauseDeadlineLeavesItUntouchedAndBehindAndTriesAgain) {
  serve_v1();
  step(TargetSet{.decision = {.fence = {.epoch = 1}, .number = ++number},
                 .target = kV2,
                 .mode = PauseMode::kWait});
  step(RankPaused{.rank = 0, .request = request});
  const std::uint64_t old = request;
  tick_after(milliseconds(limits::kPauseDeadlineMs));
  ASSERT_EQ(count<SendResume>(), 1U);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kBehind);
  EXPECT_EQ(done[0].version, kV1);
  resumed();
  EXPECT_EQ(machine.report(now).state, ReplicaState::kBehind);
  EXPECT_EQ(machine.report(now).version, kV1);
  step(RankPaused{.rank = 0, .request = old});  // of the pause that was given up
  EXPECT_EQ(machine.phase(), SwitchPhase::kIdle);
  EXPECT_EQ(machine.dropped(), 1U);
  tick_after(milliseconds(limits::kSwitchRetryMs));
  ASSERT_EQ(count<SendPause>(), 1U);
  EXPECT_EQ(std::get<SendPause>(last[0]).mode, PauseMode::kAbort);
  paused();
  loaded(kV2);
  committed(kV2);
  resumed();
  EXPECT_EQ(machine.report(now).state, ReplicaState::kServing);
  EXPECT_EQ(done.size(), 1U) << "one outcome for one decision";
}

// The deadline of the pause has not passed: the answer of the engine is enough.
TEST_F(Switch, APauseThatTheEngineDeclinesIsToldAtOnceAndAskedForAgain) {
  serve_v1();
  decide(kV2);
  step(RankRefused{.rank = 1, .request = request, .why = "it is a follower"});
  step(RankRefused{.rank = 0, .request = request + 1, .why = "another request"});
  EXPECT_EQ(machine.dropped(), 2U);
  ASSERT_EQ(machine.phase(), SwitchPhase::kPausing);
  const std::string why = "rank 0: no door; it is asked again until it does";
  step(RankRefused{.rank = 0, .request = request, .why = "no door"});
  ASSERT_EQ(count<SendResume>(), 1U);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kBehind);
  EXPECT_EQ(done[0].version, kV1);
  EXPECT_EQ(done[0].reason, why);
  EXPECT_EQ(machine.report(now).reason, "it is resuming; " + why);
  resumed();
  EXPECT_EQ(machine.report(now).reason, why);
  EXPECT_TRUE(machine.report(now).ready);
  tick_after(milliseconds(limits::kSwitchRetryMs));
  ASSERT_EQ(count<SendPause>(), 1U);
  EXPECT_EQ(machine.report(now).reason, "it is pausing; " + why);
  paused();
  EXPECT_EQ(machine.report(now).reason, "it is loading; " + why);
  loaded(kV2);
  committed(kV2);
  resumed();
  EXPECT_EQ(machine.report(now).reason, "");
  // What has succeeded is no cause of what is done later.
  step(RankPaused{.rank = 0});
  tick_after(milliseconds(limits::kSwitchRetryMs));
  EXPECT_EQ(machine.phase(), SwitchPhase::kResuming);
  EXPECT_EQ(machine.report(now).reason, "it is resuming");
}

TEST_F(Switch, AResumeThatTheEngineDeclinesIsToldAtOnceAndAskedForAgain) {
  serve_v1();
  decide(kV2);
  paused();
  loaded(kV2);
  committed(kV2);
  ASSERT_EQ(machine.phase(), SwitchPhase::kResuming);
  const std::string why = "rank 0: no door; it is asked again until it does";
  step(RankRefused{.rank = 0, .request = request, .why = "no door"});
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kFailed);
  EXPECT_EQ(done[0].version, kV2);
  EXPECT_EQ(done[0].reason, why);
  EXPECT_EQ(machine.report(now).reason, why);
  EXPECT_FALSE(machine.report(now).ready);
  tick_after(milliseconds(limits::kSwitchRetryMs));
  ASSERT_EQ(count<SendResume>(), 1U);
  EXPECT_EQ(machine.report(now).reason, "it is resuming; " + why);
  resumed();
  EXPECT_TRUE(machine.report(now).ready);
  EXPECT_EQ(machine.report(now).reason, "");
}

TEST_F(Switch, ADeadlineNamesTheRanksThatHaveNotAnswered) {
  serve_v1();
  decide(kV2);
  paused();
  loaded(kV2);
  step(RankCommitted{.rank = 0, .request = request, .version = kV2});
  tick_after(milliseconds(limits::kCommitDeadlineMs));
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kTainted);
  EXPECT_EQ(done[0].reason, "rank 1 did not commit within 10000 ms");
}

TEST_F(Switch, BehindForTooLongIsNotReady) {
  serve_v1();
  decide(kV3);  // not staged here
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kBehind);
  EXPECT_TRUE(machine.report(now).ready);
  EXPECT_FALSE(machine.report(now + milliseconds(limits::kMaxStalenessMs + 1000)).ready);
}

TEST_F(Switch, WithoutAStalenessLimitBehindStaysReady) {
  machine = ReplicaSwitch(
      {.replica = "r", .world_size = 2, .max_staleness = std::chrono::nanoseconds(0)});
  serve_v1();
  decide(kV3);  // not staged here
  EXPECT_EQ(machine.report(now).state, ReplicaState::kBehind);
  EXPECT_TRUE(machine.report(now + std::chrono::hours(24 * 365)).ready);
}

TEST_F(Switch, TheOutcomeIsDueWhenTheDecisionsOwnDeadlinesHavePassed) {
  serve_v1();
  const TargetSet patient{.decision = {.fence = {.epoch = 1}, .number = ++number},
                          .target = kV2,
                          .pause_deadline = seconds(100),
                          .load_deadline = seconds(1'000)};
  const TargetSet hasty{.decision = {.fence = {.epoch = 1}, .number = ++number},
                        .target = kV3,
                        .pause_deadline = seconds(1),
                        .load_deadline = seconds(2)};
  step(patient);
  tick_after(seconds(99));
  paused();
  tick_after(seconds(990));
  EXPECT_TRUE(done.empty()) << "within what the coordinator allows";
  loaded(kV2);
  committed(kV2);
  resumed();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kCommitted);
  step(StagedSet{{kV2, kV3}});
  step(hasty);
  const TimePoint begin = now;
  paused();
  step(RankDetached{.rank = 1});
  EXPECT_GT(machine.next_wake(), begin + seconds(2));
  tick_after(begin + seconds(3) + milliseconds(limits::kCommitDeadlineMs) - now);
  EXPECT_EQ(done.size(), 2U);
}

TEST_F(Switch, ARankLostWhileLoadingIsRepairedByACompleteLoadWhenItReturns) {
  serve_v1();
  decide(kV2);
  paused();
  step(RankLoaded{.rank = 0, .request = request, .version = kV2});
  step(RankDetached{.rank = 1});
  EXPECT_EQ(cancelled, 1U);
  EXPECT_EQ(machine.phase(), SwitchPhase::kGathering);
  EXPECT_EQ(machine.report(now).state, ReplicaState::kAbsent);
  attach(1, RankState::kLoading);
  ASSERT_EQ(count<BeginLoad>(), 1U);
  loaded(kV2);
  committed(kV2);
  resumed();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kCommitted);
}

TEST_F(Switch, AReplicaWhoseRanksAreAllLostEndsItsSwitchAtOnce) {
  for (const SwitchPhase phase : {SwitchPhase::kPausing, SwitchPhase::kLoading,
                                  SwitchPhase::kCommitting, SwitchPhase::kResuming}) {
    SCOPED_TRACE(phase_name(phase));
    machine = ReplicaSwitch({.replica = "r", .world_size = 2});
    done.clear();
    serve_v1();
    decide(kV2);
    if (phase != SwitchPhase::kPausing) paused();
    if (phase == SwitchPhase::kCommitting || phase == SwitchPhase::kResuming) loaded(kV2);
    if (phase == SwitchPhase::kResuming) committed(kV2);
    ASSERT_EQ(machine.phase(), phase);
    step(RankDetached{.rank = 1});
    EXPECT_TRUE(done.empty()) << "it may come back to its partner";
    step(RankDetached{.rank = 0});
    EXPECT_EQ(machine.phase(), SwitchPhase::kIdle);
    ASSERT_EQ(done.size(), 1U) << "nobody is left that a round could wait for";
    EXPECT_EQ(done[0].outcome, SwitchOutcome::kFailed);
    EXPECT_EQ(
        done[0].reason,
        phase == SwitchPhase::kPausing
            ? "every rank was lost while pausing"
            : fmt::format("rank 1 was lost while {}, and then every other one", phase_name(phase)));
    attach(0, RankState::kLoading);
    attach(1, RankState::kLoading);
    EXPECT_EQ(count<BeginLoad>(), 1U);
  }
}

TEST_F(Switch, ARankThatDoesNotReturnEndsTheSwitchAndIsRepairedLater) {
  serve_v1();
  decide(kV2);
  paused();
  step(RankDetached{.rank = 1});
  tick_after(milliseconds(limits::kRankReturnDeadlineMs));
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kTainted);
  EXPECT_NE(done[0].reason.find("rank 1"), std::string::npos);
  attach(1, RankState::kLoading);
  ASSERT_EQ(count<BeginLoad>(), 1U) << "nobody serves: no pause is needed";
  loaded(kV2);
  committed(kV2);
  resumed();
  EXPECT_TRUE(machine.report(now).ready);
}

TEST_F(Switch, ARankThatRestartsBetweenSwitchesIsRepairedWithItsPartners) {
  serve_v1();
  step(RankDetached{.rank = 1});
  attach(1, RankState::kLoading);
  EXPECT_EQ(count<SendPause>(), 1U);
  EXPECT_FALSE(machine.report(now).ready);
  step(RankPaused{.rank = 0, .request = request});
  ASSERT_EQ(count<BeginLoad>(), 1U);
  EXPECT_EQ(std::get<BeginLoad>(last[0]).version, kV1);
}

TEST_F(Switch, ACopyThatFailsTwiceGoesBackToThePreviousVersion) {
  serve_v1();
  decide(kV2);
  paused();
  for (int i = 0; i < 2; ++i)
    step(RankLoaded{.rank = 0, .request = request, .version = kV2, .failure = "checksum"});
  EXPECT_EQ(suspect, std::vector<Version>{kV2});
  ASSERT_EQ(count<BeginLoad>(), 1U);
  EXPECT_EQ(machine.goal(), kV1);
  loaded(kV1);
  committed(kV1);
  resumed();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kRolledBack);
  EXPECT_EQ(done[0].version, kV1);
  EXPECT_EQ(machine.report(now).state, ReplicaState::kBehind);
  // Staged anew, it goes forward.
  step(StagedSet{{kV1}});
  step(StagedSet{{kV1, kV2}});
  EXPECT_EQ(count<SendPause>(), 1U);
}

// Such as for want of memory: what the ranks hold was never touched, so they go on with it.
TEST_F(Switch, ALoadThatCouldNotBeginLeavesTheReplicaServingWhatItHolds) {
  serve_v1();
  decide(kV2);
  paused();
  ASSERT_EQ(machine.phase(), SwitchPhase::kLoading);
  step(LoadNotBegun{.request = request + 1, .why = "of another load"});
  EXPECT_EQ(machine.phase(), SwitchPhase::kLoading);
  step(LoadNotBegun{.request = request, .why = "no memory"});
  EXPECT_EQ(count<SendResume>(), 1U);
  EXPECT_TRUE(suspect.empty()) << "the copy was not even read";
  resumed();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kBehind);
  EXPECT_EQ(done[0].version, kV1);
  EXPECT_EQ(done[0].reason, "version 1.2 could not be loaded: no memory");
  EXPECT_EQ(machine.report(now).version, kV1);
  // It is tried again, ever more seldom, and goes forward when it can.
  const auto due = machine.next_wake();
  ASSERT_TRUE(due);
  tick_after(*due - now);
  ASSERT_EQ(machine.phase(), SwitchPhase::kPausing);
  paused();
  loaded(kV2);
  committed(kV2);
  resumed();
  EXPECT_EQ(machine.report(now).version, kV2);
}

TEST_F(Switch, ALoadThatCouldNotBeginLeavesATaintedReplicaTainted) {
  serve_v1();
  decide(kV2);
  paused();
  step(RankLoaded{.rank = 0, .request = request, .version = kV2, .failure = "checksum"});
  ASSERT_EQ(machine.phase(), SwitchPhase::kLoading) << "a second try";
  step(LoadNotBegun{.request = request, .why = "no memory"});
  EXPECT_EQ(count<SendResume>(), 0U);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kTainted);
  EXPECT_TRUE(machine.report(now).version.none());
}

// Two loads of V2 that fail, then V1 again.
TEST_F(Switch, AGoodCopyThatAReplicaCannotLoadIsTriedAgainEverMoreSeldom) {
  serve_v1();
  decide(kV2);
  std::chrono::nanoseconds wait = milliseconds(limits::kSwitchRetryMs);
  for (int round = 0; round < 8; ++round) {
    ASSERT_EQ(machine.phase(), SwitchPhase::kPausing) << round;
    paused();
    for (int i = 0; i < 2; ++i)
      step(RankLoaded{.rank = 0, .request = request, .version = kV2, .failure = "no memory"});
    const TimePoint failed = now;
    loaded(kV1);
    committed(kV1);
    resumed();
    EXPECT_EQ(machine.report(now).state, ReplicaState::kBehind);
    EXPECT_NE(machine.report(now).reason.find("no memory"), std::string::npos);
    ASSERT_EQ(machine.next_wake(), failed + wait) << round;
    step(Tick{});
    EXPECT_EQ(machine.phase(), SwitchPhase::kIdle) << "not yet";
    tick_after(failed + wait - now);
    wait = std::min<std::chrono::nanoseconds>(2 * wait, milliseconds(limits::kSwitchRetryMaxMs));
  }
  ASSERT_EQ(wait, milliseconds(limits::kSwitchRetryMaxMs));
  paused();
  loaded(kV2);
  committed(kV2);
  resumed();
  EXPECT_EQ(machine.report(now).version, kV2);
  EXPECT_FALSE(machine.next_wake().has_value());
  EXPECT_EQ(done.size(), 1U) << "one outcome for one decision";
}

TEST_F(Switch, AnEngineThatCameAnewIsNotMadeToWaitForWhatTheOldOneCouldNotLoad) {
  serve_v1();
  step(StagedSet{{kV2}});
  decide(kV2);
  paused();
  for (int i = 0; i < 2; ++i)
    step(RankLoaded{.rank = 1, .request = request, .version = kV2, .failure = "no memory"});
  EXPECT_EQ(machine.report(now).state, ReplicaState::kTainted);
  attach(1, RankState::kLoading);
  EXPECT_EQ(count<BeginLoad>(), 1U);
}

TEST_F(Switch, ACopyThatWasLetGoWhileItFailedIsLoadedWhenItIsStagedAnew) {
  serve_v1();
  decide(kV2);
  paused();
  step(StagedSet{{kV1}});  // another replica could not load it either: it had changed
  step(RankLoaded{.rank = 0, .request = request, .version = kV2, .failure = "checksum"});
  EXPECT_EQ(machine.goal(), kV1) << "there is nothing to load a second time";
  loaded(kV1);
  committed(kV1);
  resumed();
  step(StagedSet{{kV1, kV2}});
  EXPECT_EQ(count<SendPause>(), 1U);
}

TEST_F(Switch, NeitherForwardNorBackIsTaintedAndSaysSo) {
  serve_v1();
  step(StagedSet{{kV2}});
  decide(kV2);
  paused();
  for (int i = 0; i < 2; ++i)
    step(RankLoaded{.rank = 1, .request = request, .version = kV2, .failure = "checksum"});
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kTainted);
  EXPECT_EQ(machine.report(now).state, ReplicaState::kTainted);
  EXPECT_FALSE(machine.report(now).ready);
}

TEST_F(Switch, LoadDeadlineNeverResumes) {
  serve_v1();
  decide(kV2);
  paused();
  step(RankLoaded{.rank = 0, .request = request, .version = kV2});
  tick_after(milliseconds(limits::kLoadDeadlineMs));
  EXPECT_EQ(count<SendResume>(), 0U);
  EXPECT_EQ(cancelled, 1U);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kTainted);
  EXPECT_EQ(machine.report(now).state, ReplicaState::kTainted);
  tick_after(milliseconds(limits::kSwitchRetryMs));
  EXPECT_EQ(count<BeginLoad>(), 1U) << "repair goes on";
}

TEST_F(Switch, TheNewestDecisionWinsInEveryPhase) {
  for (int phase = 0; phase < 4; ++phase) {
    machine = ReplicaSwitch({.replica = "r", .world_size = 2});
    number = 0;
    serve_v1();
    step(StagedSet{{kV1, kV2, kV3}});
    decide(kV2);
    if (phase >= 1) paused();
    if (phase >= 2) loaded(kV2);
    if (phase >= 3) committed(kV2);
    decide(kV3);
    if (phase == 0) paused();
    if (phase == 2) committed(kV2);
    if (phase == 3) {
      EXPECT_EQ(machine.phase(), SwitchPhase::kPausing);
      paused();
    }
    EXPECT_EQ(machine.phase(), SwitchPhase::kLoading) << phase;
    EXPECT_EQ(machine.goal(), kV3) << phase;
    loaded(kV3);
    committed(kV3);
    resumed();
    EXPECT_EQ(machine.report(now).version, kV3);
  }
}

TEST_F(Switch, AWithdrawnVersionIsNeverLoadedNorResumed) {
  serve_v1();
  step(StagedSet{{kV2}});
  decide(kV2);
  paused();
  loaded(kV2);
  decide(kV1, {kV2});  // not staged here
  committed(kV2);
  EXPECT_EQ(count<SendResume>(), 0U);
  EXPECT_EQ(machine.report(now).state, ReplicaState::kPaused);
  EXPECT_FALSE(machine.report(now).ready);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kFailed);
  step(StagedSet{{kV1, kV2}});
  ASSERT_EQ(count<BeginLoad>(), 1U);
  EXPECT_EQ(machine.goal(), kV1);
}

TEST_F(Switch, RanksLeftPausedByALostSidecarAreResumedOnTheirVersion) {
  attach(0, RankState::kPaused, kV1);
  attach(1, RankState::kPaused, kV1);
  EXPECT_EQ(count<SendResume>(), 1U);
  resumed();
  EXPECT_TRUE(machine.report(now).ready);
}

TEST_F(Switch, RanksOfTwoVersionsAreBroughtToTheTargetNotResumed) {
  decide(kV2, {}, false);
  attach(0, RankState::kPaused, kV1);
  attach(1, RankState::kPaused, kV2);
  EXPECT_TRUE(last.empty());
  step(StagedSet{{kV2}});
  ASSERT_EQ(count<BeginLoad>(), 1U);
}

TEST_F(Switch, AServingReplicaFoundAfterARestartIsReportedAsItIs) {
  decide(kV2, {}, false);
  attach(0, RankState::kServing, kV2);
  EXPECT_EQ(machine.report(now).state, ReplicaState::kAbsent);
  attach(1, RankState::kPaused, kV2);  // follows the leader's next header
  EXPECT_TRUE(machine.report(now).ready);
  EXPECT_EQ(machine.report(now).version, kV2);
  EXPECT_TRUE(last.empty());
}

TEST_F(Switch, AnAbsentReplicaFailsItsDecisionAtOnce) {
  step(StagedSet{{kV1}});
  decide(kV1);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kFailed);
}

// Every event in every phase: no invariant breaks (step() aborts if one does), nothing is owed
// twice, and what belongs to another request changes nothing.
TEST_F(Switch, EveryEventInEveryPhase) {
  const std::vector<std::function<void()>> to_phase = {[&] {},
                                                       [&] { decide(kV2); },
                                                       [&] {
                                                         decide(kV2);
                                                         paused();
                                                       },
                                                       [&] {
                                                         decide(kV2);
                                                         paused();
                                                         loaded(kV2);
                                                       },
                                                       [&] {
                                                         decide(kV2);
                                                         paused();
                                                         loaded(kV2);
                                                         committed(kV2);
                                                       },
                                                       [&] {
                                                         decide(kV2);
                                                         paused();
                                                         step(RankDetached{.rank = 1});
                                                       }};
  const SwitchPhase phases[] = {SwitchPhase::kIdle,     SwitchPhase::kPausing,
                                SwitchPhase::kLoading,  SwitchPhase::kCommitting,
                                SwitchPhase::kResuming, SwitchPhase::kGathering};
  using What = decltype(SwitchEvent::what);
  for (std::size_t i = 0; i < to_phase.size(); ++i) {
    for (std::size_t e = 0;; ++e) {
      machine = ReplicaSwitch({.replica = "r", .world_size = 2});
      number = 0;
      done.clear();
      serve_v1();
      to_phase[i]();
      ASSERT_EQ(machine.phase(), phases[i]);
      const std::uint64_t now_request = request;
      const control::Decision next{.fence = {.epoch = 2}, .number = 1};
      const std::vector<What> events = {
          RankAttached{.rank = 0, .leader = true, .state = RankState::kLoading},
          RankAttached{.rank = 1, .state = RankState::kServing, .active = kV1},
          RankAttached{.rank = 1, .state = RankState::kTainted},
          RankAttached{.rank = 1, .state = RankState::kLoaded, .active = kV1},
          RankAttached{.rank = 9},
          RankDetached{.rank = 0},
          RankDetached{.rank = 1},
          RankDetached{.rank = 9},
          RankPaused{.rank = 0, .request = now_request},
          RankPaused{.rank = 0, .request = 999},
          RankPaused{.rank = 1},
          RankPaused{.rank = 9},
          RankLoaded{.rank = 0, .request = now_request, .version = kV2},
          RankLoaded{.rank = 0, .request = 999, .version = kV2},
          RankLoaded{.rank = 0, .request = now_request, .version = kV3},
          RankLoaded{.rank = 0, .request = now_request, .version = kV2, .failure = "x"},
          RankCommitted{.rank = 0, .request = now_request, .version = kV2},
          RankCommitted{.rank = 0, .request = 999, .version = kV2},
          RankCommitted{.rank = 0, .request = now_request, .version = kV2, .failure = "x"},
          RankResumed{.rank = 0, .request = now_request},
          RankResumed{.rank = 1, .request = now_request},
          RankResumed{.rank = 0, .request = 999},
          RankRefused{.rank = 0, .request = now_request, .why = "x"},
          RankRefused{.rank = 1, .request = now_request, .why = "x"},
          RankRefused{.rank = 0, .request = 999, .why = "x"},
          RankRefused{.rank = 9, .request = now_request, .why = "x"},
          TargetSet{.decision = next, .target = kV1},
          TargetSet{.decision = next, .target = kV3, .withdrawn = {kV2}},
          TargetSet{.decision = next, .target = kV3, .withdrawn = {kV1, kV2, kV3}},
          TargetSet{.decision = {}, .target = kV3},
          RankUnfit{.rank = 0, .unfit = {.version = kV2, .why = "w"}},
          RankUnfit{.rank = 0, .unfit = {.version = kV1, .why = "w"}},
          RankUnfit{.rank = 9, .unfit = {.version = kV2, .why = "w"}},
          RankAttached{.rank = 1, .unfit = {{.version = kV2, .why = "w"}}},
          StagedSet{},
          StagedSet{{kV1, kV2, kV3}},
          Tick{}};
      if (e == events.size()) break;
      last = machine.step({.now = now, .what = events[e]});
      EXPECT_TRUE(machine.invariants().has_value()) << i << " " << e;
      // However it stands, time alone brings it to rest with its debt paid.
      for (int tick = 0; tick < 50 && machine.owes(); ++tick) {
        ASSERT_TRUE(machine.next_wake().has_value());
        now = std::max(now, *machine.next_wake());
        step(Tick{});
      }
      EXPECT_FALSE(machine.owes()) << i << " " << e;
      EXPECT_LE(done.size(), 2U);
    }
  }
}

const std::string kUnfitV1 =
    "version 1.1 does not fit rank 0: w (missing): publish the model of this engine, or end it";

// The engines of another model, which have attached when nobody served the old one any more.
TEST_F(Switch, AVersionThatDoesNotFitARankIsNeverLoaded) {
  decide(kV1, {}, false);
  step(StagedSet{{kV1}});
  step(RankAttached{.rank = 0, .leader = true, .unfit = {{.version = kV1, .why = "w (missing)"}}});
  EXPECT_EQ(machine.report(now).reason, "rank 1 is not attached");
  attach(1, RankState::kLoading);
  EXPECT_TRUE(last.empty()) << "a version is loaded that does not fit";
  EXPECT_FALSE(machine.next_wake()) << "and it is not tried again";
  EXPECT_FALSE(machine.report(now).ready);
  EXPECT_EQ(machine.report(now).reason, kUnfitV1);
  decide(kV1);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kFailed);
  EXPECT_EQ(done[0].reason, kUnfitV1);
  // Their own model.
  step(StagedSet{{kV1, kV2}});
  decide(kV2);
  loaded(kV2);
  committed(kV2);
  resumed();
  EXPECT_TRUE(machine.report(now).ready);
  EXPECT_EQ(machine.report(now).reason, "");
  // A rollback to the other one: they go on with what they hold, and are not ready.
  decide(kV1, {kV2});
  EXPECT_TRUE(last.size() == 1 && count<Done>() == 1U);
  EXPECT_EQ(done.back().outcome, SwitchOutcome::kBehind);
  EXPECT_EQ(done.back().version, kV2);
  EXPECT_EQ(done.back().reason, kUnfitV1);
  EXPECT_FALSE(machine.report(now).ready);
  EXPECT_EQ(machine.report(now).reason, kUnfitV1);
  step(RankSilent{.rank = 1, .why = "does not poll"});
  EXPECT_EQ(machine.report(now).reason, "rank 1 does not poll");
  // An engine that fits takes the place of the one that does not.
  step(RankDetached{.rank = 0});
  step(RankDetached{.rank = 1});
  attach(0, RankState::kLoading);
  attach(1, RankState::kLoading);
  ASSERT_EQ(count<BeginLoad>(), 1U);
  EXPECT_EQ(std::get<BeginLoad>(last[0]).version, kV1);
}

TEST_F(Switch, ARollbackThatDoesNotFitEndsAPauseThatHasBegunForAnotherVersion) {
  serve_v1();
  decide(kV2);
  ASSERT_EQ(machine.phase(), SwitchPhase::kPausing);
  step(RankUnfit{.rank = 0, .unfit = {.version = kV3, .why = "w (missing)"}});
  step(StagedSet{{kV1, kV2, kV3}});
  decide(kV3);
  paused();
  EXPECT_EQ(count<BeginLoad>(), 0U);
  EXPECT_EQ(count<SendResume>(), 1U);
  resumed();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kBehind);
  EXPECT_EQ(done[0].version, kV1);
  EXPECT_EQ(done[0].reason,
            "version 1.3 does not fit rank 0: w (missing): publish the model of this engine, or "
            "end it");
}

TEST_F(Switch, ALoadIsCancelledWhenItsVersionIsFoundNotToFit) {
  serve_v1();
  decide(kV2);
  paused();
  ASSERT_EQ(machine.phase(), SwitchPhase::kLoading);
  step(RankUnfit{.rank = 9, .unfit = {.version = kV2, .why = "w"}});
  EXPECT_EQ(machine.phase(), SwitchPhase::kLoading) << "there is no such rank";
  step(RankUnfit{.rank = 1, .unfit = {.version = kV2, .why = "w"}});
  EXPECT_EQ(count<CancelLoad>(), 1U);
  EXPECT_EQ(count<BeginLoad>(), 0U);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kTainted);
}

TEST_F(Switch, ADecisionDoesNotWaitForASilentRank) {
  serve_v1();
  step(RankSilent{.rank = 1, .why = "does not poll"});
  EXPECT_FALSE(machine.report(now).ready);
  EXPECT_EQ(machine.report(now).reason, "rank 1 does not poll");
  decide(kV2);
  EXPECT_EQ(count<SendPause>(), 0U) << "the pause would miss its deadline";
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kBehind);
  EXPECT_EQ(done[0].version, kV1);
  EXPECT_EQ(done[0].reason, "rank 1 does not poll");
  tick_after(seconds(100));
  EXPECT_TRUE(last.empty());
  EXPECT_FALSE(machine.report(now).ready);

  // It continues, and gets what was decided meanwhile.
  step(RankHeard{.rank = 1});
  ASSERT_EQ(count<SendPause>(), 1U);
  paused();
  loaded(kV2);
  committed(kV2);
  resumed();
  EXPECT_TRUE(machine.report(now).ready);
  EXPECT_EQ(machine.report(now).version, kV2);
}

TEST_F(Switch, ARankThatBecomesSilentEndsThePauseAndNotTheResume) {
  serve_v1();
  decide(kV2);
  ASSERT_EQ(count<SendPause>(), 1U);
  step(RankSilent{.rank = 0, .why = "does not poll"});
  ASSERT_EQ(done.size(), 1U) << "the deadline of the pause was awaited";
  EXPECT_EQ(done[0].outcome, SwitchOutcome::kBehind);
  EXPECT_EQ(done[0].reason, "rank 0 does not poll");
  step(RankHeard{.rank = 0});
  tick_after(seconds(11));  // the answer to the RESUME that followed the PAUSE does not come
  tick_after(seconds(2));
  ASSERT_EQ(count<SendPause>(), 1U);
  paused();
  loaded(kV2);
  committed(kV2);
  ASSERT_EQ(machine.phase(), SwitchPhase::kResuming);
  decide(kV2);
  step(RankSilent{.rank = 0, .why = "does not poll"});
  EXPECT_EQ(done.size(), 1U) << "the resume may take its time";
  tick_after(seconds(11));
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[1].outcome, SwitchOutcome::kFailed);
  EXPECT_EQ(done[1].reason, "rank 0 does not poll");
  EXPECT_EQ(done[1].version, kV2);
}

TEST_F(Switch, ARankThatIsBusyWithALoadIsNotInterrupted) {
  serve_v1();
  decide(kV2);
  paused();
  ASSERT_EQ(machine.phase(), SwitchPhase::kLoading);
  step(RankSilent{.rank = 0, .why = "does not poll"});
  EXPECT_EQ(cancelled, 0U);
  step(RankHeard{.rank = 0});
  loaded(kV2);
  committed(kV2);
  resumed();
  EXPECT_TRUE(machine.report(now).ready);
}

TEST_F(Switch, ASilentRankThatIsLostIsNoLongerSilent) {
  serve_v1();
  step(RankSilent{.rank = 1, .why = "does not poll"});
  step(RankDetached{.rank = 1});
  step(RankSilent{.rank = 1, .why = "does not poll"});  // it was under way
  attach(1, RankState::kServing, kV1);
  tick_after(seconds(2));
  if (count<SendResume>() == 1U) resumed();
  EXPECT_TRUE(machine.report(now).ready) << machine.report(now).reason;
}

}  // namespace
}  // namespace wsync::reload
