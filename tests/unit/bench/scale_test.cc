// The simulations of `wsync bench scale` against closed forms, and against what is published.
#include <cmath>
#include <gtest/gtest.h>
#include <map>

#include "bench/scale/report.h"
#include "bench/scale/scale_bench.h"

namespace wsync::bench {
namespace {

using reload::DeviceIndex;
using reload::EngineId;

constexpr double kClose = 1e-6;  // relative: rounding, and clocks in whole nanoseconds

void expect_close(double found, double expected) {
  EXPECT_NEAR(found, expected, kClose * std::abs(expected));
}

// ---- shared links ----

TEST(SharedLinks, AloneAFlowIsAsFastAsItsTightestLink) {
  SharedLinks links;
  const LinkId wide = links.add("wide", 100);
  const LinkId narrow = links.add("narrow", 10);
  const FlowId flow =
      links.start({.fixed_s = 2, .work = 50, .demands = {{.link = wide}, {.link = narrow}}});
  EXPECT_EQ(links.advance(), std::vector<FlowId>{flow});
  expect_close(links.now_s(), 7);
  expect_close(links.use()[0].seconds, 0.5);
  expect_close(links.use()[1].seconds, 5);
  EXPECT_TRUE(links.advance().empty());
}

TEST(SharedLinks, TwoFlowsGetHalfOfALink) {
  SharedLinks links;
  const LinkId link = links.add("link", 10);
  const FlowId shorter = links.start({.work = 10, .demands = {{.link = link}}});
  const FlowId longer = links.start({.work = 30, .demands = {{.link = link}}});
  EXPECT_EQ(links.advance(), std::vector<FlowId>{shorter});
  expect_close(links.now_s(), 2);  // 5 a second each
  EXPECT_EQ(links.advance(), std::vector<FlowId>{longer});
  expect_close(links.now_s(), 4);  // then all of it for what is left
  expect_close(links.use()[0].seconds, 4);
}

TEST(SharedLinks, WhatASlowFlowLeavesGoesToOthers) {
  SharedLinks links;
  const LinkId shared = links.add("shared", 10);
  const LinkId slow = links.add("slow", 2);
  const FlowId held = links.start({.work = 2, .demands = {{.link = shared}, {.link = slow}}});
  const FlowId free = links.start({.work = 10, .demands = {{.link = shared, .share = 0.5}}});
  // Alone 2 and 20 a second, which asks for 12 of the 10: both get 10/12 of their speed.
  EXPECT_EQ(links.advance(), std::vector<FlowId>{free});
  expect_close(links.now_s(), 0.6);
  EXPECT_EQ(links.advance(), std::vector<FlowId>{held});
  expect_close(links.now_s(), 0.6 + (2 - 0.6 * 2 * 10 / 12) / 2);
}

TEST(SharedLinks, EndsAtOneTimeComeTogether) {
  SharedLinks links;
  const LinkId a = links.add("a", 3);
  const LinkId b = links.add("b", 7);
  const FlowId first = links.start({.work = 3, .demands = {{.link = a}}});
  const FlowId second = links.start({.work = 7, .demands = {{.link = b}}});
  const FlowId third = links.start({.fixed_s = 1});
  EXPECT_EQ(links.advance(), (std::vector<FlowId>{first, second, third}));
}

// ---- the pipeline, with costs of its chart ----

// H2D of `h` seconds a bucket on a lane for each device, broadcast and reload of 1; with
// `shared`, H2D and broadcasts of all devices take one fabric.
double pipeline_end(std::uint32_t devices, std::uint64_t rounds, double h, Stages stages,
                    bool shared) {
  SharedLinks links;
  std::vector<LinkId> lanes;
  for (std::uint32_t d = 0; d < devices; ++d) lanes.push_back(links.add("lane", 1 / h));
  const LinkId ring = links.add("ring", 1);
  const LinkId engine = links.add("engine", 1);
  const LinkId fabric = links.add("fabric", 1);
  const PipelineFlows flows{
      .h2d =
          [&](std::uint32_t device, std::uint64_t) {
            Flow flow{.work = 1, .demands = {{.link = lanes[device]}}};
            // All devices at once fill the fabric.
            if (shared) flow.demands.push_back({.link = fabric, .share = h / devices});
            return flow;
          },
      .broadcast =
          [&](std::uint64_t) {
            Flow flow{.work = 1, .demands = {{.link = ring}}};
            if (shared) flow.demands.push_back({.link = fabric});
            return flow;
          },
      .reload = [&](std::uint32_t,
                    std::uint64_t) { return Flow{.work = 1, .demands = {{.link = engine}}}; }};
  const auto made =
      simulate_pipeline({.devices = devices,
                         .buckets = rounds * devices,
                         .ipc_slots = 2,
                         .engines = {{.engine = EngineId{0}, .device = DeviceIndex{0}}}},
                        stages, flows, links);
  EXPECT_TRUE(made.has_value());
  return made ? made->prediction.seconds : 0;
}

TEST(SimulatedPipeline, IsTheClosedFormOfBothStages) {
  for (const std::uint32_t devices : {1U, 2U, 4U, 8U})
    for (const std::uint64_t rounds : {1U, 2U, 5U})
      for (const double h : {2.0, 4.0, 9.0}) {
        const double n = devices;
        const auto r = static_cast<double>(rounds);
        expect_close(pipeline_end(devices, rounds, h, Stages::kTwo, false), r * (h + n) + 1);
        expect_close(pipeline_end(devices, rounds, h, Stages::kThree, false),
                     h + (r - 1) * std::max(n, h + 1) + n + 1);
      }
}

// 4 devices, 2 rounds, H2D 4: 17 in two stages, 14 in three; with one fabric for both kinds,
// overlapping them gains nothing: all bytes of both still have to pass.
TEST(SimulatedPipeline, OneFabricForBothTakesTheGainOfThreeStages) {
  expect_close(pipeline_end(4, 2, 4, Stages::kTwo, true), 17);
  EXPECT_GE(pipeline_end(4, 2, 4, Stages::kThree, true), 2 * (4 + 4));
  expect_close(pipeline_end(4, 2, 4, Stages::kThree, false), 14);
}

TEST(SimulatedPipeline, ABadShapeIsRefused) {
  const auto none =
      simulate_pipeline({.devices = 0, .buckets = 1, .engines = {}}, Stages::kTwo, {}, {});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), ErrorCode::kInvalidInput);
}

Cluster small_cluster(std::uint32_t gpus) {
  return {.host = {.name = "test",
                   .gpus = 4,
                   .gpu_bytes = 1000,
                   .gpu_memory = 1e18,
                   .pcie = 1000,
                   .gpus_per_switch = 1,
                   .nvlink = 4000,
                   .nics = 2,
                   .nic = 250,
                   .host_memory = 1e15},
          .gpus = gpus,
          .gpus_per_replica = 4};
}

// ---- a switch ----

TEST(SimulatedSwitch, OneHostIsTheClosedForm) {
  // 8 buckets of 1000 bytes: H2D 1 s, broadcast 0.25 s, reload next to nothing.
  Cluster cluster = small_cluster(4);
  const auto two = simulate_switch(8000, cluster, {.buffer_bytes = 1000, .stages = Stages::kTwo});
  ASSERT_TRUE(two.has_value());
  EXPECT_NEAR(two->prediction.seconds, 2 * (1 + 4 * 0.25), 1e-3);
  EXPECT_EQ(two->prediction.buckets, 8U);
  const auto three =
      simulate_switch(8000, cluster, {.buffer_bytes = 1000, .stages = Stages::kThree});
  ASSERT_TRUE(three.has_value());
  EXPECT_NEAR(three->prediction.seconds, 1 + 1.25 + 4 * 0.25, 1e-3);
}

TEST(SimulatedSwitch, HostsOfAReplicaHaveAPartEach) {
  Cluster cluster = small_cluster(8);
  const auto whole =
      simulate_switch(16000, cluster, {.buffer_bytes = 1000, .stages = Stages::kTwo});
  cluster.gpus_per_replica = 8;
  const auto half = simulate_switch(16000, cluster, {.buffer_bytes = 1000, .stages = Stages::kTwo});
  ASSERT_TRUE(whole.has_value() && half.has_value());
  EXPECT_EQ(whole->prediction.buckets, 16U);
  EXPECT_EQ(half->prediction.buckets, 8U);
}

TEST(SimulatedSwitch, GpusOfOnePcieSwitchHalveTheirCopies) {
  Cluster cluster = small_cluster(4);
  cluster.host.gpus_per_switch = 2;
  const auto made = simulate_switch(4000, cluster, {.buffer_bytes = 1000, .stages = Stages::kTwo});
  ASSERT_TRUE(made.has_value());
  EXPECT_NEAR(made->prediction.seconds, 2 + 4 * 0.25, 1e-3);
}

TEST(SimulatedSwitch, WithoutNvlinkThreeStagesGainLittle) {
  Cluster cluster = small_cluster(4);
  cluster.host.nvlink = 0;  // H2D and broadcasts of 1 s a bucket on the same links
  const auto two = simulate_switch(16000, cluster, {.buffer_bytes = 1000, .stages = Stages::kTwo});
  const auto three =
      simulate_switch(16000, cluster, {.buffer_bytes = 1000, .stages = Stages::kThree});
  ASSERT_TRUE(two.has_value() && three.has_value());
  EXPECT_NEAR(two->prediction.seconds, 4 * (1 + 4), 1e-2);
  EXPECT_GE(three->prediction.seconds, two->prediction.seconds - 1e-2);
}

// ---- staging ----

TEST(SimulatedStaging, AChainIsTheClosedForm) {
  // 10 units of 100 bytes at 500 a second over a chain of 5 hosts, 0.01 s from host to host.
  const auto made = simulate_staging(1000, small_cluster(20), {.unit_bytes = 100, .hop_s = 0.01});
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(made->levels, 5U);
  expect_close(made->seconds, (10 + 5 - 1) * 0.2 + 4 * 0.01);
}

// The recurrence of staging_model.h, unit by unit.
TEST(SimulatedStaging, TheClosedFormIsTheRecurrence) {
  for (const std::uint32_t fan_out : {1U, 2U, 3U})
    for (const std::uint64_t bytes : {1ULL, 99ULL, 100ULL, 101ULL, 250ULL, 1000ULL, 1001ULL}) {
      const Cluster cluster = small_cluster(4 * 9);
      const StagingOptions options{.unit_bytes = 100, .fan_out = fan_out, .hop_s = 0.3};
      const auto made = simulate_staging(bytes, cluster, options);
      ASSERT_TRUE(made.has_value());
      const double trainer = std::min(cluster.network(), cluster.host.host_memory / 3);
      const double host = std::min(cluster.network() / fan_out, cluster.host.host_memory / 3);
      std::vector<double> came(made->levels, 0);
      for (std::uint64_t at = 0; at < bytes; at += options.unit_bytes)
        for (std::uint32_t level = 0; level < made->levels; ++level)
          came[level] = std::max(level == 0 ? 0 : came[level - 1] + options.hop_s, came[level]) +
                        static_cast<double>(std::min(options.unit_bytes, bytes - at)) /
                            (level == 0 ? trainer : host);
      expect_close(made->seconds, came.back());
    }
}

TEST(SimulatedStaging, ATreeHasFewerLevelsAndSlowerHosts) {
  const auto made =
      simulate_staging(1000, small_cluster(4 * 7), {.unit_bytes = 100, .fan_out = 2, .hop_s = 0});
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(made->levels, 3U);  // 1, 2 and 4 hosts
  // The trainer feeds one host at full speed; hosts pass everything on twice, at half of it.
  expect_close(made->seconds, 0.2 + 10 * 0.4 + 0.4);
}

TEST(SimulatedStaging, OversubscriptionHalvesTheNetwork) {
  Cluster cluster = small_cluster(8);
  cluster.oversubscription = 2;
  const auto made = simulate_staging(1000, cluster, {.unit_bytes = 1000, .hop_s = 0});
  ASSERT_TRUE(made.has_value());
  expect_close(made->seconds, 2 * 4.0);
}

TEST(SimulatedStaging, HostsOfAReplicaShareTheTrainer) {
  Cluster cluster = small_cluster(16);
  cluster.gpus_per_replica = 8;  // two chains of two hosts, each with half of the model
  const auto made = simulate_staging(1000, cluster, {.unit_bytes = 500, .hop_s = 0});
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(made->levels, 2U);
  EXPECT_EQ(made->bottleneck, "the trainer's network");
  expect_close(made->seconds, 500 / 250.0 + 500 / 500.0);
}

// ---- checkpoint-engine ----

TEST(CheckpointEngine, OneHostIsTheClosedForm) {
  // 8 tensors of 1024 bytes on 4 ranks, one in a bucket: 2 rounds of one H2D and 4 broadcasts.
  Cluster cluster = small_cluster(4);
  const ModelBytes model{.tensors = std::vector<std::uint64_t>(8, 1024)};
  const auto made =
      simulate_checkpoint_engine(model, cluster, {.bucket_bytes = 1024, .tensor_s = 0.5});
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(made->buckets, 8U);
  // In turns: every broadcast (0.256 s) and every reload (0.5 s) takes the GPU alone; only the
  // second round's H2D (1.024 s) hides the reload before it.
  EXPECT_NEAR(made->seconds, 2 * 1.024 + 8 * (0.256 + 0.5) - 0.5, 1e-3);
  const auto beside = simulate_checkpoint_engine(
      model, cluster, {.bucket_bytes = 1024, .tensor_s = 0.5, .gpu_takes_turns = false});
  ASSERT_TRUE(beside.has_value());
  // Side by side: a broadcast, then reloads one after the other.
  EXPECT_NEAR(beside->seconds, 1.024 + 0.256 + 3 * 0.5 + 1.024 + 0.256 + 4 * 0.5, 1e-3);
}

TEST(CheckpointEngine, BetweenHostsTheNetworkIsTheBottleneck) {
  const ModelBytes model{.tensors = std::vector<std::uint64_t>(64, 1024)};
  const auto made = simulate_checkpoint_engine(model, small_cluster(8), {.bucket_bytes = 8192});
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(made->bottleneck().name, "network");
  expect_close(made->bottleneck().seconds, 64 * 1024 / 500.0);
}

TEST(CheckpointEngine, RingLatencyIsThatOfNcclsModel) {
  expect_close(ring_latency_s(small_cluster(4)), (8.4 + 3 * 3.4) * 1e-6);
  expect_close(ring_latency_s(small_cluster(12)), (8.4 + 9 * 3.4 + 2 * 14) * 1e-6);
}

TEST(CheckpointEngine, WhatCannotBeIsRefused) {
  const ModelBytes few{.tensors = {1024, 1024, 1024}};
  const auto ranks = simulate_checkpoint_engine(few, small_cluster(4), {.bucket_bytes = 1024});
  ASSERT_FALSE(ranks.has_value());
  EXPECT_EQ(ranks.error().message(),
            "3 tensors for 4 ranks: expected at least one tensor for each rank");
  const ModelBytes big{.tensors = {1, 2, 3, 4096}};
  const auto buffer = simulate_checkpoint_engine(big, small_cluster(4), {.bucket_bytes = 4095});
  ASSERT_FALSE(buffer.has_value());
  EXPECT_EQ(
      buffer.error().message(),
      "buffers of 4095 bytes: the largest tensor has 4096 bytes and must fit into one buffer");
}

// ---- floors ----

TEST(Floors, AreBytesByBandwidthOfTheTightestLink) {
  const Cluster cluster = small_cluster(8);
  EXPECT_EQ(switch_floor(8000, cluster)->link, "PCIe");
  expect_close(switch_floor(8000, cluster)->seconds, 2000 / 1000.0);
  EXPECT_EQ(update_floor(8000, cluster)->link, "network");
  expect_close(update_floor(8000, cluster)->seconds, 4000 / 500.0);
  expect_close(staging_floor(8000, cluster)->seconds, 8000 / 500.0);
}

TEST(Clusters, WhatCannotBeIsRefused) {
  const auto refused = [](auto change) {
    Cluster cluster = small_cluster(8);
    change(cluster);
    const auto checked = check_cluster(cluster);
    return !checked.has_value() && checked.error().code() == ErrorCode::kInvalidInput;
  };
  EXPECT_FALSE(refused([](Cluster&) {}));
  EXPECT_TRUE(refused([](Cluster& c) { c.gpus = 0; }));
  EXPECT_TRUE(refused([](Cluster& c) { c.gpus = kScaleGpusMax + 4; }));
  EXPECT_TRUE(refused([](Cluster& c) { c.gpus = 6; }));
  EXPECT_TRUE(refused([](Cluster& c) { c.gpus = 2, c.gpus_per_replica = 2; }));
  EXPECT_TRUE(refused([](Cluster& c) { c.gpus = 6, c.gpus_per_replica = 6; }));
  EXPECT_TRUE(refused([](Cluster& c) { c.host.gpus_per_switch = 3; }));
  EXPECT_TRUE(refused([](Cluster& c) { c.host.pcie = 0; }));
  EXPECT_TRUE(refused([](Cluster& c) { c.host.nic = 0; }));
  EXPECT_TRUE(refused([](Cluster& c) { c.oversubscription = 0.5; }));
  EXPECT_TRUE(refused([](Cluster& c) { c.host.nvlink = -1; }));
}

// ---- what is published ----

// The model, not a machine: these figures change only when the model does.
TEST(PublishedRows, OneConstantMeetsAllWithin14Percent) {
  const auto fitted = fit_tensor_seconds(true);
  ASSERT_TRUE(fitted.has_value());
  EXPECT_NEAR(*fitted, 82e-6, 2e-6);
  for (const PublishedRow& row : published_rows()) {
    const auto made = predict_row(row, *fitted, true);
    ASSERT_TRUE(made.has_value());
    const double error = made->seconds / row.seconds - 1;
    EXPECT_LE(std::abs(error), 0.14) << row.model << " on " << row.gpus;
    if (&row == &fitted_row()) {
      EXPECT_LE(std::abs(error), 1e-6);
    }
  }
}

TEST(ScaleBench, AllModelsOnAllClusters) {
  ScaleOptions options{.host = h20_host()};
  options.models.assign(model_shapes().begin(), model_shapes().end());
  options.gpus = {8, 16, 10'000};
  const auto made = run_scale_bench(options);
  ASSERT_TRUE(made.has_value()) << made.error().message();
  ASSERT_EQ(made->curves.size(), 5U);
  EXPECT_EQ(made->notes,
            (std::vector<std::string>{"DeepSeek-V3.1 on 8 GPUs is left out: 8 is not a multiple of "
                                      "16, the number of GPUs for one copy of the model",
                                      "Kimi-K2 on 8 GPUs is left out: 8 is not a multiple of 16, "
                                      "the number of GPUs for one copy of the model"}));
  for (const ScaleCurve& curve : made->curves) {
    EXPECT_EQ(curve.points.back().gpus, 10'000U);
    for (const ScalePoint& p : curve.points) {
      EXPECT_GT(p.peer.seconds, p.floor.seconds);
      EXPECT_GT(p.ours.chosen.prediction.seconds, p.ours.switch_floor.seconds);
      EXPECT_GE(p.ours.chain.seconds, p.ours.staging_floor.seconds * (1 - kClose));
      // Measuring costs no more than a round in the worse form.
      EXPECT_LE(p.ours.chosen.prediction.seconds, p.ours.two.prediction.seconds + kClose);
      // A pause does not grow with the cluster: every host switches by itself.
      EXPECT_EQ(p.ours.two.prediction.seconds, curve.points.front().ours.two.prediction.seconds);
    }
    EXPECT_EQ(curve.buffers.size(), 6U);
  }
  const auto json = to_json(*made);
  EXPECT_EQ(json["published"].size(), 6U);
  EXPECT_EQ(json["curves"][4]["points"].size(), 2U);
  const std::string text = to_text(*made);
  for (const ModelShape& shape : model_shapes())
    EXPECT_NE(text.find(std::string(shape.name) + ": "), std::string::npos);
}

TEST(ScaleBench, AClusterThatHoldsNoModelIsRefused) {
  ScaleOptions options{.host = h20_host()};
  options.models = {*find_model("Kimi-K2")};
  options.gpus = {8};
  const auto none = run_scale_bench(options);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace wsync::bench
