// Parts of `wsync demo` that need no fleet; tests/scenario/demo_test.py runs the whole.
#include "deploy/demo/demo.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "deploy/cli/commands.h"
#include "deploy/demo/copy_floor.h"
#include "deploy/demo/train_report.h"
#include "deploy/demo/training_picture.h"
#include "shared/observe/trace/text_file.h"
#include "shared/observe/trace/timeline.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

using test::run_command;
using test::TemporaryDirectory;

const std::atomic<bool> kGoOn = false;

TEST(CopyFloor, IsTheMedianOfAllRounds) {
  CopyFloor floor;
  EXPECT_EQ(floor.bytes_per_s(), 0);
  using std::chrono::seconds;
  floor.add({.bytes = 100, .copiers = 2, .rounds = {seconds(1), seconds(4), seconds(2)}});
  EXPECT_DOUBLE_EQ(floor.bytes_per_s(), 100);
  floor.add({.bytes = 100, .copiers = 2, .rounds = {seconds(1)}});
  EXPECT_DOUBLE_EQ(floor.bytes_per_s(), 150);
  EXPECT_DOUBLE_EQ(floor.slowest(), 50);
  EXPECT_DOUBLE_EQ(floor.fastest(), 200);
}

TEST(CopyFloor, CopiesAsOftenAsAskedAndStopsWhenTold) {
  const auto measured = measure_copy_floor(1ULL << 20U, 3, 2, kGoOn);
  ASSERT_TRUE(measured) << measured.error().message();
  EXPECT_EQ(measured->rounds.size(), 2U);
  EXPECT_EQ(measured->copiers, 3U);
  EXPECT_EQ(measured->bytes, 1ULL << 20U);
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(measure_copy_floor(1ULL << 20U, 2, 2, cancelled).error().code(), ErrorCode::kCancelled);
}

TEST(DemoTrace, ReadsBackWhatASidecarHasWritten) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/t.json";
  const trace::Span broadcast{.name = "broadcast of bucket 1",
                              .lane = "IPC 1",
                              .category = trace::Category::kBroadcast,
                              .begin = TimePoint{5'000'001},
                              .end = TimePoint{7'000'003},
                              .label = "3",
                              .args = {{.name = "source", .value = std::int64_t{3}}}};
  const trace::Span pause{.name = "paused for 1.2",
                          .lane = "replica r0",
                          .category = trace::Category::kPause,
                          .begin = TimePoint{4'000'000},
                          .end = TimePoint{8'000'000},
                          .label = {},
                          .args = {}};
  ASSERT_TRUE(trace::write_chrome_trace(
      path, {{.name = "sidecar s", .pid = 7, .spans = {pause, broadcast}}}));
  const auto processes = read_traces(directory.path(), {"t"});
  ASSERT_TRUE(processes) << processes.error().message();
  ASSERT_EQ(processes->size(), 1U);
  const trace::ProcessTrace* read = &processes->front();
  EXPECT_EQ(read->name, "sidecar s");
  EXPECT_EQ(read->pid, 7U);
  ASSERT_EQ(read->spans.size(), 2U);
  EXPECT_EQ(read->spans[0].category, trace::Category::kPause);
  EXPECT_EQ(read->spans[0].end, pause.end);
  EXPECT_EQ(read->spans[1].name, broadcast.name);
  EXPECT_EQ(read->spans[1].lane, broadcast.lane);
  EXPECT_EQ(read->spans[1].begin, broadcast.begin);
  EXPECT_EQ(read->spans[1].end, broadcast.end);
  EXPECT_EQ(read->spans[1].label, "3");
  EXPECT_FALSE(read_traces(directory.path(), {"t", "none"}));
  ASSERT_TRUE(trace::write_text_file(path, "{}"));
  EXPECT_FALSE(read_traces(directory.path(), {"t"}));
}

trace::Span span(std::string name, std::string lane, trace::Category category, std::int64_t begin,
                 std::int64_t end) {
  return {.name = std::move(name),
          .lane = std::move(lane),
          .category = category,
          .begin = TimePoint{begin},
          .end = TimePoint{end},
          .label = {},
          .args = {}};
}

trace::ProcessTrace rank_trace(std::uint32_t rank, std::int64_t steps) {
  trace::ProcessTrace process{
      .name = "trainer rank " + std::to_string(rank), .pid = rank + 1, .spans = {}};
  for (std::int64_t step = 1; step <= steps; ++step) {
    const std::int64_t begin = step * 1'000'000;
    process.spans.push_back(
        span("attention 0F0", "computation", trace::Category::kForward, begin, begin + 400'000));
    process.spans.push_back(span("step " + std::to_string(step), "steps", trace::Category::kStep,
                                 begin, begin + 900'000));
    process.spans.push_back(span("update of step " + std::to_string(step), "update",
                                 trace::Category::kStep, begin + 800'000, begin + 900'000));
  }
  return process;
}

trace::ProcessTrace sidecar_trace() {
  return {
      .name = "sidecar host0",
      .pid = 99,
      .spans = {span("staging of 1.2", "staging", trace::Category::kStage, 3'100'000, 3'200'000),
                span("reload of bucket 0", "engine host0-0", trace::Category::kReload, 3'310'000,
                     3'320'000),
                span("paused for 1.2", "replica host0-0", trace::Category::kPause, 3'300'000,
                     5'400'000)}};
}

TEST(DemoTrace, ReadsEveryProcessOfAFileWithItsOwnLanes) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/t.json";
  ASSERT_TRUE(trace::write_chrome_trace(path, {rank_trace(0, 2), sidecar_trace()}));
  const auto read = read_traces(directory.path(), {"t"});
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_EQ(read->size(), 2U);
  EXPECT_EQ((*read)[0].name, "trainer rank 0");
  ASSERT_EQ((*read)[0].spans.size(), 6U);
  // By their begin, the longer one first.
  EXPECT_EQ((*read)[0].spans[0].lane, "steps");
  EXPECT_EQ((*read)[0].spans[0].category, trace::Category::kStep);
  EXPECT_EQ((*read)[0].spans[1].lane, "computation");
  EXPECT_EQ((*read)[0].spans[1].category, trace::Category::kForward);
  EXPECT_EQ((*read)[1].pid, 99U);
  EXPECT_EQ((*read)[1].spans[0].lane, "staging");
  ASSERT_TRUE(trace::write_text_file(
      path, R"({"traceEvents":[{"ph":"X","name":"a","cat":"h2d","pid":1,"tid":7,"ts":1,"dur":1,)"
            R"("args":{}}]})"));
  const auto unnamed = read_traces(directory.path(), {"t"});
  ASSERT_TRUE(unnamed) << unnamed.error().message();
  EXPECT_EQ((*unnamed)[0].spans[0].lane, "thread 7");
}

TEST(TrainingPicture, ShowsTheTwoStepsBeforeTheLast) {
  const auto range = pictured_steps(rank_trace(0, 8));
  ASSERT_TRUE(range) << range.error().message();
  EXPECT_EQ(range->begin, TimePoint{6'000'000});
  EXPECT_EQ(range->end, TimePoint{8'000'000});
  EXPECT_TRUE(pictured_steps(rank_trace(0, 3)));
  EXPECT_EQ(pictured_steps(rank_trace(0, 2)).error().code(), ErrorCode::kNotFound);
}

TEST(TrainingPicture, HasAGroupForTheRunEachRankAndTheSidecar) {
  const trace::ProcessTrace coordinator{
      .name = "coordinator",
      .pid = 50,
      .spans = {
          span("snapshot of 1.2", "snapshot", trace::Category::kStage, 2'950'000, 3'050'000)}};
  const auto groups =
      training_groups({rank_trace(0, 4), rank_trace(1, 4), coordinator, sidecar_trace()});
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[0].lanes, (std::vector<std::string>{"steps", "snapshot"}));
  EXPECT_EQ(groups[0].spans.front().label, "step 1");
  EXPECT_EQ(groups[0].spans.back().label, "1.2");
  EXPECT_EQ(groups[2].title, "trainer rank 1");
  EXPECT_EQ(groups[2].lanes, (std::vector<std::string>{"computation", "communication", "copy"}));
  EXPECT_EQ(groups[3].title, "sidecar host0");
  EXPECT_EQ(groups[3].lanes, (std::vector<std::string>{"staging", "engine host0-0"}));
  EXPECT_EQ(groups[3].spans.front().category, trace::Category::kPause) << "below what it reloads";
  EXPECT_EQ(groups[3].spans.front().lane, "engine host0-0");
  EXPECT_EQ(groups[3].spans.front().label, "2.1 ms");

  const TemporaryDirectory directory;
  EXPECT_TRUE(
      write_training_picture(directory.path() + "/t.svg", {rank_trace(0, 4), sidecar_trace()}, {}));
  EXPECT_EQ(
      write_training_picture(directory.path() + "/t.svg", {sidecar_trace()}, {}).error().code(),
      ErrorCode::kNotFound);
}

nlohmann::json trained(std::uint64_t steps) {
  nlohmann::json result = {{"steps", nlohmann::json::array()},
                           {"publishes", nlohmann::json::array()}};
  for (std::uint64_t step = 1; step <= steps; ++step) {
    result["steps"].push_back({{"step", step},
                               {"loss", 5.0 / static_cast<double>(step)},
                               {"seconds", 0.1},
                               {"snapshot_wait_seconds", 0.001}});
    result["publishes"].push_back({{"step", step},
                                   {"state", step == 3 ? "superseded" : "committed"},
                                   {"version", "1." + std::to_string(step)},
                                   {"content_digest", "d" + std::to_string(step)},
                                   {"staged_seconds", 0.001 * static_cast<double>(step)},
                                   {"paused_seconds", step == 2 ? 0.5 : 0.002}});
  }
  return result;
}

TEST(TrainDemo, PutsStepsAndTheirPublishesTogether) {
  auto result = trained(5);
  result["publishes"].erase(4);
  const auto steps = trained_steps(result);
  ASSERT_TRUE(steps) << steps.error().message();
  TrainReport report;
  report.steps = *steps;
  ASSERT_EQ(report.steps.size(), 5U);
  EXPECT_EQ(report.steps[1].version, "1.2");
  EXPECT_EQ(report.steps[1].content_digest, "d2");
  EXPECT_EQ(report.steps[4].state, "") << "it was never published";
  EXPECT_EQ(report.committed(), 3U);
  EXPECT_DOUBLE_EQ(report.paused_seconds_max(), 0.5);
  EXPECT_DOUBLE_EQ(report.waited_share(), 0.01);
  result["steps"][0].erase("loss");
  EXPECT_EQ(trained_steps(result).error().code(), ErrorCode::kInternal);
  EXPECT_EQ(trained_steps({{"steps", 1}}).error().code(), ErrorCode::kInternal);
}

TEST(TrainDemo, TheTableHasTwelveRowsFromTheFirstStepToTheLast) {
  TrainReport report;
  report.steps = *trained_steps(trained(100));
  report.engines = {{.replica = "a", .steps = 70, .torn = 0, .steps_by_version = {}},
                    {.replica = "b", .steps = 30, .torn = 1, .steps_by_version = {}}};
  const std::string text = train_text(report);
  std::size_t rows = 0;
  for (std::size_t at = 0; (at = text.find("\n ", at)) != std::string::npos; ++at) ++rows;
  EXPECT_EQ(rows, 13U) << "with the head: " << text;
  EXPECT_NE(text.find("1.1 "), std::string::npos);
  EXPECT_NE(text.find("1.100 "), std::string::npos);
  EXPECT_NE(text.find("torn steps: 1 of 100"), std::string::npos) << text;
  EXPECT_NE(train_text({}).find("torn steps: 0 of 0"), std::string::npos) << "no step at all";
  const auto object = train_json(report);
  EXPECT_EQ(object.at("last").at("version"), "1.100");
  EXPECT_EQ(object.at("torn"), 1);
}

TEST(Demo, BadArgumentsChangeNothing) {
  EXPECT_EQ(run_command(service_program(), {"demo", "--train", "--steps", "3"}).exit_code, 2);
  EXPECT_EQ(run_command(service_program(), {"demo", "--train", "--size", "32MiB"}).exit_code, 2);
  EXPECT_EQ(run_command(service_program(), {"demo", "--train", "--checkpoint", "/"}).exit_code, 2);
  EXPECT_EQ(run_command(service_program(), {"demo", "--train", "--devices", "2"}).exit_code, 2);
  EXPECT_EQ(run_command(service_program(), {"demo", "--steps", "20"}).exit_code, 2);
  EXPECT_EQ(run_command(service_program(), {"demo", "--size", "1MiB"}).exit_code, 2);
  EXPECT_EQ(run_command(service_program(), {"demo", "--engines", "1"}).exit_code, 2);
  EXPECT_EQ(run_command(service_program(), {"demo", "--checkpoint", "/nowhere"}).exit_code, 2);
  const auto both =
      run_command(service_program(), {"demo", "--checkpoint", "/", "--size", "32MiB", "--json"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_EQ(nlohmann::json::parse(both.out).at("error").at("code"), "invalid_input");
}

}  // namespace
}  // namespace wsync::cli
