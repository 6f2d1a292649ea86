// The form that all suites give their figures in: ratios, targets, and a reader that trusts
// nothing.
#include "bench/harness/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "bench/harness/catalogue.h"
#include "bench/harness/read_result.h"
#include "bench/sync/report.h"

namespace wsync::bench {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

CaseResult milliseconds_case(std::vector<double> samples) {
  CaseResult result;
  result.name = "paused, 1 engine";
  result.what = "Time that engines stand still";
  result.unit = "ms";
  result.samples = std::move(samples);
  return result;
}

ResultFile one_file() {
  CaseResult result = milliseconds_case({10, 20, 40});
  result.bytes = 1024;
  set_baseline(result, "floor", {9, 18, 20});
  result.target = Target{.of = Target::Of::kRatio, .value = 0.9};
  ResultFile file;
  file.date = "2026-01-02T03:04:05Z";
  file.wsync_version = "1.2.3";
  file.machine = {{"cpu", "a"}, {"cores", 2}};
  file.suites.resize(1);
  file.suites[0].suite = "sync";
  file.suites[0].parameters = {{"bytes", 5}};
  file.suites[0].cases = {std::move(result)};
  file.suites[0].notes = {"others were there"};
  file.suites[0].details = {{"anything", {1, 2}}};
  return file;
}

std::string refusal(const Json& file, ErrorCode code = ErrorCode::kInvalidInput) {
  const auto parsed = parse_result(file.dump());
  EXPECT_FALSE(parsed);
  if (parsed) return "it was taken";
  EXPECT_EQ(parsed.error().code(), code);
  return parsed.error().message();
}

TEST(BenchResult, RatiosAreSpeedsPairByPairOrToTheMedian) {
  CaseResult time = milliseconds_case({10, 20, 40});
  set_baseline(time, "floor", {9, 18, 20});
  EXPECT_THAT(time.ratios, ElementsAre(0.9, 0.9, 0.5));
  CaseResult rate = milliseconds_case({10, 20, 40});
  rate.higher_is_better = true;
  set_baseline(rate, "ceiling", {20});
  EXPECT_THAT(rate.ratios, ElementsAre(0.5, 1, 2));
  CaseResult nothing = milliseconds_case({0, 20, 40});
  set_baseline(nothing, "floor", {20, 0, 20});
  EXPECT_THAT(nothing.ratios, ElementsAre(0.5));
}

TEST(BenchResult, ATargetIsOfTheRatioTheMedianOrTheMost) {
  CaseResult result = milliseconds_case({10, 20, 40});
  EXPECT_TRUE(result.met());
  set_baseline(result, "floor", {9, 18, 20});
  const auto meets = [&result](Target::Of of, double value) {
    result.target = Target{.of = of, .value = value};
    return result.met();
  };
  EXPECT_TRUE(meets(Target::Of::kRatio, 0.9));
  EXPECT_FALSE(meets(Target::Of::kRatio, 0.91));
  EXPECT_TRUE(meets(Target::Of::kMedian, 20));
  EXPECT_FALSE(meets(Target::Of::kMedian, 19));
  EXPECT_TRUE(meets(Target::Of::kMax, 40));
  EXPECT_FALSE(meets(Target::Of::kMax, 39));
  result.higher_is_better = true;
  EXPECT_TRUE(meets(Target::Of::kMedian, 19));
  EXPECT_FALSE(meets(Target::Of::kMedian, 21));
}

TEST(BenchResult, ATargetIsSaidInPlainWords) {
  SuiteResult suite{.suite = "sync", .cases = {milliseconds_case({10, 20, 40})}};
  CaseResult& result = suite.cases[0];
  set_baseline(result, "floor", {9, 18, 20});
  const auto said = [&](Target::Of of, double value) {
    result.target = Target{.of = of, .value = value};
    return to_text(suite);
  };
  EXPECT_THAT(said(Target::Of::kRatio, 0.87),
              HasSubstr("0.900 of floor (target at least 0.87: met)"));
  EXPECT_THAT(said(Target::Of::kRatio, 0.95), HasSubstr("(target at least 0.95: missed)"));
  EXPECT_THAT(said(Target::Of::kMedian, 19),
              HasSubstr("(target for the median at most 19: missed)"));
  EXPECT_THAT(said(Target::Of::kMax, 40), HasSubstr("(target for every value at most 40: met)"));
  result.higher_is_better = true;
  EXPECT_THAT(said(Target::Of::kMedian, 19), HasSubstr("(target for the median at least 19: met)"));
}

TEST(BenchResult, WhatIsWrittenIsRead) {
  const ResultFile file = one_file();
  const auto read = parse_result(to_json(file).dump());
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->date, file.date);
  EXPECT_EQ(read->wsync_version, file.wsync_version);
  EXPECT_EQ(read->machine, file.machine);
  const SuiteResult& suite = read->suites.at(0);
  EXPECT_EQ(suite.suite, "sync");
  EXPECT_EQ(suite.parameters, file.suites[0].parameters);
  EXPECT_EQ(suite.notes, file.suites[0].notes);
  const CaseResult& one = suite.cases.at(0);
  EXPECT_EQ(one.name, "paused, 1 engine");
  EXPECT_EQ(one.unit, "ms");
  EXPECT_FALSE(one.higher_is_better);
  EXPECT_EQ(one.bytes, 1024U);
  EXPECT_THAT(one.samples, ElementsAre(10, 20, 40));
  EXPECT_EQ(one.baseline.value().name, "floor");
  EXPECT_THAT(one.baseline.value().samples, ElementsAre(9, 18, 20));
  EXPECT_THAT(one.ratios, ElementsAre(0.9, 0.9, 0.5));
  EXPECT_EQ(one.target.value().of, Target::Of::kRatio);
  const Json written = to_json(file).at("suites")[0];
  EXPECT_EQ(written.at("details").at("anything")[1], 2);
  EXPECT_EQ(written.at("cases")[0].at("value").at("median"), 20);
  EXPECT_EQ(written.at("cases")[0].at("target").at("met"), true);
}

TEST(BenchResult, AnotherSchemaOrVersionIsRefusedBySentence) {
  Json file = to_json(one_file());
  file["schema"] = "other";
  EXPECT_EQ(refusal(file), "schema: expected 'wsync-bench', found 'other'");
  file = to_json(one_file());
  file["schema_version"] = 2;
  EXPECT_THAT(refusal(file),
              AllOf(HasSubstr("schema_version: expected 1, found 2"), HasSubstr("a newer wsync")));
  file["schema_version"] = 0;
  EXPECT_THAT(refusal(file, ErrorCode::kRefused), HasSubstr("an older wsync"));
  file.erase("schema");
  EXPECT_EQ(
      refusal(file, ErrorCode::kRefused),
      "schema: expected 'wsync-bench', found nothing; the file was not written by --output (the "
      "--json output of a suite and results of older releases have other formats); measure again "
      "with --output");
}

TEST(BenchResult, BadFieldsAreRefusedByTheirPlace) {
  const Json good = to_json(one_file());
  const auto with = [&good](const char* pointer, const Json& value) {
    Json file = good;
    file[Json::json_pointer(pointer)] = value;
    return refusal(file);
  };
  EXPECT_EQ(with("/suites/0/cases/0/unit", 3), "suites[0].cases[0].unit: expected a text, found 3");
  EXPECT_EQ(with("/suites/0/cases/0/value/samples", Json::array()),
            "suites[0].cases[0].value.samples: expected at least one number, found none");
  EXPECT_EQ(with("/suites/0/cases/0/value/samples/1", "x"),
            "suites[0].cases[0].value.samples[1]: expected a number, found string");
  EXPECT_EQ(with("/suites/0/cases/0/value/samples/1", Json()),
            "suites[0].cases[0].value.samples[1]: expected a number, found null");
  EXPECT_EQ(with("/suites/0/cases/0/bytes", -1),
            "suites[0].cases[0].bytes: expected an integer of at least 0, found -1");
  EXPECT_EQ(with("/suites/0/cases/0/target/of", "mode"),
            "suites[0].cases[0].target.of: expected ratio, median or most, found 'mode'");
  EXPECT_EQ(
      with("/suites/0/cases/0/name", "a\x1b[2Jb"),
      "suites[0].cases[0].name: expected a printable text of one line, found control characters");
  EXPECT_EQ(with("/suites/0/notes/0", "a\nb"),
            "suites[0].notes[0]: expected a line of at most 4096 bytes, found string");
  EXPECT_EQ(with("/suites/0/cases/1", good["suites"][0]["cases"][0]),
            "suites[0].cases[1]: expected a case name that occurs only once, found a second "
            "'paused, 1 engine'");
  EXPECT_EQ(
      with("/suites/1", good["suites"][0]),
      "suites[1]: expected each suite only once with the same parameters, found a second 'sync'");
  EXPECT_EQ(with("/suites", 1), "suites: expected a list, found 1");
  EXPECT_EQ(with("/machine", "fast"), "machine: expected an object, found string");
  Json file = good;
  file["suites"][0]["cases"][0].erase("baseline");
  EXPECT_EQ(refusal(file),
            "suites[0].cases[0].ratio: expected a baseline in the same case, found none");
}

TEST(BenchResult, LimitsAreKept) {
  Json file = to_json(one_file());
  Json& one = file["suites"][0]["cases"][0];
  one["what"] = std::string(kResultTextBytesMax + 1, 'x');
  EXPECT_THAT(refusal(file), HasSubstr("expected at most 4096 bytes, found 4097"));
  file = to_json(one_file());
  file["suites"] = Json(std::vector<Json>(kResultSuitesMax + 1, file["suites"][0]));
  EXPECT_EQ(refusal(file), "suites: expected at most 64, found 65");
  const auto text_refusal = [](const std::string& text) {
    const auto parsed = parse_result(text);
    EXPECT_FALSE(parsed);
    return parsed ? std::string() : parsed.error().message();
  };
  EXPECT_EQ(text_refusal(std::string(100'000, '[')), "the JSON is nested deeper than 32 levels");
  EXPECT_THAT(text_refusal(""), HasSubstr("found nothing"));
  EXPECT_THAT(text_refusal("{\"schema\": \"wsync-bench\""),
              HasSubstr("found text that is not JSON"));
  EXPECT_THAT(text_refusal("[1]"), HasSubstr("found array"));
  EXPECT_THAT(text_refusal("{\"a\": 1e999}"), HasSubstr("found"));
  // Brackets inside of texts are no depth.
  file = to_json(one_file());
  file["suites"][0]["cases"][0]["what"] = "\\\"" + std::string(100, '[');
  EXPECT_TRUE(parse_result(file.dump()));
}

TEST(BenchResult, AFileThatIsNotThereIsNamed) {
  const auto read = read_result("/nonexistent/result.json");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(read.error().message(), HasSubstr("/nonexistent/result.json"));
}

TEST(BenchResult, TheCatalogueNamesEachOnceAndSaysWhat) {
  std::set<std::string_view> suites;
  for (const SuiteText& suite : catalogue()) {
    EXPECT_TRUE(suites.insert(suite.name).second) << suite.name;
    std::set<std::string_view> cases;
    EXPECT_FALSE(suite.cases.empty()) << suite.name;
    for (const CaseText& one : suite.cases) {
      EXPECT_TRUE(cases.insert(one.name).second) << one.name;
      EXPECT_FALSE(one.what.empty() || one.unit.empty()) << one.name;
    }
  }
}

TEST(BenchResult, OfSyncTheFloorIsTheBaseline) {
  SyncBenchResult result;
  result.bytes = 100;
  result.cases.resize(2);
  result.cases[0].engines = 2;
  result.cases[0].expected_bytes = 200;
  result.cases[0].rounds.resize(2);
  for (Round& round : result.cases[0].rounds) {
    round.floor = {.ns = 800'000, .bytes = 200};
    round.pushed.paused_ns = 1'000'000;
    round.pushed.load_ns = 900'000;
    round.pushed.staged_ns = 5'000'000;
    round.verified = {.ns = 1'600'000, .bytes = 200};
    round.cpu = std::chrono::nanoseconds(20);
    round.copies = {.snapshot = 1, .loaded = 1};
  }
  result.cases[1].adopt = true;
  result.cases[1].rounds.resize(1);
  result.cases[1].rounds[0].pushed.paused_ns = 1'200'000;
  const SuiteResult suite = to_suite(result);
  ASSERT_EQ(suite.cases.size(), 11U);
  EXPECT_EQ(suite.cases[0].name, "paused, 2 engines");
  EXPECT_THAT(suite.cases[0].samples, ElementsAre(1, 1));
  EXPECT_THAT(suite.cases[0].ratios, ElementsAre(0.8, 0.8));
  EXPECT_FALSE(suite.cases[0].met());
  EXPECT_EQ(suite.cases[0].bytes, 200U);
  EXPECT_EQ(suite.cases[2].name, "staged, 2 engines");
  EXPECT_THAT(suite.cases[2].samples, ElementsAre(5, 5));
  EXPECT_EQ(suite.cases[3].name, "CPU, 2 engines");
  EXPECT_THAT(suite.cases[3].samples, ElementsAre(0.1, 0.1));
  EXPECT_EQ(suite.cases[4].name, "copies, 2 engines");
  EXPECT_THAT(suite.cases[4].samples, ElementsAre(2, 2));
  EXPECT_EQ(suite.cases[5].name, "checked copy, 2 engines");
  EXPECT_THAT(suite.cases[5].ratios, ElementsAre(0.5, 0.5));
  EXPECT_EQ(suite.cases[6].name, "paused, 1 engine that map");
  EXPECT_FALSE(suite.cases[6].baseline);
  EXPECT_FALSE(suite.cases[6].met());
}

TEST(BenchResult, OfSyncOnDevicesTheCopyOfOneProcessIsTheBaseline) {
  SyncBenchResult result;
  result.copy_rate = 1e6;
  result.cases.resize(1);
  SyncCase& done = result.cases[0];
  done.devices = 2;
  done.buffer_bytes = 4 << 20;
  done.expected_bytes = 1000;
  done.rounds.resize(1);
  done.rounds[0].pushed.paused_ns = 4'000'000;
  const SuiteResult suite = to_suite(result);
  ASSERT_EQ(suite.cases.size(), 5U);
  EXPECT_EQ(suite.cases[0].name, "paused, 1 engine on 2 devices, buffers of 4.00 MiB");
  EXPECT_THAT(suite.cases[0].ratios, ElementsAre(0.25));
  EXPECT_TRUE(done.speed_met());
  EXPECT_FALSE(suite.cases[0].target);
}

}  // namespace
}  // namespace wsync::bench
