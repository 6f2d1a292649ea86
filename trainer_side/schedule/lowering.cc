#include "trainer_side/schedule/lowering.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/planted.h"
#include "trainer_side/schedule/validate.h"

namespace wsync::schedule {
namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};
// Activations stay on the device if the backward comes at most this many turns after the forward.
constexpr std::uint32_t kTurnsNotOffloaded = 2;
constexpr std::uint32_t kPartsOfLayer = 4;

// One activation or gradient sent from one rank to another.
struct Message {
  std::uint32_t slot = 0;  // slot of the action that produces it
  bool is_gradient = false;
  std::uint32_t sender = 0;
  std::uint32_t receiver = 0;
  Cell from;
  Cell to;
};
// The total order of all messages of a schedule. Every rank sends and receives in this order. In
// one slot a rank produces at most one activation and one gradient, so no two messages compare
// equal.
bool comes_before(const Message& a, const Message& b) {
  return std::tie(a.slot, a.is_gradient, a.sender) < std::tie(b.slot, b.is_gradient, b.sender);
}

// Returns the messages of each rank in the total order.
std::vector<std::vector<Message>> messages_of(
    const Schedule& schedule, const std::vector<std::vector<std::uint32_t>>& slots) {
  const Shape& shape = schedule.shape;
  const CellPlaces places(schedule);
  std::vector<std::vector<Message>> messages(shape.pp);
  const auto add = [&](const Cell& from, std::uint32_t to_stage, std::uint32_t slot) {
    const Message message{.slot = slot,
                          .is_gradient = from.computation != Computation::kForward,
                          .sender = shape.rank_of(from.stage),
                          .receiver = shape.rank_of(to_stage),
                          .from = from,
                          .to = {to_stage, from.computation, from.microbatch}};
    if (message.sender == message.receiver) return;
    messages[message.sender].push_back(message);
    messages[message.receiver].push_back(message);
  };
  for (std::uint32_t rank = 0; rank < shape.pp; ++rank)
    for (std::uint32_t step = 0; step < schedule.ranks[rank].size(); ++step) {
      const Action& action = schedule.ranks[rank][step];
      for (const Cell* cell : {&action.cell, action.backward ? &*action.backward : nullptr}) {
        if (cell == nullptr) continue;
        if (cell->computation == Computation::kForward && cell->stage + 1 < shape.stages())
          add(*cell, cell->stage + 1, slots[rank][step]);
        if (sends_gradient(cell->computation) && cell->stage > 0)
          add(*cell, cell->stage - 1, slots[rank][step]);
      }
    }
  for (std::vector<Message>& list : messages) std::sort(list.begin(), list.end(), comes_before);
  return messages;
}

// Writes the program of one rank, action by action.
// It has more than 25 methods: each kind of action of a schedule has a method of its own.
class RankLowering {
 public:
  RankLowering(const Schedule& schedule, const LoweringOptions& options, std::uint32_t rank)
      : shape_(schedule.shape),
        options_(options),
        rank_(rank),
        actions_(schedule.ranks[rank]),
        cells_(std::size_t{shape_.vpp} * shape_.microbatches) {
    plan_turns();
  }

  RankProgram lower(const std::vector<Message>& messages, const std::vector<std::uint32_t>& slots) {
    std::size_t next = 0;
    for (std::uint32_t step = 0; step < actions_.size(); ++step) {
      // Receive the messages of earlier slots before this action.
      for (; next < messages.size() && messages[next].slot < slots[step]; ++next)
        transfer(messages[next]);
      run(actions_[step], turn_of_step_[step]);
    }
    for (; next < messages.size(); ++next) transfer(messages[next]);
    program_.turns = turns_;
    return std::move(program_);
  }

 private:
  // State of one micro-batch on one stage.
  struct CellState {
    std::uint32_t forward_turn = 0;
    std::uint32_t backward_turn = 0;
    std::uint32_t activation_in = kNone;  // the receive, or the producer on this rank
    std::uint32_t gradient_in = kNone;
    std::uint32_t forward_end = kNone;
    std::uint32_t gradient_out = kNone;  // the gradient may be sent after this operation
    std::uint32_t backward_end = kNone;
    std::uint32_t offload = kNone;
    std::uint32_t onload = kNone;
    bool is_offloaded = false;
  };

  CellState& state(const Cell& cell) {
    return cells_[std::size_t{shape_.chunk_of(cell.stage)} * shape_.microbatches + cell.microbatch];
  }

  // Every action begins a new turn, except a W that directly follows its own I.
  void plan_turns() {
    const Action* before = nullptr;
    for (const Action& action : actions_) {
      const Cell& cell = action.cell;
      const Cell* input = before == nullptr  ? nullptr
                          : before->backward ? &*before->backward
                                             : &before->cell;
      const bool continues = cell.computation == Computation::kWeightGradient && input != nullptr &&
                             input->computation == Computation::kInputGradient &&
                             input->stage == cell.stage && input->microbatch == cell.microbatch;
      if (!continues) ++turns_;
      const std::uint32_t turn = turns_ - 1;
      turn_of_step_.push_back(turn);
      cells_of_turn_.resize(turns_);
      if (cell.computation == Computation::kForward) {
        state(cell).forward_turn = turn;
        cells_of_turn_[turn].forward = cell;
      }
      const Cell& backward = action.backward ? *action.backward : cell;
      if (sends_gradient(backward.computation)) {
        state(backward).backward_turn = turn;
        cells_of_turn_[turn].backward = backward;
      }
      before = &action;
    }
    for (CellState& cell : cells_) {
      cell.is_offloaded =
          options_.offload && cell.backward_turn - cell.forward_turn > kTurnsNotOffloaded;
    }
  }

  void run(const Action& action, std::uint32_t turn) {
    const bool begins = turn != turn_ || program_.operations.empty();
    turn_ = turn;
    in_pair_ = action.backward.has_value() ||
               (in_pair_ && !begins && action.cell.computation == Computation::kWeightGradient);
    if (begins && options_.offload) offload_before();
    if (action.backward)
      pair(action.cell, *action.backward);
    else if (action.cell.computation == Computation::kForward)
      forward(action.cell);
    else if (action.cell.computation == Computation::kWeightGradient)
      weight_gradient(action.cell);
    else
      backward(action.cell);
  }

  void forward(const Cell& cell) {
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      attention(cell, layer);
      dispatch(cell, layer);
      mlp(cell, layer);
      if (is_last(layer)) onload_next();
      combine(cell, layer);
    }
    end_forward(cell);
  }

  void backward(const Cell& cell) {
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      combine_gradient(cell, layer);
      mlp_gradient(cell, layer);
      dispatch_gradient(cell, layer);
      if (is_last(layer)) onload_next();
      attention_gradient(cell, layer);
    }
    end_backward(cell);
  }

  void pair(const Cell& forward, const Cell& backward) {
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
      attention(forward, layer);
      combine_gradient(backward, layer);
      mlp_gradient(backward, layer);
      dispatch(forward, layer);
      mlp(forward, layer);
      dispatch_gradient(backward, layer);
      if (is_last(layer)) onload_next();
      attention_gradient(backward, layer);
      combine(forward, layer);
    }
    end_backward(backward);
    end_forward(forward);
  }

  // `layer` counts in order of execution here. A backward therefore uses the mirrored index.
  [[nodiscard]] bool is_last(std::uint32_t layer) const { return layer + 1 == options_.layers; }
  [[nodiscard]] std::uint32_t mirrored(std::uint32_t layer) const {
    return options_.layers - 1 - layer;
  }
  [[nodiscard]] static std::uint32_t part_of(std::uint32_t layer, std::uint32_t part) {
    return kPartsOfLayer * layer + part;
  }
  [[nodiscard]] std::uint32_t last_part() const { return part_of(options_.layers, 1); }

  void attention(const Cell& cell, std::uint32_t layer) {
    CellState& known = state(cell);
    // Wait for room on the device: only the newest of the earlier forwards may still be offloading.
    known.forward_end =
        layer == 0
            ? add(OperationKind::kAttention, cell, 0, part_of(0, 1),
                  {known.activation_in, planted("fifth_activation") ? kNone : earlier_offload_})
            : add(OperationKind::kAttention, cell, layer, part_of(layer, 1), {known.forward_end});
  }
  void dispatch(const Cell& cell, std::uint32_t layer) {
    if (!options_.expert_parallel) return;
    state(cell).forward_end =
        add(OperationKind::kDispatch, cell, layer, part_of(layer, 2), {state(cell).forward_end});
  }
  void mlp(const Cell& cell, std::uint32_t layer) {
    state(cell).forward_end =
        add(OperationKind::kMlp, cell, layer, part_of(layer, 3), {state(cell).forward_end});
  }
  void combine(const Cell& cell, std::uint32_t layer) {
    if (!options_.expert_parallel) return;
    state(cell).forward_end =
        add(OperationKind::kCombine, cell, layer, part_of(layer, 4), {state(cell).forward_end});
  }
  void end_forward(const Cell& cell) {
    CellState& known = state(cell);
    if (options_.head && cell.stage + 1 == shape_.stages())
      known.forward_end =
          add(OperationKind::kHead, cell, options_.layers - 1, last_part(), {known.forward_end});
    give_to_next_chunk(cell);
  }

  void combine_gradient(const Cell& cell, std::uint32_t layer) {
    CellState& known = state(cell);
    if (layer == 0)
      before_mlp_gradient_ = {known.forward_end, known.gradient_in,
                              planted("onload_not_waited_for") ? kNone : known.onload};
    else
      before_mlp_gradient_ = {last_of_backward_};
    if (options_.expert_parallel)
      before_mlp_gradient_ = {add(OperationKind::kCombineGradient, cell, mirrored(layer),
                                  part_of(layer, 1), before_mlp_gradient_)};
  }
  void mlp_gradient(const Cell& cell, std::uint32_t layer) {
    last_of_backward_ = add(OperationKind::kMlpGradient, cell, mirrored(layer), part_of(layer, 2),
                            before_mlp_gradient_);
  }
  void dispatch_gradient(const Cell& cell, std::uint32_t layer) {
    if (options_.expert_parallel)
      last_of_backward_ = add(OperationKind::kDispatchGradient, cell, mirrored(layer),
                              part_of(layer, 3), {last_of_backward_});
  }
  void attention_gradient(const Cell& cell, std::uint32_t layer) {
    last_of_backward_ = add(OperationKind::kAttentionGradient, cell, mirrored(layer),
                            part_of(layer, 4), {last_of_backward_});
  }
  void end_backward(const Cell& cell) {
    CellState& known = state(cell);
    known.gradient_out = known.backward_end = last_of_backward_;
    if (cell.computation == Computation::kBackward) {
      weight_gradient(cell);
      known.gradient_out = known.backward_end;
    }
    give_to_chunk_before(cell);
  }
  void weight_gradient(const Cell& cell) {
    CellState& known = state(cell);
    known.backward_end =
        add(OperationKind::kWeightGradient, cell, 0, last_part(), {known.backward_end});
    newest_backward_end_ = known.backward_end;
  }

  // With one rank the next stage is on the same rank: there is no message, but the dependency
  // remains.
  void give_to_next_chunk(const Cell& cell) {
    if (shape_.pp == 1 && cell.stage + 1 < shape_.stages())
      state({cell.stage + 1, cell.computation, cell.microbatch}).activation_in =
          state(cell).forward_end;
  }
  void give_to_chunk_before(const Cell& cell) {
    if (shape_.pp == 1 && cell.stage > 0)
      state({cell.stage - 1, cell.computation, cell.microbatch}).gradient_in =
          state(cell).gradient_out;
  }

  // Offloads the activations of the forward of the previous turn.
  void offload_before() {
    earlier_offload_ = newest_offload_;
    if (turn_ == 0 || !cells_of_turn_[turn_ - 1].forward) return;
    const Cell& cell = *cells_of_turn_[turn_ - 1].forward;
    CellState& known = state(cell);
    if (!known.is_offloaded) return;
    newest_offload_ = known.offload =
        add(OperationKind::kOffload, cell, 0, part_of(0, 1), {known.forward_end});
  }
  // Loads the activations that the backward of the next turn needs. They use the room that the
  // backward of the previous turn released.
  void onload_next() {
    if (turn_ + 1 == turns_ || !cells_of_turn_[turn_ + 1].backward) return;
    const Cell& cell = *cells_of_turn_[turn_ + 1].backward;
    CellState& known = state(cell);
    if (!known.is_offloaded) return;
    known.onload = add(OperationKind::kOnload, cell, 0, part_of(options_.layers - 1, 3),
                       {known.offload, newest_backward_end_});
  }

  void transfer(const Message& message) {
    if (message.sender == rank_) {
      const CellState& known = state(message.from);
      const std::uint32_t ready = message.is_gradient ? known.gradient_out : known.forward_end;
      const std::uint32_t made_in = message.is_gradient ? known.backward_turn : known.forward_turn;
      add_operation({.kind = message.is_gradient ? OperationKind::kSendGradient
                                                 : OperationKind::kSendActivation,
                     .cell = message.from,
                     .peer = message.receiver,
                     .layer = 0,
                     .turn = made_in,
                     .part = last_part(),
                     .in_pair = false,
                     .after = {ready}});
      return;
    }
    const std::uint32_t receive =
        add_operation({.kind = message.is_gradient ? OperationKind::kReceiveGradient
                                                   : OperationKind::kReceiveActivation,
                       .cell = message.to,
                       .peer = message.sender,
                       .layer = 0,
                       .turn = turn_,
                       .part = 0,
                       .in_pair = false,
                       .after = {}});
    CellState& known = state(message.to);
    (message.is_gradient ? known.gradient_in : known.activation_in) = receive;
  }

  std::uint32_t add(OperationKind kind, const Cell& cell, std::uint32_t layer, std::uint32_t part,
                    const std::vector<std::uint32_t>& after) {
    Operation operation{.kind = kind,
                        .cell = cell,
                        .layer = layer,
                        .turn = turn_,
                        .part = part,
                        .in_pair = in_pair_,
                        .after = {}};
    for (const std::uint32_t other : after)
      if (other != kNone) operation.after.push_back(other);
    return add_operation(std::move(operation));
  }
  std::uint32_t add_operation(Operation operation) {
    const auto index = static_cast<std::uint32_t>(program_.operations.size());
    program_.lanes[static_cast<std::size_t>(lane_of(operation.kind))].push_back(index);
    program_.operations.push_back(std::move(operation));
    return index;
  }

  const Shape& shape_;
  const LoweringOptions& options_;
  std::uint32_t rank_;
  const std::vector<Action>& actions_;
  std::vector<CellState> cells_;
  std::vector<std::uint32_t> turn_of_step_;
  struct TurnCells {
    std::optional<Cell> forward, backward;
  };
  std::vector<TurnCells> cells_of_turn_;
  std::uint32_t turns_ = 0;

  RankProgram program_;
  std::uint32_t turn_ = 0;
  bool in_pair_ = false;
  std::vector<std::uint32_t> before_mlp_gradient_;
  std::uint32_t last_of_backward_ = kNone;
  std::uint32_t newest_offload_ = kNone;
  std::uint32_t earlier_offload_ = kNone;  // newest offload of the turns before the previous one
  std::uint32_t newest_backward_end_ = kNone;
};

// Returns a W that does not follow its own I. Its activations live longer than the copies plan for.
std::optional<Cell> far_weight_gradient(const Schedule& schedule) {
  for (const std::vector<Action>& actions : schedule.ranks)
    for (std::size_t step = 0; step < actions.size(); ++step) {
      const Cell& cell = actions[step].cell;
      if (cell.computation != Computation::kWeightGradient) continue;
      const Action& before = actions[step - 1];
      const Cell& input = before.backward ? *before.backward : before.cell;
      if (input.stage != cell.stage || input.microbatch != cell.microbatch) return cell;
    }
  return std::nullopt;
}

}  // namespace

std::string_view lane_name(Lane lane) noexcept {
  switch (lane) {
    case Lane::kComputation:
      return "computation";
    case Lane::kCommunication:
      return "communication";
    case Lane::kCopy:
      return "copy";
  }
  return "?";
}

std::string_view operation_name(OperationKind kind) noexcept {
  switch (kind) {
    case OperationKind::kAttention:
      return "attention";
    case OperationKind::kMlp:
      return "mlp";
    case OperationKind::kHead:
      return "head";
    case OperationKind::kMlpGradient:
      return "mlp_gradient";
    case OperationKind::kAttentionGradient:
      return "attention_gradient";
    case OperationKind::kWeightGradient:
      return "weight_gradient";
    case OperationKind::kDispatch:
      return "dispatch";
    case OperationKind::kCombine:
      return "combine";
    case OperationKind::kCombineGradient:
      return "combine_gradient";
    case OperationKind::kDispatchGradient:
      return "dispatch_gradient";
    case OperationKind::kSendActivation:
      return "send_activation";
    case OperationKind::kReceiveActivation:
      return "receive_activation";
    case OperationKind::kSendGradient:
      return "send_gradient";
    case OperationKind::kReceiveGradient:
      return "receive_gradient";
    case OperationKind::kOffload:
      return "offload";
    case OperationKind::kOnload:
      return "onload";
  }
  return "?";
}

Lane lane_of(OperationKind kind) noexcept {
  if (kind <= OperationKind::kWeightGradient) return Lane::kComputation;
  return kind < OperationKind::kOffload ? Lane::kCommunication : Lane::kCopy;
}

bool is_send(OperationKind kind) noexcept {
  return kind == OperationKind::kSendActivation || kind == OperationKind::kSendGradient;
}

bool is_receive(OperationKind kind) noexcept {
  return kind == OperationKind::kReceiveActivation || kind == OperationKind::kReceiveGradient;
}

Result<Program> lower(const Schedule& schedule, const LoweringOptions& options) {
  const auto slots = WSYNC_TRY(unit_slots(schedule));
  if (options.layers == 0)
    return fail(ErrorCode::kInvalidInput, "a stage has 0 layers; expected 1 or more");
  if (options.offload) {
    if (const auto cell = far_weight_gradient(schedule))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("{} does not follow its own input gradient: activations that wait "
                              "for their weight gradient cannot be offloaded; turn offload off, "
                              "or take an order other than zb-h1",
                              to_string(*cell)));
  }
  const std::vector<std::vector<Message>> messages = messages_of(schedule, slots);
  Program program{.shape = schedule.shape, .layers = options.layers, .ranks = {}};
  for (std::uint32_t rank = 0; rank < schedule.shape.pp; ++rank)
    program.ranks.push_back(
        RankLowering(schedule, options, rank).lower(messages[rank], slots[rank]));
  return program;
}

}  // namespace wsync::schedule
