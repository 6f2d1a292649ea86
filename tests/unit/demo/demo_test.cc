// Parts of `wsync demo` that need no fleet; tests/scenario/demo_test.py runs the whole.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "deploy/cli/commands.h"
#include "deploy/demo/copy_floor.h"
#include "deploy/demo/training_picture.h"
#include "deploy/demo/training_scenario.h"
#include "shared/observe/trace/timeline.h"
#include "tests/support/run_command.h"

namespace wsync::cli {
namespace {

using test::run_command;
using test::TemporaryDirectory;

TEST(CopyFloor, MeasuresAsOftenAsAskedAndStopsWhenTold) {
  CopyFloor floor;
  EXPECT_EQ(floor.bytes_per_s().median, 0);
  for (int measurement = 0; measurement < 2; ++measurement) {
    const auto measured = floor.measure(1ULL << 20U, 3, 2, false);
    ASSERT_TRUE(measured) << measured.error().message();
  }
  EXPECT_EQ(floor.bytes_per_s().count, 4U);
  EXPECT_GT(floor.bytes_per_s().min, 0);
  EXPECT_EQ(floor.copied_bytes(), 1ULL << 20U);
  EXPECT_EQ(floor.measure(1ULL << 20U, 2, 2, true).error().code(), ErrorCode::kCancelled);
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

TEST(StepValues, AreOfWhatEnginesServedFromTheFirstStepOn) {
  const nlohmann::json result = {
      {"publishes",
       {{{"step", 1}, {"state", "committed"}, {"paused_seconds", 0.5}},
        {{"step", 2}, {"state", "superseded"}, {"paused_seconds", 0.0}},
        {{"step", 3}, {"state", "committed"}, {"paused_seconds", 0.25}}}},
      {"rollouts", nlohmann::json::array()}};
  EXPECT_EQ(step_values(result, "publishes", "paused_seconds"), (StepValues{{1, 0.5}, {3, 0.25}}));
  EXPECT_EQ(step_values(result, "publishes", "paused_seconds", 2), (StepValues{{3, 0.25}}));
  EXPECT_DOUBLE_EQ(sum_of(step_values(result, "publishes", "paused_seconds")), 0.75);
  EXPECT_EQ(sum_of(step_values(result, "rollouts", "reward")), 0);
  EXPECT_THROW((void)step_values(result, "publishes", "reward"), nlohmann::json::exception);
  EXPECT_THROW((void)step_values(result, "steps", "loss"), nlohmann::json::exception);
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
