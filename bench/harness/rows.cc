#include "bench/harness/rows.h"

#include <algorithm>

#include "bench/harness/catalogue.h"
#include "bench/harness/machine.h"
#include "bench/harness/report.h"
#include "shared/base/check.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/units.h"

namespace wsync::bench {
namespace {

// samples[row][figure][turn], including warm-ups.
using RowSamples = std::vector<std::vector<std::vector<double>>>;

std::vector<Contender> contenders_of_rows(const std::vector<Row>& rows, RowSamples& samples) {
  std::vector<Contender> contenders;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    WSYNC_CHECK(!row.figures.empty(), "a row has a figure");
    samples.emplace_back(row.figures.size());
    const Figure& first = row.figures.front();
    contenders.push_back({.name = case_name(first.name, first.variant),
                          .sample = [&row, &samples, i]() -> Result<double> {
                            const auto values = WSYNC_TRY(row.measure());
                            WSYNC_CHECK(values.size() == row.figures.size(),
                                        "a value for each figure");
                            for (std::size_t f = 0; f < values.size(); ++f)
                              samples[i][f].push_back(values[f]);
                            return values.front();
                          }});
  }
  return contenders;
}

const std::vector<double>& samples_of_case(const SuiteResult& suite, const std::string& name) {
  const auto found = std::ranges::find(suite.cases, name, &CaseResult::name);
  WSYNC_CHECK(found != suite.cases.end(), "the baseline of a figure is one of the rows");
  return found->samples;
}

}  // namespace

std::string case_name(std::string_view name, std::string_view variant) {
  return variant.empty() ? std::string(name) : fmt::format("{}, {}", name, variant);
}

double gib_per_s(std::uint64_t bytes, std::chrono::nanoseconds taken) noexcept {
  return static_cast<double>(bytes) / static_cast<double>(limits::kGiB) /
         std::max(seconds(taken), 1e-9);
}

Row rate_row(Figure figure, std::function<Result<std::chrono::nanoseconds>()> measure) {
  const std::uint64_t bytes = figure.bytes;
  WSYNC_CHECK(bytes > 0, "a rate has a number of bytes");
  return {.figures = {std::move(figure)},
          .measure = [bytes, measure = std::move(measure)]() -> Result<std::vector<double>> {
            const auto taken = WSYNC_TRY(measure());
            return std::vector<double>{gib_per_s(bytes, taken)};
          }};
}

Result<SuiteResult> run_rows(std::string_view suite, const std::vector<Row>& rows,
                             const TurnOptions& options, const Interrupt& interrupt,
                             const OnTurn& on_turn) {
  const auto busy = WSYNC_TRY(busy_with_others(interrupt));
  CpuLoad load;
  RowSamples samples;
  const auto contenders = contenders_of_rows(rows, samples);
  (void)WSYNC_TRY(measure_in_turns(contenders, options, interrupt, on_turn));
  SuiteResult result{.suite = std::string(suite)};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t f = 0; f < rows[i].figures.size(); ++f) {
      const Figure& figure = rows[i].figures[f];
      std::vector<double>& all = samples[i][f];
      all.erase(all.begin(), all.begin() + options.warm_ups);
      CaseResult one = case_of(suite, figure.name, figure.variant, std::move(all));
      one.bytes = figure.bytes;
      result.cases.push_back(std::move(one));
    }
  }
  std::size_t at = 0;
  for (const Row& row : rows)
    for (const Figure& figure : row.figures) {
      CaseResult& one = result.cases[at++];
      if (!figure.against.empty())
        set_baseline_of(suite, figure.name, one, samples_of_case(result, figure.against));
    }
  for (std::string& sentence : load_sentences(busy, load.since_last().stolen))
    result.notes.push_back(std::move(sentence));
  return result;
}

}  // namespace wsync::bench
