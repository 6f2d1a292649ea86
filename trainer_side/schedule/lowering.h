// Converts cells to operations: what each of a rank's three lanes does for a schedule, and what
// each operation waits for. The executor runs this program; the simulator times it.
//
// A pair (forward of micro-batch i, backward of micro-batch j) has five parts. Both lanes are busy
// in each part (Kimi K2 report, arXiv 2507.20534, section 2.4.2 and figure 7):
//
//   part  computation       communication            copy
//   1     attention (i)     combine gradient (j)     offload of the previous forward
//   2     MLP gradient (j)  dispatch (i)
//   3     MLP (i)           dispatch gradient (j)    onload for the next backward
//   4     attn. grad. (j)   combine (i)
//   5     weight grad. (j)  pipeline send/receive
//
// A forward alone has one part for each of attention, dispatch, MLP, combine and send. A backward
// alone has combine gradient, MLP gradient, dispatch gradient and attention gradient, then the
// weight gradient together with the send. The gradient of B is sent after its weight gradient, the
// gradient of I before it.
//
// A stage of several layers runs parts 1 to 4 once for each layer. A forward runs from the first
// layer to the last, a backward from the last to the first. One weight gradient operation covers
// all layers.
//
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "shared/base/error.h"
#include "trainer_side/schedule/action.h"

namespace wsync::schedule {

enum class Lane : std::uint8_t { kComputation, kCommunication, kCopy };
inline constexpr std::array kLanes{Lane::kComputation, Lane::kCommunication, Lane::kCopy};
inline constexpr std::size_t kLaneCount = kLanes.size();
[[nodiscard]] std::string_view lane_name(Lane lane) noexcept;

enum class OperationKind : std::uint8_t {
  kAttention,
  kMlp,
  kHead,  // last stage: final norm, logits, loss, and the gradient of the loss by the stage's
          // output
  kMlpGradient,
  kAttentionGradient,
  kWeightGradient,
  kDispatch,  // expert parallel: tokens to their experts
  kCombine,   // expert parallel: results back to the tokens
  kCombineGradient,
  kDispatchGradient,
  kSendActivation,  // pipeline parallel: to the next stage
  kReceiveActivation,
  kSendGradient,  // pipeline parallel: to the previous stage
  kReceiveGradient,
  kOffload,  // activations of a cell, device to host
  kOnload,   // activations of a cell, host to device
};
[[nodiscard]] std::string_view operation_name(OperationKind kind) noexcept;
[[nodiscard]] Lane lane_of(OperationKind kind) noexcept;
[[nodiscard]] bool is_send(OperationKind kind) noexcept;
[[nodiscard]] bool is_receive(OperationKind kind) noexcept;

struct Operation {
  OperationKind kind = OperationKind::kAttention;
  // Send: the cell that produces the message. Receive: the cell that needs it.
  Cell cell;
  // Send or receive: the other rank.
  std::uint32_t peer = 0;
  std::uint32_t layer = 0;  // layer of the stage, for its four forward and four backward operations
  // The turn of the rank. A turn is one action, with the W of its own backward if that comes next.
  std::uint32_t turn = 0;
  // Part of the turn (see above): 4 l + 1 to 4 l + 4 for the l-th layer in order of execution, then
  // one more. 0 for a receive, which belongs to no turn.
  std::uint32_t part = 0;
  bool in_pair = false;
  std::vector<std::uint32_t> after;  // operations of this rank that must end first
};

struct RankProgram {
  std::vector<Operation> operations;
  // Indices of operations. A lane runs its operations one after the other.
  std::array<std::vector<std::uint32_t>, kLaneCount> lanes;
  std::uint32_t turns = 0;
};
struct Program {
  Shape shape;
  std::uint32_t layers = 1;  // layers of each stage
  std::vector<RankProgram> ranks;
};

struct LoweringOptions {
  bool expert_parallel = true;  // dispatch and combine are separate operations
  bool offload = false;
  std::uint32_t layers = 1;  // layers of each stage, at least 1
  bool head = false;         // the last stage's kHead is a separate operation
};

// Returns the program of a schedule.
//
// Sends and receives of all ranks follow one total order, by the slot of the producing action. They
// therefore cannot deadlock if a send waits for its receiver, and they cannot deadlock with queues
// of one message. With offload, a rank holds at most four chunk activations on its device: an
// operation waits for the copies that make room for it.
//
// Returns kInvalidInput if the schedule is not valid, if stages have no layers, or if offload is
// requested and weight gradients are delayed past the next action (ZB-H1).
[[nodiscard]] Result<Program> lower(const Schedule& schedule, const LoweringOptions& options);

}  // namespace wsync::schedule
