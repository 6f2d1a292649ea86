#include "shared/observe/trace/update_flows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "shared/base/format.h"
#include "shared/observe/trace/limits.h"
#include "shared/observe/trace/span_codec.h"

namespace wsync::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Place {
  std::uint64_t bucket = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

Span staged_span(Stage stage, const Place& place, std::int64_t begin, std::string engine = {},
                 std::string version = "1.2") {
  Span span{.name = fmt::format("{} {}", stage_name(stage), place.bucket),
            .lane = std::string(stage_name(stage)),
            .category = Category::kStage,
            .begin = TimePoint{begin},
            .end = TimePoint{begin + 10},
            .label = {},
            .args = stage_args(stage, {.version = std::move(version),
                                       .bucket = place.bucket,
                                       .offset = place.offset,
                                       .bytes = place.bytes})};
  if (!engine.empty()) span.args.push_back({.name = "engine", .value = std::move(engine)});
  return span;
}

ProcessTrace process_with(std::string name, std::vector<Span> spans) {
  return {.name = std::move(name), .pid = 1, .spans = std::move(spans)};
}

// "snapshot 0 > receive 0 > ..." of each flow.
std::vector<std::string> chains_of(const std::vector<ProcessTrace>& processes) {
  std::vector<std::string> chains;
  for (const Flow& flow : update_flows(processes)) {
    std::string chain;
    for (const FlowStep& step : flow.steps)
      chain += (chain.empty() ? "" : " > ") + processes[step.process].spans[step.span].name;
    chains.push_back(std::move(chain));
  }
  return chains;
}

TEST(UpdateFlows, LeadFromTheSnapshotToEachEngine) {
  const Place first{.bucket = 0, .offset = 0, .bytes = 100};
  const Place second{.bucket = 1, .offset = 100, .bytes = 50};
  const ProcessTrace coordinator = process_with(
      "coordinator",
      {staged_span(Stage::kSnapshot, first, 0), staged_span(Stage::kSnapshot, second, 5)});
  std::vector<Span> spans;
  for (const Place& place : {first, second}) {
    const auto later = static_cast<std::int64_t>(place.bucket) * 5;
    spans.push_back(staged_span(Stage::kReceive, place, 20 + later));
    spans.push_back(staged_span(Stage::kH2D, place, 40 + later));
    spans.push_back(staged_span(Stage::kBroadcast, place, 50 + later));
    for (const char* engine : {"r0", "r1"})
      spans.push_back(staged_span(Stage::kReload, place, 60 + later, engine));
  }
  const std::vector processes = {coordinator, process_with("sidecar", spans)};
  const std::string chain = "snapshot {0} > receive {0} > h2d {0} > broadcast {0} > reload {0}";
  const auto of = [&](int bucket) { return fmt::format(fmt::runtime(chain), bucket); };
  EXPECT_THAT(chains_of(processes), ElementsAre(of(0), of(0), of(1), of(1)));
  const auto flows = update_flows(processes);
  EXPECT_EQ(flows[0].name, "1.2 bucket 0 to r0");
  EXPECT_EQ(flows[3].name, "1.2 bucket 1 to r1");
}

TEST(UpdateFlows, JoinBucketsThatAreCutDifferently) {
  // The transfer has two buckets, the devices one that begins in the first and ends in the second.
  const std::vector processes = {process_with(
      "sidecar",
      {staged_span(Stage::kReceive, {.bucket = 0, .offset = 0, .bytes = 100}, 0),
       staged_span(Stage::kReceive, {.bucket = 1, .offset = 100, .bytes = 100}, 5),
       staged_span(Stage::kReceive, {.bucket = 2, .offset = 200, .bytes = 100}, 6),
       staged_span(Stage::kH2D, {.bucket = 7, .offset = 50, .bytes = 150}, 10),
       staged_span(Stage::kBroadcast, {.bucket = 7, .offset = 50, .bytes = 150}, 20),
       staged_span(Stage::kReload, {.bucket = 7, .offset = 50, .bytes = 150}, 30, "r0")})};
  EXPECT_THAT(chains_of(processes), ElementsAre("receive 0 > h2d 7 > broadcast 7 > reload 7",
                                                "receive 1 > h2d 7 > broadcast 7 > reload 7"));
}

TEST(UpdateFlows, ALoadOfTheWholeVersionEndsAFlowOfEachBucket) {
  Span load = staged_span(Stage::kLoad, {.bucket = 0, .offset = 0, .bytes = 200}, 30, "r0");
  std::erase_if(load.args, [](const Arg& arg) { return arg.name == "bucket"; });
  const std::vector processes = {
      process_with("coordinator",
                   {staged_span(Stage::kSnapshot, {.bucket = 0, .offset = 0, .bytes = 100}, 0),
                    staged_span(Stage::kSnapshot, {.bucket = 1, .offset = 100, .bytes = 100}, 0)}),
      process_with(
          "sidecar",
          {staged_span(Stage::kReceive, {.bucket = 0, .offset = 0, .bytes = 100}, 10),
           staged_span(Stage::kReceive, {.bucket = 1, .offset = 100, .bytes = 100}, 15), load})};
  EXPECT_THAT(chains_of(processes),
              ElementsAre("snapshot 0 > receive 0 > load 0", "snapshot 1 > receive 1 > load 0"));
  EXPECT_EQ(update_flows(processes)[1].name, "1.2 bucket 1 to r0");
}

TEST(UpdateFlows, TakeTheLastTryBeforeWhatFollows) {
  const Place place{.bucket = 0, .offset = 0, .bytes = 10};
  const std::vector processes = {process_with(
      "sidecar",
      {staged_span(Stage::kH2D, place, 10), staged_span(Stage::kH2D, place, 30),
       staged_span(Stage::kH2D, place, 90), staged_span(Stage::kReload, place, 50, "r0")})};
  const auto flows = update_flows(processes);
  ASSERT_EQ(flows.size(), 1U);
  EXPECT_EQ(flows[0].steps[0].span, 1U);
}

TEST(UpdateFlows, VersionsAndSidecarsAreNotMixed) {
  const Place place{.bucket = 0, .offset = 0, .bytes = 10};
  const std::vector processes = {
      process_with("a", {staged_span(Stage::kReceive, place, 10, "", "1.1"),
                         staged_span(Stage::kReload, place, 50, "r0", "1.2")}),
      process_with("b", {staged_span(Stage::kReceive, place, 10, "", "1.2")})};
  EXPECT_TRUE(update_flows(processes).empty());
}

TEST(UpdateFlows, ClocksThatAreNotQuiteKnownDoNotTearThem) {
  const Place place{.bucket = 0, .offset = 0, .bytes = 10};
  std::vector processes = {
      process_with("coordinator", {staged_span(Stage::kSnapshot, place, 1'000)}),
      process_with("sidecar", {staged_span(Stage::kReload, place, 900, "r0")})};
  EXPECT_TRUE(update_flows(processes).empty());
  processes[1].clock =
      ClockReading{.kind = ClockKind::kMeasured, .uncertainty = std::chrono::nanoseconds(60)};
  EXPECT_EQ(update_flows(processes).size(), 1U);
}

TEST(UpdateFlows, AreNoMoreThanTheirLimitAndPassOverWhatIsBroken) {
  const Place place{.bucket = 0, .offset = 0, .bytes = 10};
  std::vector<Span> spans = {staged_span(Stage::kReceive, place, 0)};
  for (int i = 0; i < 5; ++i) spans.push_back(staged_span(Stage::kReload, place, 50, "r"));
  spans.push_back(staged_span(Stage::kReload, {.bucket = 0, .offset = ~0ULL, .bytes = 5}, 50, "r"));
  spans.push_back(staged_span(Stage::kReload, {.bucket = 0, .offset = 5, .bytes = ~0ULL}, 50, "r"));
  spans.back().args[0].value = std::string("no such stage");
  std::uint64_t left_out = 0;
  EXPECT_EQ(update_flows({process_with("p", spans)}, 3, &left_out).size(), 3U);
  EXPECT_EQ(left_out, 2U);
}

// ---- spans on the wire ----

std::vector<Span> random_spans(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto text = [&] {
    std::string value(random() % 20, '\0');
    for (char& c : value) c = static_cast<char>(random());
    return value;
  };
  std::vector<Span> spans;
  for (std::uint64_t i = random() % 20; i > 0; --i) {
    Span span{.name = text(),
              .lane = text(),
              .category = static_cast<Category>(random() % (static_cast<int>(kLastCategory) + 1)),
              .begin = TimePoint{static_cast<std::int64_t>(random() >> 10U)},
              .end = {},
              .label = text(),
              .args = {}};
    span.end = span.begin + std::chrono::nanoseconds(random() >> 10U);
    for (std::uint64_t arg = random() % 4; arg > 0; --arg) {
      span.args.push_back({.name = text(), .value = static_cast<std::int64_t>(random())});
      span.args.push_back({.name = text(), .value = text()});
    }
    spans.push_back(std::move(span));
  }
  return spans;
}

TEST(SpanCodec, GivesBackWhatWasEncoded) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const std::vector<Span> spans = random_spans(seed);
    const EncodedSpans encoded = encode_spans(spans, 1U << 20U);
    EXPECT_EQ(encoded.left_out, 0U);
    const auto decoded = decode_spans(encoded.bytes);
    ASSERT_TRUE(decoded) << decoded.error().message();
    ASSERT_EQ(decoded->size(), spans.size());
    for (std::size_t i = 0; i < spans.size(); ++i) {
      EXPECT_EQ((*decoded)[i].name, spans[i].name);
      EXPECT_EQ((*decoded)[i].label, spans[i].label);
      EXPECT_EQ((*decoded)[i].end, spans[i].end);
      ASSERT_EQ((*decoded)[i].args.size(), spans[i].args.size());
      for (std::size_t a = 0; a < spans[i].args.size(); ++a)
        EXPECT_EQ((*decoded)[i].args[a].value, spans[i].args[a].value);
    }
    EXPECT_EQ(encode_spans(*decoded, 1U << 20U).bytes, encoded.bytes);
  }
}

TEST(SpanCodec, TheNewestStayWhereThereIsLittleRoom) {
  std::vector<Span> spans;
  for (std::int64_t i = 0; i < 10; ++i)
    spans.push_back(staged_span(Stage::kReceive, {.bucket = 0, .offset = 0, .bytes = 1}, i));
  const std::uint64_t all = encode_spans(spans, 1U << 20U).bytes.size();
  const EncodedSpans some = encode_spans(spans, all / 2);
  EXPECT_LE(some.bytes.size(), all / 2);
  const auto decoded = decode_spans(some.bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->size() + some.left_out, 10U);
  EXPECT_EQ(decoded->back().begin, spans.back().begin);
  EXPECT_GE(decoded->size(), 4U);
  spans[0].name = std::string(10'000, 'x');
  EXPECT_EQ(decode_spans(encode_spans({spans[0]}, 1U << 20U).bytes)->front().name.size(),
            limits::kTraceTextBytes);
}

TEST(SpanCodec, RefusesWhatIsCutOrChanged) {
  const Bytes whole = encode_spans(random_spans(3), 1U << 20U).bytes;
  ASSERT_GT(whole.size(), 100U);
  for (std::size_t n = 0; n < whole.size(); ++n)
    EXPECT_FALSE(decode_spans(std::span(whole).first(n)));
  Bytes many = whole;
  many[3] = std::byte{0xff};
  EXPECT_THAT(decode_spans(many).error().message(), HasSubstr("spans of a trace: spans: "));
  Span backwards = staged_span(Stage::kReceive, {}, 100);
  backwards.end = TimePoint{50};
  EXPECT_THAT(decode_spans(encode_spans({backwards}, 1U << 20U).bytes).error().message(),
              HasSubstr("end: a span must begin at a valid time and must not end before it"));
}

TEST(Recorder, KeepsTheNewestOfARing) {
  Recorder recorder(3, WhenFull::kDropOldest);
  for (std::int64_t i = 0; i < 5; ++i) recorder.record(staged_span(Stage::kReceive, {}, i));
  const auto kept = recorder.spans();
  ASSERT_EQ(kept.size(), 3U);
  EXPECT_EQ(kept[0].begin, TimePoint{2});
  EXPECT_EQ(recorder.dropped(), 2U);
}

TEST(Recorder, OneWithoutRoomWantsNothingAndDropsNothing) {
  Recorder recorder(0, WhenFull::kDropOldest);
  EXPECT_FALSE(recorder.wanted());
  recorder.record(staged_span(Stage::kReceive, {}, 0));
  EXPECT_TRUE(recorder.spans().empty());
  EXPECT_EQ(recorder.dropped(), 0U);
  EXPECT_TRUE(Recorder(1).wanted());
}

TEST(Recorder, AnswersWithWhatEndedNoLongerAgo) {
  Recorder recorder;
  for (std::int64_t i = 0; i < 5; ++i)
    recorder.record(staged_span(Stage::kReceive, {}, i * 100));  // ends 10 later
  const auto recent =
      answer_spans(recorder, std::chrono::nanoseconds(150), 1U << 20U, TimePoint{410});
  const auto decoded = decode_spans(recent.bytes);
  ASSERT_TRUE(decoded);
  ASSERT_EQ(decoded->size(), 2U);
  EXPECT_EQ(decoded->front().begin, TimePoint{300});
  EXPECT_EQ(decode_spans(answer_spans(recorder, {}, 1U << 20U, TimePoint{410}).bytes)->size(), 5U);
  EXPECT_TRUE(decode_spans(answer_spans(recorder, {}, 0, TimePoint{410}).bytes)->empty());
}

}  // namespace
}  // namespace wsync::trace
