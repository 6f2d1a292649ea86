// What is made of the rounds of a benchmark: spreads, targets, and how a child process ends.
#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <gtest/gtest.h>
#include <numeric>

#include "bench/harness/child.h"
#include "bench/harness/machine.h"
#include "bench/harness/median_interval.h"
#include "bench/harness/scrape.h"
#include "bench/harness/spread.h"
#include "bench/overhead/report.h"
#include "bench/publishers/report.h"
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

TEST(MedianInterval, IsThatOfTheTables) {
  // Thompson's ranks for 0.95: 2 and 9 of 10 (0.9785), 10 and 21 of 30 (0.9572), 1 and 6 of 6.
  std::vector<double> sample(30);
  std::iota(sample.rbegin(), sample.rend(), 1.0);
  const auto thirty = median_interval(sample);
  ASSERT_TRUE(thirty);
  EXPECT_EQ(thirty->low, 10);
  EXPECT_EQ(thirty->high, 21);
  EXPECT_NEAR(thirty->confidence, 0.9572, 1e-4);
  const auto ten = median_interval(std::span(sample).last(10));
  ASSERT_TRUE(ten);
  EXPECT_EQ(ten->low, 2);
  EXPECT_EQ(ten->high, 9);
  EXPECT_NEAR(ten->confidence, 0.9785, 1e-4);
  EXPECT_NEAR(median_interval(std::span(sample).first(6))->confidence, 0.96875, 1e-12);
  EXPECT_FALSE(median_interval(std::span(sample).first(5)));
  EXPECT_FALSE(median_interval({}));
  std::vector<double> many(10'000);
  std::iota(many.begin(), many.end(), 0.0);
  const auto wide = median_interval(many);
  ASSERT_TRUE(wide);
  EXPECT_NEAR(wide->confidence, 0.95, 0.01);
  EXPECT_NEAR(wide->high - wide->low, 196, 4);  // 1.96 standard deviations of 50 to each side
}

TEST(MetricValue, IsThatOfTheSeriesAndOfNoOther) {
  const std::string page =
      "HTTP/1.1 200 OK\r\n\r\n# HELP a_total x\na_total{stage=\"load\"} 1.5e+09\na_total_more 3\nb "
      "0\n";
  EXPECT_EQ(metric_value(page, "a_total{stage=\"load\"}"), 1.5e9);
  EXPECT_EQ(metric_value(page, "b"), 0);
  EXPECT_EQ(metric_value(page, "a_total"), std::nullopt);
  EXPECT_EQ(metric_value(page, "total_more"), std::nullopt);
  EXPECT_EQ(metric_value("\nb none\n", "b"), std::nullopt);
}

OverheadBenchResult overhead_of(std::size_t rounds, double asked_percent) {
  OverheadBenchResult result{.bytes = 1 << 20};
  for (std::size_t i = 0; i < rounds; ++i) {
    // A machine that becomes slower from round to round: pairs do not care.
    const auto kept = std::chrono::microseconds(100'000 + 10'000 * i);
    const auto asked = std::chrono::nanoseconds(std::llround(
        static_cast<double>(std::chrono::nanoseconds(kept).count()) * (1 + asked_percent / 100)));
    OverheadRound round{.spans = 5, .making = std::chrono::microseconds(10)};
    round.updates = {WatchedUpdate{.cpu = kept, .command_cpu = std::chrono::milliseconds(1)},
                     WatchedUpdate{.cpu = kept, .command_cpu = std::chrono::milliseconds(1)},
                     WatchedUpdate{.cpu = asked, .command_cpu = std::chrono::milliseconds(2)}};
    result.rounds.push_back(round);
  }
  return result;
}

TEST(OverheadBench, IsMetMissedOrOpenByItsInterval) {
  const auto verdict = [](const OverheadBenchResult& result) {
    return result.overhead(Watching::kAsked, Watching::kKept).verdict();
  };
  EXPECT_EQ(verdict(overhead_of(30, 0.9)), OverheadVerdict::kMet);
  EXPECT_EQ(verdict(overhead_of(30, 1.1)), OverheadVerdict::kMissed);
  EXPECT_EQ(verdict(overhead_of(5, 0.1)), OverheadVerdict::kOpen) << "five pairs have no interval";
  OverheadBenchResult mixed = overhead_of(15, 0.1);
  for (const OverheadRound& round : overhead_of(15, 2).rounds) mixed.rounds.push_back(round);
  EXPECT_EQ(verdict(mixed), OverheadVerdict::kOpen);
}

TEST(OverheadBench, TellsPairsAndTheTarget) {
  const OverheadBenchResult result = overhead_of(30, 0.5);
  const Overhead overhead = result.overhead(Watching::kAsked, Watching::kKept);
  EXPECT_NEAR(overhead.percent.median, 0.5, 1e-4);
  EXPECT_NEAR(overhead.percent.max, 0.5, 1e-4) << "as little as the rounds differ";
  const nlohmann::json json = to_json(result);
  EXPECT_EQ(json.at("overheads")[0].at("verdict"), "met");
  EXPECT_FALSE(json.at("overheads")[1].contains("verdict"));
  EXPECT_EQ(json.at("rounds").size(), 30U);
  EXPECT_NE(to_text(result).find("at most 1 %: met"), std::string::npos);
  EXPECT_EQ(to_text(result).find("are too few for a reliable figure"), std::string::npos);
  EXPECT_NE(to_text(overhead_of(29, 0.5))
                .find("29 rounds are too few for a reliable figure; run at least 30"),
            std::string::npos);
  const SuiteResult suite = to_suite(result);
  ASSERT_EQ(suite.cases.size(), 4U);
  EXPECT_EQ(suite.cases[0].name, "scraped and traced");
  EXPECT_TRUE(suite.cases[0].met());
  EXPECT_FALSE(to_suite(overhead_of(30, 1.5)).cases[0].met());
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

TEST(SyncReport, CopiesOfAByteAreToldAndAdded) {
  SyncBenchResult result{.cases = {copying_case(0.97)}};
  result.cases[0].copies = {.snapshot = 1, .sent = 1.5, .received = 1, .loaded = 0.5};
  result.cases[0].rounds[0].copies = result.cases[0].copies;
  result.cases[0].expected_bytes = 1;
  const nlohmann::json json = to_json(result);
  EXPECT_EQ(json.at("cases")[0].at("copies_per_byte").at("all"), 4);
  EXPECT_EQ(json.at("cases")[0].at("rounds")[0].at("copies_per_byte").at("sent"), 1.5);
  EXPECT_NE(to_text(result).find("1.00 into the snapshot, 1.50 sent"), std::string::npos);
  const SuiteResult suite = to_suite(result);
  const auto copies = std::ranges::find(suite.cases, "copies, 1 engine", &CaseResult::name);
  ASSERT_NE(copies, suite.cases.end());
  EXPECT_EQ(copies->samples, std::vector<double>{4});
}

TEST(PublishersReport, PythonIsComparedWithCInTheSameRound) {
  PublishersBenchResult result{.bytes = 100, .tensors = 1, .largest_tensor_bytes = 100};
  result.rows = {{.kind = "c", .rounds = {}}, {.kind = "torch", .rounds = {}}};
  for (const std::uint64_t ns : {1000U, 2000U, 4000U}) {
    PublishSample sample{.snapshot_ns = ns, .whole_ns = 2 * ns, .copied_bytes = 100, .bytes = 100};
    result.rows[0].rounds.push_back(sample);
    sample.snapshot_ns = ns + ns / 25;
    result.rows[1].rounds.push_back(sample);
  }
  EXPECT_TRUE(result.met(result.rows[1]));
  const auto report = to_json(result);
  EXPECT_EQ(report.at("targets_met"), true);
  EXPECT_FALSE(report.at("publishers")[0].contains("ratio"));
  const auto& torch = report.at("publishers")[1];
  EXPECT_DOUBLE_EQ(torch.at("ratio").at("snapshot_ns").at("median"), 1.04);
  EXPECT_DOUBLE_EQ(torch.at("ratio").at("whole_ns").at("max"), 1.0);
  EXPECT_DOUBLE_EQ(torch.at("copies_per_byte").at("median"), 1.0);
  EXPECT_NE(to_text(result).find("torch     1.040 (1.040-1.040)"), std::string::npos)
      << to_text(result);
  // In the form of all suites the ratio is the share of the baseline's speed.
  const SuiteResult suite = to_suite(result);
  const auto publish = std::ranges::find(suite.cases, "publish, torch", &CaseResult::name);
  ASSERT_NE(publish, suite.cases.end());
  EXPECT_DOUBLE_EQ(publish->ratios.front(), 1 / 1.04);
  EXPECT_TRUE(publish->met());
  // One round in which Python is slow does not decide; two of three do.
  result.rows[1].rounds[0].snapshot_ns = 5000;
  EXPECT_TRUE(result.met(result.rows[1]));
  result.rows[1].rounds[1].snapshot_ns = 5000;
  EXPECT_FALSE(result.met(result.rows[1]));
  EXPECT_FALSE(to_suite(result).cases[4].met());
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
  EXPECT_GT(end->cpu.count(), 0);
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
