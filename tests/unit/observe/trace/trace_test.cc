#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <pty.h>
#include <sstream>
#include <stack>
#include <sys/stat.h>
#include <thread>

#include "shared/observe/trace/chrome_trace.h"
#include "shared/observe/trace/progress.h"
#include "shared/observe/trace/recorder.h"
#include "shared/observe/trace/text_file.h"
#include "shared/observe/trace/timeline.h"

namespace wsync::trace {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr TimePoint ms(std::int64_t t) { return TimePoint{t * 1'000'000}; }

Span span(std::string lane, Category category, std::int64_t begin, std::int64_t end,
          std::string label) {
  return {.name = "bucket",
          .lane = std::move(lane),
          .category = category,
          .begin = ms(begin),
          .end = ms(end),
          .label = std::move(label),
          .args = {}};
}

std::vector<Span> chart() {
  return {span("H2D 0", Category::kH2D, 100, 140, ""),
          span("IPC 0", Category::kBroadcast, 140, 150, "0"),
          span("IPC 0", Category::kReload, 150, 160, ""),
          span("engine", Category::kPause, 130, 165, "")};
}

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

// Empty when every tag is closed in order and no stray '<' or '&' is left.
std::string xml_problem(const std::string& text) {
  std::stack<std::string> open;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '&' && text.find(';', at) > at + 6) return "a bare &";
    if (text[at] != '<') continue;
    const auto end = text.find('>', at);
    if (end == std::string::npos) return "an open <";
    const std::string tag = text.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return "a < inside <" + tag;
    if (count_of(tag, "\"") % 2 != 0) return "an open quote in <" + tag;
    at = end;
    if (tag.front() == '?' || tag.back() == '/') continue;
    if (tag.front() != '/') {
      open.push(tag.substr(0, tag.find(' ')));
      continue;
    }
    if (open.empty() || open.top() != tag.substr(1)) return "a stray <" + tag + ">";
    open.pop();
  }
  return open.empty() ? "" : "<" + open.top() + "> is not closed";
}

TEST(Recorder, KeepsSpansOfAllThreadsByTheirBegin) {
  Recorder recorder;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 100; ++i)
          recorder.record(span("lane", Category::kOther, 400 - 4 * i + t, 500, ""));
      });
  }
  const auto spans = recorder.take();
  ASSERT_EQ(spans.size(), 400U);
  EXPECT_TRUE(std::is_sorted(spans.begin(), spans.end(),
                             [](const Span& a, const Span& b) { return a.begin < b.begin; }));
  EXPECT_TRUE(recorder.spans().empty());
}

TEST(Recorder, CountsWhatItDropsAtItsLimit) {
  Recorder recorder(2);
  for (int i = 0; i < 5; ++i) recorder.record(span("lane", Category::kOther, i, i + 1, ""));
  EXPECT_EQ(recorder.spans().size(), 2U);
  EXPECT_EQ(recorder.dropped(), 3U);
}

TEST(ChromeTrace, IsJsonWithLanesAsThreads) {
  auto spans = chart();
  spans[1].name = "quote \" backslash \\ line\n";
  spans[1].args = {{.name = "bucket", .value = std::int64_t{7}},
                   {.name = "why", .value = std::string("<x>")}};
  const auto json = nlohmann::json::parse(
      chrome_trace_json({{.name = "sidecar", .pid = 41, .spans = spans},
                         {.name = "engine", .pid = 42, .spans = {spans[2]}}}));
  std::map<std::string, int> tids;
  std::vector<nlohmann::json> drawn;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("pid") == 41) drawn.push_back(event);
    if (event.at("name") == "thread_name" && event.at("pid") == 41)
      tids[event.at("args").at("name")] = event.at("tid");
  }
  // By their begin: copy, pause, broadcast, reload.
  ASSERT_EQ(drawn.size(), 4U);
  EXPECT_EQ(drawn[2].at("name"), spans[1].name);
  EXPECT_EQ(drawn[2].at("cat"), "broadcast");
  EXPECT_EQ(drawn[2].at("tid"), tids.at("IPC 0"));
  EXPECT_DOUBLE_EQ(drawn[2].at("ts"), 140'000.0);
  EXPECT_DOUBLE_EQ(drawn[2].at("dur"), 10'000.0);
  EXPECT_EQ(drawn[2].at("args").at("bucket"), 7);
  EXPECT_EQ(drawn[2].at("args").at("why"), "<x>");
  EXPECT_EQ(drawn[3].at("tid"), tids.at("IPC 0"));
  EXPECT_EQ(tids.size(), 3U);
}

TEST(ChromeTrace, WithoutSpansIsStillJson) {
  EXPECT_TRUE(
      nlohmann::json::parse(chrome_trace_json(Trace{.processes = {}})).at("traceEvents").empty());
}

TEST(Timeline, DrawsEveryCellAtItsTime) {
  const auto svg = timeline_svg(chart(), {.title = "t", .subtitle = "", .lanes = {}});
  EXPECT_EQ(xml_problem(svg), "");
  // 65 ms over 1200 - 96 - 28 = 1076 px: the broadcast begins 40 ms after the first span.
  EXPECT_NE(svg.find(R"(<rect x="758.15" y="122.0" width="165.54")"), std::string::npos) << svg;
  EXPECT_NE(svg.find("engines paused: 35.0 ms"), std::string::npos);
  EXPECT_NE(svg.find(">60</text>"), std::string::npos) << "the axis is in milliseconds";
  EXPECT_EQ(count_of(svg, "<g>"), 3U);
  EXPECT_EQ(count_of(svg, "staging"), 0U) << "the legend names only what is drawn";
  EXPECT_EQ(count_of(svg, "broadcast (number: source device)"), 1U);
}

TEST(Timeline, DrawsOnlyTheLanesThatAreAskedForInTheirOrder) {
  const auto svg =
      timeline_svg(chart(), {.title = "", .subtitle = "", .lanes = {"IPC 0", "H2D 0"}});
  EXPECT_LT(svg.find(">IPC 0<"), svg.find(">H2D 0<"));
  const auto one = timeline_svg(chart(), {.title = "", .subtitle = "", .lanes = {"H2D 0"}});
  EXPECT_EQ(count_of(one, "<g>"), 1U);
}

TEST(Timeline, PausesThatOverlapAreOneBand) {
  const std::vector<Span> spans = {
      span("a", Category::kPause, 50, 70, ""), span("b", Category::kPause, 10, 30, ""),
      span("c", Category::kPause, 20, 40, ""), span("H2D 0", Category::kH2D, 0, 100, "")};
  const auto bands = pause_bands(spans);
  ASSERT_EQ(bands.size(), 2U);
  EXPECT_EQ(bands[0].begin, ms(10));
  EXPECT_EQ(bands[0].end, ms(40));
  EXPECT_EQ(bands[1].begin, ms(50));
  const auto svg = timeline_svg(spans, {.title = "", .subtitle = "", .lanes = {}});
  EXPECT_EQ(count_of(svg, "engines paused: "), 2U);
  EXPECT_EQ(count_of(svg, "engines paused: 30.0 ms"), 1U);
}

TEST(Timeline, SpansBetweenAreThoseThatShareTime) {
  const auto spans = chart();  // 100-140, 140-150, 150-160, 130-165
  const auto between = spans_between(spans, ms(145), ms(149));
  ASSERT_EQ(between.size(), 2U);
  EXPECT_EQ(between[0].category, Category::kBroadcast);
  EXPECT_EQ(between[1].category, Category::kPause);
  EXPECT_TRUE(spans_between(spans, ms(166), ms(200)).empty());
}

TEST(Timeline, TextIsEscapedAndEmptyChartsAreValid) {
  auto spans = chart();
  spans[0].name = "a < b & \"c\"";
  spans[0].label = "<&>";
  const auto svg = timeline_svg(
      spans, {.title = "<title> & more", .subtitle = "\"q\"", .lanes = {}, .width_px = 10});
  EXPECT_EQ(xml_problem(svg), "");
  EXPECT_NE(svg.find("&lt;title&gt; &amp; more"), std::string::npos);
  EXPECT_EQ(xml_problem(timeline_svg({}, {.title = "", .subtitle = "", .lanes = {}})), "");
}

TEST(Timeline, GroupsStandBelowTheirTitlesOnOneAxis) {
  Span pause = span("replica r0", Category::kPause, 120, 160, "2 ms");
  const std::vector<TimelineGroup> groups = {
      {.title = "rank <0>", .lanes = {}, .spans = {span("copy", Category::kOffload, 100, 140, "")}},
      {.title = "sidecar",
       .lanes = {"copy", "replica r0"},
       .spans = {span("copy", Category::kH2D, 140, 150, ""), pause}}};
  const auto svg = grouped_timeline_svg(groups, {.title = "t", .subtitle = "", .lanes = {}});
  EXPECT_EQ(xml_problem(svg), "");
  EXPECT_LT(svg.find(">rank &lt;0&gt;<"), svg.find(">sidecar<"));
  EXPECT_EQ(count_of(svg, ">copy<"), 2U) << "a lane of the same name in each group";
  EXPECT_EQ(count_of(svg, "<g>"), 3U);
  EXPECT_EQ(count_of(svg, "engines paused: "), 0U) << "a pause with a row is a cell of it";
  EXPECT_NE(svg.find(">2 ms</text>"), std::string::npos);
  // Time 0 is the begin of the first group's span: 60 ms over 1076 px.
  EXPECT_NE(svg.find(R"(<rect x="96.00" y="110.0" width="717.33")"), std::string::npos) << svg;
  EXPECT_NE(svg.find(R"(<rect x="813.33" y="170.0" width="179.33")"), std::string::npos) << svg;
}

TEST(Timeline, ARangeCutsCellsAndMarksStandInIt) {
  const auto svg = timeline_svg(chart(), {.title = "",
                                          .subtitle = "",
                                          .lanes = {"H2D 0"},
                                          .range = TimeRange{.begin = ms(120), .end = ms(130)},
                                          .marks = {ms(110), ms(125)}});
  EXPECT_EQ(xml_problem(svg), "");
  // 100 to 140 ms is all that the lane has.
  EXPECT_NE(svg.find(R"(<rect x="96.00" y="86.0" width="1076.00")"), std::string::npos) << svg;
  EXPECT_EQ(count_of(svg, "stroke-dasharray=\"2 3\""), 1U);
  EXPECT_NE(svg.find(R"(<line x1="634.00")"), std::string::npos) << "the mark in the middle";
}

TEST(Timeline, ALabelThatIsTooWideStandsBesideItsCellIfThereIsRoom) {
  const auto with = [](std::int64_t next) {
    return timeline_svg(
        {span("a", Category::kStage, 0, 1, "1.147"), span("a", Category::kStage, next, 1000, "")},
        {.title = "", .subtitle = "", .lanes = {}});
  };
  EXPECT_EQ(count_of(with(500), ">1.147<"), 1U);
  EXPECT_EQ(count_of(with(20), ">1.147<"), 0U);
}

TEST(Timeline, LabelsBesideCellsDoNotLieOnEachOther) {
  const std::vector<Span> spans = {
      span("a", Category::kStage, 0, 1, "first"), span("a", Category::kStage, 1, 2, "second"),
      span("a", Category::kStage, 500, 501, "third"), span("b", Category::kStage, 1, 1000, "")};
  const auto svg = timeline_svg(spans, {.title = "", .subtitle = "", .lanes = {}});
  EXPECT_EQ(count_of(svg, ">first<") + count_of(svg, ">second<"), 1U);
  EXPECT_EQ(count_of(svg, ">third<"), 1U);
}

TEST(TextFile, ReplacesTheFileAndNamesADirectoryThatIsNotThere) {
  const std::string path = ::testing::TempDir() + "wsync_trace_test.svg";
  ASSERT_TRUE(write_text_file(path, "one, the longer text"));
  ASSERT_TRUE(write_timeline_svg(path, chart(), {.title = "t", .subtitle = "", .lanes = {}}));
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(xml_problem(text.str()), "");
  ::unlink(path.c_str());
  const auto missing = write_text_file("/nonexistent/directory/file.svg", "x");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message().find("/nonexistent/directory/file.svg"), std::string::npos);
}

TEST(TextFile, FollowsLinksAndLeavesDevicesWhatTheyAre) {
  const std::string real = ::testing::TempDir() + "wsync_text_real";
  const std::string link = ::testing::TempDir() + "wsync_text_link";
  ASSERT_TRUE(write_text_file(real, "old"));
  ::unlink(link.c_str());
  ASSERT_EQ(::symlink(real.c_str(), link.c_str()), 0);
  ASSERT_TRUE(write_text_file(link, "new"));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  std::stringstream text;
  text << std::ifstream(real).rdbuf();
  EXPECT_EQ(text.str(), "new");
  ::unlink(link.c_str());
  ::unlink(real.c_str());
  const std::string pipe = ::testing::TempDir() + "wsync_text_pipe";
  ::unlink(pipe.c_str());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_TRUE(write_text_file(pipe, "through"));
  char got[16] = {};
  EXPECT_EQ(::read(reader, got, sizeof got), 7);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  ::close(reader);
  ::unlink(pipe.c_str());
}

TEST(TextFile, SaysBeforehandWhatCannotBeWritten) {
  const std::string directory = ::testing::TempDir();
  EXPECT_TRUE(check_text_file(directory + "/wsync_new_file"));
  EXPECT_TRUE(check_text_file("/dev/null"));
  EXPECT_EQ(check_text_file(directory).error().code(), ErrorCode::kInvalidInput);
  const auto missing = check_text_file("/nonexistent/directory/file.svg");
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message().find("no directory /nonexistent/directory"),
            std::string::npos);
}

TEST(Progress, FormatsBytesRatesAndTimes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(256ULL << 20U), "256 MiB");
  EXPECT_EQ(format_bytes((1ULL << 30U) - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes(~0ULL), "16.0 EiB");
  EXPECT_EQ(format_rate(12'300'000'000, seconds(1)), "12.3 GB/s");
  EXPECT_EQ(format_rate(5'000'000, seconds(1)), "5.00 MB/s");
  EXPECT_EQ(format_rate(1, nanoseconds(0)), "-");
  EXPECT_EQ(format_duration(milliseconds(3)), "3.0 ms");
  EXPECT_EQ(format_duration(nanoseconds(999'400'000)), "999.4 ms");
  EXPECT_EQ(format_duration(milliseconds(4100)), "4.1 s");
  EXPECT_EQ(format_duration(seconds(125)), "2 min 05 s");
  EXPECT_EQ(format_duration(seconds(3720)), "1 h 02 min");
}

TEST(Progress, SaysBytesSpeedAndTimeLeftInTheColumnsThereAre) {
  const ProgressState half{.label = "staging 0.3",
                           .done_bytes = 1ULL << 30U,
                           .total_bytes = 2ULL << 30U,
                           .elapsed = seconds(2)};
  const auto wide = progress_text(half, 120);
  EXPECT_EQ(wide,
            "staging 0.3  [############            ]  50 %  1.00 GiB of 2.00 GiB, 537 MB/s, 2.0 s "
            "left");
  EXPECT_EQ(progress_text(half, 70), "staging 0.3  1.00 GiB of 2.00 GiB, 537 MB/s, 2.0 s left");
  EXPECT_EQ(progress_text(half, 10).size(), 10U);
  EXPECT_EQ(progress_text({.label = "x", .done_bytes = 1024, .elapsed = seconds(1)}, 80),
            "x  1.00 KiB, 1.02 kB/s");
}

// A pseudo-terminal: what a person would see.
struct Terminal {
  int master = -1;
  int slave = -1;
  Terminal() {
    EXPECT_EQ(::openpty(&master, &slave, nullptr, nullptr, nullptr), 0);
    EXPECT_EQ(::fcntl(master, F_SETFL, O_NONBLOCK), 0);
  }
  ~Terminal() {
    ::close(master);
    ::close(slave);
  }
  [[nodiscard]] std::string seen() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(master, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
    return text;
  }
};

TEST(Progress, DrawsOnATerminalAtMostTenTimesASecond) {
  const Terminal terminal;
  ProgressLine line(terminal.slave);
  ASSERT_TRUE(line.visible());
  for (int t = 0; t <= 1000; t += 10) line.update("stage", static_cast<unsigned>(t), 1000, ms(t));
  const auto seen = terminal.seen();
  EXPECT_EQ(count_of(seen, "\r\x1b[K"), 11U);
  line.finish(ms(1000));
  EXPECT_NE(terminal.seen().find("1000 B of 1000 B"), std::string::npos);
}

TEST(Progress, AnUnfinishedLineIsErased) {
  const Terminal terminal;
  {
    ProgressLine line(terminal.slave);
    line.update("stage", 1, 10, ms(0));
    (void)terminal.seen();
  }
  EXPECT_EQ(terminal.seen(), "\r\x1b[K");
}

TEST(Progress, PlainLinesNowAndThenWhereThereIsNoTerminal) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_NONBLOCK), 0);
  {
    ProgressLine line(ends[1], {.every = seconds(5), .prefix = "wsync push: "});
    line.update("snapshot", 5, 10, ms(0));
    line.update("snapshot", 6, 10, ms(4900));
    line.update("staging", 10, 40, ms(5100));
    line.update("staging", 20, 40, ms(10'000));
    line.update("staging", 30, 40, ms(15'100));
    line.finish(ms(16'000));
  }
  char text[1024];
  const ssize_t n = ::read(ends[0], text, sizeof text);
  ASSERT_GT(n, 0);
  EXPECT_EQ(std::string(text, static_cast<std::size_t>(n)),
            "wsync push: staging  [######                  ]  25 %  10 B of 40 B, -\n"
            "wsync push: staging  [##################      ]  75 %  30 B of 40 B, 0.00 kB/s, 3.3 s "
            "left\n");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Progress, IsQuietWhereThereIsNoTerminal) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_NONBLOCK), 0);
  {
    ProgressLine line(ends[1]);
    EXPECT_FALSE(line.visible());
    line.update("stage", 1, 10, ms(0));
    line.finish(ms(1));
  }
  char byte = 0;
  EXPECT_LT(::read(ends[0], &byte, 1), 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace wsync::trace
