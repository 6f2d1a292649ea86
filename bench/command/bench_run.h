// One run of `wsync bench`: the suites that stand in the line, in their order, and one result.
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
// Of --quick: as few as `bench compare` can tell anything of, with a thousand cases.
inline constexpr unsigned kQuickRounds = 9;

// Options that every suite takes, and that hold for the whole line wherever they stand.
struct BenchOptions {
  std::string output;               // file that gets the result of all suites; empty: none
  bool quick = false;               // sizes and numbers of rounds that take seconds
  std::optional<unsigned> repeats;  // rounds of each suite, where a suite's own option is not given
};

// What a suite has to say for itself, and in the form of all.
struct SuiteOutcome {
  Outcome outcome;
  bench::SuiteResult suite;
};
// Of a suite's own result, by the functions of its report.h.
template <typename Measured>
[[nodiscard]] SuiteOutcome suite_outcome(const Measured& result) {
  return {.outcome = {.result = to_json(result), .text = to_text(result)},
          .suite = to_suite(result)};
}

// Shows on `line`, which must outlive it, who is measured.
[[nodiscard]] bench::OnTurn show_turns(trace::ProgressLine& line);

// Thread: one. Suites are added while the line is parsed and run when all of it is.
class BenchRun {
 public:
  BenchOptions options;

  using Suite = std::function<Result<SuiteOutcome>(const bench::Interrupt&)>;
  void add_suite(std::string name, Suite suite);
  // A command that stands alone in its line.
  void add_alone(std::string name, std::function<Result<Outcome>()> body);

  // Runs what was added, once; nothing when nothing was. One suite prints its own form, several
  // one after the other; with --json several print the result file. The first error ends the run;
  // what suites before it have measured is written to --output all the same; where nothing was
  // measured, there is no file. The exit code is the first one that is not 0.
  void run(Context& context);

 private:
  struct Part {
    std::string name;
    Suite suite;                            // empty: alone
    std::function<Result<Outcome>()> body;  // of one that stands alone
  };
  [[nodiscard]] Result<Outcome> run_suites();
  // Whether there is a file now: not without --output, nor where nothing was measured.
  [[nodiscard]] Result<bool> write(const std::vector<bench::SuiteResult>& suites) const;
  std::vector<Part> parts_;
};

// Adds --output, --quick and --repeats to a suite's command. `run` outlives it.
void add_bench_options(CLI::App& command, BenchRun& run);

// The number of rounds that a suite takes: its own option's value if that was given, else
// --repeats, else `quick` with --quick, else the default that `value` has.
[[nodiscard]] unsigned rounds_of(const BenchOptions& options, const CLI::App& command,
                                 const std::string& option, unsigned value, unsigned quick);

// A result file of this program, on this machine, now.
[[nodiscard]] bench::ResultFile result_file(std::vector<bench::SuiteResult> suites);

}  // namespace wsync::cli
