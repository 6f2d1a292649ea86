#include "inference_side/engine_link/rank_machine.h"

#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/control/codec.h"

namespace wsync::engine {
namespace {

using control::RankState;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Version kFirst{.epoch = 1, .step = 1};
constexpr Version kSecond{.epoch = 1, .step = 2};
constexpr TimePoint kNow{5'000'000'000};

const Result<> kFailed = fail(ErrorCode::kIo, "no room");

// One action as text. An answer has the number of its request behind it, and its failure.
std::string text_of(const RankAction& action) {
  if (const auto* reply = std::get_if<SendReply>(&action)) {
    const std::string failure = std::visit(
        [](const auto& m) -> std::string {
          if constexpr (requires { m.failure; })
            return m.failure.empty() ? "" : ": " + m.failure;
          else
            return {};
        },
        reply->message);
    return fmt::format("{} #{}{}", control::message_name(control::type_of(reply->message)),
                       reply->request.request, failure);
  }
  if (const auto* refusal = std::get_if<SendRefusal>(&action))
    return fmt::format("refuse #{}: {}", refusal->request.request, refusal->why);
  if (const auto* note = std::get_if<NoteError>(&action)) return "note: " + note->sentence;
  if (std::holds_alternative<AcceptWelcome>(action)) return "welcome";
  if (const auto* prepare = std::get_if<PrepareVersion>(&action))
    return "prepare " + prepare->message->version.to_string();
  if (const auto* prepared = std::get_if<NotifyPrepared>(&action))
    return "prepared " + prepared->version.to_string();
  if (const auto* forget = std::get_if<ForgetVersion>(&action))
    return "forget " + forget->version.to_string();
  if (std::holds_alternative<PauseEngine>(action)) return "pause";
  if (std::holds_alternative<MapBuffers>(action)) return "map";
  if (const auto* start = std::get_if<StartLoad>(&action))
    return "load " + start->version.to_string();
  if (std::holds_alternative<CancelLoad>(action)) return "cancel";
  if (const auto* take = std::get_if<TakeBucket>(&action))
    return fmt::format("take {} of {}", take->bucket, take->slot);
  if (const auto* loaded = std::get_if<NotifyLoaded>(&action))
    return "loaded " + loaded->version.to_string();
  if (const auto* commit = std::get_if<CommitEngine>(&action))
    return "commit " + commit->version.to_string();
  if (std::holds_alternative<ActivateLoaded>(action)) return "activate";
  if (const auto* resume = std::get_if<ResumeEngine>(&action))
    return resume->overtakes_pause ? "resume over pause" : "resume";
  return "read " + std::get<ReadTensors>(action).version.to_string();
}

// A machine, and the texts of what it has decided since they were last asked for.
class Rank {
 public:
  explicit Rank(RankIdentity identity) : machine(std::move(identity)) {}
  static RankIdentity copying() { return {.replica = "r0"}; }
  static RankIdentity adopting() { return {.replica = "r0", .adopts = true}; }

  // ---- events ----
  void send(const control::Message& message) {
    ++envelope.request;
    const RankState before = machine.state();
    note(machine.handle(envelope, message));
    EXPECT_EQ(machine.state(), before) << "a command alone changes no state";
  }
  void welcome() {
    send(control::EngineWelcome{});
    machine.handle_welcomed();
  }
  void prepare(const Version& version, const Result<>& outcome = {}) {
    send(control::Prepare{.version = version});
    note(machine.handle_prepared(envelope, version, outcome));
  }
  void load(const control::Load& load, const Result<>& mapped = {}) {
    send(load);
    note(machine.handle_buffers_mapped(envelope, load, mapped, kNow));
  }
  void load(const Version& version) { load(control::Load{.version = version}); }
  void end_load(const Result<>& result = {}) {
    note(machine.handle_load_ended({.bytes = 9, .copy_ns = 4, .result = result}));
  }
  void commit(const Version& version, const Result<>& outcome = {}) {
    send(control::Commit{.version = version});
    note(machine.handle_committed(envelope, version, outcome));
  }
  void resume(const Result<>& outcome = {}, std::optional<std::uint64_t> paused_at = {}) {
    send(control::Resume{});
    note(machine.handle_resumed(envelope, outcome, paused_at));
  }
  void report(RankReport::What what, std::uint64_t step = 7) {
    note(machine.handle_report({.what = what, .step = step}));
  }
  void lose(const std::string& why) { note(machine.handle_loss(why)); }

  // Brings a new machine to a state, by the shortest way; both versions are prepared.
  void bring(RankState state) {
    welcome();
    prepare(kFirst);
    prepare(kSecond);
    if (state == RankState::kLoading) return forget();
    load(kFirst);
    if (state == RankState::kTainted) return forget();
    end_load();
    if (state == RankState::kLoaded) return forget();
    commit(kFirst);
    if (state == RankState::kPaused) return forget();
    resume();
    forget();
  }

  void note(const RankActions& actions) {
    for (const RankAction& action : actions) texts_.push_back(text_of(action));
    const auto holds = machine.invariants();
    EXPECT_TRUE(holds) << holds.error().message();
  }
  void forget() { texts_.clear(); }
  std::vector<std::string> texts() { return std::exchange(texts_, {}); }

  RankMachine machine;
  control::Envelope envelope{.fence = {.epoch = 3, .run_id = {1, 2}}, .replica = "r0"};

 private:
  std::vector<std::string> texts_;
};

// ---- the table ----

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
      {kLoading, "every byte is proven, the rank adopts", kLoaded, adopting, load_and_prove,
       "Loaded #4"},
      {kLoading, "the load has failed, the rank adopts", kLoading, adopting, load_and_fail,
       "Loaded #4: no room"},
      {kLoading, still, kLoading, copying, pause, "Paused #4"},
      {kTainted, "Load", kTainted, copying, load, "load 1.2"},
      {kTainted, "BucketReady of the load", kTainted, copying, bucket, "take 5 of 1"},
      {kTainted, "every byte is proven", kLoaded, copying, proven, "Loaded #4"},
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
      {kPaused, "every byte is proven, the rank adopts", kLoaded, adopting, load_and_prove,
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
      {RankState::kLoading, control::Resume{}, "a rank that is loading is not resumed"},
      {RankState::kLoading, bucket, "no load is under way"},
      {RankState::kTainted, first, "version 1.1 is not loaded: the rank is tainted"},
      {RankState::kTainted, control::Resume{}, "a rank that is tainted is not resumed"},
      {RankState::kLoaded, second, "version 1.2 is not loaded: the rank is loaded with 1.1"},
      {RankState::kLoaded, control::Resume{}, "a rank that is loaded is not resumed"},
      {RankState::kPaused, second, "version 1.2 is not loaded: the rank is paused"},
      {RankState::kPaused, bucket, "no load is under way"},
      {RankState::kServing, first, "version 1.1 is not loaded: the rank is serving"},
      {RankState::kServing, control::Load{.version = kSecond},
       "the rank is serving; pause it first"},
      {RankState::kServing, bucket, "no load is under way"},
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
  for (const RankState state : {RankState::kLoading, RankState::kTainted, RankState::kLoaded}) {
    Rank rank(Rank::copying());
    rank.bring(state);
    EXPECT_EQ(rank.machine.check_readable(kFirst).error().message(),
              fmt::format("a rank that is {} holds no version", rank_state_name(state)));
  }
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
            "it went on to 1.2 while 1.1 was read");
}

// Many orders of all events: what is not in the table never happens, and no rule is broken.
TEST(RankMachine, NoOrderOfEventsMakesAMoveThatIsNotInTheTable) {
  const TransitionTable table = rank_transitions();
  const auto allowed = [&](RankState from, RankState to) {
    return std::ranges::any_of(table.rows, [&](const TransitionTable::Row& row) {
      return row.from == rank_state_name(from) && row.to == rank_state_name(to);
    });
  };
  std::uint64_t moves = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    Rank rank({.replica = "r0",
               .leader = seed % 2 == 0,
               .adopts = seed % 4 < 2,
               .serving = seed % 3 == 0});
    const auto chance = [&] { return random() % 4 == 0; };
    const auto version = [&] { return chance() ? kSecond : kFirst; };
    const auto outcome = [&] { return chance() ? kFailed : Result<>{}; };
    std::vector<std::function<void()>> events;
    const auto answer = [&](const RankActions& decided) {
      rank.note(decided);
      return decided;
    };
    const auto say = [&](const control::Message& message) {
      ++rank.envelope.request;
      for (const RankAction& action : answer(rank.machine.handle(rank.envelope, message))) {
        if (std::holds_alternative<AcceptWelcome>(action)) rank.machine.handle_welcomed();
        if (const auto* a = std::get_if<PrepareVersion>(&action))
          answer(rank.machine.handle_prepared(a->request, a->message->version, outcome()));
        if (const auto* a = std::get_if<PauseEngine>(&action); a != nullptr && chance())
          answer(rank.machine.handle_pause_failed(a->request, kFailed.error()));
        if (const auto* a = std::get_if<MapBuffers>(&action)) {
          answer(rank.machine.handle_buffers_mapped(a->request, *a->message, outcome(), kNow));
          // Adopting copies nothing, so such a load ends where it starts.
          if (seed % 4 < 2 && rank.machine.loading())
            answer(rank.machine.handle_load_ended({.result = outcome()}));
        }
        if (const auto* a = std::get_if<CommitEngine>(&action))
          answer(rank.machine.handle_committed(a->request, a->version, outcome()));
        if (const auto* a = std::get_if<ResumeEngine>(&action))
          answer(rank.machine.handle_resumed(
              a->request, outcome(),
              a->overtakes_pause && chance() ? std::optional<std::uint64_t>(3) : std::nullopt));
        if (std::holds_alternative<CancelLoad>(action))
          answer(rank.machine.handle_load_ended({.result = kFailed}));
      }
    };
    events.emplace_back([&] { say(control::EngineWelcome{}); });
    events.emplace_back([&] { say(control::Prepare{.version = version()}); });
    events.emplace_back([&] { say(control::Release{.version = version()}); });
    events.emplace_back([&] { say(control::Pause{}); });
    events.emplace_back([&] {
      control::Load load{.version = version()};
      if (chance()) load.buffers.resize(2);
      say(load);
    });
    events.emplace_back([&] {
      if (rank.machine.loading()) answer(rank.machine.handle_load_ended({.result = outcome()}));
    });
    events.emplace_back([&] { say(control::BucketReady{}); });
    events.emplace_back([&] { say(control::Commit{.version = version()}); });
    events.emplace_back([&] { say(control::Resume{}); });
    events.emplace_back([&] { say(control::Abort{.version = version()}); });
    events.emplace_back([&] { rank.report(RankReport::What::kPaused); });
    events.emplace_back([&] { rank.report(RankReport::What::kStopped); });
    events.emplace_back([&] { rank.report(RankReport::What::kRunning); });
    events.emplace_back([&] {
      if (chance()) rank.lose("it ended");
    });
    for (int turn = 0; turn < 300; ++turn) {
      const RankState before = rank.machine.state();
      const auto event = random() % events.size();
      events[event]();
      const RankState after = rank.machine.state();
      if (after == before) continue;
      ++moves;
      ASSERT_TRUE(allowed(before, after))
          << "seed " << seed << ", event " << event << ": " << rank_state_name(before) << " to "
          << rank_state_name(after);
    }
    for (const std::string& text : rank.texts()) ASSERT_EQ(text.find("cannot go"), text.npos);
  }
  EXPECT_GT(moves, 1'000U);
}

// ---- frames ----

TEST(RankMachine, AnOldFenceAnotherRankAndAStrangeMessageAreRefused) {
  Rank rank(Rank::copying());
  rank.send(control::Pause{});
  EXPECT_THAT(rank.texts(), ElementsAre("refuse #1: a command came before the welcome"));
  rank.welcome();
  rank.envelope.rank = 5;
  rank.send(control::Pause{});
  rank.envelope.rank = 0;
  rank.send(control::Push{});
  rank.envelope.fence.epoch = 2;
  rank.send(control::Pause{});
  EXPECT_THAT(rank.texts(),
              ElementsAre("welcome", "refuse #3: the message is for r0 rank 5, this is r0 rank 0",
                          "refuse #4: Push is not for engines",
                          "refuse #5: the fence of epoch 2 is older than epoch 3"));
  EXPECT_EQ(rank.machine.answer_to(rank.envelope).fence.epoch, 3U) << "the highest one seen";
  rank.envelope.fence.epoch = 4;
  rank.send(control::Pause{});
  EXPECT_THAT(rank.texts(), ElementsAre("Paused #6"));
  EXPECT_EQ(rank.machine.answer_to(rank.envelope).fence.epoch, 4U);
}

TEST(RankMachine, AnAnswerHasTheRoundAndTheRequestOfItsQuestionAndThisRank) {
  const RankMachine machine({.replica = "r0", .rank = 2});
  const auto answer = machine.answer_to({.round = 8, .request = 9, .replica = "r9", .rank = 1});
  EXPECT_EQ(answer.round, 8U);
  EXPECT_EQ(answer.request, 9U);
  EXPECT_EQ(answer.replica, "r0");
  EXPECT_EQ(answer.rank, 2U);
}

TEST(RankMachine, AFollowerIsNeitherPausedNorResumed) {
  Rank rank({.replica = "r0", .leader = false, .serving = true});
  rank.welcome();
  rank.forget();
  rank.send(control::Pause{});
  rank.send(control::Resume{});
  EXPECT_THAT(rank.texts(), ElementsAre("refuse #2: only the leader of a replica begins a pause",
                                        "refuse #3: only the leader of a replica is resumed"));
  rank.report(RankReport::What::kPaused, 31);
  rank.send(control::Pause{});  // of a rank that does not serve
  EXPECT_THAT(rank.texts(), ElementsAre("Paused #0", "Paused #4"));
  EXPECT_EQ(rank.machine.step(), 31U);
}

// ---- versions ----

TEST(RankMachine, AVersionIsLoadedWhenItIsPrepared) {
  Rank rank(Rank::copying());
  rank.welcome();
  rank.prepare(kFirst, kFailed);
  rank.send(control::Load{.version = kFirst});
  EXPECT_THAT(rank.texts(),
              ElementsAre("welcome", "prepare 1.1", "note: no room", "Prepared #2: no room",
                          "note: version 1.1 has not been prepared",
                          "Loaded #3: version 1.1 has not been prepared"));
  rank.prepare(kFirst);
  EXPECT_THAT(rank.texts(), ElementsAre("prepare 1.1", "prepared 1.1", "Prepared #4"));
  for (const control::Message& gone : {control::Message(control::Release{.version = kFirst}),
                                       control::Message(control::Abort{.version = kFirst})}) {
    rank.send(gone);
    rank.send(control::Load{.version = kFirst});
    const auto texts = rank.texts();
    EXPECT_EQ(texts.front(), "forget 1.1");
    EXPECT_THAT(texts.back(), HasSubstr("has not been prepared"));
    rank.prepare(kFirst);
    rank.forget();
  }
}

TEST(RankMachine, TheOldestPreparedVersionIsForgottenWhenThereAreTooMany) {
  Rank rank(Rank::copying());
  rank.welcome();
  for (std::uint64_t step = 1; step <= limits::kStagedCount; ++step)
    rank.prepare({.epoch = 1, .step = step});
  EXPECT_THAT(rank.texts(), testing::Not(testing::Contains(HasSubstr("forget"))));
  rank.prepare({.epoch = 2, .step = 1});
  EXPECT_THAT(rank.texts(), ElementsAre("prepare 2.1", "forget 1.1", "prepared 2.1",
                                        fmt::format("Prepared #{}", limits::kStagedCount + 2)));
}

TEST(RankMachine, BuffersThatCannotBeMappedLeaveTheWeightsAndTheLoadAsTheyAre) {
  Rank rank(Rank::copying());
  rank.bring(RankState::kPaused);
  rank.load(control::Load{.version = kSecond}, kFailed);
  EXPECT_THAT(rank.texts(), ElementsAre("map", "note: no room", "Loaded #6: no room"));
  EXPECT_EQ(rank.machine.state(), RankState::kPaused);
  rank.load(kSecond);
  rank.load(control::Load{.version = kFirst}, kFailed);
  EXPECT_EQ(rank.machine.loading(), kSecond);
}

TEST(RankMachine, ALoadEndsUnderItsOwnRequestAndByItsDeadline) {
  Rank rank(Rank::copying());
  rank.bring(RankState::kLoading);
  const auto started = [&](const control::Load& load) {
    rank.send(load);
    const auto actions = rank.machine.handle_buffers_mapped(rank.envelope, load, {}, kNow);
    return std::get<StartLoad>(actions.front());
  };
  EXPECT_EQ(started({.version = kFirst}).deadline,
            kNow + std::chrono::milliseconds(limits::kLoadDeadlineMs));
  const auto second = started({.version = kSecond, .deadline_ms = 250, .copy_threads = 3});
  EXPECT_EQ(second.deadline, kNow + std::chrono::milliseconds(250));
  EXPECT_EQ(second.copy_threads, 3U);
  rank.send(control::BucketReady{.bucket = 2});
  rank.note(RankMachine::handle_bucket_taken(rank.envelope, 2, kFailed));
  rank.end_load(kFailed);
  EXPECT_THAT(rank.texts(), ElementsAre("map", "map", "take 2 of 0", "BucketAck #6: no room",
                                        "note: no room", "Loaded #5: no room"));
}

TEST(RankMachine, AnAbortCancelsALoadWhoseBuffersTheSidecarWantsBack) {
  Rank rank(Rank::copying());
  rank.bring(RankState::kLoading);
  rank.load(kFirst);
  rank.forget();
  rank.send(control::Abort{.version = kFirst});
  EXPECT_THAT(rank.texts(), ElementsAre("forget 1.1")) << "its buffers stay";
  rank.prepare(kFirst);
  control::Load load{.version = kFirst};
  load.buffers.resize(2);
  rank.load(load);
  rank.forget();
  rank.send(control::Abort{.version = kSecond});
  EXPECT_THAT(rank.texts(), ElementsAre("forget 1.2")) << "another version's";
  rank.send(control::Abort{.version = kFirst});
  EXPECT_THAT(rank.texts(), ElementsAre("forget 1.1", "cancel"));
}

// ---- pauses ----

TEST(RankMachine, APauseIsAnsweredWhenTheEngineHasStoppedForIt) {
  Rank rank(Rank::copying());
  rank.bring(RankState::kServing);
  rank.send(control::Pause{});
  rank.report(RankReport::What::kStopped, 8);  // its group broke; the pause is still to come
  EXPECT_THAT(rank.texts(), ElementsAre("pause", "Paused #0"));
  rank.report(RankReport::What::kPaused, 9);
  rank.report(RankReport::What::kPaused, 9);
  EXPECT_THAT(rank.texts(), ElementsAre("Paused #7", "Paused #0"));
  EXPECT_EQ(rank.machine.step(), 9U);
}

TEST(RankMachine, APauseThatTheEngineRefusesIsOver) {
  Rank rank(Rank::copying());
  rank.bring(RankState::kServing);
  rank.send(control::Pause{});
  rank.note(rank.machine.handle_pause_failed(rank.envelope, kFailed.error()));
  EXPECT_THAT(rank.texts(), ElementsAre("pause", "refuse #7: the engine does not pause: no room"));
  rank.send(control::Resume{});
  EXPECT_THAT(rank.texts(), ElementsAre("Resumed #8")) << "there is no pause to withdraw";
}

TEST(RankMachine, AResumeOvertakesAPauseAndAnswersItFirstWhenItHasEnded) {
  Rank rank(Rank::copying());
  rank.bring(RankState::kServing);
  rank.send(control::Pause{});
  rank.resume({}, 12);
  EXPECT_THAT(rank.texts(), ElementsAre("pause", "resume over pause", "Paused #7", "Resumed #8"));
  EXPECT_EQ(rank.machine.step(), 12U);
  EXPECT_EQ(rank.machine.state(), RankState::kServing);
  rank.send(control::Pause{});
  rank.resume();
  EXPECT_THAT(rank.texts(), ElementsAre("pause", "resume over pause", "Resumed #10"))
      << "withdrawn, it gets no answer";
  rank.send(control::Pause{});
  rank.resume(kFailed);
  EXPECT_THAT(rank.texts(), ElementsAre("pause", "resume over pause",
                                        "refuse #12: the engine does not resume: no room"));
}

// ---- loss ----

TEST(RankMachine, ALossKeepsTheStateAndEndsWhatTheSidecarHadInProgress) {
  for (const RankState state : {RankState::kLoading, RankState::kTainted, RankState::kLoaded,
                                RankState::kPaused, RankState::kServing}) {
    Rank rank(Rank::copying());
    rank.bring(state);
    if (state == RankState::kServing) rank.send(control::Pause{});
    rank.forget();
    rank.lose("it ended");
    EXPECT_THAT(rank.texts(), ElementsAre("note: the sidecar is lost (it ended)"));
    EXPECT_EQ(rank.machine.state(), state) << "nothing resumes by itself";
    EXPECT_FALSE(rank.machine.welcomed());
    EXPECT_FALSE(rank.machine.loading());
    rank.welcome();
    rank.report(RankReport::What::kPaused);
    rank.send(control::Load{.version = kFirst});
    EXPECT_THAT(rank.texts(),
                ElementsAre("welcome", "Paused #0", "note: version 1.1 has not been prepared",
                            HasSubstr("has not been prepared")));
  }
}

TEST(RankMachine, ASidecarThatRefusesSaysWhyOnce) {
  Rank rank(Rank::copying());
  rank.send(control::Refuse{.reason = "no", .problems = {{.tensor = "a", .detail = "is missing"}}});
  rank.lose("the other side has closed");
  rank.lose("nobody listens");
  EXPECT_THAT(rank.texts(), ElementsAre("note: the sidecar refuses this engine: no; a: is missing",
                                        "note: nobody listens"));
}

TEST(RankMachine, ARankWithWeightsOfItsOwnServesNoVersion) {
  Rank rank({.replica = "r0", .serving = true});
  EXPECT_EQ(rank.machine.state(), RankState::kServing);
  EXPECT_TRUE(rank.machine.active().none());
  rank.welcome();
  rank.send(control::Commit{});
  EXPECT_THAT(rank.texts().back(), HasSubstr("is not loaded: the rank is serving"));
}

}  // namespace
}  // namespace wsync::engine
