// Names of metrics, and the text that Prometheus reads.
#include "shared/observe/metrics/registry.h"

#include <algorithm>
#include <cctype>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <sstream>

#include "shared/observe/metrics/catalog.h"
#include "shared/observe/metrics/failures.h"
#include "shared/observe/metrics/process.h"

namespace wsync::metrics {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words;
  std::stringstream text{std::string(name)};
  for (std::string word; std::getline(text, word, '_');) words.push_back(word);
  return words;
}

bool is_snake_case(std::string_view name) {
  return !name.empty() && std::islower(static_cast<unsigned char>(name[0])) != 0 &&
         std::ranges::all_of(name, [](char c) {
           return std::islower(static_cast<unsigned char>(c)) != 0 ||
                  std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '_';
         });
}

// As `promtool check metrics` and Prometheus' page about naming have it.
TEST(Catalog, NamesFollowTheRules) {
  // Units that are no base units, abbreviations, and kinds of metrics.
  const std::set<std::string> forbidden = {
      "ms",          "us",      "ns",      "s",     "sec",       "milliseconds", "microseconds",
      "nanoseconds", "minutes", "hours",   "days",  "b",         "kb",           "mb",
      "gb",          "kib",     "mib",     "gib",   "kilobytes", "megabytes",    "gigabytes",
      "bits",        "percent", "counter", "gauge", "histogram", "summary",      "untyped",
      "metric",      "count",   "sum",     "bucket"};
  std::set<std::string_view> names;
  for (const Definition* what : kCatalog) {
    SCOPED_TRACE(what->name);
    EXPECT_TRUE(names.insert(what->name).second) << "twice";
    EXPECT_TRUE(is_snake_case(what->name));
    EXPECT_TRUE(what->name.starts_with("wsync_") || what->name.starts_with("process_"));
    const std::vector<std::string> words = words_of(what->name);
    for (const std::string& word : words) EXPECT_FALSE(forbidden.contains(word)) << word;
    EXPECT_EQ(words.back() == "total", what->kind == Kind::kCounter);
    if (what->kind == Kind::kHistogram) {
      EXPECT_EQ(words.back(), "seconds");  // what their buckets are made for
    }
    EXPECT_GE(what->help.size(), 20U);
    EXPECT_NE(what->help.back(), '.');
    EXPECT_TRUE(what->labels[1].empty() || !what->labels[0].empty());
    for (std::size_t i = 0; i < what->label_count(); ++i) {
      EXPECT_TRUE(is_snake_case(what->labels[i]));
      // Prometheus' own, and what it puts on every series.
      EXPECT_THAT((std::set<std::string_view>{"le", "quantile", "job", "instance"}),
                  Not(testing::Contains(what->labels[i])));
    }
  }
}

TEST(Registry, TellsCountersHistogramsAndReadingsInOneText) {
  Registry registry;
  Counter committed = registry.counter(kUpdates, {"committed"});
  committed.add();
  committed.add(2);
  (void)registry.counter(kUpdates, {"failed"});
  // The same series, however often it is asked for.
  registry.counter(kUpdates, {"committed"}).add(4);
  Histogram paused = registry.histogram(kPausedSeconds);
  paused.observe(std::chrono::microseconds(100));  // a bound belongs to its bucket
  paused.observe(std::chrono::milliseconds(3));
  paused.observe(std::chrono::seconds(1000));
  paused.observe(std::chrono::nanoseconds(-5));  // a clock that was read in another order
  const std::string text = registry.text(
      {{.what = &kReplicaReady, .value = 1, .labels = {"a"}},
       {.what = &kReplicaReady, .value = 0, .labels = {"quote \" slash \\ line \n end"}},
       {.what = &kTargetStep, .value = 7, .labels = {}},
       {.what = &kWireBytes, .value = 1e12, .labels = {}}});
  EXPECT_THAT(text, AllOf(HasSubstr("# TYPE wsync_updates_total counter\n"),
                          HasSubstr("wsync_updates_total{result=\"committed\"} 7\n"),
                          HasSubstr("wsync_updates_total{result=\"failed\"} 0\n")));
  EXPECT_THAT(text, AllOf(HasSubstr("# TYPE wsync_paused_seconds histogram\n"),
                          HasSubstr("wsync_paused_seconds_bucket{le=\"0.0001\"} 2\n"),
                          HasSubstr("wsync_paused_seconds_bucket{le=\"0.0025\"} 2\n"),
                          HasSubstr("wsync_paused_seconds_bucket{le=\"0.005\"} 3\n"),
                          HasSubstr("wsync_paused_seconds_bucket{le=\"100\"} 3\n"),
                          HasSubstr("wsync_paused_seconds_bucket{le=\"+Inf\"} 4\n"),
                          HasSubstr("wsync_paused_seconds_count 4\n")));
  EXPECT_THAT(text, AllOf(HasSubstr("# TYPE wsync_replica_ready gauge\n"),
                          HasSubstr("wsync_replica_ready{replica=\"a\"} 1\n"),
                          HasSubstr("wsync_replica_ready{replica=\"quote \\\" slash \\\\ line \\n "
                                    "end\"} 0\n")));
  EXPECT_THAT(text, AllOf(HasSubstr("wsync_target_version_step 7\n"),
                          HasSubstr("# TYPE wsync_wire_bytes_total counter\n"),
                          HasSubstr("wsync_wire_bytes_total 1000000000000\n")));
  // Families in the order of their names, each once.
  std::vector<std::string> families;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("# TYPE ")) families.push_back(line);
  EXPECT_EQ(families.size(), 5U);
  EXPECT_TRUE(std::ranges::is_sorted(families));
}

TEST(Registry, LabelValuesAreUtf8AndShort) {
  EXPECT_EQ(label_value("replica-0"), "replica-0");
  EXPECT_EQ(label_value("Größe 東京 😀"), "Größe 東京 😀");
  EXPECT_EQ(label_value("a\xff"
                        "b\xc3"),
            "a\\xffb\\xc3");
  EXPECT_EQ(label_value("\xc0\xaf"), "\\xc0\\xaf");                    // too long a form
  EXPECT_EQ(label_value("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(label_value("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond the last character
  EXPECT_EQ(label_value(std::string(1000, 'x')), std::string(kMaxLabelBytes, 'x'));
  // A character is not cut in the middle.
  EXPECT_EQ(label_value(std::string(kMaxLabelBytes - 1, 'x') + "ß"),
            std::string(kMaxLabelBytes - 1, 'x'));
}

TEST(Registry, APageHasABoundHoweverManySeriesThereAre) {
  std::vector<Reading> readings;
  for (std::size_t i = 0; i < kMaxSeries + 10; ++i)
    readings.push_back({.what = &kReplicaReady, .value = 1, .labels = {std::to_string(i)}});
  const std::string text = Registry().text(readings);
  // Two lines of comments before them.
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(text, '\n')), kMaxSeries + 2);
}

TEST(Registry, EveryCodeOfAnErrorHasItsCounterFromTheStart) {
  Registry registry;
  auto failures = failure_counters(registry);
  EXPECT_EQ(failures.size(), 13U);
  failures.at(ErrorCode::kDigestMismatch).add();
  const std::string text = registry.text({});
  EXPECT_THAT(text, AllOf(HasSubstr("wsync_failures_total{reason=\"digest_mismatch\"} 1\n"),
                          HasSubstr("wsync_failures_total{reason=\"internal\"} 0\n"),
                          HasSubstr("wsync_failures_total{reason=\"invalid_input\"} 0\n"),
                          Not(HasSubstr("unknown"))));
}

TEST(ProcessReadings, AreThoseOfThisProcess) {
  std::set<std::string_view> names;
  for (const Reading& reading : process_readings()) {
    EXPECT_GT(reading.value, reading.what == &kCpuSeconds ? -1 : 0) << reading.what->name;
    names.insert(reading.what->name);
    if (reading.what == &kStartTime) {
      EXPECT_NEAR(reading.value, static_cast<double>(::time(nullptr)), 600);
    }
    if (reading.what == &kResidentMemory) {
      EXPECT_GT(reading.value, 1 << 20);
    }
  }
  EXPECT_EQ(names.size(), 6U);
}

}  // namespace
}  // namespace wsync::metrics
