#include "bench/harness/result.h"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "bench/harness/report.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

json samples_json(const std::vector<double>& samples) {
  const Spread spread = spread_of(samples);
  json object = spread_json(spread);
  object["count"] = spread.count;
  object["samples"] = samples;
  return object;
}

json result_case_json(const CaseResult& result) {
  json object = {{"name", result.name},
                 {"what", result.what},
                 {"unit", result.unit},
                 {"higher_is_better", result.higher_is_better},
                 {"value", samples_json(result.samples)}};
  if (result.bytes != 0) object["bytes"] = result.bytes;
  if (result.baseline)
    object["baseline"] = {{"name", result.baseline->name},
                          {"value", samples_json(result.baseline->samples)}};
  if (!result.ratios.empty()) object["ratio"] = samples_json(result.ratios);
  if (result.target)
    object["target"] = {{"of", target_name(result.target->of)},
                        {"value", result.target->value},
                        {"met", result.met()}};
  return object;
}

// Prints a number of any size with four significant digits.
std::string short_number(double value) {
  return fmt::format("{:.{}f}", value,
                     std::abs(value) >= 1000  ? 0
                     : std::abs(value) >= 100 ? 1
                     : std::abs(value) >= 10  ? 2
                                              : 3);
}

std::string target_text(const CaseResult& result) {
  switch (result.target->of) {
    case Target::Of::kRatio:
      return fmt::format("target at least {:.3g}", result.target->value);
    case Target::Of::kMedian:
      return fmt::format("target for the median at {} {:.3g}",
                         result.higher_is_better ? "least" : "most", result.target->value);
    case Target::Of::kMax:
      return fmt::format("target for every value at most {:.3g}", result.target->value);
  }
  return "";
}

std::string result_line(const CaseResult& result, std::size_t width) {
  const Spread value = spread_of(result.samples);
  std::string text =
      fmt::format("{:<{}} {:>9} {:<8} {:<19}", result.name, width, short_number(value.median),
                  result.unit, short_number(value.min) + " - " + short_number(value.max));
  if (!result.ratios.empty())
    text += fmt::format(" {:>7.3f} of {}", spread_of(result.ratios).median, result.baseline->name);
  if (result.target)
    text += fmt::format(" ({}: {})", target_text(result), result.met() ? "met" : "missed");
  return text + "\n";
}

}  // namespace

bool CaseResult::met() const {
  if (!target) return true;
  switch (target->of) {
    case Target::Of::kRatio:
      return spread_of(ratios).median >= target->value;
    case Target::Of::kMedian: {
      const double median = spread_of(samples).median;
      return higher_is_better ? median >= target->value : median <= target->value;
    }
    case Target::Of::kMax:
      return spread_of(samples).max <= target->value;
  }
  return false;
}

std::string_view target_name(Target::Of of) noexcept {
  switch (of) {
    case Target::Of::kRatio:
      return "ratio";
    case Target::Of::kMedian:
      return "median";
    case Target::Of::kMax:
      return "most";
  }
  return "";
}

void set_baseline(CaseResult& result, std::string name, std::vector<double> samples) {
  const bool paired = samples.size() == result.samples.size();
  const double median = spread_of(samples).median;
  result.ratios.clear();
  for (std::size_t i = 0; i < result.samples.size(); ++i) {
    const double baseline = paired ? samples[i] : median;
    const double ours = result.samples[i];
    if (!(ours > 0) || !(baseline > 0)) continue;
    result.ratios.push_back(result.higher_is_better ? ours / baseline : baseline / ours);
  }
  result.baseline = Baseline{.name = std::move(name), .samples = std::move(samples)};
}

json to_json(const SuiteResult& suite) {
  json cases = json::array();
  for (const CaseResult& result : suite.cases) cases.push_back(result_case_json(result));
  json object = {{"suite", suite.suite},
                 {"parameters", suite.parameters},
                 {"cases", std::move(cases)},
                 {"notes", suite.notes}};
  if (!suite.details.is_null()) object["details"] = suite.details;
  return object;
}

json to_json(const ResultFile& file) {
  json suites = json::array();
  for (const SuiteResult& suite : file.suites) suites.push_back(to_json(suite));
  return {{"schema", kResultSchema}, {"schema_version", kResultSchemaVersion},
          {"date", file.date},       {"wsync_version", file.wsync_version},
          {"machine", file.machine}, {"suites", std::move(suites)}};
}

std::string to_text(const SuiteResult& suite) {
  std::size_t width = 4;
  for (const CaseResult& result : suite.cases) width = std::max(width, result.name.size());
  std::string text = fmt::format("{:<{}} {:>9} {:<8} {:<19} {}\n", "case", width, "median", "",
                                 "min - max", "speed / that of its baseline");
  for (const CaseResult& result : suite.cases) text += result_line(result, width);
  for (const std::string& note : suite.notes) text += "note: " + note + "\n";
  return text;
}

std::string date_now() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace wsync::bench
