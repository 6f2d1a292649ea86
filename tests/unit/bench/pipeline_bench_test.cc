// `wsync bench pipeline`: every byte that engines hold is the model's, the figures are there, and
// the prediction is what its rule says. No time is compared with another.
#include "bench/pipeline/pipeline_bench.h"

#include <gtest/gtest.h>

#include "bench/pipeline/report.h"
#include "shared/base/limits.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

constexpr HostPipelineOptions kSmallPipeline{
    .devices = 2, .bytes = limits::kMiB + 1000, .buffer_bytes = 64 * 1024};

TEST(HostPipeline, UpdatesInBothFormsBringEveryByte) {
  const auto made = HostPipeline::create(kSmallPipeline);
  ASSERT_TRUE(made.has_value()) << made.error().message();
  HostPipeline& pipeline = **made;
  EXPECT_EQ(pipeline.buckets(), 17U);
  for (const Stages stages : {Stages::kTwo, Stages::kThree, Stages::kTwo}) {
    const auto taken = pipeline.update(stages);
    ASSERT_TRUE(taken.has_value()) << taken.error().message();
    EXPECT_GT(taken->wall_s, 0);
  }
  EXPECT_EQ(pipeline.checked_bytes(), 3 * 2 * kSmallPipeline.bytes);
  for (const auto& taken : {pipeline.h2d(), pipeline.broadcasts(), pipeline.reloads(),
                            pipeline.together(), pipeline.hand_overs()}) {
    ASSERT_TRUE(taken.has_value()) << taken.error().message();
    EXPECT_GT(taken->wall_s, 0);
  }
  // Stages alone leave nothing behind that an update would not replace.
  ASSERT_TRUE(pipeline.update(Stages::kThree).has_value());
}

TEST(HostPipeline, WhatCannotBeIsRefused) {
  const auto code = [](HostPipelineOptions options) {
    const auto made = HostPipeline::create(options);
    return made ? ErrorCode::kInternal : made.error().code();
  };
  EXPECT_EQ(code({.devices = 0}), ErrorCode::kInvalidInput);
  EXPECT_EQ(code({.devices = limits::kDeviceCount + 1}), ErrorCode::kInvalidInput);
  EXPECT_EQ(code({.bytes = 4096, .buffer_bytes = 8192}), ErrorCode::kInvalidInput);
  EXPECT_EQ(code({.bytes = 4096, .buffer_bytes = 32}), ErrorCode::kInvalidInput);
  const auto huge = HostPipeline::create({.devices = 64, .bytes = 1ULL << 50U});
  ASSERT_FALSE(huge.has_value());
  EXPECT_EQ(huge.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(
      huge.error().message().find("a model of 1125899906842624 bytes and its copies in 64 engines"),
      std::string::npos)
      << huge.error().message();
}

// 2 devices, 2 rounds of full buckets. Alone each H2D lane takes 4 s for a bucket, a broadcast 1 s
// and an engine 1 s for a bucket, on cores that nobody fills.
HostPipelineRound chart_round() {
  return {.h2d = {.wall_s = 8, .cpu_s = 0.4},
          .broadcast = {.wall_s = 4, .cpu_s = 0.4},
          .reload = {.wall_s = 4, .cpu_s = 0.8},
          .together = {},
          .hand_overs = {}};
}
constexpr HostPipelineOptions kChart{.devices = 2, .bytes = 4096, .buffer_bytes = 1024};

TEST(PredictUpdate, IsTheClosedFormWhereCoresAreFree) {
  const auto two = predict_update(chart_round(), kChart, 64, Stages::kTwo);
  ASSERT_TRUE(two.has_value());
  EXPECT_NEAR(*two, 2 * (4 + 2) + 1, 1e-6);
  const auto three = predict_update(chart_round(), kChart, 64, Stages::kThree);
  ASSERT_TRUE(three.has_value());
  EXPECT_NEAR(*three, 4 + (4 + 1) + 2 + 1, 1e-6);
}

TEST(PredictUpdate, WithOneCoreNothingOverlaps) {
  const HostPipelineRound round{.h2d = {.wall_s = 8, .cpu_s = 8},
                                .broadcast = {.wall_s = 4, .cpu_s = 4},
                                .reload = {.wall_s = 4, .cpu_s = 4},
                                .together = {},
                                .hand_overs = {}};
  for (const Stages stages : {Stages::kTwo, Stages::kThree}) {
    const auto made = predict_update(round, kChart, 1, stages);
    ASSERT_TRUE(made.has_value());
    EXPECT_NEAR(*made, 8 + 4 + 4, 1e-6);
  }
}

TEST(PredictUpdate, StagesThatSlowEachOtherDownTakeAsMuchLonger) {
  HostPipelineRound round = chart_round();
  EXPECT_DOUBLE_EQ(contention(round), 1);
  round.together = {.wall_s = 9, .cpu_s = 2};  // alone: 0.4 + 0.4 + 0.8
  EXPECT_DOUBLE_EQ(contention(round), 1.25);
  const auto made = predict_update(round, kChart, 64, Stages::kTwo);
  ASSERT_TRUE(made.has_value());
  EXPECT_NEAR(*made, 1.25 * (2 * (4 + 2) + 1), 1e-6);
  round.together.cpu_s = 1;  // luck, not a speed
  EXPECT_DOUBLE_EQ(contention(round), 1);
}

TEST(PredictUpdate, LinksOfGivenRatesNeitherWaitForCoresNorSlowEachOtherDown) {
  HostPipelineOptions linked = kChart;
  linked.rates = {.h2d = 256, .broadcast = 1024, .reload = 1024};
  HostPipelineRound round = chart_round();
  round.together = {.wall_s = 9, .cpu_s = 2};
  const auto two = predict_update(round, linked, 1, Stages::kTwo);
  ASSERT_TRUE(two.has_value());
  EXPECT_NEAR(*two, 2 * (4 + 2) + 1, 1e-6);
}

TEST(PredictUpdate, HandOversComeBeforeCopies) {
  HostPipelineRound round = chart_round();
  round.hand_overs.wall_s = 7 * 0.1;  // 2 rounds, 4 broadcasts, the last reload
  EXPECT_NEAR(hand_over_s(round.hand_overs, 4, 2), 0.1, 1e-12);
  const auto made = predict_update(round, kChart, 64, Stages::kTwo);
  ASSERT_TRUE(made.has_value());
  // Each round's H2D, and of reloads the last one; the one before waits behind a broadcast of 1 s,
  // which is shorter than it by a hand-over.
  EXPECT_GT(*made, 13 + 3 * 0.1 - 1e-6);
  EXPECT_LT(*made, 13 + 7 * 0.1);
}

TEST(PipelineBench, FiguresAreThereAndEveryByteIsChecked) {
  const auto interrupt = Interrupt::create();
  ASSERT_TRUE(interrupt.has_value());
  HostPipelineOptions small{.devices = 1, .bytes = limits::kMiB, .buffer_bytes = 128 * 1024};
  PipelineBenchOptions options{.cases = {small}, .rounds = 2};
  small.devices = 2;
  options.cases.push_back(small);
  small.rates = {.h2d = 200e6, .broadcast = 400e6, .reload = 300e6};
  options.cases.push_back(small);
  const auto made =
      run_pipeline_bench(options, *interrupt, [](std::string_view, unsigned, unsigned) {});
  ASSERT_TRUE(made.has_value()) << made.error().message();
  ASSERT_EQ(made->cases.size(), 3U);
  for (const HostPipelineCase& one : made->cases) {
    EXPECT_EQ(one.buckets, 8U);
    ASSERT_EQ(one.rounds.size(), 2U);
    // Two updates in each round, the one that warms up included.
    EXPECT_EQ(one.checked_bytes, 3 * 2 * one.options.devices * one.options.bytes);
    for (const HostPipelineRound& round : one.rounds) {
      EXPECT_GT(round.two_s, 0);
      EXPECT_GT(round.predicted_two_s, 0);
      EXPECT_GT(round.predicted_three_s, 0);
    }
    EXPECT_EQ(one.two_ratio.count, 2U);
    EXPECT_GT(one.three_ratio.min, 0);
  }
  const auto json = to_json(*made);
  EXPECT_EQ(json["cases"][1]["devices"], 2);
  EXPECT_EQ(json["cases"][1]["rounds"].size(), 2U);
  EXPECT_TRUE(json["cases"][1]["rates"].is_null());
  EXPECT_TRUE(json["cases"][2]["rounds"][0]["together"].is_null());
  EXPECT_EQ(json["cases"][2]["rates"]["broadcast_bytes_per_s"], 400e6);
  const std::string text = to_text(*made);
  EXPECT_NE(text.find("2 devices, copies by cores: 1MiB in 8 buckets"), std::string::npos) << text;
  // Whoever waits for a link waits as long as that takes at least.
  const HostPipelineCase& linked = made->cases[2];
  EXPECT_GE(linked.h2d_s.min, static_cast<double>(limits::kMiB) / 2 / 200e6);
  EXPECT_GE(linked.broadcast_s.min, static_cast<double>(limits::kMiB) / 400e6);
  EXPECT_GE(linked.reload_s.min, static_cast<double>(limits::kMiB) / 300e6);
  EXPECT_GE(linked.two_s.min, static_cast<double>(limits::kMiB) * (0.5 / 200e6 + 1 / 400e6));
}

}  // namespace
}  // namespace wsync::bench
