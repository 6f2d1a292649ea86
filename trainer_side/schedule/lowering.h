// From cells to operations: what each of a rank's three lanes does for a schedule, and what each
// operation waits for. The executor runs this program; the simulator times it.
//
// A pair (forward of micro-batch i, backward of micro-batch j) has five parts, with both lanes busy
// in each (Kimi K2 report, arXiv 2507.20534, section 2.4.2 and figure 7):
//
//   part  computation       communication            copy
//   1     attention (i)     combine gradient (j)     offload of the forward before
//   2     MLP gradient (j)  dispatch (i)
//   3     MLP (i)           dispatch gradient (j)    onload for the next backward
//   4     attn. grad. (j)   combine (i)
//   5     weight grad. (j)  pipeline send/receive
//
// A forward alone is attention, dispatch, MLP, combine, send: a part for each; a backward alone is
// combine gradient, MLP gradient, dispatch gradient, attention gradient, then weight gradient
// beside the send. The gradient of B leaves after its weight gradient, that of I before.
//
// A stage of several layers runs parts 1 to 4 once for each: a forward from the first layer to the
// last, a backward the other way; a weight gradient is one operation for all of them.
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
inline constexpr std::size_t kLaneCount = 3;
[[nodiscard]] std::string_view lane_name(Lane lane) noexcept;

enum class OperationKind : std::uint8_t {
  kAttention,
  kMlp,
  kHead,  // last stage: final norm, logits, loss, and the loss's gradient by the stage's output
  kMlpGradient,
  kAttentionGradient,
  kWeightGradient,
  kDispatch,  // expert parallel: tokens to their experts
  kCombine,   // and back
  kCombineGradient,
  kDispatchGradient,
  kSendActivation,  // pipeline parallel: to the stage after
  kReceiveActivation,
  kSendGradient,  // to the stage before
  kReceiveGradient,
  kOffload,  // activations of a cell, device to host
  kOnload,   // and back
};
[[nodiscard]] std::string_view operation_name(OperationKind kind) noexcept;
[[nodiscard]] Lane lane_of(OperationKind kind) noexcept;
[[nodiscard]] bool is_send(OperationKind kind) noexcept;
[[nodiscard]] bool is_receive(OperationKind kind) noexcept;

struct Operation {
  OperationKind kind = OperationKind::kAttention;
  // Of a send: the cell whose result leaves. Of a receive: the cell that needs it.
  Cell cell;
  // Of a send or receive: the other rank.
  std::uint32_t peer = 0;
  std::uint32_t layer = 0;  // of the stage; of its four operations forward and four backward
  // Which of the rank's turns: an action, with the W of its own backward if that comes next.
  std::uint32_t turn = 0;
  // See above: 4 l + 1 to 4 l + 4 for the l-th layer in order of execution, then one more; 0: a
  // receive, which is of no turn.
  std::uint32_t part = 0;
  bool in_pair = false;
  std::vector<std::uint32_t> after;  // operations of this rank that must be over
};

struct RankProgram {
  std::vector<Operation> operations;
  // Indices of operations; a lane runs its own one after the other.
  std::array<std::vector<std::uint32_t>, kLaneCount> lanes;
  std::uint32_t turns = 0;
};
struct Program {
  Shape shape;
  std::uint32_t layers = 1;  // of each stage
  std::vector<RankProgram> ranks;
};

struct LoweringOptions {
  bool expert_parallel = true;  // dispatch and combine are operations of their own
  bool offload = false;
  std::uint32_t layers = 1;  // of each stage, at least 1
  bool head = false;         // the last stage's kHead is an operation of its own
};

// The program of a schedule. Sends and receives of all ranks follow one total order (by the slot of
// the producing action), so that they neither deadlock with sends that wait for their receiver nor
// with queues for one message. With offload a rank holds at most four chunk activations on its
// device: an operation waits for the copies that make room for it. kInvalidInput when the schedule
// is not valid, when stages are to have no layer, or when there are weight gradients that are
// delayed past the next action and offload is asked for (ZB-H1).
[[nodiscard]] Result<Program> lower(const Schedule& schedule, const LoweringOptions& options);

}  // namespace wsync::schedule
