// Measurements of a suite that take turns, and which of them each is a share of.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/paired.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

// What one measurement tells: a case of the result.
struct Figure {
  std::string name;         // of the catalogue
  std::string variant;      // "2 threads"; may be empty
  std::uint64_t bytes = 0;  // that the measurement moves; 0: it is not about bytes
  // The case of the same rows that it is a share of, with its variant; empty: of none.
  std::string against;
};

// One measurement and its figures, at least one.
struct Row {
  std::vector<Figure> figures;
  std::function<Result<std::vector<double>>()> measure;  // one value for each figure, in its unit
};

// "memcpy, 2 threads"; without a variant the name alone.
[[nodiscard]] std::string case_name(std::string_view name, std::string_view variant);

// A row of one figure: the figure's bytes by what `measure` takes, in GiB a second.
[[nodiscard]] Row rate_row(Figure figure,
                           std::function<Result<std::chrono::nanoseconds>()> measure);
// `bytes` in that time, in GiB a second; of a time of nothing, as if it were a nanosecond.
[[nodiscard]] double gib_per_s(std::uint64_t bytes, std::chrono::nanoseconds taken) noexcept;

// Measures all rows in turns and makes their figures the suite's cases, in order; notes tell what
// disturbed the machine meanwhile. Names are in the catalogue, and what a figure is against is
// among the rows. Errors as measure_in_turns().
[[nodiscard]] Result<SuiteResult> run_rows(std::string_view suite, const std::vector<Row>& rows,
                                           const TurnOptions& options, const Interrupt& interrupt,
                                           const OnTurn& on_turn);

}  // namespace wsync::bench
