// The lanes' programs: every message has its two ends, and no latency makes ranks wait for each
// other for ever, even where a send ends only when its receiver takes it.
#include "trainer_side/schedule/lowering.h"

#include <array>
#include <gtest/gtest.h>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "shared/base/format.h"
#include "trainer_side/schedule/order.h"

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

// A strict machine: each lane runs its operations one after the other, a receive holds the lane
// until its message is there. `queue` messages wait between two ranks in each direction of each
// kind; with 0 a send ends only when the receive has begun. Latencies are random.
class StrictMachine {
 public:
  StrictMachine(const Program& program, std::uint32_t queue, std::uint64_t seed)
      : program_(program), queue_(queue), random_(seed) {
    for (const RankProgram& rank : program.ranks) {
      next_.push_back({});
      begun_.push_back({});
      done_.emplace_back(rank.operations.size(), false);
    }
  }

  // Runs to the end or to where nothing moves; true when all is done.
  bool run() {
    begin_all();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      finish(event.rank, event.lane);
      begin_all();
    }
    for (std::size_t rank = 0; rank < next_.size(); ++rank)
      for (std::size_t lane = 0; lane < kLaneCount; ++lane)
        if (next_[rank][lane] != program_.ranks[rank].lanes[lane].size()) return false;
    return true;
  }

 private:
  struct Event {
    double at = 0;
    std::uint32_t rank = 0;
    std::size_t lane = 0;
    bool operator<(const Event& other) const { return at > other.at; }
  };
  // From rank, to rank, is gradient: in the order of sending.
  using Channel = std::tuple<std::uint32_t, std::uint32_t, bool>;
  struct ChannelState {
    std::uint32_t waiting = 0;    // messages in the queue
    std::uint32_t receivers = 0;  // receives that have begun and have no message yet
  };

  [[nodiscard]] const Operation& at(std::uint32_t rank, std::size_t lane) const {
    const RankProgram& program = program_.ranks[rank];
    return program.operations[program.lanes[lane][next_[rank][lane]]];
  }
  static Channel channel_of(std::uint32_t rank, const Operation& operation) {
    const bool is_gradient = operation.kind == OperationKind::kSendGradient ||
                             operation.kind == OperationKind::kReceiveGradient;
    return is_send(operation.kind) ? Channel{rank, operation.peer, is_gradient}
                                   : Channel{operation.peer, rank, is_gradient};
  }

  void begin_all() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t rank = 0; rank < next_.size(); ++rank)
        for (std::size_t lane = 0; lane < kLaneCount; ++lane) moved |= begin(rank, lane);
    }
  }

  bool begin(std::uint32_t rank, std::size_t lane) {
    if (next_[rank][lane] == program_.ranks[rank].lanes[lane].size()) return false;
    if (begun_[rank][lane] == Begun::kRunning) return false;
    const Operation& operation = at(rank, lane);
    for (const std::uint32_t other : operation.after)
      if (!done_[rank][other]) return false;
    if (is_receive(operation.kind)) {
      ChannelState& channel = channels_[channel_of(rank, operation)];
      const bool waited = begun_[rank][lane] == Begun::kWaiting;
      if (!waited) ++channel.receivers;
      begun_[rank][lane] = Begun::kWaiting;
      if (channel.waiting == 0) return !waited;
      --channel.waiting;
      --channel.receivers;
    } else if (is_send(operation.kind)) {
      ChannelState& channel = channels_[channel_of(rank, operation)];
      if (channel.waiting >= queue_ + channel.receivers) return false;
      ++channel.waiting;
    }
    begun_[rank][lane] = Begun::kRunning;
    events_.push({now_ + std::exponential_distribution<double>(1)(random_), rank, lane});
    return true;
  }

  void finish(std::uint32_t rank, std::size_t lane) {
    done_[rank][program_.ranks[rank].lanes[lane][next_[rank][lane]]] = true;
    ++next_[rank][lane];
    begun_[rank][lane] = Begun::kNot;
  }

  enum class Begun : std::uint8_t { kNot, kWaiting, kRunning };
  const Program& program_;
  std::uint32_t queue_;
  std::mt19937_64 random_;
  double now_ = 0;
  std::vector<std::array<std::size_t, kLaneCount>> next_;
  std::vector<std::array<Begun, kLaneCount>> begun_;
  std::vector<std::vector<bool>> done_;
  std::map<Channel, ChannelState> channels_;
  std::priority_queue<Event> events_;
};

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
      for (const std::uint32_t queue : {0U, 1U})
        ASSERT_TRUE(StrictMachine(program, queue, ++seed).run())
            << order_name(options.order) << " pp " << options.shape.pp << " vpp "
            << options.shape.vpp << " m " << options.shape.microbatches << " queue " << queue
            << " seed " << seed;
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

}  // namespace
}  // namespace wsync::schedule
