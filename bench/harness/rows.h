// Measurements of a suite that take turns, each with its baseline among them.
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

// One result of a measurement, which becomes a case of the suite.
struct Figure {
  std::string name;         // name in the catalogue
  std::string variant;      // "2 threads"; may be empty
  std::uint64_t bytes = 0;  // bytes that the measurement moves; 0: it does not move bytes
  // Name of the case, with its variant, that is the baseline. It is one of the same rows. Empty: no
  // baseline.
  std::string against;
};

// One measurement and its figures. There is at least one figure.
struct Row {
  std::vector<Figure> figures;
  std::function<Result<std::vector<double>>()> measure;  // one value per figure, in its unit
};

// "memcpy, 2 threads". Only the name if there is no variant.
[[nodiscard]] std::string case_name(std::string_view name, std::string_view variant);

// A row of one figure: the figure's bytes divided by the time of `measure`, in GiB per second.
[[nodiscard]] Row rate_row(Figure figure,
                           std::function<Result<std::chrono::nanoseconds>()> measure);
// `bytes` divided by the time, in GiB per second. A time of zero counts as one nanosecond.
[[nodiscard]] double gib_per_s(std::uint64_t bytes, std::chrono::nanoseconds taken) noexcept;

// Measures all rows in turns and makes their figures the suite's cases, in order. Notes describe
// what disturbed the machine. Names are in the catalogue, and each baseline is one of the rows.
// Errors as measure_in_turns().
[[nodiscard]] Result<SuiteResult> run_rows(std::string_view suite, const std::vector<Row>& rows,
                                           const TurnOptions& options, const Interrupt& interrupt,
                                           const OnTurn& on_turn);

}  // namespace wsync::bench
