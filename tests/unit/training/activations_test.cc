// Memory for activations: what is not there is an error, and what is there is as much as was said.
#include "trainer_side/training/activations.h"

#include <array>
#include <gtest/gtest.h>
#include <numeric>
#include <string>
#include <vector>

#include "shared/moe/operators.h"
#include "tests/unit/training/rank_threads.h"
#include "trainer_side/schedule/simulate.h"
#include "trainer_side/training/layer.h"

namespace wsync::training {
namespace {

TEST(SlotPool, ASlotThatIsNotThereIsAnError) {
  SlotPool pool("activations on the device", 2, 8);
  const auto first = pool.take();
  const auto second = pool.take();
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->data(), second->data());
  const auto third = pool.take();
  ASSERT_FALSE(third.has_value());
  EXPECT_EQ(third.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(third.error().message().find("all 2 slots (of 32 bytes) for activations on the device"),
            std::string::npos)
      << third.error().message();
  pool.give_back(*first);
  EXPECT_EQ(pool.take().value().data(), first->data());
  EXPECT_EQ(pool.max_used(), 2U);
}

TEST(SlotPool, WithoutSlotsThereIsNone) {
  SlotPool pool("offloaded activations", 0, 8);
  EXPECT_EQ(pool.take().error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(pool.max_used(), 0U);
}

TEST(Activations, PlacesStayWhenTheyGoToTheHostAndComeBack) {
  SlotPool device("device", 2, 16);
  SlotPool host("host", 1, 16);
  Activations cell(device, &host);
  ASSERT_TRUE(cell.begin());
  Kept a(cell, 2, 3);
  EXPECT_EQ(std::accumulate(a.values().begin(), a.values().end(), 0.0F), 0.0F);
  std::iota(a.values().begin(), a.values().end(), 1.0F);
  EXPECT_EQ(cell.used_bytes(), 6 * sizeof(float));
  ASSERT_TRUE(cell.offload());
  {  // the slot that it was in is another's meanwhile
    Activations other(device);
    ASSERT_TRUE(other.begin());
    Kept noise(other, 4, 4);
    std::fill(noise.values().begin(), noise.values().end(), 77.0F);
    ASSERT_TRUE(cell.onload());
    EXPECT_EQ(device.max_used(), 2U);
  }
  const std::array<float, 6> expected{1, 2, 3, 4, 5, 6};
  EXPECT_TRUE(same_bits(a.values(), expected));
  // What is kept after that begins behind it, and is zero in a slot that was used before.
  Kept b(cell, 1, 10);
  EXPECT_EQ(std::accumulate(b.values().begin(), b.values().end(), 0.0F), 0.0F);
  EXPECT_TRUE(same_bits(a.values(), expected));
  EXPECT_EQ(cell.used_bytes(), 16 * sizeof(float));
}

TEST(Activations, AFullHostOrDeviceIsAnErrorAndNothingIsLost) {
  SlotPool device("device", 1, 4);
  SlotPool host("host", 1, 4);
  Activations first(device, &host);
  Activations second(device, &host);
  ASSERT_TRUE(first.begin());
  Kept kept(first, 1, 4);
  std::fill(kept.values().begin(), kept.values().end(), 3.0F);
  EXPECT_EQ(second.begin().error().code(), ErrorCode::kResourceExhausted);
  ASSERT_TRUE(first.offload());
  ASSERT_TRUE(second.begin());
  EXPECT_EQ(first.onload().error().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(second.offload().error().message().find("for host are in use"), std::string::npos);
  second.release();
  ASSERT_TRUE(first.onload());
  EXPECT_EQ(kept.values()[3], 3.0F);
}

TEST(Activations, SlotsGoBackWhenTheyAreDropped) {
  SlotPool device("device", 1, 4);
  SlotPool host("host", 1, 4);
  for (int i = 0; i < 3; ++i) {
    Activations on_device(device, &host);
    ASSERT_TRUE(on_device.begin());
  }
  for (int i = 0; i < 3; ++i) {
    Activations on_host(device, &host);
    ASSERT_TRUE(on_host.begin() && on_host.offload());
  }
  EXPECT_TRUE(device.take().has_value());
  EXPECT_TRUE(host.take().has_value());
}

// One layer, forward and backward, of `members` ranks that share its experts. With `one_member`
// every token of all goes to the experts of one of them. The bytes that each rank has used.
std::vector<std::size_t> bytes_used(std::uint32_t members, bool one_member) {
  const ParallelSizes sizes{.ep = members, .dp = members};
  const TrainingOptions options = small_options(sizes, 1);
  const moe::ModelSpec& spec = options.spec;
  const std::size_t tokens = options.sequences * options.sequence;
  std::vector<std::size_t> used(members);
  run_as_threads(members, [&](std::uint32_t rank, auto group) {
    RankWeights weights(spec, sizes, place_of(sizes, rank));
    initialise(weights.dense, kSeed, 0.3);
    initialise(weights.experts, kSeed, 0.3);
    if (one_member) send_all_to_one_member(weights.dense);
    const ExpertRange range = experts_of(spec, rank, members);
    const LayerWeights views = layer_weights(0, weights.dense, weights.experts, range);
    RankGradients gradients(spec, sizes, place_of(sizes, rank));
    const moe::RotaryTable rotary(spec.head_dim, options.sequence, spec.rope_theta);
    const ExpertParallel experts{
        .team = collective::Team(group.get(), expert_team(sizes, place_of(sizes, rank)))};
    SlotPool device("device", 1, LayerRun::floats(spec, tokens, options.sequence, members));
    Activations activations(device);
    ASSERT_TRUE(activations.begin());
    LayerRun layer(spec, views, rotary, experts, options.sequence, activations);
    Buffer x(tokens, spec.hidden);
    const auto values = weights.dense.values(moe::kEmbedding);
    for (std::size_t i = 0; i < x.values().size(); ++i)
      x.values()[i] = values[one_member ? i % spec.hidden : i];
    layer.attention(x.matrix());
    ASSERT_TRUE(layer.dispatch());
    layer.mlp();
    ASSERT_TRUE(layer.combine(x.matrix()));
    ASSERT_TRUE(layer.combine_gradient(x.matrix()));
    layer.mlp_gradient();
    ASSERT_TRUE(layer.dispatch_gradient());
    layer.attention_gradient(x.matrix());
    std::vector<ExpertGradients> sources;
    for (ParameterSet& source : gradients.experts)
      sources.push_back(expert_gradients(0, source, range));
    layer.weight_gradient(layer_gradients(0, gradients.dense), sources);
    used[rank] = activations.used_bytes();
  });
  return used;
}

std::size_t bytes_made(std::uint32_t members) {
  const TrainingOptions options = small_options({}, 1);
  return sizeof(float) * LayerRun::floats(options.spec, options.sequences * options.sequence,
                                          options.sequence, members);
}

TEST(LayerRun, KeepsExactlyWhatItsMemoryIsMadeFor) {
  EXPECT_EQ(bytes_used(1, false), std::vector{bytes_made(1)});
}

TEST(LayerRun, WhenAllTokensGoToOneMemberItsMemoryIsJustEnough) {
  std::vector<std::size_t> used = bytes_used(2, true);
  std::sort(used.begin(), used.end());
  EXPECT_EQ(used[1], bytes_made(2));
  EXPECT_LT(used[0], bytes_made(1));  // it has no row of an expert
  for (const std::size_t bytes : bytes_used(2, false)) EXPECT_LT(bytes, bytes_made(2));
}

// The executor's slots are as many as the simulator counts.
TEST(Slots, AreThoseOfTheSimulator) {
  using schedule::Order;
  const schedule::OperationCosts costs{.attention = 1,
                                       .mlp = 1,
                                       .head = 1,
                                       .attention_gradient = 1,
                                       .mlp_gradient = 1,
                                       .weight_gradient = 1,
                                       .dispatch = 1,
                                       .combine = 1,
                                       .pp_transfer = 1,
                                       .offload = 1,
                                       .onload = 1};
  int checked = 0;
  for (const std::uint32_t pp : {1U, 2U, 4U})
    for (const std::uint32_t vpp : {1U, 2U, 3U})
      for (const std::uint32_t layers : {1U, 2U, 3U})
        for (const Order order : {Order::kInterleaved, Order::kOneForwardOneBackward, Order::kGPipe,
                                  Order::kZeroBubbleH1})
          for (const bool overlap : {false, true})
            for (const bool offload : {false, true}) {
              TrainingOptions options = small_options({.pp = pp, .vpp = vpp, .ep = 2, .dp = 2},
                                                      std::max(2 * pp, 2U), layers);
              options.schedule.order = order;
              options.schedule.overlap = overlap;
              options.offload = offload;
              const auto program = plan_training(options);
              if (!program) continue;
              ++checked;
              const auto simulated = schedule::simulate(*program, costs);
              ASSERT_TRUE(simulated.has_value());
              for (std::uint32_t rank = 0; rank < pp; ++rank) {
                const schedule::RankReport& report = simulated->ranks[rank];
                EXPECT_EQ(max_activations(program->ranks[rank]), report.peak_activations);
                EXPECT_EQ(max_offloaded(program->ranks[rank]), report.host_activations);
                if (offload) {
                  EXPECT_LE(report.device_activations, 4U);
                }
              }
            }
  EXPECT_GT(checked, 50);
}

}  // namespace
}  // namespace wsync::training
