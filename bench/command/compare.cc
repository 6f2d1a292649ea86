// `wsync bench list` and `wsync bench compare`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/command/plot_program.h"
#include "bench/harness/catalogue.h"
#include "bench/harness/read_result.h"
#include "shared/base/format.h"
#include "shared/command/outcome.h"

namespace wsync::cli {
namespace {

Outcome bench_list() {
  Outcome outcome;
  auto& suites = outcome.result["suites"] = nlohmann::json::array();
  for (const bench::SuiteText& suite : bench::catalogue()) {
    nlohmann::json cases = nlohmann::json::array();
    outcome.text +=
        fmt::format("{}{}: {}\n", outcome.text.empty() ? "" : "\n", suite.command, suite.question);
    for (const bench::CaseText& one : suite.cases) {
      cases.push_back({{"name", one.name},
                       {"what", one.what},
                       {"unit", one.unit},
                       {"higher_is_better", one.higher_is_better},
                       {"baseline", one.baseline}});
      outcome.text += fmt::format(
          "  {} ({}): {}{}\n", one.name, one.unit, one.what,
          one.baseline.empty() ? std::string() : fmt::format("; baseline: {}", one.baseline));
    }
    suites.push_back({{"name", suite.name},
                      {"command", suite.command},
                      {"question", suite.question},
                      {"cases", std::move(cases)}});
  }
  return outcome;
}

constexpr double kFactorMax = 100;

struct CompareArguments {
  std::string a;
  std::string b;
  double factor = 1.05;
};

Result<Outcome> bench_compare(const CompareArguments& arguments) {
  for (const std::string& path : {arguments.a, arguments.b})
    if (const auto read = bench::read_result(path); !read) {
      // Here a file of an older form is as invalid as any other one.
      const Error& why = read.error();
      return fail(why.code() == ErrorCode::kRefused ? ErrorCode::kInvalidInput : why.code(),
                  why.message());
    }
  const auto interrupt = WSYNC_TRY(bench::Interrupt::create());
  auto printed = WSYNC_TRY(run_plot_program(
      {"compare", "--factor", fmt::format("{}", arguments.factor), "--", arguments.a, arguments.b},
      interrupt));
  Outcome outcome{.result = std::move(printed["result"]),
                  .text = printed["text"].get<std::string>()};
  const auto is_too_few = [](const nlohmann::json& one) {
    return one["verdict"] == "too few rounds to tell";
  };
  if (std::ranges::all_of(outcome.result["cases"], is_too_few)) {
    outcome.complaint =
        "wsync bench compare: no case has enough rounds for the test; measure both again with more "
        "rounds (--repeats)";
    outcome.exit_code = kExitBadInput;
    return outcome;
  }
  const auto worse = outcome.result["worse"].get<std::size_t>();
  if (worse == 0) return outcome;
  outcome.complaint = fmt::format("wsync bench compare: {} became worse", counted(worse, "case"));
  outcome.exit_code = kExitFailed;
  return outcome;
}

}  // namespace

void add_bench_list(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "list",
       .description = "List all suites and cases, with what each measures and its baseline",
       .examples = {"wsync bench list", "wsync bench list --json"}});
  command->callback(
      [&run] { run.add_alone("list", []() -> Result<Outcome> { return bench_list(); }); });
}

void add_bench_compare(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "compare",
       .description = "Show the changes between two result files that exceed their spread. The "
                      "exit code is 1 if a case became worse",
       .examples = {"wsync bench compare before.json after.json",
                    "wsync bench compare before.json after.json --factor 1.02 --json"}});
  auto arguments = std::make_shared<CompareArguments>();
  command->add_option("A", arguments->a, "Result file of `wsync bench ... --output`")->required();
  command->add_option("B", arguments->b, "Result file to compare with the first one")->required();
  command
      ->add_option("--factor", arguments->factor,
                   "Medians that differ by a smaller factor count as equal (default: 1.05)")
      ->check(CLI::Range(1.0, kFactorMax));
  command->callback([&run, arguments] {
    run.add_alone("compare", [arguments] { return bench_compare(*arguments); });
  });
}

}  // namespace wsync::cli
