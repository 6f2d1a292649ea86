// What counts as a change: known probabilities, made-up samples, and samples of one distribution.
#include "bench/compare/compare.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "bench/compare/holm.h"
#include "bench/compare/rank_sum.h"

namespace wsync::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<double> normal_sample(std::mt19937& random, std::size_t count, double mean) {
  std::normal_distribution<double> distribution(mean, mean / 50);
  std::vector<double> values(count);
  for (double& value : values) value = distribution(random);
  return values;
}

CaseResult case_with(std::vector<double> samples, bool higher_is_better = false) {
  CaseResult result;
  result.name = "paused";
  result.what = "it measures";
  result.unit = higher_is_better ? "GiB/s" : "ms";
  result.higher_is_better = higher_is_better;
  result.samples = std::move(samples);
  return result;
}

ResultFile file_with(std::vector<CaseResult> cases) {
  ResultFile file;
  file.machine = {{"cpu", "a"}};
  file.suites.resize(1);
  file.suites[0].suite = "sync";
  file.suites[0].cases = std::move(cases);
  return file;
}

CaseChange change_between(const CaseResult& a, const CaseResult& b,
                          double factor = kFactorDefault) {
  const auto comparison = compare(file_with({a}), file_with({b}), factor);
  EXPECT_TRUE(comparison) << comparison.error().message();
  return comparison->cases.at(0);
}

double chance_of(std::span<const double> a, std::span<const double> b) {
  return rank_sum_test(a, b).chance;
}

TEST(RankSum, HasTheProbabilitiesOfTheTables) {
  const std::vector<double> low{1, 2, 3, 4, 5};
  const std::vector<double> high{6, 7, 8, 9, 10};
  EXPECT_NEAR(chance_of(low, high), 2.0 / 252, 1e-12);
  EXPECT_NEAR(chance_of(high, low), 2.0 / 252, 1e-12);
  // Of 70 orders of four and four, two have U <= 1.
  const std::vector<double> a{1, 2, 3, 5};
  const std::vector<double> b{4, 6, 7, 8};
  EXPECT_NEAR(chance_of(a, b), 4.0 / 70, 1e-12);
  EXPECT_NEAR(chance_of(std::span(low).first(3), std::span(high).first(4)), 2.0 / 35, 1e-12);
}

TEST(RankSum, TiesAreCountedOut) {
  const std::vector<double> equal{3, 3, 3, 3, 3};
  EXPECT_EQ(chance_of(equal, equal), 1);
  EXPECT_EQ(rank_sum_test(equal, equal).least_chance, 1);
  EXPECT_EQ(chance_of({}, equal), 1);
  // One of 20 ways to deal ranks 1.5 1.5 3 | 4.5 4.5 6, to either side.
  const std::vector<double> a{1, 1, 2};
  const std::vector<double> b{3, 3, 4};
  EXPECT_NEAR(chance_of(a, b), 2.0 / 20, 1e-12);
  // Ranks 1 3 | 3 3 5 6: three of 15 ways come to 4, none to less, and one to 11.
  const std::vector<double> c{1, 2};
  const std::vector<double> d{2, 2, 5, 6};
  EXPECT_NEAR(chance_of(c, d), 2 * 3.0 / 15, 1e-12);
  EXPECT_NEAR(rank_sum_test(c, d).least_chance, 2 * 1.0 / 15, 1e-12);
}

TEST(RankSum, TheLeastThatSmallSamplesCanSayIsKnown) {
  const std::vector<double> a{1, 5, 3, 2, 4};
  const std::vector<double> b{2.5, 3.5, 1.5, 4.5, 5.5};
  EXPECT_NEAR(rank_sum_test(a, b).least_chance, 2.0 / 252, 1e-12);
  EXPECT_GT(rank_sum_test(a, b).chance, 0.5);
}

TEST(RankSum, LongSamplesAreTakenAsNormal) {
  std::vector<double> low, high;
  for (int i = 0; i < 40; ++i) {
    low.push_back(i);
    high.push_back(i + 0.5);
  }
  EXPECT_GT(chance_of(low, high), 0.8);
  for (double& value : high) value += 100;
  EXPECT_LT(chance_of(low, high), 1e-12);
}

TEST(RankSum, CallsEqualDistributionsDifferentAsRarelyAsItSays) {
  std::mt19937 random(1);
  int called = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto a = normal_sample(random, 15, 100);
    const auto b = normal_sample(random, 15, 100);
    called += chance_of(a, b) < 0.05 ? 1 : 0;
  }
  EXPECT_GT(called, 60);  // 100 are expected
  EXPECT_LT(called, 140);
}

TEST(BenchCompare, AChangeIsBeyondTheFactorAndBeyondChance) {
  std::mt19937 random(2);
  const CaseResult before = case_with(normal_sample(random, 15, 100));
  EXPECT_EQ(change_between(before, before).verdict, Verdict::kSame);
  EXPECT_EQ(change_between(before, before).speed, 1);
  const CaseResult slower = case_with(normal_sample(random, 15, 110));
  EXPECT_EQ(change_between(before, slower).verdict, Verdict::kSlower);
  EXPECT_EQ(change_between(slower, before).verdict, Verdict::kFaster);
  EXPECT_NEAR(change_between(before, slower).speed.value(), 100.0 / 110, 0.02);
  // Certain, and too small to count, unless it is asked for.
  const CaseResult little = case_with(normal_sample(random, 200, 103));
  const CaseResult many = case_with(normal_sample(random, 200, 100));
  EXPECT_LT(change_between(many, little).chance, 1e-6);
  EXPECT_EQ(change_between(many, little).verdict, Verdict::kSame);
  EXPECT_EQ(change_between(many, little, 1.01).verdict, Verdict::kSlower);
  // Large, and within what such wide samples do by chance.
  const CaseResult wide = case_with({50, 200, 60, 190, 110});
  const CaseResult wider = case_with({55, 210, 230, 100, 150});
  EXPECT_GT(change_between(wide, wider).median_b, 1.3 * change_between(wide, wider).median_a);
  EXPECT_EQ(change_between(wide, wider).verdict, Verdict::kSame);
}

TEST(BenchCompare, MoreIsBetterOrWorseAsTheCaseSays) {
  const std::vector<double> low{10, 10.1, 10.2, 10.3, 10.4};
  const std::vector<double> high{12, 12.1, 12.2, 12.3, 12.4};
  EXPECT_EQ(change_between(case_with(low, true), case_with(high, true)).verdict, Verdict::kFaster);
  EXPECT_EQ(change_between(case_with(high, true), case_with(low, true)).verdict, Verdict::kSlower);
  EXPECT_EQ(change_between(case_with(low), case_with(high)).verdict, Verdict::kSlower);
}

TEST(Holm, StepsDownFromTheLeastProbable) {
  // Holm's own rule by hand: 4 * 0.005, 3 * 0.01, 2 * 0.03, then no less than what came before.
  std::vector<HolmTest> tests{
      {.chance = 0.01}, {.chance = 0.04}, {.chance = 0.03}, {.chance = 0.005}};
  for (HolmTest& test : tests) test.least_chance = 0.001;
  adjust_by_holm(tests);
  EXPECT_NEAR(tests[3].adjusted, 0.02, 1e-12);
  EXPECT_NEAR(tests[0].adjusted, 0.03, 1e-12);
  EXPECT_NEAR(tests[2].adjusted, 0.06, 1e-12);
  EXPECT_NEAR(tests[1].adjusted, 0.06, 1e-12);
  for (const HolmTest& test : tests) EXPECT_NEAR(test.least_adjusted, 0.004, 1e-12);
  // One that could not have been less than 0.02 comes after two that were.
  tests[1].least_chance = 0.02;
  adjust_by_holm(tests);
  EXPECT_NEAR(tests[1].least_adjusted, 0.04, 1e-12);
  std::vector<HolmTest> alone{{.chance = 0.7, .least_chance = 0.7}};
  adjust_by_holm(alone);
  EXPECT_EQ(alone[0].adjusted, 0.7);
  EXPECT_EQ(alone[0].least_adjusted, 0.7);
  adjust_by_holm({});
}

TEST(BenchCompare, ManyCasesOfAnUnchangedProgramRarelyRaiseAnAlarm) {
  std::mt19937 random(5);
  int alarms = 0;
  int alarms_alone = 0;
  for (int run = 0; run < 100; ++run) {
    std::vector<CaseResult> a, b;
    for (int i = 0; i < 60; ++i) {
      a.push_back(case_with(normal_sample(random, 9, 100)));
      b.push_back(case_with(normal_sample(random, 9, 100)));
      a.back().name = b.back().name = std::to_string(i);
    }
    const auto comparison = compare(file_with(a), file_with(b), 1.0);
    ASSERT_TRUE(comparison);
    EXPECT_EQ(comparison->count(Verdict::kTooFew), 0U);
    alarms += comparison->count(Verdict::kSame) < 60 ? 1 : 0;
    alarms_alone += std::ranges::any_of(
        comparison->cases, [](const CaseChange& change) { return change.chance < kChanceMost; });
  }
  EXPECT_LT(alarms, 12);  // at most 5 are expected
  EXPECT_GT(alarms_alone, 80);
}

TEST(BenchCompare, FiveRoundsCannotTellAmongSixtyCases) {
  std::vector<CaseResult> a, b;
  for (int i = 0; i < 60; ++i) {
    a.push_back(case_with({1, 2, 3, 4, 5}));
    b.push_back(case_with(i == 0 ? std::vector<double>{11, 12, 13, 14, 15}
                                 : std::vector<double>{1, 2, 3, 4, 5}));
    a.back().name = b.back().name = std::to_string(i);
  }
  const auto many = compare(file_with(a), file_with(b));
  ASSERT_TRUE(many);
  EXPECT_EQ(many->count(Verdict::kTooFew), 60U);
  EXPECT_THAT(to_text(*many), HasSubstr("60 with too few rounds to tell"));
  // Of one case they can.
  a.resize(1);
  b.resize(1);
  EXPECT_EQ(compare(file_with(a), file_with(b))->cases[0].verdict, Verdict::kSlower);
  // Values that are all equal are the same, however many cases there are.
  a.assign(60, case_with({2, 2, 2, 2, 2}));
  for (int i = 0; i < 60; ++i) a[static_cast<std::size_t>(i)].name = std::to_string(i);
  EXPECT_EQ(compare(file_with(a), file_with(a))->count(Verdict::kSame), 60U);
}

TEST(BenchCompare, FewSamplesSayNothing) {
  const CaseChange change =
      change_between(case_with({1, 1, 1, 1}), case_with({2, 2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(change.verdict, Verdict::kTooFew);
  EXPECT_EQ(change.speed, 0.5);
}

TEST(BenchCompare, AMachineThatIsSlowerAsAWholeIsNoChange) {
  std::mt19937 random(3);
  CaseResult before = case_with(normal_sample(random, 15, 100));
  CaseResult after = case_with(normal_sample(random, 15, 150));
  EXPECT_EQ(change_between(before, after).verdict, Verdict::kSlower);
  set_baseline(before, "floor", normal_sample(random, 15, 80));
  EXPECT_FALSE(change_between(before, after).by_ratio);
  set_baseline(after, "floor", normal_sample(random, 15, 120));
  const CaseChange change = change_between(before, after);
  EXPECT_TRUE(change.by_ratio);
  EXPECT_EQ(change.verdict, Verdict::kSame);
  EXPECT_NEAR(change.speed.value(), 100.0 / 150, 0.03);
  EXPECT_NEAR(change.judged_speed.value(), 1, 0.04);
  // Slower than its floor became.
  set_baseline(after, "floor", normal_sample(random, 15, 80));
  EXPECT_EQ(change_between(before, after).verdict, Verdict::kSlower);
  // Another baseline under the same case says nothing about shares.
  set_baseline(after, "ceiling", normal_sample(random, 15, 120));
  EXPECT_FALSE(change_between(before, after).by_ratio);
}

TEST(BenchCompare, CasesOfTheMachineAreJudgedByTheirValues) {
  std::mt19937 random(4);
  CaseResult before = case_with(normal_sample(random, 15, 100), true);
  CaseResult after = case_with(normal_sample(random, 15, 100), true);
  set_baseline(before, "memcpy, 1 thread", normal_sample(random, 15, 10));
  set_baseline(after, "memcpy, 1 thread", normal_sample(random, 15, 20));
  ResultFile a = file_with({before});
  ResultFile b = file_with({after});
  EXPECT_EQ(compare(a, b)->cases.at(0).verdict, Verdict::kSlower);
  a.suites[0].suite = b.suites[0].suite = "baseline";
  EXPECT_EQ(compare(a, b)->cases.at(0).verdict, Verdict::kSame)
      << "a quicker copy makes no disk slower";
}

TEST(BenchCompare, ACountThatWasNothingCanBecomeWorse) {
  const CaseChange change =
      change_between(case_with({0, 0, 0, 0, 0, 0}), case_with({3, 4, 5, 6, 7, 8}));
  EXPECT_FALSE(change.speed);
  EXPECT_EQ(change.verdict, Verdict::kSlower);
}

TEST(BenchCompare, WhatIsOnOneSideOnlyIsListed) {
  CaseResult other = case_with({1, 2, 3, 4, 5});
  other.name = "load";
  ResultFile a = file_with({case_with({1, 2, 3, 4, 5}), other});
  ResultFile b = file_with({case_with({1, 2, 3, 4, 5})});
  b.machine["cpu"] = "b";
  b.suites.resize(2);
  b.suites[1].suite = "schedule";
  b.suites[1].cases = {case_with({1})};
  const auto comparison = compare(a, b);
  ASSERT_TRUE(comparison);
  EXPECT_THAT(comparison->only_a, ElementsAre("sync: load"));
  EXPECT_THAT(comparison->only_b, ElementsAre("schedule: paused"));
  EXPECT_THAT(comparison->machine_differs, ElementsAre("cpu: \"a\" in A, \"b\" in B"));
  EXPECT_THAT(comparison->parameters_differ, IsEmpty());
  const std::string text = to_text(*comparison);
  for (const char* part : {"only in A: sync: load", "only in B: schedule: paused",
                           "machine differs: cpu", "1 case compared: 0 better, 0 worse"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_EQ(to_json(*comparison).at("cases")[0].at("verdict"), "no change shown");
}

TEST(BenchCompare, OtherParametersAndOtherMeasuresAreNotCompared) {
  const ResultFile a = file_with({case_with({1, 2, 3})});
  ResultFile b = a;
  b.suites[0].parameters = {{"bytes", 2}};
  const auto none = compare(a, b);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(none.error().message(), HasSubstr("sync: {} in A, {\"bytes\":2} in B"));
  b = a;
  b.suites[0].cases[0].unit = "s";
  const auto unit = compare(a, b);
  ASSERT_FALSE(unit);
  EXPECT_THAT(unit.error().message(), HasSubstr("in A ms and less is better, in B s"));
}

}  // namespace
}  // namespace wsync::bench
