#include "bench/command/bench_run.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "bench/harness/report.h"
#include "shared/base/format.h"
#include "shared/command/outcome.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::cli {

SuiteOutcome part_outcome(bench::SuiteResult suite, const std::string& measured, unsigned rounds) {
  const bench::Machine machine = bench::this_machine();
  std::string text =
      fmt::format("{}\n{}; {}\n{}, {} rounds, all received data checked\n\n",
                  bench::processor_text(machine), machine.layout, machine.kernel, measured, rounds);
  Outcome outcome{.result = bench::to_json(result_file({suite})),
                  .text = text + bench::to_text(suite)};
  return {.outcome = std::move(outcome), .suite = std::move(suite)};
}

void BenchRun::add_suite(std::string name, Suite suite) {
  parts_.push_back({.name = std::move(name), .suite = std::move(suite), .body = {}});
}

void BenchRun::add_alone(std::string name, std::function<Result<Outcome>()> body) {
  parts_.push_back({.name = std::move(name), .suite = {}, .body = std::move(body)});
}

void BenchRun::run(Context& context) {
  if (parts_.empty()) return;
  std::string command = "bench";
  for (const Part& part : parts_) command += " " + part.name;
  context.run(command, [&]() -> Result<Outcome> {
    const auto alone = std::ranges::find_if(parts_, [](const Part& part) { return !part.suite; });
    if (alone == parts_.end()) return run_suites();
    if (parts_.size() == 1) return alone->body();
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("`wsync bench {}` cannot be combined with other suites on one command line",
                    alone->name));
  });
}

Result<Outcome> BenchRun::run_suites() {
  if (!options.output.empty())
    if (const auto checked = trace::check_text_file(options.output); !checked)
      return fail(checked.error().with_context("--output"));
  const auto interrupt = WSYNC_TRY(bench::Interrupt::create());
  std::vector<bench::SuiteResult> suites;
  Outcome all;
  for (const Part& part : parts_) {
    auto done = part.suite(interrupt);
    if (!done) {
      (void)WSYNC_TRY(write(suites));
      return fail(parts_.size() == 1 ? done.error() : done.error().with_context(part.name));
    }
    if (all.exit_code == kExitOk) all.exit_code = done->outcome.exit_code;
    if (parts_.size() > 1) all.text += fmt::format("== {}\n", part.name);
    all.text += done->outcome.text;
    if (parts_.size() > 1) all.text += "\n";
    if (!done->outcome.complaint.empty())
      all.complaint += (all.complaint.empty() ? "" : "\n") + done->outcome.complaint;
    if (parts_.size() == 1) all.result = std::move(done->outcome.result);
    suites.push_back(std::move(done->suite));
  }
  // Shows the measured results even if they could not be written.
  const auto complain = [&all](const std::string& sentence) {
    all.complaint += (all.complaint.empty() ? "" : "\n") + sentence;
  };
  if (const auto written = write(suites); !written) {
    complain(written.error().message());
    all.exit_code = kExitFailed;
  } else if (!*written && !options.output.empty()) {
    complain(fmt::format("no case was measured, so --output {} was not written", options.output));
  }
  if (parts_.size() > 1) all.result = bench::to_json(result_file(std::move(suites)));
  return all;
}

Result<bool> BenchRun::write(const std::vector<bench::SuiteResult>& suites) const {
  const bool empty = std::ranges::all_of(suites, [](const auto& s) { return s.cases.empty(); });
  if (options.output.empty() || empty) return false;
  const std::string text = to_line(bench::to_json(result_file(suites))) + "\n";
  if (auto written = trace::write_text_file(options.output, text); !written)
    return fail(written.error().with_context("--output"));
  return true;
}

bench::OnTurn show_turns(trace::ProgressLine& line) {
  return [&line](std::string_view name, unsigned done, unsigned total) {
    line.update(fmt::format("{} ({} of {})", name, done, total), 0, 0, now());
  };
}

void add_bench_options(CLI::App& command, BenchRun& run) {
  command
      .add_option(
          "--output", run.options.output,
          "Result file to write, with all suites of this command line, for `wsync bench compare`")
      ->type_name("FILE");
  command.add_flag("--quick", run.options.quick,
                   "Use small sizes and few rounds. Takes seconds; the figures are less reliable");
  command
      .add_option("--repeats", run.options.repeats,
                  "Rounds of each suite of this command line whose own option is not given")
      ->check(CLI::Range(1U, kBenchRepeatsMax));
}

unsigned rounds_of(const BenchOptions& options, const CLI::App& command, const std::string& option,
                   unsigned value, unsigned quick) {
  if (command.count(option) > 0) return value;
  if (options.repeats) return *options.repeats;
  return options.quick ? quick : value;
}

bench::ResultFile result_file(std::vector<bench::SuiteResult> suites) {
  return {.date = bench::date_now(),
          .wsync_version = WSYNC_VERSION,
          .machine = bench::machine_json(bench::this_machine()),
          .suites = std::move(suites)};
}

}  // namespace wsync::cli
