#include "bench/command/plot_program.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/command/bench_run.h"
#include "bench/command/scripts.h"
#include "bench/harness/directory.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/command/programs.h"
#include "shared/observe/trace/text_file.h"

namespace wsync::cli {
namespace {

constexpr std::chrono::minutes kPlotLimit{10};
// Exit codes of plot.py.
constexpr int kPlotBadInput = 2;
constexpr int kPlotMissingPackage = 3;

// Returns every python3 in PATH. A Python that the user installed often comes before the system's
// Python, which has the packages.
std::vector<std::string> python_programs() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/bin:/bin" : path);
  std::vector<std::string> found;
  for (std::string folder; std::getline(folders, folder, ':');)
    if (auto python = find_program("python3", folder);
        python && std::ranges::count(found, *python) == 0)
      found.push_back(*std::move(python));
  return found;
}

std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (!line.empty()) last = std::move(line);
  return last;
}

struct PlotEnd {
  int exit_code = 0;
  std::string output;
  std::string last_words;  // last line on standard error
};

Result<PlotEnd> run_once(const std::string& python, const std::string& script,
                         const std::vector<std::string>& words, const bench::Interrupt& interrupt) {
  const auto folder = WSYNC_TRY(bench::TemporaryDirectory::create(""));
  const std::string log = folder.path() + "/plot.log";
  std::vector<std::string> command{python, script};
  command.insert(command.end(), words.begin(), words.end());
  auto child = WSYNC_TRY(
      bench::Child::start({.command = std::move(command), .environment = {}, .log_file = log}));
  auto end = WSYNC_TRY(child.wait(interrupt, now() + kPlotLimit));
  return PlotEnd{
      .exit_code = end.exit_code, .output = std::move(end.output), .last_words = last_line(log)};
}

}  // namespace

Result<nlohmann::json> run_plot_program(const std::vector<std::string>& words,
                                        const bench::Interrupt& interrupt) {
  const auto script = WSYNC_TRY(find_script("plot.py", "draws and compares result files"));
  std::string missing =
      "plots and comparisons of result files need python3, which is not in PATH; on Debian: "
      "apt-get install python3-matplotlib python3-scipy";
  bool first = true;
  for (const std::string& python : python_programs()) {
    auto end = WSYNC_TRY(run_once(python, script, words, interrupt));
    if (end.exit_code == kPlotMissingPackage) {
      if (std::exchange(first, false)) missing = std::move(end.last_words);
      continue;
    }
    if (end.exit_code == kPlotBadInput) return fail(ErrorCode::kInvalidInput, end.last_words);
    nlohmann::json printed = nlohmann::json::parse(end.output, nullptr, false);
    if (end.exit_code == 0 && printed.is_object()) return printed;
    return fail(ErrorCode::kIo, fmt::format("{} {} ended with exit code {}: {}", python, script,
                                            end.exit_code, end.last_words));
  }
  return fail(ErrorCode::kNotFound, missing);
}

Result<> check_picture(const std::string& path, const bench::Interrupt& interrupt) {
  if (path.empty()) return {};
  if (const auto checked = trace::check_text_file(path); !checked)
    return fail(checked.error().with_context("--svg"));
  if (const auto ready = run_plot_program({"check"}, interrupt); !ready)
    return fail(ready.error().with_context("--svg"));
  return {};
}

Result<> write_picture(const std::string& path, const bench::SuiteResult& suite,
                       const bench::Interrupt& interrupt) {
  if (path.empty()) return {};
  const auto folder = WSYNC_TRY(bench::TemporaryDirectory::create(""));
  const std::string result = folder.path() + "/result.json";
  WSYNC_TRY(trace::write_text_file(result, to_line(bench::to_json(result_file({suite})))));
  (void)WSYNC_TRY(run_plot_program({"suite", "--into", folder.path(), "--", result}, interrupt));
  (void)WSYNC_TRY(copy_made_file(folder.path() + "/picture.svg", path));
  return {};
}

Result<std::size_t> copy_made_file(const std::string& from, const std::string& to) {
  std::ifstream file(from, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  if (!file) return fail(ErrorCode::kIo, from + ": cannot be read");
  WSYNC_TRY(trace::write_text_file(to, content));
  return content.size();
}

}  // namespace wsync::cli
