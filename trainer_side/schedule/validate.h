// Checks the rules that every schedule must satisfy, whichever program wrote it.
//
// 1. A cell is on the rank that owns its stage, lies within the shape, and occurs once. Each
//    (stage, micro-batch) has one F, and either one B or one I with its W.
// 2. On a rank no cell comes before its input: F before B or I, I before W.
// 3. Micro-batches of a stage ascend: in F, in B or I, and in W. Messages of a stage therefore
//    arrive in the order in which they are awaited, and gradients are added in one order for all
//    schedules.
// 4. All ranks together can run their lists to the end: there is no cycle of ranks that wait for
//    each other. A pair is atomic.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "trainer_side/schedule/action.h"

namespace wsync::schedule {

struct Violation {
  std::uint32_t rank = 0;
  std::uint32_t step = 0;  // index into the rank's actions; their number if a cell is missing
  std::string sentence;    // names rank, step and the input that is missing
};

// Returns the violations of rules 1 to 3, by rank. Rule 4 is checked only if there are none.
// Missing cells are no longer reported after limits::kScheduleViolationCount violations.
[[nodiscard]] std::vector<Violation> find_violations(const Schedule& schedule);
// Returns the first violation as kInvalidInput, with the number of the others.
[[nodiscard]] Result<> validate(const Schedule& schedule);

// The position of a cell in its schedule.
struct Place {
  std::uint32_t rank = 0;
  std::uint32_t step = 0;
  friend bool operator==(const Place&, const Place&) = default;
};
// Positions of all cells of a schedule that satisfies rule 1. Each lookup is O(1).
class CellPlaces {
 public:
  explicit CellPlaces(const Schedule& schedule);
  [[nodiscard]] Place forward(std::uint32_t stage, std::uint32_t microbatch) const;
  // The position of B or I.
  [[nodiscard]] Place backward(std::uint32_t stage, std::uint32_t microbatch) const;

 private:
  [[nodiscard]] std::size_t index(std::uint32_t stage, std::uint32_t microbatch) const;
  Shape shape_;
  std::vector<Place> forward_, backward_;
};

// Returns the slot of each action if every action takes one slot and begins as soon as its inputs
// are ready. The grid shows these slots. Returns kInvalidInput if the schedule cannot run to its
// end.
[[nodiscard]] Result<std::vector<std::vector<std::uint32_t>>> unit_slots(const Schedule& schedule);

}  // namespace wsync::schedule
