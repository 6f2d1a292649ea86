#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shared/base/format.h"
#include "shared/observe/trace/chrome_trace_reader.h"

namespace wsync::trace {
namespace {

using testing::HasSubstr;

Span read_span(std::string name, std::string lane, std::int64_t begin, std::int64_t end) {
  return {.name = std::move(name),
          .lane = std::move(lane),
          .category = Category::kStage,
          .begin = TimePoint{begin},
          .end = TimePoint{end},
          .label = {},
          .args = {}};
}

std::string why_of(const std::string& text, const ReadLimits& limits = {}) {
  const auto trace = parse_chrome_trace(text, limits);
  EXPECT_FALSE(trace) << text;
  if (trace) return {};
  EXPECT_EQ(trace.error().code(), ErrorCode::kInvalidInput);
  return trace.error().message();
}

std::string with_event(const std::string& event) { return R"({"traceEvents":[)" + event + "]}"; }

Span labelled_span() {
  Span labelled = read_span("quote \" and \xc3\xbc", "IPC 0", 5'000'001, 7'000'003);
  labelled.label = "3";
  labelled.category = Category::kBroadcast;
  labelled.args = {{.name = "bucket", .value = std::int64_t{-7}},
                   {.name = "engine", .value = std::string("r0")}};
  return labelled;
}

Trace two_processes() {
  return {.processes = {{.name = "coordinator",
                         .pid = 41,
                         .spans = {read_span("a", "snapshot", 1'000, 2'000)},
                         .host = "h0",
                         .clock = ClockReading{.kind = ClockKind::kSame}},
                        {.name = "sidecar s",
                         .pid = 42,
                         .spans = {labelled_span(), read_span("b", "IPC 1", 8'000'000, 8'000'000)},
                         .host = "h1",
                         .clock = ClockReading{.kind = ClockKind::kMeasured,
                                               .offset = std::chrono::nanoseconds(-1'234),
                                               .uncertainty = std::chrono::nanoseconds(56)},
                         .dropped = 9}},
          .flows = {{.name = "1.2 bucket 0",
                     .steps = {{.process = 0, .span = 0},
                               {.process = 1, .span = 0},
                               {.process = 1, .span = 1}}},
                    {.name = "1.2 bucket 0",
                     .steps = {{.process = 0, .span = 0}, {.process = 1, .span = 1}}}},
          .notes = {"sidecar t is not connected"}};
}

// Each flow as "name: phase span, ...": the spans are those that begin at the time of the event.
std::vector<std::string> flows_of(const nlohmann::json& trace) {
  std::map<int, std::string> flows;
  for (const auto& event : trace["traceEvents"]) {
    const auto phase = event["ph"].get<std::string>();
    if (phase != "s" && phase != "t" && phase != "f") continue;
    std::string& flow = flows[event["id"]];
    flow += flow.empty() ? event["name"].get<std::string>() + ": " : ", ";
    for (const auto& span : trace["traceEvents"])
      if (span["ph"] == "X" && span["ts"] == event["ts"] && span["pid"] == event["pid"] &&
          span["tid"] == event["tid"])
        flow += phase + " " + span["name"].get<std::string>();
  }
  std::vector<std::string> found;
  for (const auto& [id, flow] : flows) found.push_back(flow);
  return found;
}

TEST(ChromeTraceReader, GivesBackWhatWasWritten) {
  const Span labelled = labelled_span();
  const auto read = parse_chrome_trace(chrome_trace_json(two_processes()));
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_EQ(read->size(), 2U);
  EXPECT_EQ((*read)[0].name, "coordinator");
  const ProcessTrace& sidecar = (*read)[1];
  EXPECT_EQ(sidecar.pid, 42U);
  ASSERT_EQ(sidecar.spans.size(), 2U);
  EXPECT_EQ(sidecar.spans[0].name, labelled.name);
  EXPECT_EQ(sidecar.spans[0].lane, "IPC 0");
  EXPECT_EQ(sidecar.spans[0].label, "3");
  EXPECT_EQ(sidecar.spans[0].category, Category::kBroadcast);
  EXPECT_EQ(sidecar.spans[0].begin, labelled.begin);
  EXPECT_EQ(sidecar.spans[0].end, labelled.end);
  EXPECT_EQ(number_arg(sidecar.spans[0], "bucket"), -7);
  EXPECT_EQ(text_arg(sidecar.spans[0], "engine"), "r0");
  EXPECT_EQ(text_arg(sidecar.spans[0], "label"), "");
}

// What the reader leaves to Perfetto, in the text itself.
TEST(ChromeTrace, HasFlowsAndWhatIsKnownOfItsProcesses) {
  const auto written = nlohmann::json::parse(chrome_trace_json(two_processes()));
  const auto& processes = written["otherData"]["processes"];
  ASSERT_EQ(processes.size(), 2U);
  EXPECT_EQ(processes[0]["host"], "h0");
  EXPECT_EQ(processes[0]["clock"], "same");
  EXPECT_EQ(processes[1]["dropped_spans"], 9);
  EXPECT_EQ(processes[1]["clock"], "measured");
  EXPECT_DOUBLE_EQ(processes[1]["clock_offset_us"], -1.234);
  EXPECT_DOUBLE_EQ(processes[1]["clock_uncertainty_us"], 0.056);
  EXPECT_EQ(written["otherData"]["notes"], nlohmann::json({"sidecar t is not connected"}));
  EXPECT_THAT(flows_of(written),
              testing::ElementsAre("1.2 bucket 0: s a, t quote \" and \xc3\xbc, f b",
                                   "1.2 bucket 0: s a, f b"))
      << "one name, two flows";
}

TEST(ChromeTraceReader, SpansThatOverlapOnOneLaneGetLanesOfTheirOwn) {
  const Trace written{
      .processes = {{.name = "p",
                     .pid = 1,
                     .spans = {read_span("second", "digest", 50, 150),
                               read_span("first", "digest", 0, 100),
                               read_span("inside", "digest", 10, 20),
                               read_span("later", "digest", 100, 120)}}},
      .flows = {{.name = "f", .steps = {{.process = 0, .span = 1}, {.process = 0, .span = 0}}}}};
  const auto read = parse_chrome_trace(chrome_trace_json(written));
  ASSERT_TRUE(read) << read.error().message();
  std::map<std::string, std::string> lanes;
  for (const Span& span : (*read)[0].spans) lanes[span.name] = span.lane;
  EXPECT_EQ(lanes["first"], "digest");
  EXPECT_EQ(lanes["inside"], "digest") << "one inside the other may stand on one thread";
  EXPECT_EQ(lanes["second"], "digest (2)");
  EXPECT_EQ(lanes["later"], "digest");
  EXPECT_THAT(flows_of(nlohmann::json::parse(chrome_trace_json(written))),
              testing::ElementsAre("f: s first, f second"));
}

TEST(ChromeTraceReader, ProcessesOfOnePidStayApart) {
  const auto process = [](std::string name) {
    return ProcessTrace{.name = std::move(name), .pid = 7, .spans = {read_span("a", "l", 0, 1)}};
  };
  const auto read = parse_chrome_trace(chrome_trace_json(std::vector{
      process("one"), process("two"), ProcessTrace{.name = "eight", .pid = 8, .spans = {}}}));
  ASSERT_TRUE(read);
  ASSERT_EQ(read->size(), 3U);
  EXPECT_EQ((*read)[0].pid, 7U);
  EXPECT_EQ((*read)[1].name, "two");
  EXPECT_EQ((*read)[1].pid, 9U);
  EXPECT_EQ((*read)[2].pid, 8U);
}

TEST(ChromeTraceReader, AThreadWithoutANameIsALaneOfItsNumber) {
  const auto read = parse_chrome_trace(
      with_event(R"({"ph":"X","name":"a","cat":"h2d","pid":1,"tid":7,"ts":1,"dur":1,"args":{}})"));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ((*read)[0].spans[0].lane, "thread 7");
}

TEST(ChromeTraceReader, RefusesWhatIsNoTraceAndSaysWhere) {
  EXPECT_THAT(why_of(""), HasSubstr("not a Chrome trace: "));
  EXPECT_THAT(why_of("{}"), HasSubstr("no list \"traceEvents\""));
  EXPECT_THAT(why_of("7"), HasSubstr("no list \"traceEvents\""));
  EXPECT_THAT(why_of(R"({"traceEvents":7})"), HasSubstr("\"traceEvents\" is not a list"));
  EXPECT_THAT(why_of(R"({"traceEvents":{"a":{"ph":"X"}}})"), HasSubstr("is not a list"));
  EXPECT_THAT(why_of(R"({"traceEvents":[{"ph":"X")"), HasSubstr("parse error"));
  EXPECT_THAT(why_of(with_event("7")), HasSubstr("event 1: expected an object"));
  EXPECT_THAT(why_of(with_event(R"({"name":"a"})")), HasSubstr("event 1: \"ph\" is missing"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"M"},{"ph":"X","pid":1.5,"tid":1,"ts":1,"dur":1})")),
              HasSubstr("event 2: \"pid\": expected 0 to 4294967295, found 1.5"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","pid":-1,"tid":1,"ts":1,"dur":1})")),
              HasSubstr("expected 0 to 4294967295, found -1"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","pid":4294967296,"tid":1,"ts":1,"dur":1})")),
              HasSubstr("found 4294967296"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","pid":1,"tid":[],"ts":1,"dur":1})")),
              HasSubstr("\"tid\": expected 0 to 18446744073709551615, found []"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","pid":1,"tid":1,"ts":"1","dur":1})")),
              HasSubstr("found \"1\""));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","pid":1,"tid":1,"ts":1})")),
              HasSubstr("\"dur\": expected"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","pid":1,"tid":1,"ts":1,"dur":-1})")),
              HasSubstr("expected 0 to"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","pid":1,"tid":1,"ts":1e300,"dur":1})")),
              HasSubstr("expected 0 to 1e+15"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","pid":1,"tid":1,"ts":9e14,"dur":9e14})")),
              HasSubstr("the event ends after 1e+15"));
}

TEST(ChromeTraceReader, KeepsToItsLimits) {
  const std::string event = R"({"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1})";
  EXPECT_TRUE(parse_chrome_trace(with_event(event + "," + event), {.events = 2}));
  EXPECT_THAT(why_of(with_event(event + "," + event), {.events = 1}),
              HasSubstr("more than 1 events"));
  EXPECT_THAT(why_of(with_event(event), {.bytes = 10}), HasSubstr("at most 10 are read"));
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_THAT(why_of(deep), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","ts":1,"dur":1,"args":{"a":)" + deep + "}}")),
              HasSubstr("nested deeper than 32"));
}

TEST(ChromeTraceReader, NamesTheFileThatItCannotRead) {
  const auto missing = read_chrome_trace("/nonexistent/trace.json");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("/nonexistent/trace.json"));
  const std::string path = ::testing::TempDir() + "wsync_reader_test.json";
  std::ofstream(path) << "{}";
  const auto broken = read_chrome_trace(path);
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().message(), HasSubstr(path));
  EXPECT_THAT(read_chrome_trace(path, {.bytes = 1}).error().message(),
              HasSubstr("2 bytes, at most 1"));
  ::unlink(path.c_str());
}

TEST(ChromeTrace, BytesThatAreNoTextStayJson) {
  const auto read = parse_chrome_trace(chrome_trace_json(std::vector{
      ProcessTrace{.name = "p", .pid = 1, .spans = {read_span("a\xff\x01\n", "l", 0, 1)}}}));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ((*read)[0].spans[0].name, "a\xef\xbf\xbd\x01\n");
}

}  // namespace
}  // namespace wsync::trace
