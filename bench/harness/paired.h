// Measurements in turns, so that a machine that becomes slower or faster affects all of them
// equally.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/child.h"
#include "shared/base/error.h"

namespace wsync::bench {

// One of the alternatives that are compared.
struct Contender {
  std::string name;
  std::function<Result<double>()> sample;  // measures once, in any unit
};

struct TurnOptions {
  unsigned warm_ups = 1;  // rounds before the measured ones, whose figures are discarded
  unsigned rounds = 15;
};

// Called before each measurement with the name of the contender and the numbers of finished and of
// all measurements.
using OnTurn = std::function<void(std::string_view name, unsigned done, unsigned total)>;

// In each round every contender measures once, and the order is reversed with each round. Returns
// samples[contender][round]. kCancelled on a signal; otherwise the first error, with the
// contender's name. Thread: the caller's.
[[nodiscard]] Result<std::vector<std::vector<double>>> measure_in_turns(
    std::span<const Contender> contenders, const TurnOptions& options, const Interrupt& interrupt,
    const OnTurn& on_turn);

}  // namespace wsync::bench
