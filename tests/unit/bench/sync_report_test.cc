// What is made of the rounds of a benchmark: spreads, targets, and how a child process ends.
#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <gtest/gtest.h>

#include "bench/measure/child.h"
#include "bench/measure/machine.h"
#include "bench/measure/spread.h"
#include "bench/sync/report.h"

namespace wsync::bench {
namespace {

TEST(Spread, QuartilesAreInterpolated) {
  EXPECT_EQ(spread_of({}), Spread{});
  const std::array one{7.0};
  EXPECT_EQ(spread_of(one).min, 7.0);
  EXPECT_EQ(spread_of(one).median, 7.0);
  EXPECT_EQ(spread_of(one).max, 7.0);
  const std::array sample{4.0, 1.0, 3.0, 2.0};
  const Spread spread = spread_of(sample);
  EXPECT_EQ(spread.count, 4U);
  EXPECT_DOUBLE_EQ(spread.lower_quartile, 1.75);
  EXPECT_DOUBLE_EQ(spread.median, 2.5);
  EXPECT_DOUBLE_EQ(spread.upper_quartile, 3.25);
  EXPECT_DOUBLE_EQ(spread.p99, 3.97);
  EXPECT_EQ(spread.max, 4.0);
}

SyncCase copying_case(double ratio) {
  SyncCase done;
  done.ratio.median = ratio;
  done.checked_bytes = done.expected_bytes = 100;
  done.pss_bytes = done.pss_limit_bytes = 1;
  done.rounds.push_back({.floor = {.ns = 80, .bytes = 100}, .pushed = {.paused_ns = 100}});
  return done;
}

TEST(SyncReport, ATargetIsMetOrMissed) {
  SyncBenchResult result{.cases = {copying_case(0.951)}};
  EXPECT_TRUE(targets_met(result));
  result.cases.push_back(copying_case(0.949));
  EXPECT_FALSE(targets_met(result));
  result.cases = {copying_case(1)};
  result.cases[0].pss_bytes = 2;
  EXPECT_FALSE(targets_met(result));
  result.cases = {copying_case(1)};
  result.cases[0].checked_bytes = 99;
  EXPECT_FALSE(targets_met(result));
  result.cases = {copying_case(0)};
  result.cases[0].adopt = true;
  result.cases[0].paused_ns.max = 1e6;
  EXPECT_TRUE(targets_met(result));
  result.cases[0].paused_ns.max = 1e6 + 1;
  EXPECT_FALSE(targets_met(result));
}

TEST(SyncReport, OneObjectForEachCaseAndRound) {
  const SyncBenchResult result{.cases = {copying_case(0.97)}};
  const nlohmann::json json = to_json(result);
  EXPECT_EQ(json.at("cases").size(), 1U);
  const nlohmann::json& found = json.at("cases")[0];
  EXPECT_EQ(found.at("ratio").at("median"), 0.97);
  EXPECT_EQ(found.at("rounds")[0].at("ratio"), 0.8);
  EXPECT_NE(to_text(result).find("0.970"), std::string::npos);
}

TEST(Machine, IsDescribed) {
  const Machine machine = this_machine();
  EXPECT_GT(machine.cores, 0U);
  EXPECT_GT(machine.memory_bytes, 0U);
  EXPECT_FALSE(machine.kernel.empty());
}

class ChildTest : public testing::Test {
 protected:
  ChildTest() : log_(testing::TempDir() + "wsync-child-test.log") { std::filesystem::remove(log_); }
  ~ChildTest() override { std::filesystem::remove(log_); }
  [[nodiscard]] Child shell(const std::string& script) {
    return Child::start({.command = {"/bin/sh", "-c", script}, .log_file = log_}).value();
  }
  [[nodiscard]] static TimePoint soon() { return now() + std::chrono::seconds(60); }
  std::string log_;
  Interrupt interrupt_ = Interrupt::create().value();
};

TEST_F(ChildTest, SpeaksByLinesAndEndsWithItsCode) {
  Child child = shell("read word; echo \"got $word\"; echo rest; exit 3");
  ASSERT_TRUE(child.say("one"));
  EXPECT_EQ(child.line(interrupt_, soon()).value(), "got one");
  const auto end = child.wait(interrupt_, soon());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->output, "rest\n");
  EXPECT_EQ(end->exit_code, 3);
}

TEST_F(ChildTest, ItsLastWordsAreQuoted) {
  Child child = shell("echo 'no such thing' >&2");
  const auto line = child.line(interrupt_, soon());
  ASSERT_FALSE(line);
  EXPECT_EQ(line.error().code(), ErrorCode::kPeerLost);
  EXPECT_NE(line.error().message().find("no such thing"), std::string::npos);
}

TEST_F(ChildTest, ADeadlineAndASignalEndAWait) {
  Child child = shell("read word");
  EXPECT_EQ(child.line(interrupt_, now()).error().code(), ErrorCode::kDeadline);
  ::kill(::getpid(), SIGINT);
  EXPECT_EQ(child.line(interrupt_, soon()).error().code(), ErrorCode::kCancelled);
  const pid_t pid = child.pid();
  child.stop(std::chrono::seconds(60));
  EXPECT_NE(::kill(pid, 0), 0);  // reaped
}

}  // namespace
}  // namespace wsync::bench
