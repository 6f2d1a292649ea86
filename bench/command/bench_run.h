// One run of `wsync bench`: the suites in the order of the command line, and one result.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/harness/child.h"
#include "bench/harness/paired.h"
#include "bench/harness/result.h"
#include "shared/command/context.h"
#include "shared/command/outcome.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {

inline constexpr unsigned kBenchRepeatsMax = 10'000;
// Rounds of --quick: the fewest with which `bench compare` can judge a thousand cases.
inline constexpr unsigned kQuickRounds = 9;

// Options that every suite accepts. They apply to the whole command line, wherever they are.
struct BenchOptions {
  std::string output;               // result file of all suites; empty: none
  bool quick = false;               // use sizes and numbers of rounds that take seconds
  std::optional<unsigned> repeats;  // rounds of each suite whose own option is not given
};

// The result of a suite in its own form, and in the common form of all suites.
struct SuiteOutcome {
  Outcome outcome;
  bench::SuiteResult suite;
};
// Makes the outcome from a suite's own result with the functions of its report.h.
template <typename Measured>
[[nodiscard]] SuiteOutcome suite_outcome(const Measured& result) {
  return {.outcome = {.result = to_json(result), .text = to_text(result)},
          .suite = to_suite(result)};
}

// Makes the outcome from a suite whose --json is its result file. `measured`: "256 MiB in each
// measurement".
[[nodiscard]] SuiteOutcome part_outcome(bench::SuiteResult suite, const std::string& measured,
                                        unsigned rounds);

// Shows on `line` what is being measured. `line` must outlive the callback.
[[nodiscard]] bench::OnTurn show_turns(trace::ProgressLine& line);

// Thread: one. Suites are added while the command line is parsed, and run after that.
class BenchRun {
 public:
  BenchOptions options;

  using Suite = std::function<Result<SuiteOutcome>(const bench::Interrupt&)>;
  void add_suite(std::string name, Suite suite);
  // Adds a command that must be the only one in its command line.
  void add_alone(std::string name, std::function<Result<Outcome>()> body);

  // Executes the suites once. Does nothing if there are none. One suite prints its own form,
  // several print one after the other, and with --json several print the result file. The first
  // error ends the run. Earlier suites are then still written to --output. If nothing was measured,
  // no file is written. The exit code is the first one other than 0.
  void run(Context& context);

 private:
  struct Part {
    std::string name;
    Suite suite;                            // empty if the command must be alone
    std::function<Result<Outcome>()> body;  // of a command that must be alone
  };
  [[nodiscard]] Result<Outcome> run_suites();
  // Writes the file if --output is given and something was measured. Returns whether there is a
  // file.
  [[nodiscard]] Result<bool> write(const std::vector<bench::SuiteResult>& suites) const;
  std::vector<Part> parts_;
};

// Adds --output, --quick and --repeats to a suite's command. `run` outlives it.
void add_bench_options(CLI::App& command, BenchRun& run);

// Returns the number of rounds of a suite: the value of its own option if that was given, otherwise
// --repeats, otherwise `quick` with --quick, otherwise the default in `value`.
[[nodiscard]] unsigned rounds_of(const BenchOptions& options, const CLI::App& command,
                                 const std::string& option, unsigned value, unsigned quick);

// Makes a result file of this program on this machine with the current date.
[[nodiscard]] bench::ResultFile result_file(std::vector<bench::SuiteResult> suites);

}  // namespace wsync::cli
