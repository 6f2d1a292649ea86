// What one pipeline rank does, in order: the list of actions that the validator, the lowering, the
// simulator, the picture and the executor all read. The text form is the one of pipeline schedule
// files: `stage KIND micro-batch`, all numbers from 0, e.g. 0F7, 4B0, and (0F7;4B0) for a pair.
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
  kInputGradient,   // I: the part that the stage before waits for
  kWeightGradient,  // W: the part that only the optimizer waits for
};
[[nodiscard]] char computation_letter(Computation computation) noexcept;
// B or I: what sends a gradient to the stage before.
[[nodiscard]] bool sends_gradient(Computation computation) noexcept;

// One computation of one micro-batch on one stage. `stage` counts over the whole model: chunk c of
// rank r of P is stage c * P + r.
struct Cell {
  std::uint32_t stage = 0;
  Computation computation = Computation::kForward;
  std::uint32_t microbatch = 0;
  friend auto operator<=>(const Cell&, const Cell&) = default;
};

// One step of a rank: a cell, or a forward overlapped with the backward (B or I) of another
// micro-batch, which is atomic: both are begun together and both are over at its end.
struct Action {
  Cell cell;                     // of a pair: the forward
  std::optional<Cell> backward;  // of a pair
  friend bool operator==(const Action&, const Action&) = default;
};
[[nodiscard]] std::string to_string(const Cell& cell);
[[nodiscard]] std::string to_string(const Action& action);

// P ranks with V chunks each train one step of M micro-batches.
struct Shape {
  std::uint32_t pp = 1;            // P, ranks
  std::uint32_t vpp = 1;           // V, chunks of a rank
  std::uint32_t microbatches = 1;  // M
  [[nodiscard]] std::uint32_t stages() const noexcept { return pp * vpp; }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t stage) const noexcept { return stage % pp; }
  [[nodiscard]] std::uint32_t chunk_of(std::uint32_t stage) const noexcept { return stage / pp; }
  // T: cells of a rank in each direction.
  [[nodiscard]] std::uint32_t cells() const noexcept { return microbatches * vpp; }
  friend bool operator==(const Shape&, const Shape&) = default;
};
// kInvalidInput for a zero or for more than limits.h allows.
[[nodiscard]] Result<> check_shape(const Shape& shape);

struct Schedule {
  Shape shape;
  std::vector<std::vector<Action>> ranks;  // shape.pp lists, in the order of execution
};

// One line for each rank: "PP0: 0F0,0F1,(0F7;4B0),4B1".
[[nodiscard]] std::string write_actions(const Schedule& schedule);
// Reads what write_actions writes (spaces and empty lines are skipped). The shape's P is the number
// of lines, V and M are taken from the highest stage and micro-batch. kInvalidInput names line and
// place. Whether the schedule is a right one, validate.h says.
[[nodiscard]] Result<Schedule> read_actions(std::string_view text);

}  // namespace wsync::schedule
