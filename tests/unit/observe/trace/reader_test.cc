#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
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

TEST(ChromeTraceReader, GivesBackWhatWasWritten) {
  Span labelled = read_span("quote \" and \xc3\xbc", "IPC 0", 5'000'001, 7'000'003);
  labelled.label = "3";
  labelled.category = Category::kBroadcast;
  labelled.args = {{.name = "bucket", .value = std::int64_t{-7}},
                   {.name = "engine", .value = std::string("r0")}};
  const Trace written{
      .processes = {{.name = "coordinator",
                     .pid = 41,
                     .spans = {read_span("a", "snapshot", 1'000, 2'000)},
                     .host = "h0",
                     .clock = ClockReading{.kind = ClockKind::kSame}},
                    {.name = "sidecar s",
                     .pid = 42,
                     .spans = {labelled, read_span("b", "IPC 1", 8'000'000, 8'000'000)},
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
  const auto read = parse_chrome_trace(chrome_trace_json(written));
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_EQ(read->processes.size(), 2U);
  EXPECT_EQ(read->processes[0].name, "coordinator");
  EXPECT_EQ(read->processes[0].host, "h0");
  EXPECT_EQ(read->processes[0].clock->kind, ClockKind::kSame);
  const ProcessTrace& sidecar = read->processes[1];
  EXPECT_EQ(sidecar.pid, 42U);
  EXPECT_EQ(sidecar.dropped, 9U);
  EXPECT_EQ(sidecar.clock->kind, ClockKind::kMeasured);
  EXPECT_EQ(sidecar.clock->offset, std::chrono::nanoseconds(-1'234));
  EXPECT_EQ(sidecar.clock->uncertainty, std::chrono::nanoseconds(56));
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
  ASSERT_EQ(read->flows.size(), 2U) << "one name, two flows";
  ASSERT_EQ(read->flows[0].steps.size(), 3U);
  EXPECT_EQ(read->flows[0].name, "1.2 bucket 0");
  EXPECT_EQ(read->flows[0].steps[0].process, 0U);
  EXPECT_EQ(read->flows[0].steps[2].process, 1U);
  EXPECT_EQ(read->flows[0].steps[2].span, 1U);
  EXPECT_EQ(read->notes, written.notes);
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
  for (const Span& span : read->processes[0].spans) lanes[span.name] = span.lane;
  EXPECT_EQ(lanes["first"], "digest");
  EXPECT_EQ(lanes["inside"], "digest") << "one inside the other may stand on one thread";
  EXPECT_EQ(lanes["second"], "digest (2)");
  EXPECT_EQ(lanes["later"], "digest");
  ASSERT_EQ(read->flows.size(), 1U);
  EXPECT_EQ(read->processes[0].spans[read->flows[0].steps[0].span].name, "first");
  EXPECT_EQ(read->processes[0].spans[read->flows[0].steps[1].span].name, "second");
}

TEST(ChromeTraceReader, ProcessesOfOnePidStayApart) {
  const auto process = [](std::string name) {
    return ProcessTrace{.name = std::move(name), .pid = 7, .spans = {read_span("a", "l", 0, 1)}};
  };
  const auto read = parse_chrome_trace(chrome_trace_json(std::vector{
      process("one"), process("two"), ProcessTrace{.name = "eight", .pid = 8, .spans = {}}}));
  ASSERT_TRUE(read);
  ASSERT_EQ(read->processes.size(), 3U);
  EXPECT_EQ(read->processes[0].pid, 7U);
  EXPECT_EQ(read->processes[1].name, "two");
  EXPECT_EQ(read->processes[1].pid, 9U);
  EXPECT_EQ(read->processes[2].pid, 8U);
}

TEST(ChromeTraceReader, TakesTracesOfOtherPrograms) {
  const auto read = parse_chrome_trace(R"([
    {"ph":"B","name":"outer","pid":"trainer","tid":140000000000001,"ts":1.5,"cat":"cpu_op"},
    {"ph":"B","name":"inner","pid":"trainer","tid":140000000000001,"ts":2},
    {"ph":"E","pid":"trainer","tid":140000000000001,"ts":3},
    {"ph":"i","name":"mark","pid":"trainer","tid":1,"ts":3,"s":"t"},
    {"ph":"E","pid":"trainer","tid":140000000000001,"ts":4.25},
    {"ph":"E","pid":"trainer","tid":140000000000001,"ts":5},
    {"ph":"B","name":"open","pid":3,"tid":"main","ts":4},
    {"ph":"X","name":"x","pid":3,"ts":1,"dur":6,"args":{"list":[1,[2]],"f":0.5,"n":4}}
  ])");
  ASSERT_TRUE(read) << read.error().message();
  ASSERT_EQ(read->processes.size(), 2U);
  EXPECT_EQ(read->processes[0].name, "trainer");
  const auto& spans = read->processes[0].spans;
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].name, "inner");
  EXPECT_EQ(spans[0].lane, "thread 140000000000001");
  EXPECT_EQ(spans[0].begin, TimePoint{2'000});
  EXPECT_EQ(spans[0].end, TimePoint{3'000});
  EXPECT_EQ(spans[1].end, TimePoint{4'250});
  EXPECT_EQ(spans[1].category, Category::kOther);
  ASSERT_EQ(read->processes[1].spans.size(), 2U);
  EXPECT_EQ(read->processes[1].spans[0].name, "x");
  EXPECT_EQ(number_arg(read->processes[1].spans[0], "n"), 4);
  EXPECT_EQ(read->processes[1].spans[0].args.size(), 1U) << "neither lists nor fractions";
  EXPECT_EQ(read->processes[1].spans[1].name, "open");
  EXPECT_EQ(read->processes[1].spans[1].lane, "main");
  EXPECT_EQ(read->processes[1].spans[1].end, TimePoint{7'000}) << "until the last time there is";
}

TEST(ChromeTraceReader, RefusesWhatIsNoTraceAndSaysWhere) {
  EXPECT_THAT(why_of(""), HasSubstr("no Chrome trace: "));
  EXPECT_THAT(why_of("{}"), HasSubstr("no list \"traceEvents\""));
  EXPECT_THAT(why_of("7"), HasSubstr("no list \"traceEvents\""));
  EXPECT_THAT(why_of(R"({"traceEvents":7})"), HasSubstr("\"traceEvents\" is no list"));
  EXPECT_THAT(why_of(R"({"traceEvents":{"a":{"ph":"X"}}})"), HasSubstr("is no list"));
  EXPECT_THAT(why_of(R"({"traceEvents":[{"ph":"X")"), HasSubstr("parse error"));
  EXPECT_THAT(why_of(with_event("7")), HasSubstr("event 1: expected an object"));
  EXPECT_THAT(why_of(with_event(R"({"name":"a"})")), HasSubstr("event 1: no \"ph\""));
  EXPECT_THAT(why_of(with_event(R"({"ph":"M"},{"ph":"X","pid":1.5,"ts":1,"dur":1})")),
              HasSubstr("event 2: \"pid\": expected a whole number or a string, found number"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","pid":-1,"ts":1,"dur":1})")),
              HasSubstr("expected 0 to 4294967295, found -1"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","pid":4294967296,"ts":1,"dur":1})")),
              HasSubstr("found 4294967296"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","tid":[],"ts":1,"dur":1})")),
              HasSubstr("\"tid\": expected a whole number or a string, found array"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","ts":"1","dur":1})")), HasSubstr("found \"1\""));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","ts":1})")), HasSubstr("\"dur\": expected"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","ts":1,"dur":-1})")), HasSubstr("below 0"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","ts":1e300,"dur":1})")), HasSubstr("at most 1e+15"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"s","ts":1,"id":{}})")), HasSubstr("\"id\""));
}

TEST(ChromeTraceReader, KeepsToItsLimits) {
  const std::string event = R"({"ph":"X","name":"a","ts":1,"dur":1})";
  EXPECT_TRUE(parse_chrome_trace(with_event(event + "," + event), {.events = 2}));
  EXPECT_THAT(why_of(with_event(event + "," + event), {.events = 1}),
              HasSubstr("more than 1 events"));
  EXPECT_THAT(why_of(with_event(event), {.bytes = 10}), HasSubstr("at most 10 are read"));
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_THAT(why_of(deep), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(why_of(with_event(R"({"ph":"X","ts":1,"dur":1,"args":{"a":)" + deep + "}}")),
              HasSubstr("nested deeper than 32"));
}

TEST(ChromeTraceReader, FlowEventsOutsideOfSpansAreNoted) {
  const auto read =
      parse_chrome_trace(with_event(R"({"ph":"X","name":"a","pid":1,"tid":1,"ts":10,"dur":5},)"
                                    R"({"ph":"s","name":"f","id":1,"pid":1,"tid":1,"ts":12},)"
                                    R"({"ph":"f","name":"f","id":1,"pid":1,"tid":1,"ts":16})"));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_TRUE(read->flows.empty());
  EXPECT_THAT(read->notes, testing::ElementsAre("1 flow events lie in no span"));
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
  EXPECT_EQ(read->processes[0].spans[0].name, "a\xef\xbf\xbd\x01\n");
}

}  // namespace
}  // namespace wsync::trace
