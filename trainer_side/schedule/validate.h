// Is a schedule a right one? Every rule that a rank's list of actions must keep, whoever wrote it.
//
// 1. A cell is on the rank that owns its stage, within the shape, once; each (stage, micro-batch)
//    has an F, and a B or an I with its W.
// 2. On a rank nothing comes before its input: F before B or I, I before W.
// 3. Micro-batches of a stage ascend: in F, in B or I, in W. So messages of a stage arrive in the
//    order in which they are awaited, and gradients add up in one order whatever the schedule.
// 4. All ranks together can run their lists to the end: no cycle of ranks that wait for each other,
//    a pair being atomic.
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
  std::uint32_t step = 0;  // index into the rank's actions; their count where something lacks
  std::string sentence;    // names rank, step and the input that is missing
};

// The violations of rules 1 to 3, by rank; only where there are none, those of rule 4. Of missing
// cells no more are told when limits::kScheduleViolationCount have been found.
[[nodiscard]] std::vector<Violation> find_violations(const Schedule& schedule);
// The first one as kInvalidInput, with the count of the others.
[[nodiscard]] Result<> validate(const Schedule& schedule);

// Where a cell stands in its schedule.
struct Place {
  std::uint32_t rank = 0;
  std::uint32_t step = 0;
  friend bool operator==(const Place&, const Place&) = default;
};
// The places of all cells of a schedule that keeps rule 1. O(1) for each question.
class CellPlaces {
 public:
  explicit CellPlaces(const Schedule& schedule);
  [[nodiscard]] Place forward(std::uint32_t stage, std::uint32_t microbatch) const;
  // Of B or I.
  [[nodiscard]] Place backward(std::uint32_t stage, std::uint32_t microbatch) const;

 private:
  [[nodiscard]] std::size_t index(std::uint32_t stage, std::uint32_t microbatch) const;
  Shape shape_;
  std::vector<Place> forward_, backward_;
};

// The slot of each action when all take one slot and begin as soon as their inputs are there: what
// the grid shows. kInvalidInput where the schedule cannot run to its end.
[[nodiscard]] Result<std::vector<std::vector<std::uint32_t>>> unit_slots(const Schedule& schedule);

}  // namespace wsync::schedule
