// Tests the parts that judge a training run whose ranks are killed: its events, the result of each
// kill, the differences from a run without kills, and the report.
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "bench/harness/directory.h"
#include "shared/base/format.h"
#include "tests/soak/kill_report.h"
#include "tests/soak/kill_run.h"
#include "tests/soak/trainer_process.h"

namespace wsync::soak {
namespace {

using bench::TemporaryDirectory;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::uint32_t kRanks = 4;

std::string ranks_line(int generation = 0) {
  return fmt::format(R"({{"event":"ranks","pids":[11,12,13,{}],"generation":{}}})", 14 + generation,
                     generation);
}
std::string step_line(std::uint64_t step, double loss = 3.5) {
  return fmt::format(R"({{"event":"step","step":{},"loss":{},"gradient_norm":0.5,"seconds":0.1}})",
                     step, loss);
}
std::string lost_line(std::uint32_t rank, std::uint64_t step, std::string_view phase = "forward") {
  return fmt::format(R"({{"event":"lost","rank":{},"pid":14,"step":{},"phase":"{}",)"
                     R"("why":"was killed by signal 9"}})",
                     rank, step, phase);
}
std::string recovered_line(std::uint64_t step, std::string_view replaced = "3") {
  return fmt::format(R"({{"event":"recovered","step":{},"replaced":[{}],"from":"peers",)"
                     R"("seconds":0.25,"bytes":4096}})",
                     step, replaced);
}

TEST(TrainerEvent, EachKindIsRead) {
  const auto read = [](const std::string& line) {
    return parse_trainer_event(line, kRanks).value();
  };
  EXPECT_EQ(read(step_line(7)), TrainerEvent(StepEvent{7, 3.5, 0.5}));
  EXPECT_EQ(read(ranks_line(1)), TrainerEvent(RanksEvent{{11, 12, 13, 15}, 1}));
  EXPECT_EQ(read(lost_line(3, 0, "empty")),
            TrainerEvent(LostEvent{3, 0, "empty", "was killed by signal 9"}));
  EXPECT_EQ(read(recovered_line(8)), TrainerEvent(RecoveredEvent{8, {3}, "peers", 0.25, 4096}));
  EXPECT_EQ(read(R"({"event":"saved","step":9,"directory":"/a/step_9"})"),
            TrainerEvent(SavedEvent{9, "/a/step_9"}));
  EXPECT_EQ(read(R"({"command":"trainer","ok":false,"error":{"code":"io","message":"no disk"}})"),
            TrainerEvent(FailedEvent{"no disk"}));
  for (const std::string other : {R"({"event":"begin","ranks":4})", R"({"event":"new"})",
                                  R"({"command":"trainer","ok":true,"result":{}})"})
    EXPECT_EQ(read(other), TrainerEvent(OtherEvent{})) << other;
}

TEST(TrainerEvent, WhatIsNoneSaysWhichMember) {
  const auto refused = [](const std::string& line, const std::string& why) {
    const auto event = parse_trainer_event(line, kRanks);
    ASSERT_FALSE(event.has_value()) << line;
    EXPECT_EQ(event.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(event.error().message(), HasSubstr(why)) << line;
  };
  for (const std::string line : {"", "step 3", "[]", "7", R"({"event":"step")"})
    refused(line, "no JSON object");
  refused("{}", "its 'event' is null or not there, expected text");
  refused(R"({"event":3})", "its 'event' is 3");
  refused(R"({"error":"no"})", "its 'message'");
  refused(step_line(0), "its 'step' is 0, expected whole numbers from 1");
  refused(R"({"event":"step","step":-1,"loss":1,"gradient_norm":1})", "its 'step' is -1");
  refused(R"({"event":"step","step":1.5,"loss":1,"gradient_norm":1})", "its 'step' is 1.5");
  refused(R"({"event":"step","step":1,"loss":null,"gradient_norm":1})", "its 'loss' is null");
  refused(R"({"event":"step","step":1,"loss":1,"gradient_norm":"1"})", "its 'gradient_norm'");
  refused(R"({"event":"ranks","pids":[1,2,3],"generation":0})",
          "its 'pids' are 3, expected one for each of 4 ranks");
  refused(R"({"event":"ranks","pids":[1,2,3,0],"generation":0})", "its 'pids' is 0");
  refused(R"({"event":"ranks","pids":[1,2,3,4294967297],"generation":0})", "4294967297");
  refused(R"({"event":"ranks","pids":7,"generation":0})", "expected a list of numbers");
  refused(R"({"event":"ranks","pids":[1,2,3,4]})", "its 'generation'");
  refused(lost_line(4, 1), "its 'rank' is 4, expected whole numbers from 0 to 3");
  refused(lost_line(3, 1, "asleep"), R"(its 'phase' is "asleep", expected one of forward)");
  refused(recovered_line(0), "its 'step' is 0");
  refused(recovered_line(3, "4"), "its 'replaced' is 4");
  refused(R"({"event":"recovered","step":1,"replaced":[1],"from":"luck","seconds":0,"bytes":0})",
          R"("luck", expected one of peers, checkpoint, start)");
  refused(R"({"event":"recovered","step":1,"replaced":[1],"from":"peers","seconds":0,"bytes":-1})",
          "its 'bytes' is -1");
  refused(R"({"event":"saved","step":1})", "its 'directory'");
}

// A log with a clock that the test sets.
class ScriptedLog {
 public:
  Result<> notify(const std::string& line, int after_ms = 0) {
    at_ = at_ + std::chrono::milliseconds(after_ms);
    return log.take(line, at_);
  }
  // Handles a line that must be accepted.
  void told(const std::string& line, int after_ms = 0) {
    const Result<> taken = notify(line, after_ms);
    ASSERT_TRUE(taken.has_value()) << taken.error().message();
  }
  void kill(std::uint32_t rank, int after_ms = 0) {
    at_ = at_ + std::chrono::milliseconds(after_ms);
    log.killed(rank, at_);
  }
  void expect_refused(const std::string& line, ErrorCode code, const std::string& why) {
    const Result<> taken = notify(line);
    ASSERT_FALSE(taken.has_value()) << line;
    EXPECT_EQ(taken.error().code(), code);
    EXPECT_THAT(taken.error().message(), HasSubstr(why));
  }
  KillLog log{kRanks};

 private:
  TimePoint at_{1'000'000'000};
};

TEST(KillLog, WhatAKillCameTo) {
  ScriptedLog script;
  script.told(ranks_line());
  EXPECT_FALSE(script.log.is_ready());  // no step has ended
  script.told(step_line(1));
  EXPECT_TRUE(script.log.is_ready());
  EXPECT_THAT(script.log.pids(), ElementsAre(11, 12, 13, 14));
  script.told(step_line(2), 10);
  script.kill(3, 4);
  EXPECT_FALSE(script.log.is_ready());
  script.told(step_line(3), 1);  // the report was already in transit
  script.told(lost_line(3, 4, "backward"), 2);
  script.told(ranks_line(1), 1);
  script.told(recovered_line(4), 40);
  EXPECT_FALSE(script.log.is_ready());
  EXPECT_THAT(script.log.kills(), IsEmpty());
  script.told(step_line(3), 1);  // a new rank 0 reports the previous step again
  EXPECT_THAT(script.log.kills(), IsEmpty());
  script.told(step_line(4), 15);
  EXPECT_TRUE(script.log.is_ready());
  EXPECT_THAT(script.log.pids(), ElementsAre(11, 12, 13, 15));
  script.told(step_line(5), 20);
  ASSERT_THAT(script.log.kills(), SizeIs(1));
  const Kill& kill = script.log.kills().front();
  EXPECT_EQ(kill.rank, 3U);
  EXPECT_EQ(kill.step, 4U);
  EXPECT_EQ(kill.phase, "backward");
  EXPECT_EQ(kill.resumed_step, 4U);
  EXPECT_EQ(kill.from, "peers");
  EXPECT_EQ(kill.bytes, 4096U);
  EXPECT_DOUBLE_EQ(kill.lost_seconds, 0.003);
  EXPECT_DOUBLE_EQ(kill.recovered_seconds, 0.044);
  EXPECT_DOUBLE_EQ(kill.resumed_seconds, 0.060);
  EXPECT_DOUBLE_EQ(kill.recovery_seconds, 0.25);
  EXPECT_EQ(kill.steps_run_again(), 1U);
  // no interval contains the kill
  EXPECT_THAT(script.log.step_seconds(), ElementsAre(0.010, 0.020));
  EXPECT_THAT(script.log.steps(), SizeIs(6));
  EXPECT_EQ(script.log.steps_told_again(), 1U);
  EXPECT_EQ(script.log.last_step(), 5U);
}

TEST(KillLog, ProcessesAreKnownAgainOnlyWhenTheyAreTold) {
  ScriptedLog script;
  script.told(ranks_line());
  script.told(step_line(1));
  script.kill(3);
  script.told(lost_line(3, 2));
  script.told(recovered_line(2));
  script.told(step_line(2));
  EXPECT_THAT(script.log.kills(), SizeIs(1));
  EXPECT_FALSE(script.log.is_ready());
  EXPECT_THAT(script.log.state(), HasSubstr("no process of a rank has been told"));
  script.told(ranks_line(1));
  EXPECT_TRUE(script.log.is_ready());
}

TEST(KillLog, StepsThatWereBegunAndAreRunAgain) {
  const auto again = [](std::uint64_t step, std::uint64_t resumed) {
    return Kill{.step = step, .resumed_step = resumed, .from = "peers"}.steps_run_again();
  };
  EXPECT_EQ(again(7, 8), 0U);  // the other ranks completed it
  EXPECT_EQ(again(7, 7), 1U);
  EXPECT_EQ(again(7, 1), 7U);
  EXPECT_EQ(again(0, 8), 0U);  // the rank had not begun a step
  EXPECT_TRUE((Kill{.step = 7, .resumed_step = 7, .from = "peers"}.recovered_within_a_step()));
  EXPECT_FALSE((Kill{.step = 7, .resumed_step = 6, .from = "peers"}.recovered_within_a_step()));
  EXPECT_FALSE((Kill{.step = 7, .resumed_step = 7, .from = "start"}.recovered_within_a_step()));
}

TEST(KillLog, LinesThatDoNotGoTogether) {
  ScriptedLog script;
  script.told(ranks_line());
  script.told(step_line(1));
  script.expect_refused(lost_line(2, 1), ErrorCode::kPeerLost,
                        "rank 2 was killed by signal 9, and nobody had killed it");
  script.expect_refused(recovered_line(2), ErrorCode::kInvalidInput, "no rank was lost");
  script.kill(3);
  script.expect_refused(recovered_line(2), ErrorCode::kInvalidInput, "no rank was lost");
  script.expect_refused(lost_line(2, 1), ErrorCode::kPeerLost, "rank 2");
  script.told(lost_line(3, 2));
  EXPECT_THAT(script.log.state(), HasSubstr("rank 3 was killed and has not been replaced"));
  script.expect_refused(lost_line(3, 2), ErrorCode::kPeerLost, "rank 3");
  script.expect_refused(recovered_line(2, "1,3"), ErrorCode::kInvalidInput,
                        "it has replaced ranks [1, 3], expected 3, which was lost");
  script.told(recovered_line(2));
  script.expect_refused(recovered_line(2), ErrorCode::kInvalidInput, "no rank was lost");
}

TEST(KillLog, ABadLineIsNamed) {
  ScriptedLog script;
  script.told(ranks_line());
  script.expect_refused("Segmentation fault", ErrorCode::kInvalidInput,
                        "line 2 of the trainer's events, 'Segmentation fault': it is no JSON");
  script.expect_refused(std::string(1000, 'x'), ErrorCode::kInvalidInput,
                        "'" + std::string(200, 'x') + "...'");
  script.expect_refused(R"({"error":{"code":"peer_lost","message":"rank 1 stood still"}})",
                        ErrorCode::kRefused, "the trainer failed: rank 1 stood still");
}

TEST(Divergence, EveryStepThatWasToldIsComparedBitByBit) {
  const std::vector<StepEvent> reference{{1, 3.5, 0.5}, {2, 3.25, 0.0}, {3, 3, 0.5}, {4, 2, 1}};
  std::vector<StepEvent> run{{1, 3.5, 0.5}, {2, 3.25, 0.0}, {2, 3.25, 0.0}, {3, 3, 0.5}};
  Divergence found = compare_steps(run, reference, 3);
  EXPECT_EQ(found.compared, 4U);
  EXPECT_EQ(found.count, 0U);
  EXPECT_THAT(found.told, IsEmpty());
  run[2].gradient_norm = -0.0;
  run[3].loss = 3.0000000000000004;
  found = compare_steps(run, reference, 3);
  EXPECT_EQ(found.count, 2U);
  EXPECT_THAT(found.told,
              ElementsAre("step 2: loss 3.25, gradient norm -0; without kills loss 3.25, gradient "
                          "norm 0",
                          "step 3: loss 3.0000000000000004, gradient norm 0.5; without kills loss "
                          "3, gradient norm 0.5"));
}

TEST(Divergence, EveryStepMustHaveBeenTold) {
  const std::vector<StepEvent> all{{1, 1, 1}, {2, 1, 1}, {3, 1, 1}};
  const std::vector<StepEvent> some{{1, 1, 1}, {3, 1, 1}};
  EXPECT_THAT(compare_steps(some, all, 3).told, ElementsAre("step 2 was never told"));
  EXPECT_THAT(compare_steps(all, some, 3).told,
              ElementsAre("step 2 was not told by the run without kills"));
  EXPECT_EQ(compare_steps({}, {}, 100).count, 200U);
  EXPECT_THAT(compare_steps({}, {}, 100).told, SizeIs(8));
}

class States : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& state : {run_, reference_}) {
      std::filesystem::create_directories(state + "/optimizer");
      write(state + "/model.safetensors", std::string(100'000, 'm'));
      write(state + "/optimizer/state.safetensors", "state");
      write(state + "/config.json", "{}");
    }
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  [[nodiscard]] std::vector<std::string> told() const {
    const Divergence found = compare_states(run_, reference_).value();
    EXPECT_EQ(found.count, found.told.size());
    return found.told;
  }
  TemporaryDirectory directory_ = TemporaryDirectory::create("").value();
  const std::string run_ = directory_.path() + "/run";
  const std::string reference_ = directory_.path() + "/reference";
};

TEST_F(States, EqualFilesAndOthers) {
  EXPECT_EQ(compare_states(run_, reference_).value().compared, 3U);
  EXPECT_THAT(told(), IsEmpty());
  std::string model(100'000, 'm');
  model[70'000] = 'n';
  write(run_ + "/model.safetensors", model);
  write(run_ + "/optimizer/state.safetensors", "stat");
  EXPECT_THAT(told(), ElementsAre("model.safetensors differs from byte 70000 on",
                                  "optimizer/state.safetensors ends after 4 bytes, too early"));
  write(run_ + "/model.safetensors", std::string(100'000, 'm'));
  write(run_ + "/optimizer/state.safetensors", "states");
  EXPECT_THAT(told(), ElementsAre("optimizer/state.safetensors does not end after 5 bytes"));
}

TEST_F(States, FilesThatOnlyOneHas) {
  write(reference_ + "/optimizer/more", "");
  std::filesystem::remove(reference_ + "/config.json");
  EXPECT_THAT(told(), ElementsAre("config.json was saved only by the run with kills",
                                  "optimizer/more was saved only by the run without kills"));
}

TEST_F(States, WhatIsNoState) {
  std::filesystem::remove(reference_ + "/model.safetensors");
  const auto found = compare_states(run_, reference_);
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(found.error().message(), HasSubstr("reference has no model.safetensors"));
  EXPECT_FALSE(compare_states(directory_.path() + "/nowhere", reference_).has_value());
}

KillResult two_kills() {
  KillResult result;
  result.kills = {{.rank = 0,
                   .step = 5,
                   .phase = "forward",
                   .resumed_step = 5,
                   .from = "peers",
                   .bytes = 1024,
                   .lost_seconds = 0.001,
                   .recovered_seconds = 0.020,
                   .resumed_seconds = 0.030},
                  {.rank = 2,
                   .step = 9,
                   .phase = "update",
                   .resumed_step = 10,
                   .from = "peers",
                   .bytes = 3072,
                   .lost_seconds = 0.003,
                   .recovered_seconds = 0.040,
                   .resumed_seconds = 0.050}};
  result.steps = 12;
  result.step_seconds = {0.010};
  result.restart_seconds = {0.080};
  result.steps_diverged.compared = 12;
  result.files_diverged.compared = 3;
  return result;
}

TEST(KillReport, Distributions) {
  const KillResult result = two_kills();
  EXPECT_TRUE(result.passed());
  EXPECT_EQ(complaint_of(result), "");
  const nlohmann::json report = to_json(result);
  EXPECT_EQ(report["passed"], true);
  EXPECT_EQ(report["kills"], 2);
  EXPECT_DOUBLE_EQ(report["lost_ms"]["median"], 2);
  EXPECT_DOUBLE_EQ(report["recovered_ms"]["max"], 40);
  EXPECT_DOUBLE_EQ(report["resumed_ms"]["p99"], 49.8);
  EXPECT_EQ(report["bytes"]["median"], 2048);
  EXPECT_EQ(report["by_phase"]["update"]["kills"], 1);
  EXPECT_DOUBLE_EQ(report["by_phase"]["forward"]["resumed_ms"]["median"], 30);
  EXPECT_EQ(report["by_rank"], nlohmann::json({1, 0, 1, 0}));
  EXPECT_EQ(report["by_source"], nlohmann::json({{"peers", 2}}));
  EXPECT_EQ(report["by_steps_run_again"], nlohmann::json({{"0", 1}, {"1", 1}}));
  EXPECT_DOUBLE_EQ(report["resumed_by_restart"], 0.5);
  EXPECT_DOUBLE_EQ(report["resumed_by_step"], 4);
  EXPECT_EQ(report["each"].size(), 2U);
  EXPECT_THAT(to_text(result), HasSubstr("costs 0.50 of a start from a checkpoint, or 4.0 steps"));
  EXPECT_THAT(to_text(result), HasSubstr("0 of 12 steps told, 0 of 3 files saved"));
}

TEST(KillReport, WhatDivergedIsToldAndFails) {
  KillResult result = two_kills();
  result.steps_diverged.add("step 7 was never told");
  EXPECT_FALSE(result.passed());
  EXPECT_THAT(
      complaint_of(result),
      HasSubstr("steps told otherwise than by the run without kills: 1 of 12, the first:\n"));
  EXPECT_THAT(complaint_of(result), HasSubstr("  step 7 was never told\n"));
  result = two_kills();
  result.files_diverged.add("model.safetensors differs from byte 9 on");
  EXPECT_FALSE(result.passed());
  EXPECT_THAT(complaint_of(result), HasSubstr("  model.safetensors differs from byte 9 on\n"));
  EXPECT_EQ(to_json(result)["saved_files"]["diverged"], 1);
}

TEST(KillReport, StepsRunAgainAreToldAndFail) {
  KillResult result = two_kills();
  result.kills[1].from = "checkpoint";
  result.kills[1].resumed_step = 3;
  EXPECT_FALSE(result.passed());
  EXPECT_EQ(
      complaint_of(result),
      "kill 2, of rank 2 in step 9 (update): all went on at step 3, from checkpoint; expected "
      "at most one step to be run again, from peers\n");
}

TEST(KillRun, RefusesWhatItCannotRun) {
  const auto interrupt = Interrupt::create().value();
  const auto refused = [&](const KillOptions& bad, const std::string& why) {
    const auto result = run_kills(bad, interrupt, {});
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidInput);
    EXPECT_THAT(result.error().message(), HasSubstr(why));
  };
  refused({.kills = 0}, "0 kills");
  refused({.kills = kKillsMax + 1}, "100001 kills");
  refused({.between = 0}, "0 steps between");
  refused({.between = kKillBetweenMax + 1}, "1001 steps between");
  refused({.sizes = {.pp = 0, .vpp = 2, .ep = 1, .dp = 2}}, "pp 0 times dp 2: expected 1 to 64");
  refused({.sizes = {.pp = 33, .vpp = 2, .ep = 1, .dp = 2}}, "pp 33 times dp 2");
  refused({.sizes = {.pp = 2, .vpp = 2, .ep = 1, .dp = 1}}, "dp 1 with ep 1: nobody else has");
  refused({.sizes = {.pp = 2, .vpp = 2, .ep = 2, .dp = 2}}, "at least two times ep");
  refused({.sizes = {.pp = 2, .vpp = 2, .ep = 3, .dp = 4}}, "ep 3 does not divide dp 4");
  EXPECT_TRUE(check_kill_options({}).has_value());
  EXPECT_TRUE(check_kill_options({.sizes = {.pp = 1, .vpp = 2, .ep = 2, .dp = 4}}).has_value());
}

// Starts a child process that prints these lines and then waits.
Result<std::unique_ptr<TrainerProcess>> saying(const TemporaryDirectory& directory,
                                               const std::string& lines) {
  return TrainerProcess::start({.command = {"/bin/sh", "-c", "echo '" + lines + "'; read line"},
                                .environment = {},
                                .log_file = directory.path() + "/child.log"},
                               1);
}

TEST(TrainerProcess, OnlyItsOwnProcessesAreKilled) {
  const auto interrupt = Interrupt::create().value();
  const auto directory = TemporaryDirectory::create("").value();
  const auto deadline = now() + std::chrono::minutes(1);
  const auto child =
      saying(directory, fmt::format(R"({{"event":"ranks","pids":[{}],"generation":0}})"
                                    "\n{}",
                                    ::getpid(), step_line(1)))
          .value();
  ASSERT_TRUE(child->take_event(interrupt, deadline).value());
  ASSERT_TRUE(child->take_event(interrupt, deadline).value());
  EXPECT_FALSE(child->take_event(interrupt, TimePoint{}).value());
  const Result<> killed = child->kill_rank(0);
  ASSERT_FALSE(killed.has_value());
  EXPECT_EQ(killed.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(killed.error().message(), HasSubstr("no process of the trainer's any more"));
  EXPECT_TRUE(child->log().is_ready());
}

TEST(TrainerProcess, ARunThatDoesNotStopInOrderIsRefused) {
  const auto interrupt = Interrupt::create().value();
  const auto directory = TemporaryDirectory::create("").value();
  const auto child = saying(directory, step_line(1)).value();
  ASSERT_TRUE(child->take_event(interrupt, now() + std::chrono::minutes(1)).value());
  const Result<> ended = child->end(interrupt);
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().code(), ErrorCode::kRefused);
  EXPECT_THAT(ended.error().message(), HasSubstr("ended with 143, expected 130"));
}

}  // namespace
}  // namespace wsync::soak
