// Measurements that take turns, so that a machine that becomes slower or faster harms all alike.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/child.h"
#include "shared/base/error.h"

namespace wsync::bench {

// One of those that are measured beside each other.
struct Contender {
  std::string name;
  std::function<Result<double>()> sample;  // measures once; in any unit
};

struct TurnOptions {
  unsigned warm_ups = 1;  // rounds before, whose figures are thrown away
  unsigned rounds = 15;
};

// Told before each measurement: who is measured, and how many of how many measurements are done.
using OnTurn = std::function<void(std::string_view name, unsigned done, unsigned total)>;

// In each round every contender measures once; the order is turned round with each round. Returns
// samples[contender][round]. kCancelled on a signal; else the first error, with the contender's
// name. Thread: the caller's.
[[nodiscard]] Result<std::vector<std::vector<double>>> measure_in_turns(
    std::span<const Contender> contenders, const TurnOptions& options, const Interrupt& interrupt,
    const OnTurn& on_turn);

}  // namespace wsync::bench
