// The ordered list of actions of one pipeline rank. The validator, the lowering, the simulator, the
// picture and the executor all read this list. The text form is the usual one of pipeline schedule
// files: `stage KIND micro-batch`, with all numbers from 0, e.g. 0F7, 4B0, and (0F7;4B0) for a
// pair.
//
// Pure: no thread, no I/O. Sizes are bounded by limits.h.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/error.h"

namespace wsync::schedule {

enum class Computation : std::uint8_t {
  kForward,         // F
  kBackward,        // B: input gradient and weight gradient
  kInputGradient,   // I: the part that the previous stage waits for
  kWeightGradient,  // W: the part that only the optimizer waits for
};
[[nodiscard]] char computation_letter(Computation computation) noexcept;
// True for B and I, which send a gradient to the previous stage.
[[nodiscard]] bool sends_gradient(Computation computation) noexcept;

// One computation of one micro-batch on one stage. `stage` is numbered over the whole model: chunk
// c of rank r of P is stage c * P + r.
struct Cell {
  std::uint32_t stage = 0;
  Computation computation = Computation::kForward;
  std::uint32_t microbatch = 0;
  friend auto operator<=>(const Cell&, const Cell&) = default;
};

// One step of a rank: a cell, or a pair. A pair is a forward that overlaps with the backward (B or
// I) of another micro-batch. It is atomic: both begin together, and both have ended when it ends.
struct Action {
  Cell cell;                     // the forward, if this is a pair
  std::optional<Cell> backward;  // set if this is a pair
  friend bool operator==(const Action&, const Action&) = default;
};
[[nodiscard]] std::string to_string(const Cell& cell);
[[nodiscard]] std::string to_string(const Action& action);

// P ranks with V chunks each train one step of M micro-batches.
struct Shape {
  std::uint32_t pp = 1;            // P: number of ranks
  std::uint32_t vpp = 1;           // V: number of chunks of a rank
  std::uint32_t microbatches = 1;  // M: number of micro-batches
  [[nodiscard]] std::uint32_t stages() const noexcept { return pp * vpp; }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t stage) const noexcept { return stage % pp; }
  [[nodiscard]] std::uint32_t chunk_of(std::uint32_t stage) const noexcept { return stage / pp; }
  // T: number of cells of a rank in each direction.
  [[nodiscard]] std::uint32_t cells() const noexcept { return microbatches * vpp; }
  friend bool operator==(const Shape&, const Shape&) = default;
};
// Returns kInvalidInput if a size is zero or exceeds limits.h.
[[nodiscard]] Result<> check_shape(const Shape& shape);

struct Schedule {
  Shape shape;
  std::vector<std::vector<Action>> ranks;  // shape.pp lists, in order of execution
};

// Writes one line for each rank: "PP0: 0F0,0F1,(0F7;4B0),4B1".
[[nodiscard]] std::string write_actions(const Schedule& schedule);
// Reads the format of write_actions; spaces and empty lines are skipped. P is the number of lines.
// V and M follow from the highest stage and micro-batch. Returns kInvalidInput with line and
// position. Does not check whether the schedule is valid; see validate.h.
[[nodiscard]] Result<Schedule> read_actions(std::string_view text);

}  // namespace wsync::schedule
