// The transition table of a state machine: all its legal transitions in one place. The machine
// checks each transition against the table, and tests/unit/control/transition_tables_test.cc writes
// it into shared/control/protocol.md.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace wsync {

// One legal transition. A row with `from == to` is an event that is handled without a change of
// state.
template <class State>
struct Transition {
  State from;
  std::string_view event;  // what arrives, or the condition that became true
  State to;
  std::string_view action;  // what the machine sends or does
};

// Returns whether a table has a row that leads from one state to the other.
template <class State>
[[nodiscard]] constexpr bool allows(std::span<const Transition<State>> table, State from,
                                    State to) noexcept {
  return std::ranges::any_of(
      table, [&](const Transition<State>& row) { return row.from == from && row.to == to; });
}

// A table as text, for protocol.md.
struct TransitionTable {
  struct Row {
    std::string from;
    std::string event;
    std::string to;
    std::string action;
  };
  std::string machine;  // name of its class
  std::string summary;  // one sentence: what the machine represents
  std::vector<Row> rows;
};

// Converts a table to text. `name_of(state)` returns the state's name, as in the logs.
template <class State, class NameOf>
[[nodiscard]] TransitionTable describe(std::string_view machine, std::string_view summary,
                                       std::span<const Transition<State>> table, NameOf name_of) {
  TransitionTable text{
      .machine = std::string(machine), .summary = std::string(summary), .rows = {}};
  for (const Transition<State>& row : table)
    text.rows.push_back({.from = std::string(name_of(row.from)),
                         .event = std::string(row.event),
                         .to = std::string(name_of(row.to)),
                         .action = std::string(row.action)});
  return text;
}

}  // namespace wsync
