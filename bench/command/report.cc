// `wsync bench report` turns result files into a page.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/command/plot_program.h"
#include "bench/harness/catalogue.h"
#include "bench/harness/directory.h"
#include "bench/harness/read_result.h"
#include "shared/base/format.h"
#include "shared/command/outcome.h"
#include "shared/observe/trace/progress.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::cli {
namespace {

constexpr std::size_t kReportFilesMax = 64;

struct ReportArguments {
  std::vector<std::string> results;
  std::string output;
  std::string plots;
};

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return std::filesystem::equivalent(a, b, error) && !error;
}

// Refuses a file that is given twice, which would be reported twice, and an output that would
// overwrite an input.
Result<> check_files(const ReportArguments& arguments) {
  const auto& results = arguments.results;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (same_file(results[i], arguments.output))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--output {} is one of the result files and would be overwritten by "
                              "the page; expected another file",
                              arguments.output));
    for (std::size_t k = 0; k < i; ++k)
      if (same_file(results[i], results[k]))
        return fail(ErrorCode::kInvalidInput,
                    fmt::format("{}: the same file as {}; expected each file once", results[i],
                                results[k]));
  }
  return {};
}

// The files that a page can show, and those that it cannot.
struct ReadFiles {
  std::vector<std::string> paths;
  std::size_t cases = 0;
  std::vector<std::string> skipped;  // why each file of an older form is left out
};

// Reads every file, so that an invalid file is refused here with the place of the error. A file of
// an older form is left out: a folder of results has files of several releases.
Result<ReadFiles> read_files(const std::vector<std::string>& paths) {
  ReadFiles files;
  for (const std::string& path : paths) {
    const auto file = bench::read_result(path);
    if (!file && file.error().code() == ErrorCode::kRefused) {
      files.skipped.push_back(file.error().message());
      continue;
    }
    if (!file) return fail(file.error());
    files.paths.push_back(path);
    for (const bench::SuiteResult& suite : file->suites) files.cases += suite.cases.size();
  }
  if (files.paths.empty())
    return fail(ErrorCode::kInvalidInput, fmt::format("{}", fmt::join(files.skipped, "; ")));
  if (files.cases == 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: the file contains no measured case; measure with `wsync bench "
                            "SUITE --output FILE`",
                            fmt::join(files.paths, ", ")));
  return files;
}

// Returns the question of each suite for the page.
std::string questions() {
  nlohmann::json suites = nlohmann::json::object();
  for (const bench::SuiteText& suite : bench::catalogue())
    suites[suite.name] = {{"command", suite.command}, {"question", suite.question}};
  return to_line(suites);
}

// Writes ID.svg and ID.png of each plot to the user's directory, and adds them to the outcome.
Result<> write_plots(const std::string& made, const std::string& directory, Outcome& outcome) {
  for (const char* kind : {"svg", "png"}) {
    auto& files = outcome.result[kind] = nlohmann::json::array();
    for (const nlohmann::json& plot : outcome.result["plots"]) {
      const std::string name = fmt::format("{}.{}", plot["name"].get<std::string>(), kind);
      files.push_back(fmt::format("{}/{}", directory, name));
      if (auto copied = copy_made_file(fmt::format("{}/{}", made, name), files.back()); !copied)
        return fail(copied.error().with_context("--plots"));
    }
  }
  outcome.result["png_left_out"] = "";
  outcome.text += fmt::format("{}: {} SVG, {} PNG\n", directory, outcome.result["svg"].size(),
                              outcome.result["png"].size());
  return {};
}

Outcome outcome_of(const ReportArguments& arguments, const ReadFiles& files, std::size_t bytes,
                   nlohmann::json made) {
  const std::size_t results = files.paths.size();
  Outcome outcome;
  outcome.text = fmt::format("{}: {} of {}, {}\n", arguments.output, counted(files.cases, "case"),
                             counted(results, "result file"), trace::format_bytes(bytes));
  for (const std::string& why : files.skipped) outcome.text += fmt::format("  skipped: {}\n", why);
  for (const nlohmann::json& plot : made["plots"])
    outcome.text += fmt::format("  {}\n", plot["title"].get<std::string>());
  for (const nlohmann::json& plot : made["left_out"])
    outcome.text += fmt::format("  left out, no data: {}; `{}`\n", plot["title"].get<std::string>(),
                                plot["command"].get<std::string>());
  outcome.result = {{"file", arguments.output},
                    {"bytes", bytes},
                    {"results", results},
                    {"cases", files.cases},
                    {"skipped", files.skipped},
                    {"plots", std::move(made["plots"])},
                    {"left_out", std::move(made["left_out"])}};
  return outcome;
}

// Checks everything that can be refused before anything is drawn.
Result<ReadFiles> check_report(const ReportArguments& arguments) {
  WSYNC_TRY(check_files(arguments));
  auto files = WSYNC_TRY(read_files(arguments.results));
  if (auto checked = trace::check_text_file(arguments.output); !checked)
    return fail(checked.error().with_context("--output"));
  if (arguments.plots.empty()) return files;
  std::error_code error;
  std::filesystem::create_directories(arguments.plots, error);
  if (error)
    return fail_errno(fmt::format("--plots: cannot create {}", arguments.plots), error.value());
  return files;
}

Result<Outcome> bench_report(const ReportArguments& arguments) {
  const auto files = WSYNC_TRY(check_report(arguments));
  const auto interrupt = WSYNC_TRY(bench::Interrupt::create());
  const auto folder = WSYNC_TRY(bench::TemporaryDirectory::create(""));
  std::vector<std::string> words{"report", "--into", folder.path(), "--suites", questions()};
  if (!arguments.plots.empty()) words.emplace_back("--plots");
  words.emplace_back("--");
  words.insert(words.end(), files.paths.begin(), files.paths.end());
  auto made = WSYNC_TRY(run_plot_program(words, interrupt));
  const auto bytes = copy_made_file(folder.path() + "/page.html", arguments.output);
  if (!bytes) return fail(bytes.error().with_context("--output"));
  Outcome outcome = outcome_of(arguments, files, *bytes, std::move(made));
  if (!arguments.plots.empty()) WSYNC_TRY(write_plots(folder.path(), arguments.plots, outcome));
  return outcome;
}

}  // namespace

void add_bench_report(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "report",
       .description = "Write result files as one self-contained HTML page: machines, every case, "
                      "targets and plots",
       .examples = {"wsync bench report now.json --output report.html",
                    "wsync bench report 1GiB.json 4GiB.json --output report.html --plots plots"}});
  auto arguments = std::make_shared<ReportArguments>();
  command
      ->add_option("RESULT", arguments->results,
                   "Result files of `wsync bench ... --output`: of several sizes, machines or days")
      ->required()
      ->expected(1, static_cast<int>(kReportFilesMax));
  command->add_option("--output", arguments->output, "HTML file to write")
      ->required()
      ->type_name("FILE");
  command->add_option("--plots", arguments->plots, "Directory for each plot as SVG and as PNG")
      ->type_name("DIR");
  command->callback([&run, arguments] {
    run.add_alone("report", [arguments] { return bench_report(*arguments); });
  });
}

}  // namespace wsync::cli
