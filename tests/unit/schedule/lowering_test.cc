// The lanes' programs: every message has its two ends, and no latency makes ranks wait for each
// other for ever, even where a send ends only when its receiver takes it.
#include "trainer_side/schedule/lowering.h"

#include <array>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "shared/base/format.h"
#include "tests/unit/schedule/strict_machine.h"
#include "trainer_side/schedule/order.h"
#include "trainer_side/schedule/simulate.h"

namespace wsync::schedule {
namespace {

Program lowered(const ScheduleOptions& options, const LoweringOptions& lowering = {}) {
  const Result<Schedule> schedule = make_schedule(options);
  EXPECT_TRUE(schedule.has_value()) << schedule.error().message();
  Result<Program> program = lower(*schedule, lowering);
  EXPECT_TRUE(program.has_value()) << program.error().message();
  return std::move(*program);
}

ScheduleOptions figure_options() {
  return {.shape = {.pp = 4, .vpp = 2, .microbatches = 8}, .overlap = true, .delay_wgrad = true};
}

std::vector<std::string> lane_text(const Program& program, std::size_t rank, Lane lane,
                                   std::uint32_t turn) {
  std::vector<std::string> text;
  for (const std::uint32_t index : program.ranks[rank].lanes[static_cast<std::size_t>(lane)]) {
    const Operation& operation = program.ranks[rank].operations[index];
    if (operation.turn == turn && operation.part != 0)
      text.push_back(fmt::format("{}:{} {}", operation.part, operation_name(operation.kind),
                                 to_string(operation.cell)));
  }
  return text;
}

TEST(Lowering, ThePartsOfAPair) {
  const Program program = lowered(figure_options(), {.offload = true});
  // Turn 12 of PP0 is (4F4;4I1),4W1.
  EXPECT_EQ(lane_text(program, 0, Lane::kComputation, 12),
            (std::vector<std::string>{"1:attention 4F4", "2:mlp_gradient 4I1", "3:mlp 4F4",
                                      "4:attention_gradient 4I1", "5:weight_gradient 4W1"}));
  EXPECT_EQ(lane_text(program, 0, Lane::kCommunication, 12),
            (std::vector<std::string>{"1:combine_gradient 4I1", "2:dispatch 4F4",
                                      "3:dispatch_gradient 4I1", "4:combine 4F4",
                                      "5:send_activation 4F4", "5:send_gradient 4I1"}));
  EXPECT_EQ(lane_text(program, 0, Lane::kCopy, 12),
            (std::vector<std::string>{"1:offload 0F7", "3:onload 4I2"}));
}

TEST(Lowering, AForwardAndABackwardAlone) {
  const Program program = lowered(figure_options(), {.offload = true});
  EXPECT_EQ(lane_text(program, 1, Lane::kCommunication, 0),
            (std::vector<std::string>{"2:dispatch 1F0", "4:combine 1F0", "5:send_activation 1F0"}));
  EXPECT_EQ(lane_text(program, 1, Lane::kComputation, 24),
            (std::vector<std::string>{"2:mlp_gradient 1I7", "4:attention_gradient 1I7",
                                      "5:weight_gradient 1W7"}));
  EXPECT_EQ(lane_text(program, 1, Lane::kCommunication, 24),
            (std::vector<std::string>{"1:combine_gradient 1I7", "3:dispatch_gradient 1I7",
                                      "5:send_gradient 1I7"}));
}

TEST(Lowering, WithoutExpertParallelismThereIsNoDispatch) {
  const Program program = lowered(figure_options(), {.expert_parallel = false});
  for (const RankProgram& rank : program.ranks)
    for (const Operation& operation : rank.operations)
      EXPECT_TRUE(lane_of(operation.kind) != Lane::kCommunication || is_send(operation.kind) ||
                  is_receive(operation.kind));
}

// (sender, receiver, is gradient, stage that needs it, micro-batch) of all sends and receives.
using Ends = std::map<std::tuple<std::uint32_t, std::uint32_t, bool, std::uint32_t, std::uint32_t>,
                      std::array<int, 2>>;
Ends ends_of(const Program& program) {
  Ends ends;
  for (std::uint32_t rank = 0; rank < program.ranks.size(); ++rank)
    for (const Operation& operation : program.ranks[rank].operations) {
      const bool sends = is_send(operation.kind);
      if (!sends && !is_receive(operation.kind)) continue;
      const bool is_gradient = operation.kind == OperationKind::kSendGradient ||
                               operation.kind == OperationKind::kReceiveGradient;
      std::uint32_t stage = operation.cell.stage;
      if (sends) stage += is_gradient ? -1U : 1U;
      const std::uint32_t from = sends ? rank : operation.peer;
      const std::uint32_t to = sends ? operation.peer : rank;
      ++ends[{from, to, is_gradient, stage, operation.cell.microbatch}][sends ? 0 : 1];
    }
  return ends;
}

std::vector<ScheduleOptions> many_options() {
  std::vector<ScheduleOptions> all;
  for (const std::uint32_t p : {1U, 2U, 3U, 4U, 5U, 8U})
    for (const std::uint32_t v : {1U, 2U, 3U})
      for (const std::uint32_t m : {p, p + 1, 2 * p, 3 * p + 2, 4 * p})
        for (const std::uint32_t group : {p, 2 * p})
          for (const Order order : {Order::kInterleaved, Order::kZeroBubbleH1, Order::kGPipe})
            for (const bool overlap : {false, true}) {
              const ScheduleOptions options{.order = order,
                                            .shape = {.pp = p, .vpp = v, .microbatches = m},
                                            .group = group,
                                            .overlap = overlap,
                                            .delay_wgrad = (m + v) % 2 == 0};
              if (make_schedule(options)) all.push_back(options);
            }
  return all;
}

std::string text_of(const ScheduleOptions& options) {
  return fmt::format("{} pp {} vpp {} m {} group {}{}", order_name(options.order), options.shape.pp,
                     options.shape.vpp, options.shape.microbatches,
                     options.group.value_or(options.shape.pp), options.overlap ? " overlap" : "");
}

TEST(Lowering, EveryMessageIsSentOnceAndReceivedOnce) {
  for (const ScheduleOptions& options : many_options()) {
    const Shape& shape = options.shape;
    const Ends ends = ends_of(lowered(options));
    const std::size_t each =
        shape.pp == 1 ? 0 : std::size_t{shape.stages() - 1} * shape.microbatches;
    ASSERT_EQ(ends.size(), 2 * each);
    for (const auto& [message, count] : ends) ASSERT_EQ(count, (std::array<int, 2>{1, 1}));
  }
}

TEST(Lowering, NoLatencyMakesRanksWaitForEachOther) {
  std::uint64_t seed = 1;
  for (const ScheduleOptions& options : many_options())
    for (const bool offload : {false, true}) {
      if (offload && options.order == Order::kZeroBubbleH1) continue;
      const Program program = lowered(options, {.offload = offload});
      for (const std::uint32_t queue : {0U, 1U}) {
        StrictMachine machine(program, queue, ++seed);
        ASSERT_TRUE(machine.run()) << text_of(options) << " queue " << queue << " seed " << seed;
        ASSERT_EQ(machine.misplaced(), "") << text_of(options) << " seed " << seed;
        if (offload) {
          ASSERT_LE(machine.max_on_device(), 4U) << text_of(options) << " seed " << seed;
        }
      }
    }
}

// The machine above can tell: the same program with two messages of one rank in the wrong order
// stands still.
TEST(Lowering, AnotherOrderOfMessagesWouldDeadlock) {
  Program program = lowered(figure_options());
  for (RankProgram& rank : program.ranks) {
    std::vector<std::uint32_t>& lane = rank.lanes[static_cast<std::size_t>(Lane::kCommunication)];
    // Receives first, wherever a send stood before one.
    for (std::size_t i = 1; i < lane.size(); ++i)
      if (is_receive(rank.operations[lane[i]].kind) && is_send(rank.operations[lane[i - 1]].kind))
        std::swap(lane[i], lane[i - 1]);
  }
  EXPECT_FALSE(StrictMachine(program, 0, 1).run());
}

TEST(Lowering, OffloadNeedsWeightGradientsThatFollowTheirBackward) {
  const Result<Schedule> schedule = make_schedule(
      {.order = Order::kZeroBubbleH1, .shape = {.pp = 4, .vpp = 1, .microbatches = 8}});
  ASSERT_TRUE(schedule.has_value());
  const Result<Program> program = lower(*schedule, {.offload = true});
  ASSERT_FALSE(program.has_value());
  EXPECT_NE(program.error().message().find("turn offload off"), std::string::npos);
}

TEST(Lowering, AStageHasALayerAtLeast) {
  const Result<Program> program = lower(make_schedule(figure_options()).value(), {.layers = 0});
  ASSERT_FALSE(program.has_value());
  EXPECT_EQ(program.error().message(), "a stage has 0 layers; expected 1 or more");
}

// With several layers and with the head: what the executor runs.
std::vector<ScheduleOptions> some_options() {
  std::vector<ScheduleOptions> some;
  for (const ScheduleOptions& options : many_options())
    if (options.shape.pp <= 4 && options.shape.microbatches <= 2 * options.shape.pp)
      some.push_back(options);
  return some;
}
template <class Visit>
void for_each_layered(const Visit& visit) {
  for (const ScheduleOptions& options : some_options())
    for (const std::uint32_t layers : {2U, 3U})
      for (const bool head : {false, true})
        for (const bool offload : {false, true}) {
          if (offload && options.order == Order::kZeroBubbleH1) continue;
          const LoweringOptions lowering{.expert_parallel = options.overlap || head,
                                         .offload = offload,
                                         .layers = layers,
                                         .head = head};
          visit(options, lowering, lowered(options, lowering));
        }
}

TEST(LoweringOfLayers, EachCellHasItsOperationsInOrder) {
  for_each_layered([](const ScheduleOptions& options, const LoweringOptions& lowering,
                      const Program& program) {
    const Shape& shape = options.shape;
    ASSERT_EQ(program.layers, lowering.layers);
    for (std::uint32_t rank = 0; rank < shape.pp; ++rank) {
      // By stage and micro-batch: what is computed and exchanged, in order; layers as digits.
      std::map<std::pair<std::uint32_t, std::uint32_t>, std::string> computed;
      std::map<std::pair<std::uint32_t, std::uint32_t>, std::string> exchanged;
      for (const Lane lane : {Lane::kComputation, Lane::kCommunication})
        for (const std::uint32_t i : program.ranks[rank].lanes[static_cast<std::size_t>(lane)]) {
          const Operation& operation = program.ranks[rank].operations[i];
          if (is_send(operation.kind) || is_receive(operation.kind)) continue;
          auto& text = lane == Lane::kComputation ? computed : exchanged;
          text[{operation.cell.stage, operation.cell.microbatch}] +=
              fmt::format("{}{} ", operation_name(operation.kind), operation.layer);
        }
      ASSERT_EQ(computed.size(), shape.cells());
      std::string compute_end, exchange, exchange_end, compute;
      for (std::uint32_t layer = 0; layer < lowering.layers; ++layer) {
        const std::uint32_t back = lowering.layers - 1 - layer;
        compute += fmt::format("attention{} mlp{} ", layer, layer);
        compute_end += fmt::format("mlp_gradient{} attention_gradient{} ", back, back);
        exchange += fmt::format("dispatch{} combine{} ", layer, layer);
        exchange_end += fmt::format("combine_gradient{} dispatch_gradient{} ", back, back);
      }
      for (const auto& [cell, text] : computed) {
        const bool has_head = lowering.head && cell.first + 1 == shape.stages();
        const std::string expected = compute +
                                     (has_head ? fmt::format("head{} ", lowering.layers - 1) : "") +
                                     compute_end + "weight_gradient0 ";
        ASSERT_EQ(text, expected) << text_of(options);
        ASSERT_EQ(exchanged[cell], lowering.expert_parallel ? exchange + exchange_end : "");
      }
    }
  });
}

TEST(LoweringOfLayers, MessagesMatchAndNothingWaitsForEver) {
  std::uint64_t seed = 1000;
  for_each_layered([&](const ScheduleOptions& options, const LoweringOptions& lowering,
                       const Program& program) {
    const Shape& shape = options.shape;
    const Ends ends = ends_of(program);
    ASSERT_EQ(ends.size(),
              shape.pp == 1 ? 0 : 2 * std::size_t{shape.stages() - 1} * shape.microbatches);
    for (const auto& [message, count] : ends) ASSERT_EQ(count, (std::array<int, 2>{1, 1}));
    const std::uint32_t replicas = lowering.expert_parallel ? 2 : 1;
    StrictMachine machine(program, static_cast<std::uint32_t>(seed % 2), seed, replicas);
    ASSERT_TRUE(machine.run()) << text_of(options) << " seed " << seed;
    ASSERT_EQ(machine.misplaced(), "")
        << text_of(options) << ": began before its activations were on the device, seed " << seed;
    if (lowering.offload) {
      ASSERT_LE(machine.max_on_device(), 4U) << text_of(options) << " seed " << seed;
    }
    ++seed;
  });
}

}  // namespace
}  // namespace wsync::schedule
