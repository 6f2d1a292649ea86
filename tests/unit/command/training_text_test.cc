#include "shared/command/training_text.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace wsync::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

json trained(std::uint64_t steps) {
  json result = {{"stopped", false},           {"seconds", 2.5},
                 {"tokens_per_second", 640.0}, {"steps", json::array()},
                 {"rollouts", json::array()},  {"publishes", json::array()},
                 {"losses", json::array()},    {"recoveries", json::array()}};
  for (std::uint64_t step = 1; step <= steps; ++step)
    result["steps"].push_back({{"step", step},
                               {"loss", 5.0 / static_cast<double>(step)},
                               {"gradient_norm", 0.5},
                               {"learning_rate", 0.001},
                               {"seconds", 0.25}});
  return result;
}

json publish(std::uint64_t step, const char* state) {
  return {{"step", step},
          {"state", state},
          {"version", "1." + std::to_string(step)},
          {"staged_seconds", 0.003},
          {"paused_seconds", 0.002}};
}

TEST(TrainingText, TheTableHasTwelveRowsFromTheFirstStepToTheLast) {
  const std::string text = training_text(trained(100));
  EXPECT_EQ(std::ranges::count(text, '\n'), 14) << "with the head and a sentence: " << text;
  EXPECT_THAT(text, HasSubstr("\n       1    5.0000     0.500   1.00e-03      0.250\n"));
  EXPECT_THAT(text, HasSubstr("\n     100    0.0500 "));
  EXPECT_THAT(text,
              HasSubstr("\ntook 100 steps in 2.5 s: loss 5.0000 to 0.0500, 640 tokens a second\n"));
  EXPECT_THAT(text, Not(HasSubstr("version")));
  EXPECT_EQ(training_text(trained(0)), "stopped before a step was over");
}

TEST(TrainingText, ShowsWhatWasServedAndAnswered) {
  json result = trained(3);
  result["publishes"] = {publish(1, "committed"), publish(2, "superseded")};
  result["publishing"] = {{"published", 2},
                          {"committed", 1},
                          {"bytes_of_version", 2048},
                          {"staged_seconds_median", 0.003},
                          {"paused_seconds_most", 0.002},
                          {"snapshot_wait_seconds_median", 0.001},
                          {"step_ratio", nullptr}};
  result["rollouts"] = {{{"step", 3},
                         {"reward", 0.25},
                         {"staleness_most", 2},
                         {"mismatch_tokens", 0},
                         {"mismatch_most", 0.0},
                         {"drift_most", 0.5}}};
  result["generating"] = {{"steps", 1},
                          {"reward_first", 0.25},
                          {"reward_last", 0.25},
                          {"staleness_most", 2},
                          {"mismatch_most", 0.0}};
  const std::string text = training_text(result);
  EXPECT_THAT(text, HasSubstr("        1.1      0.003       2.00\n"));
  EXPECT_THAT(text, HasSubstr("  superseded\n"));
  EXPECT_THAT(text, HasSubstr("   0.250     2         -   5.0e-01\n")) << "no token was compared";
  EXPECT_THAT(text, HasSubstr("(of the first and the last 1 of 1 steps with answers)"));
  EXPECT_THAT(text, HasSubstr("1 of 2 published steps were served (2.0 KiB each)"));
  result["publishing"].erase("committed");
  EXPECT_THROW((void)training_text(result), json::exception);
}

}  // namespace
}  // namespace wsync::cli
