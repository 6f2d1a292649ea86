// The chart of the design, cell by cell, and both closed forms, from the pipeline under a virtual
// clock.
#include "tests/unit/reload/pipeline_model.h"

#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>
#include <tuple>

namespace wsync::reload {
namespace {

using std::chrono::nanoseconds;

PipelineShape shape_of(std::uint32_t devices, std::uint64_t buckets) {
  PipelineShape shape{.devices = devices, .buckets = buckets, .ipc_slots = 2, .engines = {}};
  for (std::uint32_t d = 0; d < devices; ++d)
    shape.engines.push_back({.engine = EngineId{d}, .device = DeviceIndex{d}});
  return shape;
}

PredictedTimeline predict(std::uint32_t devices, std::uint64_t rounds, int h2d, Stages stages) {
  auto timeline = predict_timeline(
      shape_of(devices, rounds * devices), StageChoice(stages, devices),
      {.h2d = nanoseconds(h2d), .broadcast = nanoseconds(1), .reload = nanoseconds(1)});
  EXPECT_TRUE(timeline.has_value());
  return *timeline;
}

std::int64_t end_of(const PredictedTimeline& timeline) {
  return static_cast<std::int64_t>(timeline.end);
}

// What each lane shows in each unit: lane name -> text of unit 0, 1, 2...
std::map<std::string, std::vector<std::string>> cells(const PredictedTimeline& timeline) {
  std::map<std::string, std::vector<std::string>> lanes;
  for (const TimelineEntry& e : timeline.entries) {
    const auto device = std::to_string(static_cast<std::uint32_t>(e.device));
    const bool h2d = e.activity == Activity::kH2D;
    auto& lane =
        lanes[h2d ? "H2D " + device : "IPC " + std::to_string(static_cast<std::uint32_t>(e.slot))];
    lane.resize(static_cast<std::size_t>(timeline.end), "-");
    const std::string text = h2d ? "H2D" : e.activity == Activity::kReload ? "reload" : device;
    for (auto t = static_cast<std::size_t>(e.begin); t < static_cast<std::size_t>(e.end); ++t) {
      EXPECT_TRUE(lane[t] == "-" || lane[t] == text) << "two operations in unit " << t;
      lane[t] = text;
    }
  }
  return lanes;
}

TEST(PipelineChart, TwoStagesCellByCell) {
  const auto timeline = predict(4, 2, 4, Stages::kTwo);
  EXPECT_EQ(end_of(timeline), 17);
  auto lanes = cells(timeline);
  const std::string r = "reload";
  const std::vector<std::string> h2d = {"H2D", "H2D", "H2D", "H2D", "-", "-", "-", "-", "H2D",
                                        "H2D", "H2D", "H2D", "-",   "-", "-", "-", "-"};
  for (const char* lane : {"H2D 0", "H2D 1", "H2D 2", "H2D 3"}) EXPECT_EQ(lanes[lane], h2d);
  EXPECT_EQ(lanes["IPC 0"], (std::vector<std::string>{"-", "-", "-", "-", "0", r, "2", r, "-", "-",
                                                      "-", "-", "0", r, "2", r, "-"}));
  EXPECT_EQ(lanes["IPC 1"], (std::vector<std::string>{"-", "-", "-", "-", "-", "1", r, "3", r, "-",
                                                      "-", "-", "-", "1", r, "3", r}));
}

TEST(PipelineChart, ThreeStagesCellByCell) {
  const auto timeline = predict(4, 2, 4, Stages::kThree);
  EXPECT_EQ(end_of(timeline), 14);
  auto lanes = cells(timeline);
  const std::string r = "reload";
  EXPECT_EQ(lanes["H2D 0"], (std::vector<std::string>{"H2D", "H2D", "H2D", "H2D", "-", "H2D", "H2D",
                                                      "H2D", "H2D", "-", "-", "-", "-", "-"}));
  EXPECT_EQ(lanes["H2D 3"], (std::vector<std::string>{"H2D", "H2D", "H2D", "H2D", "-", "-", "-",
                                                      "-", "H2D", "H2D", "H2D", "H2D", "-", "-"}));
  EXPECT_EQ(lanes["IPC 0"], (std::vector<std::string>{"-", "-", "-", "-", "0", r, "2", r, "-", "0",
                                                      r, "2", r, "-"}));
  EXPECT_EQ(lanes["IPC 1"], (std::vector<std::string>{"-", "-", "-", "-", "-", "1", r, "3", r, "-",
                                                      "1", r, "3", r}));
}

TEST(PipelineChart, BothClosedFormsHoldForAnySizes) {
  std::mt19937 random(7);
  for (int i = 0; i < 400; ++i) {
    const auto n = std::uniform_int_distribution<std::uint32_t>(1, 12)(random);
    const auto rounds = std::uniform_int_distribution<int>(1, 9)(random);
    const auto h = std::uniform_int_distribution<int>(1, 20)(random);
    const auto devices = static_cast<int>(n);
    const auto rounds64 = static_cast<std::uint64_t>(rounds);
    EXPECT_EQ(end_of(predict(n, rounds64, h, Stages::kTwo)), rounds * (h + devices) + 1)
        << "N " << n << " R " << rounds << " h " << h;
    EXPECT_EQ(end_of(predict(n, rounds64, h, Stages::kThree)),
              h + (rounds - 1) * std::max(devices, h + 1) + devices + 1)
        << "N " << n << " R " << rounds << " h " << h;
  }
}

TEST(PipelineChart, AnUnfinishedLastRoundAndDevicesWithoutEnginesTakePart) {
  PipelineShape shape = shape_of(4, 6);
  shape.engines = {{.engine = EngineId{9}, .device = DeviceIndex{3}}};
  const auto timeline = predict_timeline(
      shape, StageChoice(Stages::kTwo, 4),
      {.h2d = nanoseconds(4), .broadcast = nanoseconds(1), .reload = nanoseconds(1)});
  ASSERT_TRUE(timeline.has_value());
  std::vector<std::uint64_t> reloaded;
  std::vector<std::uint32_t> sources;
  for (const TimelineEntry& e : timeline->entries) {
    if (e.activity == Activity::kReload) reloaded.push_back(e.bucket);
    if (e.activity == Activity::kBroadcast) sources.push_back(static_cast<std::uint32_t>(e.device));
  }
  EXPECT_EQ(reloaded, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(sources, (std::vector<std::uint32_t>{0, 1, 2, 3, 0, 1}));
  EXPECT_EQ(end_of(*timeline), 4 + 4 + 4 + 2 + 1);
}

Result<PredictedTimeline> automatic(std::uint32_t contention, StageChoice choice,
                                    std::uint64_t rounds) {
  return predict_timeline(shape_of(4, rounds * 4), choice,
                          {.h2d = nanoseconds(400),
                           .broadcast = nanoseconds(100),
                           .reload = nanoseconds(50),
                           .contention = contention});
}

TEST(StageChoiceAuto, KeepsThreeStagesWhereTheFabricIsNotShared) {
  const auto timeline = automatic(1, StageChoice(Stages::kAuto, 4), 6);
  ASSERT_TRUE(timeline.has_value());
  EXPECT_EQ(timeline->choice.decided(), Stages::kThree);
  // One round in two-stage form to measure, the rest in three.
  EXPECT_EQ(end_of(*timeline), 800 + 400 + 4 * 500 + 400 + 50);
}

TEST(StageChoiceAuto, FallsBackToTwoStagesWhereItCollapses) {
  const auto timeline = automatic(4, StageChoice(Stages::kAuto, 4), 6);
  ASSERT_TRUE(timeline.has_value());
  EXPECT_EQ(timeline->choice.decided(), Stages::kTwo);
  const auto three = automatic(4, StageChoice(Stages::kThree, 4), 6);
  EXPECT_LT(end_of(*timeline), end_of(*three));
}

TEST(StageChoiceAuto, AMeasurementIsCarriedFromOneUpdateToTheNext) {
  const auto first = automatic(1, StageChoice(Stages::kAuto, 4), 2);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->choice.decided(), std::nullopt);
  const auto second = automatic(1, first->choice, 2);
  EXPECT_EQ(second->choice.decided(), Stages::kThree);
  EXPECT_LT(end_of(*second), end_of(*first));
}

TEST(StageChoiceAuto, OneDeviceHasNothingToChoose) {
  EXPECT_EQ(StageChoice(Stages::kAuto, 1).decided(), Stages::kTwo);
}

TEST(StageChoiceAuto, NamesAreParsedAndUnknownOnesRefused) {
  EXPECT_EQ(parse_stages("auto"), Stages::kAuto);
  EXPECT_EQ(parse_stages("2"), Stages::kTwo);
  EXPECT_EQ(parse_stages("3"), Stages::kThree);
  ASSERT_FALSE(parse_stages("4"));
  EXPECT_EQ(parse_stages("4").error().code(), ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace wsync::reload
