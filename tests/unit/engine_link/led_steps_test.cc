// Every row of the tables of StepLeader and StepFollower, what has none, and both together under
// pauses, cancelled pauses, and ranks that are lost and come back.
#include "inference_side/engine_link/led_steps.h"

#include <algorithm>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "shared/base/format.h"
#include "tests/unit/engine_link/driven_rank.h"

namespace wsync::engine::test {
namespace {

using testing::HasSubstr;
using Report = StepFollower::Decision::Report;

HeldVersion holding(const Version& version, bool is_whole = true) {
  return {.version = version, .is_whole = is_whole, .state = is_whole ? "paused" : "tainted"};
}

// What a decision does, as text.
std::string text_of(const StepLeader::Decision& decision) {
  return fmt::format("{} {} #{}{}", decision.header.go ? "go" : "stop", decision.header.step,
                     decision.header.decision, decision.has_paused ? ", paused" : "");
}
std::string text_of(const StepFollower::Decision& decision) {
  std::string text = !decision.refusal.empty() ? "refuse" : decision.go ? "go" : "stand";
  if (decision.report == Report::kRunning) text += fmt::format(", runs from {}", decision.step);
  if (decision.report == Report::kPaused) text += fmt::format(", paused after {}", decision.step);
  return text;
}

StepLeader leader_in(LeaderState state) {
  StepLeader leader(77, false);
  if (state == LeaderState::kStopped) return leader;
  leader.handle_resume();
  EXPECT_EQ(text_of(leader.next(kFirst)), "go 1 #1");
  if (state == LeaderState::kStopping) leader.handle_pause();
  return leader;
}

TEST(StepLeader, EachRowOfItsTableHappens) {
  using enum LeaderState;
  const auto next = [](StepLeader& l) { return text_of(l.next(kFirst)); };
  const auto pause = [](StepLeader& l) { return l.handle_pause(), std::string(); };
  const auto resume = [](StepLeader& l) { return l.handle_resume(), std::string(); };
  const auto stopped = [](StepLeader& l) { return l.handle_stopped(), std::string(); };
  struct Row {
    LeaderState from;
    std::string event;
    LeaderState to;
    std::function<std::string(StepLeader&)> happen;
    std::string does;
  };
  const std::vector<Row> rows = {
      {kStopped, "the next step", kStopped, next, "stop 0 #0"},
      {kStopped, "the next step, after the engine has stopped", kStopped,
       [&](StepLeader& l) {
         l.handle_resume();
         (void)l.next(kFirst);
         l.handle_stopped();
         EXPECT_EQ(next(l), "stop 1 #2");
         return next(l);
       },
       "stop 1 #2"},
      {kStopped, "Pause", kStopped, pause, ""},
      {kStopped, "Resume", kRunning, resume, ""},
      {kStopped, "the engine has stopped", kStopped, stopped, ""},
      {kRunning, "the next step", kRunning, next, "go 2 #2"},
      {kRunning, "Pause", kStopping, pause, ""},
      {kRunning, "Resume", kRunning, resume, ""},
      {kRunning, "the engine has stopped", kStopped, stopped, ""},
      {kStopping, "the next step", kStopped, next, "stop 1 #2, paused"},
      {kStopping, "Pause, repeated", kStopping, pause, ""},
      {kStopping, "Resume", kRunning,
       [&](StepLeader& l) {
         l.handle_resume();
         (void)StepLeader(l).next(kFirst);
         return std::string();
       },
       ""},
      {kStopping, "the engine has stopped", kStopped, stopped, ""},
  };
  std::vector<std::tuple<std::string, std::string, std::string>> tried;
  for (const Row& row : rows) {
    SCOPED_TRACE(fmt::format("{}: {}", leader_state_name(row.from), row.event));
    StepLeader leader = leader_in(row.from);
    ASSERT_EQ(leader.state(), row.from);
    EXPECT_EQ(row.happen(leader), row.does);
    EXPECT_EQ(leader.state(), row.to);
    tried.emplace_back(leader_state_name(row.from), row.event, leader_state_name(row.to));
  }
  std::vector<std::tuple<std::string, std::string, std::string>> table;
  for (const auto& row : step_leader_transitions().rows)
    table.emplace_back(row.from, row.event, row.to);
  EXPECT_THAT(tried, testing::UnorderedElementsAreArray(table));
}

TEST(StepLeader, AStopIsOneDecisionHoweverOftenItIsAskedFor) {
  StepLeader leader(77, true);  // serves weights of its own
  EXPECT_EQ(text_of(leader.next({})), "go 1 #1");
  EXPECT_EQ(text_of(leader.next({})), "go 2 #2");
  leader.handle_pause();
  leader.handle_pause();
  EXPECT_EQ(text_of(leader.next({})), "stop 2 #3, paused");
  leader.handle_pause();
  EXPECT_EQ(text_of(leader.next({})), "stop 2 #3") << "it goes on after it has stopped";
  leader.handle_resume();
  leader.handle_pause();  // before a step has begun
  EXPECT_EQ(text_of(leader.next(kFirst)), "stop 2 #4, paused");
  leader.handle_resume();
  const auto go = leader.next(kFirst);
  EXPECT_EQ(text_of(go), "go 3 #5");
  EXPECT_EQ(go.header.version, kFirst);
}

StepHeader header_of(bool go, std::uint64_t step, std::uint64_t decision, Version version = kFirst,
                     std::uint64_t leader = 77) {
  return {.go = go, .step = step, .decision = decision, .leader = leader, .version = version};
}

StepFollower follower_in(FollowerState state) {
  StepFollower follower("replica r0 rank 1", false);
  if (state == FollowerState::kRunning)
    EXPECT_EQ(text_of(follower.handle(header_of(true, 5, 9), holding(kFirst))), "go, runs from 5");
  else
    EXPECT_EQ(text_of(follower.handle(header_of(false, 5, 9), holding(kFirst))),
              "stand, paused after 5");
  return follower;
}

TEST(StepFollower, EachRowOfItsTableHappens) {
  using enum FollowerState;
  const auto handle = [](StepHeader header) {
    return [header](StepFollower& f) { return text_of(f.handle(header, holding(kFirst))); };
  };
  struct Row {
    FollowerState from;
    std::string event;
    FollowerState to;
    std::function<std::string(StepFollower&)> happen;
    std::string does;
  };
  const std::string wrong = "go of another version, or out of order";
  const std::vector<Row> rows = {
      {kStopped, "go", kRunning, handle(header_of(true, 6, 10)), "go, runs from 6"},
      {kStopped, "stop", kStopped, handle(header_of(false, 5, 10)), "stand, paused after 5"},
      {kStopped, "stop, repeated or before any decision", kStopped,
       [&](StepFollower& f) {
         EXPECT_EQ(handle(header_of(false, 5, 9))(f), "stand") << "a stop is reported twice";
         return handle(header_of(false, 0, 0, {}, 78))(f);
       },
       "stand"},
      {kStopped, wrong, kStopped, handle(header_of(true, 6, 10, kSecond)), "refuse"},
      {kRunning, "go", kRunning, handle(header_of(true, 6, 10)), "go"},
      {kRunning, "stop", kStopped, handle(header_of(false, 5, 10)), "stand, paused after 5"},
      {kRunning, wrong, kStopped, handle(header_of(true, 6, 10, kSecond)),
       "refuse, paused after 5"},
      {kRunning, "what is no header", kStopped,
       [](StepFollower& f) { return text_of(f.refuse_garbage()); }, "refuse, paused after 5"},
      {kRunning, "the engine has stopped", kStopped,
       [](StepFollower& f) { return f.handle_stopped(), std::string(); }, ""},
  };
  std::vector<std::tuple<std::string, std::string, std::string>> tried;
  for (const Row& row : rows) {
    SCOPED_TRACE(fmt::format("{}: {}", follower_state_name(row.from), row.event));
    StepFollower follower = follower_in(row.from);
    ASSERT_EQ(follower.state(), row.from);
    EXPECT_EQ(row.happen(follower), row.does);
    EXPECT_EQ(follower.state(), row.to);
    tried.emplace_back(follower_state_name(row.from), row.event, follower_state_name(row.to));
  }
  std::vector<std::tuple<std::string, std::string, std::string>> table;
  for (const auto& row : step_follower_transitions().rows)
    table.emplace_back(row.from, row.event, row.to);
  EXPECT_THAT(tried, testing::UnorderedElementsAreArray(table));
}

TEST(StepFollower, AnotherVersionIsRefusedWithBothVersions) {
  const auto refusal = [](const Version& held, const Version& led, bool is_whole = true) {
    StepFollower follower("replica r0 rank 1", false);
    return follower.handle(header_of(true, 7, 3, led), holding(held, is_whole)).refusal;
  };
  EXPECT_EQ(refusal(kSecond, kFirst),
            "replica r0 rank 1 holds version 1.2, but its leader begins step 7 under version 1.1");
  EXPECT_EQ(refusal({}, kFirst),
            "replica r0 rank 1 holds no version, but its leader begins step 7 under version 1.1");
  EXPECT_EQ(refusal(kFirst, {}),
            "replica r0 rank 1 holds version 1.1, but its leader begins step 7 under no version");
  // A load has begun and was not committed.
  EXPECT_EQ(refusal(kFirst, kFirst, false),
            "replica r0 rank 1 holds no whole version: it is tainted, and held version 1.1 before, "
            "but its leader begins step 7 under version 1.1");
  EXPECT_EQ(refusal({}, {}), "");  // both serve what they had when they attached
}

TEST(StepFollower, AHeaderTwiceOrNotAtAll) {
  StepFollower follower = follower_in(FollowerState::kRunning);  // decision 9
  EXPECT_THAT(follower.handle(header_of(true, 5, 9), holding(kFirst)).refusal,
              HasSubstr("has got the header of step 5 twice"));
  follower = follower_in(FollowerState::kRunning);
  EXPECT_THAT(follower.handle(header_of(true, 4, 8), holding(kFirst)).refusal,
              HasSubstr("decision 8 of its leader after decision 9"));
  follower = follower_in(FollowerState::kRunning);
  EXPECT_THAT(follower.handle(header_of(true, 7, 11), holding(kFirst)).refusal,
              HasSubstr("it has missed a header, so it may have missed a step before step 7"));
  // It obeys a stop all the same, and may go on from there.
  follower = follower_in(FollowerState::kRunning);
  EXPECT_EQ(text_of(follower.handle(header_of(false, 8, 13), holding(kFirst))),
            "stand, paused after 8");
  EXPECT_EQ(text_of(follower.handle(header_of(true, 9, 14), holding(kFirst))), "go, runs from 9");
}

TEST(StepFollower, AnotherLeaderBeginsAnew) {
  StepFollower follower = follower_in(FollowerState::kRunning);
  // A leader that has restarted and has loaded nothing stops whoever still runs, and only those.
  EXPECT_EQ(text_of(follower.handle(header_of(false, 0, 0, {}, 78), holding(kFirst))),
            "stand, paused after 0");
  EXPECT_EQ(text_of(follower.handle(header_of(false, 0, 0, {}, 78), holding(kFirst))), "stand");
  EXPECT_EQ(text_of(follower.handle(header_of(true, 1, 1, kSecond, 78), holding(kSecond))),
            "go, runs from 1");
  // One that comes late begins with any step of the version that it holds.
  StepFollower late("replica r0 rank 2", false);
  EXPECT_EQ(text_of(late.handle(header_of(true, 900, 1200), holding({}))), "refuse");
  EXPECT_EQ(text_of(late.handle(header_of(false, 900, 1201), holding({}))),
            "stand, paused after 900");
  EXPECT_EQ(text_of(late.handle(header_of(true, 901, 1202), holding(kFirst))), "go, runs from 901");
}

// A sidecar as the ranks see it: it pauses, loads when every rank has paused, and resumes; or it
// cancels a pause. Headers reach each follower in order, some twice, at any time.
TEST(LedSteps, NoTwoRanksEverStepUnderDifferentVersions) {
  constexpr std::size_t kFollowers = 3;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    StepLeader leader(seed, true);
    std::vector<StepFollower> followers(kFollowers, StepFollower("replica r0 rank 1", true));
    std::vector<std::vector<StepHeader>> sent(kFollowers);
    std::vector<bool> paused(kFollowers + 1, false);
    std::vector<Version> held(kFollowers + 1);
    std::map<std::uint64_t, Version> stepped;  // step -> version
    const auto step = [&](std::size_t rank, std::uint64_t number) {
      const auto [at, is_first] = stepped.emplace(number, held[rank]);
      ASSERT_EQ(at->second, held[rank]) << "seed " << seed << ", step " << number;
      ASSERT_FALSE(paused[rank]) << "seed " << seed << ": rank " << rank << " steps while paused";
    };
    bool pausing = false;
    std::uint64_t published = 0;
    std::uint64_t switches = 0;
    for (int turn = 0; turn < 2000; ++turn) {
      switch (random() % 8) {
        case 0:  // a new version
          if (!pausing) {
            pausing = true;
            std::fill(paused.begin(), paused.end(), false);
            leader.handle_pause();
          } else if (random() % 4 == 0) {
            leader.handle_pause();  // twice
          }
          break;
        case 1:  // the deadline of the pause is over
          if (pausing && random() % 8 == 0) {
            pausing = false;
            paused[0] = false;
            leader.handle_resume();
          }
          break;
        case 2:
          if (pausing && std::ranges::all_of(paused, std::identity())) {
            std::ranges::fill(held, Version{.epoch = 1, .step = ++published});
            ++switches;
            pausing = false;
            paused[0] = false;
            leader.handle_resume();
          }
          break;
        case 3:
        case 4: {
          // Its last step has not ended while a rank has not begun it.
          const auto has_go = [](const auto& queue) {
            return std::ranges::any_of(queue, [](const StepHeader& header) { return header.go; });
          };
          if (std::ranges::any_of(sent, has_go)) break;
          const auto decision = leader.next(held[0]);
          if (decision.has_paused) paused[0] = true;
          for (auto& queue : sent) queue.push_back(decision.header);
          if (decision.header.go) step(0, decision.header.step);
          break;
        }
        default: {
          const std::size_t f = random() % kFollowers;
          if (sent[f].empty()) break;
          const StepHeader header = sent[f].front();
          sent[f].erase(sent[f].begin());
          const auto decision = followers[f].handle(header, holding(held[f + 1]));
          ASSERT_EQ(decision.refusal, "") << "seed " << seed;
          ASSERT_EQ(decision.go, header.go);
          if (decision.report == Report::kPaused) paused[f + 1] = true;
          if (decision.report == Report::kRunning) paused[f + 1] = false;
          if (decision.go) step(f + 1, header.step);
        }
      }
    }
    EXPECT_GT(switches, 5U) << "seed " << seed;
  }
}

}  // namespace
}  // namespace wsync::engine::test
