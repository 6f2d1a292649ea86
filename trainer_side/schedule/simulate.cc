#include "trainer_side/schedule/simulate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "shared/base/format.h"

namespace wsync::schedule {
namespace {

constexpr std::uint32_t kNobody = ~std::uint32_t{0};
constexpr double kNotYet = -1;

struct OperationRef {
  std::uint32_t rank = kNobody;
  std::uint32_t index = 0;
};

// Maps the cell that needs a message to the send of that message.
class SendIndex {
 public:
  explicit SendIndex(const Program& program) : shape_(program.shape) {
    for (auto& list : sends_) list.resize(std::size_t{shape_.stages()} * shape_.microbatches);
    for (std::uint32_t rank = 0; rank < program.ranks.size(); ++rank)
      for (std::uint32_t i = 0; i < program.ranks[rank].operations.size(); ++i) {
        const Operation& operation = program.ranks[rank].operations[i];
        if (!is_send(operation.kind)) continue;
        const bool is_gradient = operation.kind == OperationKind::kSendGradient;
        const std::uint32_t to = is_gradient ? operation.cell.stage - 1 : operation.cell.stage + 1;
        at(is_gradient, to, operation.cell.microbatch) = {rank, i};
      }
  }
  [[nodiscard]] OperationRef of(const Operation& receive) {
    return at(receive.kind == OperationKind::kReceiveGradient, receive.cell.stage,
              receive.cell.microbatch);
  }

 private:
  OperationRef& at(bool is_gradient, std::uint32_t stage, std::uint32_t microbatch) {
    return sends_[is_gradient ? 1 : 0][std::size_t{stage} * shape_.microbatches + microbatch];
  }
  Shape shape_;
  std::array<std::vector<OperationRef>, 2> sends_;
};

// Times all lanes of all ranks. The next operation of a lane is timed as soon as everything that it
// waits for has been timed. Lanes run in order, so the times do not depend on the order of visits.
class Run {
 public:
  Run(const Program& program, const OperationCosts& costs, const SimulationOptions& options)
      : program_(program), costs_(costs), options_(options), sends_(program) {
    for (const RankProgram& rank : program.ranks) {
      ranks_.emplace_back();
      ranks_.back().times.resize(rank.operations.size(), {kNotYet, kNotYet});
      ranks_.back().bound_by.resize(rank.operations.size());
      if (options.lockstep) ranks_.back().parts = parts_of(rank, program.layers);
    }
  }

  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
        for (std::size_t lane = 0; lane < kLaneCount; ++lane)
          while (advance(rank, lane)) moved = true;
    }
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
      for (std::size_t lane = 0; lane < kLaneCount; ++lane)
        if (ranks_[rank].next[lane] != program_.ranks[rank].lanes[lane].size()) return false;
    return true;
  }

  [[nodiscard]] const std::vector<Timing>& times(std::uint32_t rank) const {
    return ranks_[rank].times;
  }

  [[nodiscard]] std::vector<CriticalStep> critical_path() const {
    OperationRef last{0, 0};
    double end = kNotYet;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
      for (std::uint32_t i = 0; i < ranks_[rank].times.size(); ++i)
        if (ranks_[rank].times[i].end > end) {
          end = ranks_[rank].times[i].end;
          last = {rank, i};
        }
    std::vector<CriticalStep> path;
    for (OperationRef at = last; at.rank != kNobody; at = ranks_[at.rank].bound_by[at.index]) {
      const Operation& operation = program_.ranks[at.rank].operations[at.index];
      const Timing& time = ranks_[at.rank].times[at.index];
      if (!is_receive(operation.kind) && time.end > time.begin)
        path.push_back({at.rank, operation.kind, operation.cell, time});
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  // In lockstep, an operation waits for all operations of the previous part, on both lanes.
  struct Parts {
    // Operations of each part that is not empty, in order.
    std::vector<std::vector<std::uint32_t>> members;
    std::vector<std::uint32_t> part_of;  // index into `members`; copies have one too
  };
  struct RankState {
    std::vector<Timing> times;
    std::vector<OperationRef> bound_by;  // the input of each operation that ended last
    std::array<std::size_t, kLaneCount> next{};
    Parts parts;
  };

  static Parts parts_of(const RankProgram& rank, std::uint32_t layers) {
    const std::size_t parts_of_turn = std::size_t{4} * layers + 2;
    std::vector<std::vector<std::uint32_t>> all(rank.turns * parts_of_turn);
    for (std::uint32_t i = 0; i < rank.operations.size(); ++i) {
      const Operation& operation = rank.operations[i];
      if (operation.part != 0 && lane_of(operation.kind) != Lane::kCopy)
        all[operation.turn * parts_of_turn + operation.part].push_back(i);
    }
    std::vector<std::uint32_t> index(all.size());
    Parts parts;
    for (std::size_t i = 0; i < all.size(); ++i) {
      index[i] = static_cast<std::uint32_t>(parts.members.size());
      if (!all[i].empty()) parts.members.push_back(std::move(all[i]));
    }
    for (const Operation& operation : rank.operations)
      parts.part_of.push_back(index[operation.turn * parts_of_turn + operation.part]);
    return parts;
  }

  bool advance(std::uint32_t rank, std::size_t lane) {
    RankState& state = ranks_[rank];
    const std::vector<std::uint32_t>& queue = program_.ranks[rank].lanes[lane];
    if (state.next[lane] == queue.size()) return false;
    const std::uint32_t index = queue[state.next[lane]];
    const Operation& operation = program_.ranks[rank].operations[index];
    Start start;
    if (is_receive(operation.kind)) {
      if (!wait_for(start, sends_.of(operation))) return false;
    } else {
      for (const std::uint32_t other : operation.after)
        if (!wait_for(start, {rank, other})) return false;
      if (!wait_for_lane(start, rank, queue, state.next[lane], operation)) return false;
      if (options_.lockstep && !wait_for_part(start, rank, index)) return false;
    }
    const double cost =
        costs_.of(operation.kind) *
        (operation.in_pair && lane_of(operation.kind) == Lane::kComputation ? costs_.pair_factor
                                                                            : 1);
    state.times[index] = {start.at, start.at + cost};
    state.bound_by[index] = start.after;
    ++state.next[lane];
    return true;
  }

  struct Start {
    double at = 0;
    OperationRef after;
  };
  bool wait_for(Start& start, const OperationRef& other) const {
    const Timing& time = ranks_[other.rank].times[other.index];
    if (time.end == kNotYet) return false;
    if (time.end > start.at || start.after.rank == kNobody) start = {time.end, other};
    return true;
  }

  // Waits for the previous operation of the lane. A receive does not occupy the lane. The two sends
  // of one turn run concurrently.
  bool wait_for_lane(Start& start, std::uint32_t rank, const std::vector<std::uint32_t>& queue,
                     std::size_t position, const Operation& operation) const {
    const RankProgram& program = program_.ranks[rank];
    const Operation* companion = &operation;
    while (position > 0) {
      const std::uint32_t index = queue[--position];
      const Operation& before = program.operations[index];
      if (is_receive(before.kind)) continue;
      const bool together = is_send(before.kind) && is_send(companion->kind) &&
                            before.turn == companion->turn && before.kind != companion->kind;
      if (companion == &operation && together) continue;
      if (companion != &operation && !together) return true;
      if (!wait_for(start, {rank, index})) return false;
      companion = &before;
    }
    return true;
  }

  bool wait_for_part(Start& start, std::uint32_t rank, std::uint32_t index) const {
    const Parts& parts = ranks_[rank].parts;
    const std::uint32_t part = parts.part_of[index];
    if (part == 0) return true;
    for (const std::uint32_t other : parts.members[part - 1])
      if (!wait_for(start, {rank, other})) return false;
    return true;
  }

  const Program& program_;
  const OperationCosts& costs_;
  const SimulationOptions& options_;
  SendIndex sends_;
  std::vector<RankState> ranks_;
};

// Returns the maximum number of intervals that overlap at one moment. Intervals that only touch at
// their ends do not overlap.
class Overlaps {
 public:
  void add(double begin, double end) {
    if (end <= begin) return;
    changes_.emplace_back(begin, 1);
    changes_.emplace_back(end, -1);
  }
  [[nodiscard]] std::uint32_t max() {
    std::sort(changes_.begin(), changes_.end());
    std::int64_t now = 0;
    std::int64_t max = 0;
    for (const auto& [time, change] : changes_) max = std::max(max, now += change);
    return static_cast<std::uint32_t>(max);
  }

 private:
  std::vector<std::pair<double, int>> changes_;
};

struct ActivationLife {
  double made = kNotYet;
  double released = kNotYet;
  Timing offload{kNotYet, kNotYet};
  Timing onload{kNotYet, kNotYet};
  std::uint32_t offload_turn = 0;
  std::uint32_t onload_turn = 0;
};

// Returns the time range of the computation of each turn.
std::vector<Timing> computation_of_turns(const RankProgram& rank,
                                         const std::vector<Timing>& times) {
  std::vector<Timing> turns(rank.turns, {std::numeric_limits<double>::max(), 0});
  for (const std::uint32_t i : rank.lanes[static_cast<std::size_t>(Lane::kComputation)]) {
    Timing& turn = turns[rank.operations[i].turn];
    turn.begin = std::min(turn.begin, times[i].begin);
    turn.end = std::max(turn.end, times[i].end);
  }
  return turns;
}

void count_activations(const Program& program, const RankProgram& rank,
                       const std::vector<Timing>& times, RankReport& report) {
  const Shape& shape = program.shape;
  std::vector<ActivationLife> lives(shape.cells());
  for (std::size_t i = 0; i < times.size(); ++i) {
    const Operation& operation = rank.operations[i];
    if (is_receive(operation.kind) || is_send(operation.kind)) continue;
    ActivationLife& life =
        lives[std::size_t{shape.chunk_of(operation.cell.stage)} * shape.microbatches +
              operation.cell.microbatch];
    if (operation.kind == OperationKind::kAttention && operation.layer == 0)
      life.made = times[i].begin;
    if (operation.kind == OperationKind::kWeightGradient) life.released = times[i].end;
    if (operation.kind == OperationKind::kOffload) {
      life.offload = times[i];
      life.offload_turn = operation.turn;
    }
    if (operation.kind == OperationKind::kOnload) {
      life.onload = times[i];
      life.onload_turn = operation.turn;
    }
  }
  const std::vector<Timing> turns = computation_of_turns(rank, times);
  Overlaps all, device, host;
  for (const ActivationLife& life : lives) {
    all.add(life.made, life.released);
    if (life.offload.end == kNotYet) {
      device.add(life.made, life.released);
      continue;
    }
    // A copy occupies its buffer for the whole turn.
    device.add(life.made, std::max(life.offload.end, turns[life.offload_turn].end));
    device.add(std::min(life.onload.begin, turns[life.onload_turn].begin), life.released);
    host.add(life.offload.begin, life.onload.end);
  }
  report.peak_activations = all.max();
  report.device_activations = device.max();
  report.host_activations = host.max();
}

double length(const std::vector<Timing>& intervals) {
  double sum = 0;
  for (const Timing& interval : intervals) sum += interval.end - interval.begin;
  return sum;
}

// Returns the union of the intervals, sorted and without overlap.
std::vector<Timing> unite(std::vector<Timing> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Timing& a, const Timing& b) { return a.begin < b.begin; });
  std::vector<Timing> united;
  for (const Timing& interval : intervals) {
    if (united.empty() || interval.begin > united.back().end)
      united.push_back(interval);
    else
      united.back().end = std::max(united.back().end, interval.end);
  }
  return united;
}

double time_in_both(const std::vector<Timing>& a, const std::vector<Timing>& b) {
  double sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max(0.0, std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin));
    if (a[i].end < b[j].end)
      ++i;
    else
      ++j;
  }
  return sum;
}

// Adds the duration of each pair: from the first operation of its turn to the last.
void add_pairs(const RankProgram& rank, const std::vector<Timing>& times,
               std::vector<double>& pairs) {
  std::vector<Timing> turns(rank.turns, {std::numeric_limits<double>::max(), 0});
  std::vector<bool> is_pair(rank.turns, false);
  for (std::size_t i = 0; i < times.size(); ++i) {
    const Operation& operation = rank.operations[i];
    if (operation.part == 0 || lane_of(operation.kind) == Lane::kCopy) continue;
    Timing& turn = turns[operation.turn];
    turn.begin = std::min(turn.begin, times[i].begin);
    turn.end = std::max(turn.end, times[i].end);
    if (operation.in_pair) is_pair[operation.turn] = true;
  }
  for (std::size_t turn = 0; turn < turns.size(); ++turn)
    if (is_pair[turn]) pairs.push_back(turns[turn].end - turns[turn].begin);
}

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

bool delays_wgrad(const Program& program) {
  for (const Operation& operation : program.ranks.front().operations)
    if (operation.kind == OperationKind::kWeightGradient)
      return operation.cell.computation == Computation::kWeightGradient;
  return false;
}

}  // namespace

RankReport rank_report(const Program& program, const RankProgram& rank,
                       const std::vector<Timing>& times) {
  std::array<std::vector<Timing>, kLaneCount> busy;
  for (std::size_t i = 0; i < times.size(); ++i)
    if (!is_receive(rank.operations[i].kind) && times[i].end > times[i].begin)
      busy[static_cast<std::size_t>(lane_of(rank.operations[i].kind))].push_back(times[i]);
  for (std::vector<Timing>& intervals : busy) intervals = unite(std::move(intervals));
  const auto& [computation, communication, copy] = busy;
  RankReport report;
  report.computation = length(computation);
  report.communication = length(communication);
  report.copy = length(copy);
  report.exposed = report.communication - time_in_both(computation, communication);
  count_activations(program, rank, times, report);
  return report;
}

double OperationCosts::of(OperationKind kind) const noexcept {
  switch (kind) {
    case OperationKind::kAttention:
      return attention;
    case OperationKind::kMlp:
      return mlp;
    case OperationKind::kHead:
      return head;
    case OperationKind::kMlpGradient:
      return mlp_gradient;
    case OperationKind::kAttentionGradient:
      return attention_gradient;
    case OperationKind::kWeightGradient:
      return weight_gradient;
    case OperationKind::kDispatch:
    case OperationKind::kDispatchGradient:
      return dispatch;
    case OperationKind::kCombine:
    case OperationKind::kCombineGradient:
      return combine;
    case OperationKind::kSendActivation:
    case OperationKind::kSendGradient:
      return pp_transfer;
    case OperationKind::kReceiveActivation:
    case OperationKind::kReceiveGradient:
      return 0;
    case OperationKind::kOffload:
      return offload;
    case OperationKind::kOnload:
      return onload;
  }
  return 0;
}

double OperationCosts::forward(std::uint32_t layers) const noexcept {
  return layers * (attention + dispatch + mlp + combine) + pp_transfer;
}

double OperationCosts::backward(bool delay_wgrad, std::uint32_t layers) const noexcept {
  const double last =
      delay_wgrad ? std::max(weight_gradient, pp_transfer) : weight_gradient + pp_transfer;
  return layers * (combine + mlp_gradient + dispatch + attention_gradient) + last;
}

double OperationCosts::pair(bool delay_wgrad, std::uint32_t layers) const noexcept {
  const double k = pair_factor;
  const double last =
      delay_wgrad ? std::max(k * weight_gradient, pp_transfer) : k * weight_gradient + pp_transfer;
  return layers * (std::max(k * attention, combine) + std::max(k * mlp_gradient, dispatch) +
                   std::max(k * mlp, dispatch) + std::max(k * attention_gradient, combine)) +
         last;
}

Result<OperationCosts> costs_of_cells(double forward, double backward, double weight_gradient,
                                      std::optional<double> pair) {
  const auto refused = [](std::string why) {
    return fail(ErrorCode::kInvalidInput, std::move(why));
  };
  if (!(forward > 0) || !(backward > 0) || !std::isfinite(forward) || !std::isfinite(backward))
    return refused(fmt::format("a forward of {} and a backward of {}: both must be above 0",
                               forward, backward));
  if (!(weight_gradient >= 0) || weight_gradient > backward)
    return refused(fmt::format("a weight gradient of {} cannot be a part of a backward of {}",
                               weight_gradient, backward));
  if (pair && !(*pair >= std::max(forward, backward) && *pair <= forward + backward))
    return refused(
        fmt::format("a pair of {} is not between the longer of its cells, {}, and their sum, {}",
                    *pair, std::max(forward, backward), forward + backward));
  const double input_gradient = backward - weight_gradient;
  OperationCosts costs;
  costs.attention = costs.mlp = forward / 2;
  costs.attention_gradient = costs.mlp_gradient = input_gradient / 2;
  costs.weight_gradient = weight_gradient;
  costs.offload = costs.onload = std::min(forward, input_gradient) / 2;
  if (pair) costs.pair_factor = *pair / (forward + backward);
  return costs;
}

double Simulation::exposed() const {
  double max = 0;
  for (const RankReport& rank : ranks) max = std::max(max, rank.exposed);
  return max;
}

Result<Simulation> simulate(const Program& program, const OperationCosts& costs,
                            const SimulationOptions& options) {
  Run run(program, costs, options);
  if (!run.run())
    return fail(ErrorCode::kInternal, "the program of this schedule does not run to its end");
  Simulation simulation;
  std::vector<double> pairs;
  for (std::uint32_t rank = 0; rank < program.ranks.size(); ++rank) {
    const RankProgram& lowered = program.ranks[rank];
    simulation.operations.push_back(run.times(rank));
    for (const Timing& time : run.times(rank))
      simulation.makespan = std::max(simulation.makespan, time.end);
    simulation.ranks.push_back(rank_report(program, lowered, run.times(rank)));
    add_pairs(lowered, run.times(rank), pairs);
  }
  simulation.pair = median(std::move(pairs));
  const bool delay_wgrad = delays_wgrad(program);
  const std::uint32_t layers = program.layers;
  simulation.ideal =
      program.shape.cells() * (simulation.pair
                                   ? costs.pair(delay_wgrad, layers)
                                   : costs.forward(layers) + costs.backward(delay_wgrad, layers));
  simulation.bubble_ratio = simulation.ideal > 0 ? simulation.makespan / simulation.ideal - 1 : 0;
  simulation.critical_path = run.critical_path();
  return simulation;
}

}  // namespace wsync::schedule
