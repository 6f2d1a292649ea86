// The lists of actions: the published figure, their text, and what is refused.
#include "trainer_side/schedule/order.h"

#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include "shared/base/format.h"
#include "trainer_side/schedule/action.h"
#include "trainer_side/schedule/validate.h"

namespace wsync::schedule {
namespace {

ScheduleOptions options_of_figure() {
  return {.shape = {.pp = 4, .vpp = 2, .microbatches = 8}, .overlap = true};
}

Schedule made(const ScheduleOptions& options) {
  const Result<Schedule> schedule = make_schedule(options);
  EXPECT_TRUE(schedule.has_value()) << schedule.error().message();
  return schedule.value_or(Schedule{});
}

std::string refusal(const ScheduleOptions& options) {
  const Result<Schedule> schedule = make_schedule(options);
  return schedule ? "not refused" : schedule.error().message();
}

// The digits of figure 7 of the Kimi K2 report (second edition), from 1, chunks left out: warm-up |
// pairs | cool-down of each rank.
std::string digits(const std::vector<Action>& actions) {
  std::string text;
  std::string_view bar = " | ";
  bool in_pairs = false;
  for (const Action& action : actions) {
    const bool is_forward = action.cell.computation == Computation::kForward;
    if (action.backward) {
      text += fmt::format("{}({},{})", in_pairs ? "" : bar, action.cell.microbatch + 1,
                          action.backward->microbatch + 1);
      in_pairs = true;
    } else {
      text += fmt::format("{}{}",
                          in_pairs && !is_forward ? bar
                          : text.empty()          ? ""
                                                  : " ",
                          action.cell.microbatch + 1);
      in_pairs = false;
    }
  }
  return text;
}

TEST(Order, TheFigureOfTheReport) {
  const Schedule schedule = made(options_of_figure());
  ASSERT_EQ(schedule.ranks.size(), 4U);
  EXPECT_EQ(digits(schedule.ranks[0]),
            "1 2 3 4 1 2 3 4 5 6 7 | (8,1)(5,2)(6,3)(7,4)(8,1) | 2 3 4 5 6 7 8 5 6 7 8");
  EXPECT_EQ(digits(schedule.ranks[1]),
            "1 2 3 4 1 2 3 4 5 | (6,1)(7,2)(8,3)(5,4)(6,1)(7,2)(8,3) | 4 5 6 7 8 5 6 7 8");
  EXPECT_EQ(digits(schedule.ranks[2]),
            "1 2 3 4 1 2 3 | (4,1)(5,2)(6,3)(7,4)(8,1)(5,2)(6,3)(7,4)(8,5) | 6 7 8 5 6 7 8");
  EXPECT_EQ(digits(schedule.ranks[3]),
            "1 2 3 4 1 | (2,1)(3,2)(4,3)(5,4)(6,1)(7,2)(8,3)(5,4)(6,5)(7,6)(8,7) | 8 5 6 7 8");
}

// What the grid shows in each of its 27 slots, of ranks 0 and 3.
TEST(Order, TheSlotsOfTheFigure) {
  const Schedule schedule = made(options_of_figure());
  const auto slots = unit_slots(schedule);
  ASSERT_TRUE(slots.has_value()) << slots.error().message();
  const auto row = [&](std::size_t rank) {
    std::vector<std::string> cells(27);
    for (std::size_t step = 0; step < schedule.ranks[rank].size(); ++step)
      cells.at((*slots)[rank][step]) = to_string(schedule.ranks[rank][step]);
    return fmt::format("{}", fmt::join(cells, " "));
  };
  EXPECT_EQ(row(0),
            "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 (0F7;4B0) (4F4;4B1) (4F5;4B2) (4F6;4B3) "
            "(4F7;0B0) 0B1 0B2 0B3 4B4 4B5 4B6 4B7 0B4 0B5 0B6 0B7");
  EXPECT_EQ(row(3),
            "   3F0 3F1 3F2 3F3 7F0 (7F1;7B0) (7F2;7B1) (7F3;7B2) (3F4;7B3) (3F5;3B0) (3F6;3B1) "
            "(3F7;3B2) (7F4;3B3) (7F5;7B4) (7F6;7B5) (7F7;7B6) 7B7 3B4 3B5 3B6 3B7   ");
}

// F(m,c) on rank r is at slot r + j, B(m,c) at P*V + (P-1-r) + j'.
TEST(Order, SlotsByTheirClosedForm) {
  for (const std::uint32_t p : {2U, 3U, 4U, 7U, 16U})
    for (const std::uint32_t v : {2U, 3U, 4U})
      for (std::uint32_t m = p; m <= 4 * p; m += p) {
        const Schedule schedule =
            made({.shape = {.pp = p, .vpp = v, .microbatches = m}, .overlap = true});
        const auto slots = unit_slots(schedule);
        ASSERT_TRUE(slots.has_value()) << slots.error().message();
        const CellPlaces places(schedule);
        for (std::uint32_t stage = 0; stage < p * v; ++stage)
          for (std::uint32_t i = 0; i < m; ++i) {
            const std::uint32_t r = stage % p;
            const std::uint32_t c = stage / p;
            const std::uint32_t group = i / p * p * v + i % p;
            const Place forward = places.forward(stage, i);
            const Place backward = places.backward(stage, i);
            ASSERT_EQ((*slots)[r][forward.step], r + group + c * p);
            ASSERT_EQ((*slots)[r][backward.step], p * v + (p - 1 - r) + group + (v - 1 - c) * p);
          }
        ASSERT_EQ((*slots)[0].back() + 1, m * v + p * v + p - 1);
      }
}

TEST(Order, WarmupCounts) {
  EXPECT_EQ(warmup_counts(options_of_figure()), (std::vector<std::uint32_t>{11, 9, 7, 5}));
  ScheduleOptions options = options_of_figure();
  options.overlap = false;
  EXPECT_EQ(warmup_counts(options), (std::vector<std::uint32_t>{10, 8, 6, 4}));
  options = {.order = Order::kOneForwardOneBackward,
             .shape = {.pp = 4, .vpp = 1, .microbatches = 2}};
  EXPECT_EQ(warmup_counts(options), (std::vector<std::uint32_t>{2, 2, 1, 0}));
  options.order = Order::kGPipe;
  EXPECT_EQ(warmup_counts(options), (std::vector<std::uint32_t>{2, 2, 2, 2}));
}

TEST(Order, DelayedWeightGradientsFollowTheirOwnInputGradient) {
  ScheduleOptions options = options_of_figure();
  options.delay_wgrad = true;
  const std::string text = write_actions(made(options));
  EXPECT_NE(text.find("0F6,(0F7;4I0),4W0,(4F4;4I1),4W1"), std::string::npos) << text;
  EXPECT_EQ(text.find('B'), std::string::npos);
}

TEST(Order, EveryOrderIsValid) {
  for (const std::uint32_t p : {1U, 2U, 3U, 4U, 8U})
    for (const std::uint32_t v : {1U, 2U, 3U})
      for (const std::uint32_t m : {p, p + 1, 2 * p, 3 * p, 4 * p + 1})
        for (const Order order : {Order::kInterleaved, Order::kOneForwardOneBackward,
                                  Order::kZeroBubbleH1, Order::kGPipe})
          for (const bool overlap : {false, true})
            for (const bool delay : {false, true}) {
              ScheduleOptions options{.order = order,
                                      .shape = {.pp = p, .vpp = v, .microbatches = m},
                                      .overlap = overlap,
                                      .delay_wgrad = delay};
              const Result<Schedule> schedule = make_schedule(options);
              if (!schedule) continue;  // sizes that do not go together: tests below
              const Result<> valid = validate(*schedule);
              EXPECT_TRUE(valid.has_value()) << valid.error().message();
            }
}

TEST(Order, RefusesSizesThatDoNotGoTogether) {
  ScheduleOptions options = options_of_figure();
  options.group = 3;
  EXPECT_EQ(refusal(options),
            "groups of 3 micro-batches are smaller than the 4 ranks: a chunk would begin before "
            "its first activation is back from the last rank; take a group of 4 to 8");
  options.group = 9;
  EXPECT_EQ(refusal(options),
            "groups of 9 micro-batches are larger than the 8 of a step; take 9 or more "
            "micro-batches");
  options = options_of_figure();
  options.shape.microbatches = 10;
  EXPECT_EQ(refusal(options),
            "10 micro-batches in groups of 4 leave a last group of 2, smaller than the 4 ranks; "
            "take 8 or 12 micro-batches");
  options = options_of_figure();
  options.shape.vpp = 1;
  EXPECT_NE(refusal(options).find("with one chunk on each rank (vpp 1) overlapped pairs do not "
                                  "tile"),
            std::string::npos);
  options = options_of_figure();
  options.extra_warmup = 2;
  EXPECT_EQ(refusal(options), "the extra warm-up is 2; expected 0 or 1");
  options = options_of_figure();
  options.order = Order::kGPipe;
  EXPECT_NE(refusal(options).find("the order gpipe has no overlapped pairs"), std::string::npos);
  options = {.order = Order::kZeroBubbleH1, .shape = {.pp = 4, .vpp = 2, .microbatches = 8}};
  EXPECT_EQ(refusal(options), "the order zb-h1 has one chunk on each rank, not 2");
  options.shape = {.pp = 0, .vpp = 1, .microbatches = 8};
  EXPECT_NE(refusal(options).find("the number of pipeline ranks (pp) is 0; expected 1 to"),
            std::string::npos);
  options.shape = {.pp = 1024, .vpp = 64, .microbatches = 1024};
  EXPECT_NE(refusal(options).find("at most"), std::string::npos);
  EXPECT_EQ(order_of("zbh1").error().message(),
            "no order 'zbh1'; there are interleaved, 1f1b, zb-h1, gpipe");
}

TEST(Actions, ReadBackWhatTheyWrite) {
  for (const bool delay : {false, true}) {
    ScheduleOptions options = options_of_figure();
    options.delay_wgrad = delay;
    const Schedule schedule = made(options);
    const Result<Schedule> read = read_actions(write_actions(schedule));
    ASSERT_TRUE(read.has_value()) << read.error().message();
    EXPECT_EQ(read->shape, schedule.shape);
    EXPECT_EQ(read->ranks, schedule.ranks);
  }
  const Result<Schedule> spaced = read_actions("\n PP0: 0F0 , ( 0F1 ; 0B0 ),0B1\r\n\n");
  ASSERT_TRUE(spaced.has_value()) << spaced.error().message();
  EXPECT_EQ(write_actions(*spaced), "PP0: 0F0,(0F1;0B0),0B1\n");
}

TEST(Actions, BadTextIsRefusedWithItsPlace) {
  const auto why = [](std::string_view text) {
    const Result<Schedule> read = read_actions(text);
    return read ? std::string("read") : read.error().message();
  };
  EXPECT_EQ(why(""), "actions: no line; expected 'PP0: 0F0,...' first");
  EXPECT_EQ(why("PP1: 0F0"), "actions, line 1, column 1: expected 'PP0:', found 'PP1: 0F0'");
  EXPECT_EQ(why("PP0: 0F0 0B0"),
            "actions, line 1, column 10: expected ',' or the end of the line, found '0B0'");
  EXPECT_EQ(why("PP0: 0X0"), "actions, line 1, column 7: expected F, B, I or W, found 'X0'");
  EXPECT_EQ(why("PP0: F0"),
            "actions, line 1, column 6: expected the number of a stage, found 'F0'");
  EXPECT_EQ(why("PP0: 0F"),
            "actions, line 1, column 8: expected the number of a micro-batch, found ''");
  EXPECT_EQ(why("PP0: (0F0;0W0)"),
            "actions, line 1, column 15: the pair (0F0;0W0) is not a forward with a backward (F "
            "with B or I), found ''");
  EXPECT_NE(why("PP0: 0F99999999").find("over the limit"), std::string::npos);
  EXPECT_NE(why("PP0: 0F99999999999999999999").find("expected the number of a micro-batch"),
            std::string::npos);
  EXPECT_EQ(why("PP0: 4095F0"), "the number of chunks of a rank (vpp) is 4096; expected 1 to 64");
}

}  // namespace
}  // namespace wsync::schedule
