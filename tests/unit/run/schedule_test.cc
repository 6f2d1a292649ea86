#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/run_command.h"
#include "trainer_side/run/train_command.h"

namespace wsync::cli {
namespace {

using nlohmann::json;
using test::run_command;
using test::TemporaryDirectory;

json result_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "schedule");
  arguments.push_back("--json");
  const auto run = run_command(training_program(), arguments);
  EXPECT_EQ(run.exit_code, kExitOk) << run.out;
  return json::parse(run.out).at("result");
}

TEST(ScheduleCommand, ShowsActionsAndGrid) {
  const auto run = run_command(training_program(), {"schedule", "show", "--pp", "4", "--vpp", "2",
                                                    "--microbatches", "8", "--format", "actions"});
  EXPECT_EQ(run.exit_code, kExitOk);
  EXPECT_EQ(run.out.substr(0, run.out.find('\n')),
            "PP0: 0F0,0F1,0F2,0F3,4F0,4F1,4F2,4F3,0F4,0F5,0F6,(0F7;4B0),(4F4;4B1),(4F5;4B2),"
            "(4F6;4B3),(4F7;0B0),0B1,0B2,0B3,4B4,4B5,4B6,4B7,0B4,0B5,0B6,0B7");
  const json result = result_of({"show"});
  EXPECT_EQ(result.at("slots"), 27);
  EXPECT_EQ(result.at("grid").size(), 27U);
  EXPECT_EQ(result.at("grid")[8], (json{"0F4", "5F3", "6F2", "(7F1;7B0)"}));
  EXPECT_EQ(result.at("grid")[0], (json{"0F0", nullptr, nullptr, nullptr}));
  EXPECT_EQ(result.at("actions")[3][5], "(7F1;7B0)");
  EXPECT_NE(run_command(training_program(), {"schedule", "show", "--format", "grid"})
                .out.find("   8  0F4        5F3        6F2        (7F1;7B0)\n"),
            std::string::npos);
}

TEST(ScheduleCommand, SimulatesWithCostsOfCells) {
  const json result = result_of({"simulate", "--pp", "4", "--vpp", "2", "--microbatches", "8",
                                 "--forward", "1", "--backward", "2", "--pair", "2.4"});
  EXPECT_DOUBLE_EQ(result.at("makespan"), 4 * 2 * 3 + (8 * 2 - 4 - 1) * 2.4);
  EXPECT_DOUBLE_EQ(result.at("pair"), 2.4);
  EXPECT_EQ(result.at("warmup"), (json{11, 9, 7, 5}));
  EXPECT_EQ(result.at("peak_activations"), (json{12, 10, 8, 6}));
  EXPECT_EQ(result.at("device_activations"), (json{4, 4, 4, 4}));
  EXPECT_EQ(result.at("host_activations"), (json{10, 8, 6, 4}));
  const json plain = result_of({"simulate", "--no-overlap", "--forward", "1", "--backward", "2"});
  EXPECT_DOUBLE_EQ(plain.at("makespan"), (8 * 2 + 3) * 3);
  EXPECT_NEAR(plain.at("bubble_ratio"), 3.0 / 16, 1e-9);
  EXPECT_TRUE(plain.at("pair").is_null());
}

TEST(ScheduleCommand, SimulatesWithCostsOfLanes) {
  const json result = result_of({"simulate", "--attn-forward", "3", "--mlp-forward", "5",
                                 "--attn-backward", "4", "--mlp-backward", "7", "--wgrad", "6",
                                 "--dispatch", "6", "--combine", "3.5", "--pp-transfer", "2"});
  EXPECT_DOUBLE_EQ(result.at("pair"), 3.5 + 7 + 6 + 4 + 6);
  EXPECT_GT(result.at("exposed"), 0);
}

TEST(ScheduleCommand, ComparesAllOrders) {
  const json orders = result_of({"compare", "--pp", "4", "--microbatches", "8"}).at("orders");
  ASSERT_EQ(orders.size(), 6U);
  EXPECT_EQ(orders[5].at("order"), "dualpipe");
  EXPECT_DOUBLE_EQ(orders[5].at("bubble"), (4 / 2 - 1) * (6.0 + 4 - 3 * 2));
  EXPECT_DOUBLE_EQ(orders[2].at("bubble"), 3 * 6.0);  // 1f1b
  EXPECT_DOUBLE_EQ(orders[3].at("bubble"), 3 * 2.0);  // zb-h1: (P-1)(F+B-2W)
}

TEST(ScheduleCommand, ChecksWhatItShows) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/actions";
  std::ofstream(path) << run_command(training_program(), {"schedule", "show", "--delay-wgrad"}).out;
  EXPECT_EQ(run_command(training_program(), {"schedule", "check", path}).out,
            path + ": a valid schedule of 4 ranks, 2 chunks each, 8 micro-batches\n");
  std::ofstream(path) << "PP0: 0F0,0B0\nPP1: 1F0\n";
  const auto wrong = run_command(training_program(), {"schedule", "check", path});
  EXPECT_EQ(wrong.exit_code, kExitFailed);
  EXPECT_EQ(wrong.err, "wsync schedule check: PP1: 1B0 is missing; the list ends after step 0\n");
  std::ofstream(path) << "PP0: 0F0,0Q0\n";
  const auto broken = run_command(training_program(), {"schedule", "check", path});
  EXPECT_EQ(broken.exit_code, kExitBadInput);
  EXPECT_NE(broken.err.find("line 1, column 11: expected F, B, I or W"), std::string::npos)
      << broken.err;
  EXPECT_EQ(run_command(training_program(), {"schedule", "check", path + ".none"}).exit_code,
            kExitBadInput);
  EXPECT_EQ(run_command(training_program(), {"schedule", "check", directory.path()}).exit_code,
            kExitBadInput);
}

TEST(ScheduleCommand, DrawsAndTraces) {
  const TemporaryDirectory directory;
  const std::string svg = directory.path() + "/a.svg";
  const std::string trace = directory.path() + "/a.json";
  for (const char* what : {"show", "simulate"}) {
    EXPECT_EQ(run_command(training_program(), {"schedule", what, "--offload", "--delay-wgrad",
                                               "--svg", svg, "--trace", trace})
                  .exit_code,
              kExitOk);
    std::ifstream file(svg);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    for (const char* label : {"Attn", "MLP", "WGrad", "Offload", "Onload", "PP3"})
      EXPECT_NE(text.find(label), std::string::npos) << what << " " << label;
    std::ifstream events(trace);
    const json read = json::parse(events);
    EXPECT_GT(read.at("traceEvents").size(), 200U);
  }
  EXPECT_EQ(
      run_command(training_program(), {"schedule", "show", "--svg", directory.path() + "/no/a.svg"})
          .exit_code,
      kExitBadInput);
}

TEST(ScheduleCommand, BadInputSaysWhy) {
  const auto why = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "schedule");
    const auto run = run_command(training_program(), arguments);
    EXPECT_EQ(run.exit_code, kExitBadInput);
    return run.err;
  };
  EXPECT_NE(why({"show", "--extra-warmup", "0"}).find("PP3, step 4: the pair (7F0;7B0) is a cycle"),
            std::string::npos);
  EXPECT_NE(why({"show", "--vpp", "1"}).find("turn overlap off"), std::string::npos);
  EXPECT_NE(why({"show", "--order", "1f1d"}).find("--order: no order '1f1d'; there are"),
            std::string::npos);
  EXPECT_NE(why({"show", "--pp", "0"}).find("expected 1 to"), std::string::npos);
  EXPECT_NE(why({"simulate", "--forward", "1", "--mlp-forward", "1"}).find("not for both"),
            std::string::npos);
  EXPECT_NE(why({"simulate", "--pair", "9"}).find("a pair of 9 is not between"), std::string::npos);
  EXPECT_NE(why({"simulate", "--dispatch", "-1"}).find("--dispatch: expected a time of 0 or more"),
            std::string::npos);
  EXPECT_NE(why({"simulate", "--forward", "nan"}).find("--forward: expected a time"),
            std::string::npos);
}

}  // namespace
}  // namespace wsync::cli
