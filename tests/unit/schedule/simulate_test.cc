// The simulator against every closed form: makespan, bubble, pair cost, activations.
#include "trainer_side/schedule/simulate.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "trainer_side/schedule/order.h"

namespace wsync::schedule {
namespace {

Simulation simulated(const ScheduleOptions& options, const OperationCosts& costs,
                     const LoweringOptions& lowering = {}, bool lockstep = true) {
  const Result<Schedule> schedule = make_schedule(options);
  EXPECT_TRUE(schedule.has_value()) << schedule.error().message();
  const Result<Program> program = lower(*schedule, lowering);
  EXPECT_TRUE(program.has_value()) << program.error().message();
  Result<Simulation> simulation = simulate(*program, costs, {.lockstep = lockstep});
  EXPECT_TRUE(simulation.has_value()) << simulation.error().message();
  return std::move(*simulation);
}

OperationCosts cell_costs(double forward, double backward, std::optional<double> pair = {}) {
  return costs_of_cells(forward, backward, 0, pair).value();
}

// Of some parts of a pair the computation is longer, of others the communication.
OperationCosts lane_costs() {
  return {.attention = 3,
          .mlp = 5,
          .attention_gradient = 4,
          .mlp_gradient = 7,
          .weight_gradient = 6,
          .dispatch = 6,
          .combine = 3.5,
          .pp_transfer = 2};
}

// P 2 to 16, V 2 to 4, M up to 4P in whole groups.
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (std::uint32_t p = 2; p <= 16; ++p)
    for (std::uint32_t v = 2; v <= 4; ++v)
      for (std::uint32_t m = p; m <= 4 * p; m += p) all.push_back({p, v, m});
  return all;
}

TEST(Simulate, WithoutOverlapTheTotalAndTheBubbleOfInterleaved1F1B) {
  const OperationCosts costs = cell_costs(1, 2);
  for (const Shape& shape : shapes()) {
    const Simulation simulation = simulated({.shape = shape}, costs);
    const double p = shape.pp;
    const double t = shape.cells();
    ASSERT_NEAR(simulation.makespan, (t + p - 1) * 3, 1e-6);
    ASSERT_NEAR(simulation.bubble_ratio, (p - 1) / t, 1e-9);
    ASSERT_FALSE(simulation.pair.has_value());
  }
}

TEST(Simulate, WithOverlapTheTotalByTheCostOfAPair) {
  for (const double pair : {2.0, 2.4, 3.0}) {
    const OperationCosts costs = cell_costs(1, 2, pair);
    for (const Shape& shape : shapes()) {
      if (pair != 2.4 && shape.pp > 5) continue;
      const double p = shape.pp;
      const double v = shape.vpp;
      const Simulation simulation = simulated({.shape = shape, .overlap = true}, costs);
      ASSERT_NEAR(simulation.makespan, p * v * 3 + (shape.cells() - (v - 1) * p - 1) * pair, 1e-6)
          << shape.pp << " " << shape.vpp << " " << shape.microbatches;
      // One micro-batch a rank and no pair: P = M leaves pairs only where M * V > w.
      if (simulation.pair) {
        ASSERT_NEAR(*simulation.pair, pair, 1e-9);
      }
    }
  }
}

TEST(Simulate, PeakActivations) {
  for (const Shape& shape : shapes())
    for (const std::uint32_t extra : {0U, 1U}) {
      if (extra == 0 && shape.pp > 5) continue;
      const ScheduleOptions options{.shape = shape, .overlap = extra == 1, .extra_warmup = extra};
      const std::vector<std::uint32_t> warmup = warmup_counts(options);
      const Simulation simulation = simulated(options, cell_costs(1, 2));
      for (std::uint32_t rank = 0; rank < shape.pp; ++rank)
        ASSERT_EQ(simulation.ranks[rank].peak_activations,
                  std::min(warmup[rank], shape.cells() - 1) + 1)
            << shape.pp << " " << shape.vpp << " " << shape.microbatches << " rank " << rank;
    }
}

TEST(Simulate, WithOffloadADeviceHoldsFourAndTheHostTheRest) {
  for (const Shape& shape : shapes()) {
    const ScheduleOptions options{.shape = shape, .overlap = true};
    const std::vector<std::uint32_t> warmup = warmup_counts(options);
    const Simulation with = simulated(options, cell_costs(1, 2), {.offload = true});
    const Simulation without = simulated(options, cell_costs(1, 2));
    ASSERT_NEAR(with.makespan, without.makespan, 1e-6) << "copies fit beside the computation";
    for (std::uint32_t rank = 0; rank < shape.pp; ++rank) {
      ASSERT_LE(with.ranks[rank].device_activations, 4U);
      ASSERT_EQ(with.ranks[rank].peak_activations, without.ranks[rank].peak_activations);
      ASSERT_LE(with.ranks[rank].host_activations, warmup[rank] - 1);
      if (warmup[rank] < shape.cells()) {
        if (rank + 1 < shape.pp) {
          ASSERT_EQ(with.ranks[rank].device_activations, 4U);
        }
        ASSERT_EQ(with.ranks[rank].host_activations, warmup[rank] - 1)
            << shape.pp << " " << shape.vpp << " " << shape.microbatches << " rank " << rank;
      }
    }
  }
}

// Copies that are far too slow take longer, and never more memory.
TEST(Simulate, SlowCopiesWaitForRoom) {
  for (const bool delay : {false, true})
    for (const double copy : {0.1, 1.0, 7.0}) {
      OperationCosts costs = costs_of_cells(1, 2, delay ? 1 : 0, {}).value();
      costs.offload = copy;
      costs.onload = copy * 1.5;
      for (const bool lockstep : {false, true})
        for (const bool overlap : {false, true}) {
          const Simulation simulation = simulated({.shape = {.pp = 4, .vpp = 2, .microbatches = 8},
                                                   .overlap = overlap,
                                                   .delay_wgrad = delay},
                                                  costs, {.offload = true}, lockstep);
          for (const RankReport& rank : simulation.ranks) EXPECT_LE(rank.device_activations, 4U);
        }
    }
}

TEST(Simulate, APairCostsTheLongerLaneOfEachPart) {
  const OperationCosts costs = lane_costs();
  EXPECT_DOUBLE_EQ(costs.pair(true), 3.5 + 7 + 6 + 4 + 6);
  EXPECT_DOUBLE_EQ(costs.pair(false), 3.5 + 7 + 6 + 4 + 8);
  EXPECT_DOUBLE_EQ(costs.forward(), 3 + 6 + 5 + 3.5 + 2);
  EXPECT_DOUBLE_EQ(costs.backward(true), 3.5 + 7 + 6 + 4 + 6);
  for (const bool delay : {false, true}) {
    for (const Shape& shape : {Shape{4, 2, 8}, Shape{2, 3, 6}, Shape{8, 2, 32}}) {
      const Simulation simulation =
          simulated({.shape = shape, .overlap = true, .delay_wgrad = delay}, costs);
      ASSERT_TRUE(simulation.pair.has_value());
      EXPECT_NEAR(*simulation.pair, costs.pair(delay), 1e-9);
      const double p = shape.pp;
      const double v = shape.vpp;
      EXPECT_NEAR(simulation.makespan,
                  p * v * (costs.forward() + costs.backward(delay)) - 2 * costs.pp_transfer +
                      (shape.cells() - (v - 1) * p - 1) * costs.pair(delay),
                  4 * costs.pp_transfer)
          << delay;
    }
  }
}

TEST(Simulate, WithoutLockstepNothingTakesLonger) {
  const OperationCosts costs = lane_costs();
  const ScheduleOptions options{
      .shape = {.pp = 4, .vpp = 2, .microbatches = 8}, .overlap = true, .delay_wgrad = true};
  const Simulation lockstep = simulated(options, costs);
  const Simulation loose = simulated(options, costs, {}, false);
  EXPECT_LE(loose.makespan, lockstep.makespan);
  EXPECT_GT(lockstep.exposed(), 0);
}

TEST(Simulate, PublishedBubblesOfTheOtherOrders) {
  for (const std::uint32_t p : {2U, 4U, 8U})
    for (const std::uint32_t m : {p, 2 * p, 4 * p}) {
      const Shape shape{.pp = p, .vpp = 1, .microbatches = m};
      // F = I = W = 1.
      const OperationCosts costs = costs_of_cells(1, 2, 1, {}).value();
      const auto bubble = [&](Order order) {
        return simulated({.order = order, .shape = shape}, costs).makespan - m * 3.0;
      };
      EXPECT_NEAR(bubble(Order::kOneForwardOneBackward), (p - 1) * 3.0, 1e-9);
      EXPECT_NEAR(bubble(Order::kGPipe), (p - 1) * 3.0, 1e-9);
      EXPECT_NEAR(bubble(Order::kZeroBubbleH1), (p - 1) * 1.0, 1e-9) << p << " " << m;
    }
}

TEST(Simulate, TheCriticalPathIsAsLongAsTheStep) {
  const Simulation simulation = simulated(
      {.shape = {.pp = 4, .vpp = 2, .microbatches = 8}, .overlap = true}, cell_costs(1, 2, 2.4));
  ASSERT_FALSE(simulation.critical_path.empty());
  EXPECT_DOUBLE_EQ(simulation.critical_path.front().time.begin, 0);
  EXPECT_DOUBLE_EQ(simulation.critical_path.back().time.end, simulation.makespan);
  for (std::size_t i = 1; i < simulation.critical_path.size(); ++i)
    EXPECT_NEAR(simulation.critical_path[i].time.begin, simulation.critical_path[i - 1].time.end,
                1e-9);
}

TEST(Simulate, ImpossibleCostsAreRefused) {
  EXPECT_NE(costs_of_cells(0, 2, 0, {}).error().message().find("both must be above 0"),
            std::string::npos);
  EXPECT_NE(costs_of_cells(1, 2, 3, {}).error().message().find("cannot be a part of a backward"),
            std::string::npos);
  EXPECT_EQ(costs_of_cells(1, 2, 0, 1.5).error().message(),
            "a pair of 1.5 is not between the longer of its cells, 2, and their sum, 3");
}

}  // namespace
}  // namespace wsync::schedule
