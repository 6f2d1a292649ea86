#include "trainer_side/schedule/action.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "shared/base/format.h"
#include "trainer_side/schedule/limits.h"

namespace wsync::schedule {
namespace {

constexpr std::array kComputations{Computation::kForward, Computation::kBackward,
                                   Computation::kInputGradient, Computation::kWeightGradient};

// Parses the action list of one rank from left to right.
class ActionReader {
 public:
  ActionReader(std::string_view line, std::size_t number) : line_(line), number_(number) {}

  Result<std::vector<Action>> read(std::uint32_t rank) {
    const std::string name = fmt::format("PP{}:", rank);
    skip_spaces();
    if (!line_.substr(at_).starts_with(name)) return wrong(fmt::format("expected '{}'", name));
    at_ += name.size();
    std::vector<Action> actions;
    for (skip_spaces(); at_ < line_.size(); skip_spaces()) {
      if (!actions.empty() && !take(',')) return wrong("expected ',' or the end of the line");
      auto action = WSYNC_TRY(read_action());
      actions.push_back(action);
    }
    return actions;
  }

 private:
  Result<Action> read_action() {
    Action action;
    const bool is_pair = take('(');
    Result<Cell> cell = read_cell();
    if (!cell) return fail(cell.error());
    action.cell = *cell;
    if (!is_pair) return action;
    if (!take(';')) return wrong("expected ';' between the two cells of a pair");
    cell = read_cell();
    if (!cell) return fail(cell.error());
    action.backward = *cell;
    if (!take(')')) return wrong("expected ')' after a pair");
    if (action.cell.computation != Computation::kForward || !sends_gradient(cell->computation))
      return wrong(fmt::format("the pair {} is not a forward with a backward (F with B or I)",
                               to_string(action)));
    return action;
  }

  Result<Cell> read_cell() {
    Cell cell;
    if (!read_number(cell.stage)) return wrong("expected the number of a stage");
    skip_spaces();
    const char letter = at_ < line_.size() ? line_[at_] : '\0';
    const auto found = std::ranges::find(kComputations, letter, computation_letter);
    if (found == kComputations.end()) return wrong("expected F, B, I or W");
    ++at_;
    cell.computation = *found;
    if (!read_number(cell.microbatch)) return wrong("expected the number of a micro-batch");
    if (cell.stage >= limits::kPipelineStageCount || cell.microbatch >= limits::kMicrobatchCount)
      return wrong(fmt::format("{} is over the limit of {} stages or {} micro-batches",
                               to_string(cell), limits::kPipelineStageCount,
                               limits::kMicrobatchCount));
    return cell;
  }

  bool read_number(std::uint32_t& number) {
    skip_spaces();
    const char* end = line_.data() + line_.size();
    const auto read = std::from_chars(line_.data() + at_, end, number);
    if (read.ec != std::errc()) return false;
    at_ = static_cast<std::size_t>(read.ptr - line_.data());
    return true;
  }

  bool take(char wanted) {
    skip_spaces();
    if (at_ >= line_.size() || line_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void skip_spaces() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r'))
      ++at_;
  }

  tl::unexpected<Error> wrong(const std::string& why) const {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("actions, line {}, column {}: {}, found '{}'", number_, at_ + 1, why,
                            line_.substr(at_, 12)));
  }

  std::string_view line_;
  std::size_t number_;
  std::size_t at_ = 0;
};

void widen(Schedule& schedule, const Cell& cell) {
  schedule.shape.vpp = std::max(schedule.shape.vpp, cell.stage / schedule.shape.pp + 1);
  schedule.shape.microbatches = std::max(schedule.shape.microbatches, cell.microbatch + 1);
}

}  // namespace

char computation_letter(Computation computation) noexcept {
  switch (computation) {
    case Computation::kForward:
      return 'F';
    case Computation::kBackward:
      return 'B';
    case Computation::kInputGradient:
      return 'I';
    case Computation::kWeightGradient:
      return 'W';
  }
  return '?';
}

bool sends_gradient(Computation computation) noexcept {
  return computation == Computation::kBackward || computation == Computation::kInputGradient;
}

std::string to_string(const Cell& cell) {
  return fmt::format("{}{}{}", cell.stage, computation_letter(cell.computation), cell.microbatch);
}

std::string to_string(const Action& action) {
  if (!action.backward) return to_string(action.cell);
  return fmt::format("({};{})", to_string(action.cell), to_string(*action.backward));
}

Result<> check_shape(const Shape& shape) {
  const auto check = [](std::string_view name, std::uint32_t value, std::uint64_t max) -> Result<> {
    if (value >= 1 && value <= max) return {};
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} is {}; expected 1 to {}", name, value, max));
  };
  WSYNC_TRY(check("the number of pipeline ranks (pp)", shape.pp, limits::kPipelineRankCount));
  WSYNC_TRY(check("the number of chunks of a rank (vpp)", shape.vpp, limits::kVirtualChunkCount));
  WSYNC_TRY(check("the number of micro-batches", shape.microbatches, limits::kMicrobatchCount));
  if (shape.stages() > limits::kPipelineStageCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} ranks with {} chunks each are {} stages; at most {} are planned",
                            shape.pp, shape.vpp, shape.stages(), limits::kPipelineStageCount));
  const std::uint64_t cells = std::uint64_t{shape.pp} * shape.vpp * shape.microbatches;
  if (cells > limits::kScheduleCellCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{} stages with {} micro-batches are {} cells; at most {} are planned",
                            shape.stages(), shape.microbatches, cells, limits::kScheduleCellCount));
  return {};
}

std::string write_actions(const Schedule& schedule) {
  std::string text;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    text += fmt::format("PP{}: ", rank);
    std::string_view between;
    for (const Action& action : schedule.ranks[rank]) {
      text += between;
      text += to_string(action);
      between = ",";
    }
    text += '\n';
  }
  return text;
}

Result<Schedule> read_actions(std::string_view text) {
  if (text.size() > limits::kActionTextBytes)
    return fail(ErrorCode::kInvalidInput, fmt::format("actions: {} bytes; at most {} are read",
                                                      text.size(), limits::kActionTextBytes));
  Schedule schedule;
  std::size_t number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto rank = static_cast<std::uint32_t>(schedule.ranks.size());
    if (rank >= limits::kPipelineRankCount)
      return fail(ErrorCode::kInvalidInput, fmt::format("actions, line {}: more than {} ranks",
                                                        number, limits::kPipelineRankCount));
    auto actions = WSYNC_TRY(ActionReader(line, number).read(rank));
    schedule.ranks.push_back(std::move(actions));
  }
  if (schedule.ranks.empty())
    return fail(ErrorCode::kInvalidInput, "actions: no line; expected 'PP0: 0F0,...' first");
  schedule.shape.pp = static_cast<std::uint32_t>(schedule.ranks.size());
  for (const std::vector<Action>& actions : schedule.ranks)
    for (const Action& action : actions) {
      widen(schedule, action.cell);
      if (action.backward) widen(schedule, *action.backward);
    }
  WSYNC_TRY(check_shape(schedule.shape));
  return schedule;
}

}  // namespace wsync::schedule
