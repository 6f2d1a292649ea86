#include "trainer_side/schedule/validate.h"

#include <algorithm>
#include <array>
#include <optional>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "trainer_side/schedule/limits.h"

namespace wsync::schedule {
namespace {

constexpr std::uint32_t kNowhere = ~std::uint32_t{0};

template <class Use>
void for_each_cell(const Action& action, const Use& use) {
  use(action.cell);
  if (action.backward) use(*action.backward);
}

// The cells that a cell waits for besides the action before it: at most two. The entry of a
// backward is B, even if the schedule has I.
struct Inputs {
  std::array<Cell, 2> cells;
  std::size_t count = 0;
};
Inputs inputs_of(const Shape& shape, const Cell& cell) {
  Inputs inputs;
  const auto add = [&](std::uint32_t stage, Computation computation) {
    inputs.cells.at(inputs.count++) = {stage, computation, cell.microbatch};
  };
  switch (cell.computation) {
    case Computation::kForward:
      if (cell.stage > 0) add(cell.stage - 1, Computation::kForward);
      break;
    case Computation::kBackward:
    case Computation::kInputGradient:
      add(cell.stage, Computation::kForward);
      if (cell.stage + 1 < shape.stages()) add(cell.stage + 1, Computation::kBackward);
      break;
    case Computation::kWeightGradient:
      add(cell.stage, Computation::kInputGradient);
      break;
  }
  return inputs;
}

// Checks rules 1 to 3.
class CellRules {
 public:
  explicit CellRules(const Schedule& schedule) : schedule_(schedule) {
    const std::size_t cells = std::size_t{schedule.shape.stages()} * schedule.shape.microbatches;
    for (auto* seen : {&forward_, &input_, &weight_}) seen->assign(cells, kNowhere);
    is_whole_.assign(cells, false);
    newest_.assign(schedule.shape.stages(), {});
  }

  std::vector<Violation> check() {
    for (rank_ = 0; rank_ < schedule_.ranks.size(); ++rank_) {
      const std::vector<Action>& actions = schedule_.ranks[rank_];
      for (step_ = 0; step_ < actions.size(); ++step_) {
        check_pair(actions[step_]);
        for_each_cell(actions[step_], [&](const Cell& cell) { check_cell(actions[step_], cell); });
      }
    }
    check_complete();
    std::stable_sort(violations_.begin(), violations_.end(),
                     [](const Violation& a, const Violation& b) { return a.rank < b.rank; });
    return std::move(violations_);
  }

 private:
  void add(const std::string& what) {
    violations_.push_back({rank_, step_, fmt::format("PP{}, step {}: {}", rank_, step_, what)});
  }

  void check_pair(const Action& action) {
    if (!action.backward) return;
    if (action.cell.computation != Computation::kForward ||
        !sends_gradient(action.backward->computation))
      add(fmt::format("{} is not a forward with a backward", to_string(action)));
  }

  void check_cell(const Action& action, const Cell& cell) {
    const Shape& shape = schedule_.shape;
    if (cell.stage >= shape.stages() || cell.microbatch >= shape.microbatches)
      return add(fmt::format("{} is outside of {} stages and {} micro-batches", to_string(cell),
                             shape.stages(), shape.microbatches));
    if (shape.rank_of(cell.stage) != rank_)
      return add(fmt::format("{} is of stage {}, which PP{} owns", to_string(cell), cell.stage,
                             shape.rank_of(cell.stage)));
    const std::size_t at = std::size_t{cell.stage} * shape.microbatches + cell.microbatch;
    std::vector<std::uint32_t>& seen = place_of(cell.computation);
    if (cell.computation == Computation::kWeightGradient && is_whole_[at])
      return add(fmt::format("{} is part of {} of step {}", to_string(cell),
                             to_string(Cell{cell.stage, Computation::kBackward, cell.microbatch}),
                             input_[at]));
    if (seen[at] != kNowhere)
      return add(
          fmt::format("{} occurs a second time, first at step {}", to_string(cell), seen[at]));
    seen[at] = step_;
    if (cell.computation == Computation::kBackward) {
      if (weight_[at] != kNowhere)
        add(fmt::format("{} computes the weight gradient that step {} has already computed",
                        to_string(cell), weight_[at]));
      is_whole_[at] = true;
      weight_[at] = step_;
    }
    check_input(action, cell, at);
    check_ascending(cell);
  }

  void check_input(const Action& action, const Cell& cell, std::size_t at) {
    if (cell.computation == Computation::kForward) return;
    const bool is_weight = cell.computation == Computation::kWeightGradient;
    const Cell input{cell.stage, is_weight ? Computation::kInputGradient : Computation::kForward,
                     cell.microbatch};
    const std::uint32_t input_step = (is_weight ? input_ : forward_)[at];
    if (input_step == step_ && action.backward)
      return add(fmt::format(
          "the pair {} is a cycle on {}: {} needs {}, which is over only when the pair is; one "
          "extra micro-batch of warm-up (--extra-warmup 1) separates them",
          to_string(action), rank_ + 1 == schedule_.shape.pp ? "the last rank" : "this rank",
          to_string(cell), to_string(input)));
    if (input_step == kNowhere)
      add(fmt::format("{} comes before its input {}", to_string(cell), to_string(input)));
  }

  void check_ascending(const Cell& cell) {
    Newest& newest = newest_[cell.stage];
    std::optional<std::uint32_t>& before =
        cell.computation == Computation::kForward          ? newest.forward
        : cell.computation == Computation::kWeightGradient ? newest.weight
                                                           : newest.backward;
    if (before && *before > cell.microbatch)
      add(fmt::format("{} comes after {}: the micro-batches of a stage ascend", to_string(cell),
                      to_string(Cell{cell.stage, cell.computation, *before})));
    before = cell.microbatch;
    if (cell.computation == Computation::kBackward) newest.weight = cell.microbatch;
  }

  void check_complete() {
    const Shape& shape = schedule_.shape;
    for (std::uint32_t stage = 0; stage < shape.stages(); ++stage) {
      rank_ = shape.rank_of(stage);
      step_ = static_cast<std::uint32_t>(schedule_.ranks[rank_].size());
      for (std::uint32_t m = 0; m < shape.microbatches; ++m) {
        const std::size_t at = std::size_t{stage} * shape.microbatches + m;
        if (violations_.size() >= limits::kScheduleViolationCount) return;
        if (forward_[at] == kNowhere) lacks({stage, Computation::kForward, m});
        if (input_[at] == kNowhere)
          lacks({stage, Computation::kBackward, m});
        else if (weight_[at] == kNowhere)
          lacks({stage, Computation::kWeightGradient, m});
      }
    }
  }
  void lacks(const Cell& cell) {
    violations_.push_back({rank_, step_,
                           fmt::format("PP{}: {} is missing; the list ends after step {}", rank_,
                                       to_string(cell), std::int64_t{step_} - 1)});
  }

  std::vector<std::uint32_t>& place_of(Computation computation) {
    switch (computation) {
      case Computation::kForward:
        return forward_;
      case Computation::kBackward:
      case Computation::kInputGradient:
        return input_;
      case Computation::kWeightGradient:
        return weight_;
    }
    return forward_;
  }

  struct Newest {
    std::optional<std::uint32_t> forward, backward, weight;
  };
  const Schedule& schedule_;
  std::uint32_t rank_ = 0;
  std::uint32_t step_ = 0;
  std::vector<std::uint32_t> forward_, input_, weight_;  // step of each cell
  std::vector<bool> is_whole_;                           // true if the backward is B
  std::vector<Newest> newest_;                           // of each stage
  std::vector<Violation> violations_;
};

// Runs all lists together. An action begins when the action before it and its inputs have ended.
class LockstepRun {
 public:
  explicit LockstepRun(const Schedule& schedule)
      : schedule_(schedule), places_(schedule), slots_(schedule.ranks.size()) {}

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t rank = 0; rank < slots_.size(); ++rank)
        while (advance(rank)) moved = true;
    }
  }

  // Returns the cycle of ranks that wait for each other; empty if there is none.
  [[nodiscard]] std::vector<Violation> cycle() const {
    std::uint32_t rank = 0;
    while (rank < slots_.size() && is_over(rank)) ++rank;
    if (rank == slots_.size()) return {};
    std::vector<std::uint32_t> path;
    while (std::find(path.begin(), path.end(), rank) == path.end()) {
      path.push_back(rank);
      rank = places_of(missing(rank)).rank;
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), rank));
    std::vector<std::string> waits;
    for (const std::uint32_t r : path)
      waits.push_back(fmt::format("PP{} at step {}, {}, waits for {} of PP{}", r, slots_[r].size(),
                                  to_string(schedule_.ranks[r][slots_[r].size()]),
                                  to_string(missing(r)), places_of(missing(r)).rank));
    return {{path.front(), static_cast<std::uint32_t>(slots_[path.front()].size()),
             fmt::format("a cycle: {}", fmt::join(waits, "; "))}};
  }

  [[nodiscard]] std::vector<std::vector<std::uint32_t>> take_slots() { return std::move(slots_); }

 private:
  [[nodiscard]] bool is_over(std::uint32_t rank) const {
    return slots_[rank].size() == schedule_.ranks[rank].size();
  }

  bool advance(std::uint32_t rank) {
    if (is_over(rank)) return false;
    std::uint32_t slot = slots_[rank].empty() ? 0 : slots_[rank].back() + 1;
    bool ready = true;
    for_each_input(rank, [&](const Cell& input) {
      const Place place = places_of(input);
      if (place.step >= slots_[place.rank].size())
        ready = false;
      else
        slot = std::max(slot, slots_[place.rank][place.step] + 1);
    });
    if (ready) slots_[rank].push_back(slot);
    return ready;
  }

  // Returns an input that the next action of the rank waits for.
  [[nodiscard]] Cell missing(std::uint32_t rank) const {
    std::optional<Cell> found;
    for_each_input(rank, [&](const Cell& input) {
      const Place place = places_of(input);
      if (place.step >= slots_[place.rank].size()) found = input;
    });
    WSYNC_CHECK(found.has_value(), "a rank that stands still waits for something");
    return *found;
  }

  template <class Use>
  void for_each_input(std::uint32_t rank, const Use& use) const {
    const Action& action = schedule_.ranks[rank][slots_[rank].size()];
    for_each_cell(action, [&](const Cell& cell) {
      const Inputs inputs = inputs_of(schedule_.shape, cell);
      for (std::size_t i = 0; i < inputs.count; ++i) use(inputs.cells[i]);
    });
  }

  [[nodiscard]] Place places_of(const Cell& cell) const {
    return cell.computation == Computation::kForward
               ? places_.forward(cell.stage, cell.microbatch)
               : places_.backward(cell.stage, cell.microbatch);
  }

  const Schedule& schedule_;
  CellPlaces places_;
  std::vector<std::vector<std::uint32_t>> slots_;  // slots of the actions that have run
};

}  // namespace

std::vector<Violation> find_violations(const Schedule& schedule) {
  if (const Result<> shape = check_shape(schedule.shape); !shape)
    return {{0, 0, shape.error().message()}};
  if (schedule.ranks.size() != schedule.shape.pp)
    return {{0, 0,
             fmt::format("{} lists of actions for {} ranks", schedule.ranks.size(),
                         schedule.shape.pp)}};
  std::vector<Violation> violations = CellRules(schedule).check();
  if (!violations.empty()) return violations;
  LockstepRun run(schedule);
  run.run();
  return run.cycle();
}

Result<> validate(const Schedule& schedule) {
  const std::vector<Violation> violations = find_violations(schedule);
  if (violations.empty()) return {};
  std::string sentence = "the schedule is not valid: " + violations.front().sentence;
  if (violations.size() > 1)
    sentence += fmt::format(" (and {} more)", counted(violations.size() - 1, "violation"));
  return fail(ErrorCode::kInvalidInput, std::move(sentence));
}

Result<std::vector<std::vector<std::uint32_t>>> unit_slots(const Schedule& schedule) {
  WSYNC_TRY(validate(schedule));
  LockstepRun run(schedule);
  run.run();
  return run.take_slots();
}

CellPlaces::CellPlaces(const Schedule& schedule) : shape_(schedule.shape) {
  const std::size_t cells = std::size_t{shape_.stages()} * shape_.microbatches;
  for (auto* places : {&forward_, &backward_}) places->resize(cells);
  for (std::uint32_t rank = 0; rank < schedule.ranks.size(); ++rank)
    for (std::uint32_t step = 0; step < schedule.ranks[rank].size(); ++step)
      for_each_cell(schedule.ranks[rank][step], [&](const Cell& cell) {
        const Place place{rank, step};
        const std::size_t at = index(cell.stage, cell.microbatch);
        if (cell.computation == Computation::kForward) forward_[at] = place;
        if (sends_gradient(cell.computation)) backward_[at] = place;
      });
}

std::size_t CellPlaces::index(std::uint32_t stage, std::uint32_t microbatch) const {
  return std::size_t{stage} * shape_.microbatches + microbatch;
}
Place CellPlaces::forward(std::uint32_t stage, std::uint32_t microbatch) const {
  return forward_[index(stage, microbatch)];
}
Place CellPlaces::backward(std::uint32_t stage, std::uint32_t microbatch) const {
  return backward_[index(stage, microbatch)];
}

}  // namespace wsync::schedule
