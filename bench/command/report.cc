// `wsync bench report`: result files as a page.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/command/bench_command.h"
#include "bench/command/bench_run.h"
#include "bench/harness/read_result.h"
#include "bench/page/page.h"
#include "bench/page/picture_files.h"
#include "bench/page/plots.h"
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

// A file that is there twice would be told twice, and one that is written over is lost.
Result<> check_files(const ReportArguments& arguments) {
  const auto& results = arguments.results;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (same_file(results[i], arguments.output))
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("--output {} is one of the result files, which the page would "
                              "replace; expected another file",
                              arguments.output));
    for (std::size_t k = 0; k < i; ++k)
      if (same_file(results[i], results[k]))
        return fail(ErrorCode::kInvalidInput,
                    fmt::format("{}: the same file as {}; expected each file once", results[i],
                                results[k]));
  }
  return {};
}

Result<std::vector<bench::ReportFile>> read_runs(const std::vector<std::string>& paths) {
  std::vector<bench::ReportFile> runs;
  for (const std::string& path : paths) {
    auto file = WSYNC_TRY(bench::read_result(path));
    runs.push_back(
        {.name = std::filesystem::path(path).filename().string(), .file = std::move(file)});
  }
  return runs;
}

std::size_t cases_of(const std::vector<bench::ReportFile>& runs) {
  std::size_t cases = 0;
  for (const bench::ReportFile& run : runs)
    for (const bench::SuiteResult& suite : run.file.suites) cases += suite.cases.size();
  return cases;
}

Result<bench::PictureFiles> write_plots(const std::vector<bench::Plot>& plots,
                                        const std::string& directory) {
  const auto interrupt = WSYNC_TRY(bench::Interrupt::create());
  const char* path = std::getenv("PATH");
  auto files = bench::write_pictures(plots, directory, path == nullptr ? "" : path, interrupt);
  if (!files) return fail(files.error().with_context("--plots"));
  return files;
}

Outcome outcome_of(const ReportArguments& arguments, const std::vector<bench::ReportFile>& runs,
                   const std::vector<bench::Plot>& plots, std::size_t bytes) {
  nlohmann::json drawn = nlohmann::json::array();
  nlohmann::json left_out = nlohmann::json::array();
  Outcome outcome;
  outcome.text =
      fmt::format("{}: {} of {}, {}\n", arguments.output, counted(cases_of(runs), "case"),
                  counted(runs.size(), "result file"), trace::format_bytes(bytes));
  for (const bench::Plot& plot : plots) {
    if (!plot.svg.empty()) {
      drawn.push_back({{"name", plot.id}, {"title", plot.title}});
      outcome.text += fmt::format("  {}\n", plot.title);
      continue;
    }
    left_out.push_back({{"name", plot.id}, {"title", plot.title}, {"command", plot.command}});
    outcome.text += fmt::format("  left out, no data: {}; `{}`\n", plot.title, plot.command);
  }
  outcome.result = {{"file", arguments.output},  {"bytes", bytes},
                    {"results", runs.size()},    {"cases", cases_of(runs)},
                    {"plots", std::move(drawn)}, {"left_out", std::move(left_out)}};
  return outcome;
}

Result<Outcome> bench_report(const ReportArguments& arguments) {
  WSYNC_TRY(check_files(arguments));
  const auto runs = WSYNC_TRY(read_runs(arguments.results));
  if (cases_of(runs) == 0)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: no case was measured: there is nothing to report; measure with "
                            "`wsync bench SUITE --output FILE`",
                            fmt::join(arguments.results, ", ")));
  const std::vector<bench::Plot> plots = bench::make_plots(runs);
  const std::string page = bench::report_page(runs, plots);
  if (auto written = trace::write_text_file(arguments.output, page); !written)
    return fail(written.error().with_context("--output"));
  Outcome outcome = outcome_of(arguments, runs, plots, page.size());
  if (arguments.plots.empty()) return outcome;
  const auto files = WSYNC_TRY(write_plots(plots, arguments.plots));
  outcome.result["svg"] = files.svg;
  outcome.result["png"] = files.png;
  outcome.result["png_left_out"] = files.png_left_out;
  outcome.text +=
      fmt::format("{}: {} SVG, {} PNG\n", arguments.plots, files.svg.size(), files.png.size());
  if (!files.png_left_out.empty()) outcome.text += files.png_left_out + "\n";
  return outcome;
}

}  // namespace

void add_bench_report(CLI::App& parent, Context& context, BenchRun& run) {
  CLI::App* command = add_command(
      parent, context,
      {.name = "report",
       .description = "Result files as one HTML page that needs nothing else: machines, every "
                      "case, targets and plots",
       .examples = {"wsync bench report now.json --output report.html",
                    "wsync bench report 1GiB.json 4GiB.json --output report.html --plots plots"}});
  auto arguments = std::make_shared<ReportArguments>();
  command
      ->add_option("RESULT", arguments->results,
                   "Result files of `wsync bench ... --output`: of several sizes, machines or days")
      ->required()
      ->expected(1, static_cast<int>(kReportFilesMax));
  command->add_option("--output", arguments->output, "File that gets the page")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--plots", arguments->plots,
                   "Folder that gets each plot as SVG, and as PNG where rsvg-convert is installed")
      ->type_name("DIR");
  command->callback([&run, arguments] {
    run.add_alone("report", [arguments] { return bench_report(*arguments); });
  });
}

}  // namespace wsync::cli
