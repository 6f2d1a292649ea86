// Every row of RankMachine's table, and what has none.
#include <algorithm>
#include <array>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "inference_side/engine_link/rank_machine.h"
#include "shared/base/format.h"
#include "tests/unit/engine_link/driven_rank.h"

namespace wsync::engine::test {
namespace {

using testing::HasSubstr;

// A row of the table, and how it comes about in a rank that was brought to `from`.
struct Row {
  RankState from;
  std::string event;
  RankState to;
  RankIdentity identity;
  std::function<void(Rank&)> happen;
  std::string last;  // text of the last action; empty: none
};

std::vector<Row> rows() {
  using enum RankState;
  using What = RankReport::What;
  const RankIdentity copying = Rank::copying();
  const RankIdentity adopting = Rank::adopting();
  const auto load = [](Rank& rank) { rank.load(kSecond); };
  const auto proven = [](Rank& rank) { rank.end_load(); };
  const auto load_and_prove = [](Rank& rank) { rank.load(kSecond), rank.end_load(); };
  const auto load_and_fail = [](Rank& rank) { rank.load(kSecond), rank.end_load(kFailed); };
  const auto pause = [](Rank& rank) { rank.send(control::Pause{}); };
  const auto resume = [](Rank& rank) { rank.resume(); };
  const auto read = [](Rank& rank) { rank.send(control::ReadDigests{}); };
  const auto bucket = [](Rank& rank) { rank.send(control::BucketReady{.bucket = 5, .slot = 1}); };
  const std::string still = "Pause, or the engine has stopped";
  return {
      {kLoading, "Load of a rank that copies", kTainted, copying, load, "load 1.2"},
      {kLoading, "Load of a rank that adopts", kLoading, adopting, load, "load 1.2"},
      {kLoading, "every byte is there, the rank adopts", kLoaded, adopting, load_and_prove,
       "Loaded #4"},
      {kLoading, "the load has failed, the rank adopts", kLoading, adopting, load_and_fail,
       "Loaded #4: no room"},
      {kLoading, still, kLoading, copying, pause, "Paused #4"},
      {kTainted, "Load", kTainted, copying, load, "load 1.2"},
      {kTainted, "BucketReady of the load", kTainted, copying, bucket, "take 5 of 1"},
      {kTainted, "every byte is in place", kLoaded, copying, proven, "Loaded #4"},
      {kTainted, "the load has failed", kTainted, copying,
       [](Rank& rank) { rank.end_load(kFailed); }, "Loaded #4: no room"},
      {kTainted, still, kTainted, copying, pause, "Paused #5"},
      {kLoaded, "Load of a rank that copies", kTainted, copying, load, "load 1.2"},
      {kLoaded, "Load of a rank that adopts and has an active version", kPaused, adopting,
       [](Rank& rank) {
         rank.commit(kFirst);
         rank.load(kSecond);
         rank.end_load();
         EXPECT_EQ(rank.machine.state(), kLoaded);
         rank.load(kSecond);
       },
       "load 1.2"},
      {kLoaded, "Load of a rank that adopts and has no active version", kLoading, adopting, load,
       "load 1.2"},
      {kLoaded, "BucketReady, repeated", kLoaded, copying, bucket, "BucketAck #5"},
      {kLoaded, "Commit", kPaused, copying, [](Rank& rank) { rank.commit(kFirst); },
       "Committed #5"},
      {kLoaded, "Commit, and the engine fails", kTainted, copying,
       [](Rank& rank) { rank.commit(kFirst, kFailed); }, "Committed #5: no room"},
      {kLoaded, still, kLoaded, copying, pause, "Paused #5"},
      {kPaused, "Load of a rank that copies", kTainted, copying, load, "load 1.2"},
      {kPaused, "Load of a rank that adopts", kPaused, adopting, load, "load 1.2"},
      {kPaused, "every byte is there, the rank adopts", kLoaded, adopting, load_and_prove,
       "Loaded #6"},
      {kPaused, "the load has failed, the rank adopts", kPaused, adopting, load_and_fail,
       "Loaded #6: no room"},
      {kPaused, "Commit of the active version, repeated", kPaused, copying,
       [](Rank& rank) { rank.send(control::Commit{.version = kFirst}); }, "Committed #6"},
      {kPaused, "Resume of a leader", kServing, copying, resume, "Resumed #6"},
      {kPaused, "the engine runs again", kServing, copying,
       [](Rank& rank) { rank.report(What::kRunning); }, ""},
      {kPaused, "ReadDigests", kPaused, copying, read, "read 1.1"},
      {kPaused, still, kPaused, copying, [](Rank& rank) { rank.report(What::kPaused); },
       "Paused #0"},
      {kServing, "Pause of a leader", kServing, copying, pause, "pause"},
      {kServing, "the engine has stopped", kPaused, copying,
       [](Rank& rank) { rank.report(What::kStopped); }, "Paused #0"},
      {kServing, "Resume of a leader", kServing, copying,
       [](Rank& rank) { rank.send(control::Pause{}), rank.resume(); }, "Resumed #8"},
      {kServing, "ReadDigests", kServing, copying, read, "read 1.1"},
  };
}

TEST(RankMachine, EachRowOfItsTableHappens) {
  std::vector<std::tuple<std::string, std::string, std::string>> tried;
  for (const Row& row : rows()) {
    SCOPED_TRACE(fmt::format("{}: {}", rank_state_name(row.from), row.event));
    Rank rank(row.identity);
    rank.bring(row.from);
    ASSERT_EQ(rank.machine.state(), row.from);
    row.happen(rank);
    EXPECT_EQ(rank.machine.state(), row.to) << rank_state_name(rank.machine.state());
    const auto texts = rank.texts();
    EXPECT_EQ(texts.empty() ? "" : texts.back(), row.last);
    tried.emplace_back(rank_state_name(row.from), row.event, rank_state_name(row.to));
  }
  std::vector<std::tuple<std::string, std::string, std::string>> table;
  for (const TransitionTable::Row& row : rank_transitions().rows)
    table.emplace_back(row.from, row.event, row.to);
  EXPECT_THAT(tried, testing::UnorderedElementsAreArray(table));
}

TEST(RankMachine, ACommandWithoutARowIsRefusedWithItsReasonAndChangesNothing) {
  struct Case {
    RankState state;
    control::Message command;
    std::string why;
  };
  const control::Commit first{.version = kFirst};
  const control::Commit second{.version = kSecond};
  const control::BucketReady bucket{.bucket = 5};
  const std::vector<Case> cases = {
      {RankState::kLoading, first, "version 1.1 is not loaded: the rank is loading"},
      {RankState::kLoading, control::Resume{}, "a rank that is loading cannot be resumed"},
      {RankState::kLoading, bucket, "no load is in progress"},
      {RankState::kTainted, first, "version 1.1 is not loaded: the rank is tainted"},
      {RankState::kTainted, control::Resume{}, "a rank that is tainted cannot be resumed"},
      {RankState::kLoaded, second, "version 1.2 is not loaded: the rank is loaded with 1.1"},
      {RankState::kLoaded, control::Resume{}, "a rank that is loaded cannot be resumed"},
      {RankState::kPaused, second, "version 1.2 is not loaded: the rank is paused"},
      {RankState::kPaused, bucket, "no load is in progress"},
      {RankState::kServing, first, "version 1.1 is not loaded: the rank is serving"},
      {RankState::kServing, control::Load{.version = kSecond},
       "the rank is serving; pause it first"},
      {RankState::kServing, bucket, "no load is in progress"},
  };
  for (const RankIdentity& identity : {Rank::copying(), Rank::adopting()}) {
    for (const Case& wrong : cases) {
      if (identity.adopts && wrong.state == RankState::kTainted) continue;  // needs a failed commit
      SCOPED_TRACE(wrong.why);
      Rank rank(identity);
      rank.bring(wrong.state);
      rank.send(wrong.command);
      EXPECT_EQ(rank.machine.state(), wrong.state);
      EXPECT_THAT(rank.texts().back(), HasSubstr(wrong.why));
    }
  }
}

TEST(RankMachine, ARankIsReadWhileItHoldsTheVersionThatTheReadingBeganWith) {
  for (const auto& [state, why] :
       {std::pair{RankState::kLoading,
                  "it has loaded no version yet: verify again when it serves one"},
        std::pair{RankState::kTainted, "it is loading 1.1: verify again when it serves it"},
        std::pair{RankState::kLoaded,
                  "it has loaded 1.1 and does not serve it yet: verify again when it does"}}) {
    Rank rank(Rank::copying());
    rank.bring(state);
    EXPECT_EQ(rank.machine.check_readable(kFirst).error().message(), why);
  }
  Rank torn(Rank::copying());
  torn.bring(RankState::kTainted);
  torn.end_load(kFailed);
  EXPECT_EQ(torn.machine.check_readable(kFirst).error().message(),
            "its last load has not ended well, so its memory has no version until the next load: "
            "`wsync status` says why");
  Rank rank(Rank::copying());
  rank.bring(RankState::kServing);
  EXPECT_TRUE(rank.machine.check_readable(kFirst));
  rank.report(RankReport::What::kStopped);
  EXPECT_TRUE(rank.machine.check_readable(kFirst));
  rank.load(kSecond);
  EXPECT_FALSE(rank.machine.check_readable(kFirst));
  rank.end_load();
  rank.commit(kSecond);
  EXPECT_EQ(rank.machine.check_readable(kFirst).error().message(),
            "the rank moved on to 1.2 while 1.1 was being read");
}

// A sidecar and an engine that do everything in any order. Actions are executed at once, as
// EngineLink does; copying loads end some time later.
class RandomPeers {
 public:
  explicit RandomPeers(unsigned seed)
      : random_(seed),
        adopts_(seed % 4 < 2),
        rank_({.replica = "r0",
               .leader = seed % 2 == 0,
               .adopts = adopts_,
               .serving = seed % 3 == 0}) {}

  // One event.
  void turn() {
    using What = RankReport::What;
    const std::array<control::Message, 11> messages = {
        control::EngineWelcome{},
        control::Prepare{.version = version()},
        control::Release{.version = version()},
        control::UnmapArenas{},
        control::Pause{},
        control::Load{.version = version()},
        control::Load{.version = version(), .buffers = {{.opaque = {}}}},
        control::BucketReady{},
        control::Commit{.version = version()},
        control::Resume{},
        control::Abort{.version = version()},
    };
    const std::size_t event = random_() % (messages.size() + 5);
    if (event < messages.size()) return say(messages[event]);
    switch (event - messages.size()) {
      case 0:
        return rank_.report(What::kPaused);
      case 1:
        return rank_.report(What::kStopped);
      case 2:
        return rank_.report(What::kRunning);
      case 3:
        if (chance()) rank_.lose("it ended");
        return;
      default:
        end_load();
    }
  }
  Rank& rank() { return rank_; }

 private:
  bool chance() { return random_() % 4 == 0; }
  Version version() { return chance() ? kSecond : kFirst; }
  Result<> outcome() { return chance() ? kFailed : Result<>{}; }
  void end_load() {
    if (rank_.machine.loading()) rank_.note(rank_.machine.handle_load_ended({.result = outcome()}));
  }
  void say(const control::Message& message) {
    ++rank_.envelope.request;
    const RankActions actions = rank_.machine.handle(rank_.envelope, message);
    rank_.note(actions);
    for (const RankAction& action : actions) rank_.note(execute(action));
  }
  RankActions execute(const RankAction& action) {
    RankMachine& machine = rank_.machine;
    if (std::holds_alternative<AcceptWelcome>(action)) machine.handle_welcomed();
    if (const auto* a = std::get_if<PrepareVersion>(&action))
      return machine.handle_prepared(a->request, a->message->version, outcome());
    if (const auto* a = std::get_if<PauseEngine>(&action); a != nullptr && chance())
      return machine.handle_pause_failed(a->request, kFailed.error());
    if (const auto* a = std::get_if<CommitEngine>(&action))
      return machine.handle_committed(a->request, a->version, outcome());
    if (const auto* a = std::get_if<ResumeEngine>(&action)) {
      std::optional<std::uint64_t> paused_at;
      if (a->overtakes_pause && chance()) paused_at = 3;
      return machine.handle_resumed(a->request, outcome(), paused_at);
    }
    if (std::holds_alternative<CancelLoad>(action)) end_load();
    const auto* map = std::get_if<MapBuffers>(&action);
    if (map == nullptr) return {};
    auto started = machine.handle_buffers_mapped(map->request, *map->message, outcome(), kNow);
    if (adopts_) end_load();  // it copies nothing, so such a load ends where it starts
    return started;
  }

  std::mt19937 random_;
  bool adopts_;
  Rank rank_;
};

TEST(RankMachine, NoOrderOfEventsMakesAMoveThatIsNotInTheTable) {
  const TransitionTable table = rank_transitions();
  std::uint64_t moves = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    RandomPeers peers(seed);
    for (int turn = 0; turn < 300; ++turn) {
      const std::string before(rank_state_name(peers.rank().machine.state()));
      peers.turn();
      const std::string after(rank_state_name(peers.rank().machine.state()));
      if (before == after) continue;
      ++moves;
      const bool direct = std::ranges::any_of(
          table.rows, [&](const auto& row) { return row.from == before && row.to == after; });
      ASSERT_TRUE(direct) << "seed " << seed << ": " << before << " to " << after;
    }
    // The machine refuses such a move with this sentence.
    for (const std::string& text : peers.rank().texts())
      ASSERT_EQ(text.find("the rank cannot go from"), std::string::npos) << text;
  }
  EXPECT_GT(moves, 1'000U);
}

}  // namespace
}  // namespace wsync::engine::test
