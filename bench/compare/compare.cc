#include "bench/compare/compare.h"

#include <algorithm>

#include "bench/compare/holm.h"
#include "bench/compare/rank_sum.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

// Its cases are the machine itself: the shares that it shows of one of them judge none of the
// others.
constexpr std::string_view kMachineSuite = "baseline";

std::optional<double> speed_of(double a, double b, bool higher_is_better) {
  if (a == b) return 1;
  if (!(a > 0) || !(b > 0)) return std::nullopt;
  return higher_is_better ? b / a : a / b;
}

// A case that is compared, before all of them are judged together.
struct Judged {
  CaseChange change;
  bool b_is_better = false;
  bool one_value = false;    // all samples of both sides are equal: there is nothing to tell apart
  bool has_samples = false;  // enough of them to be judged
  HolmTest test;
};

Verdict judge(const Judged& judged, double factor) {
  const CaseChange& change = judged.change;
  if (!judged.has_samples) return Verdict::kTooFew;
  if (judged.one_value) return Verdict::kSame;
  if (judged.test.least_adjusted >= kChanceMost) return Verdict::kTooFew;
  const bool beyond =
      !change.judged_speed || *change.judged_speed > factor || *change.judged_speed < 1 / factor;
  if (!beyond || change.in_family >= kChanceMost) return Verdict::kSame;
  return judged.b_is_better ? Verdict::kFaster : Verdict::kSlower;
}

std::vector<CaseChange> judge_together(std::vector<Judged> all, double factor) {
  std::vector<HolmTest> family;
  for (const Judged& judged : all)
    if (judged.has_samples) family.push_back(judged.test);
  adjust_by_holm(family);
  std::vector<CaseChange> changes;
  auto test = family.begin();
  for (Judged& judged : all) {
    if (judged.has_samples) judged.test = *test++;
    judged.change.in_family = judged.test.adjusted;
    judged.change.verdict = judge(judged, factor);
    changes.push_back(std::move(judged.change));
  }
  return changes;
}

Judged change_of(const std::string& suite, const CaseResult& a, const CaseResult& b) {
  CaseChange change{.suite = suite,
                    .name = a.name,
                    .unit = a.unit,
                    .median_a = spread_of(a.samples).median,
                    .median_b = spread_of(b.samples).median};
  change.speed = speed_of(change.median_a, change.median_b, a.higher_is_better);
  change.by_ratio = suite != kMachineSuite && !a.ratios.empty() && !b.ratios.empty() &&
                    a.baseline->name == b.baseline->name;
  const auto& of_a = change.by_ratio ? a.ratios : a.samples;
  const auto& of_b = change.by_ratio ? b.ratios : b.samples;
  const bool higher = change.by_ratio || a.higher_is_better;
  const double judged_a = spread_of(of_a).median;
  const double judged_b = spread_of(of_b).median;
  change.judged_speed = speed_of(judged_a, judged_b, higher);
  const RankSumTest ranks = rank_sum_test(of_a, of_b);
  change.chance = ranks.chance;
  const auto is_first = [&](double value) { return value == of_a.front(); };
  return {.change = std::move(change),
          .b_is_better = (judged_b > judged_a) == higher,
          .one_value = std::ranges::all_of(of_a, is_first) && std::ranges::all_of(of_b, is_first),
          .has_samples = std::min(of_a.size(), of_b.size()) >= kJudgedSamplesMin,
          .test = {.chance = ranks.chance, .least_chance = ranks.least_chance}};
}

std::vector<std::string> machine_differences(const nlohmann::json& a, const nlohmann::json& b) {
  std::vector<std::string> differences;
  const auto said = [](const nlohmann::json& machine, const std::string& key) {
    return machine.contains(key)
               ? machine[key].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
               : std::string("nothing");
  };
  const auto add = [&](const std::string& key) {
    if (said(a, key) != said(b, key))
      differences.push_back(fmt::format("{}: {} in A, {} in B", key, said(a, key), said(b, key)));
  };
  for (const auto& item : a.items()) add(item.key());
  for (const auto& item : b.items())
    if (!a.contains(item.key())) add(item.key());
  return differences;
}

const SuiteResult* same_suite(const ResultFile& file, const SuiteResult& suite) {
  const auto found = std::ranges::find_if(file.suites, [&](const SuiteResult& other) {
    return other.suite == suite.suite && other.parameters == suite.parameters;
  });
  return found == file.suites.end() ? nullptr : &*found;
}

const CaseResult* same_case(const SuiteResult& suite, const std::string& name) {
  const auto found = std::ranges::find(suite.cases, name, &CaseResult::name);
  return found == suite.cases.end() ? nullptr : &*found;
}

// What `file` has and `other` has not.
std::vector<std::string> cases_left(const ResultFile& file, const ResultFile& other) {
  std::vector<std::string> left;
  for (const SuiteResult& suite : file.suites) {
    const SuiteResult* same = same_suite(other, suite);
    for (const CaseResult& one : suite.cases)
      if (same == nullptr || same_case(*same, one.name) == nullptr)
        left.push_back(fmt::format("{}: {}", suite.suite, one.name));
  }
  return left;
}

std::vector<std::string> parameter_differences(const ResultFile& a, const ResultFile& b) {
  std::vector<std::string> differences;
  for (const SuiteResult& suite : a.suites) {
    if (same_suite(b, suite) != nullptr) continue;
    for (const SuiteResult& other : b.suites)
      if (other.suite == suite.suite)
        differences.push_back(fmt::format(
            "{}: {} in A, {} in B", suite.suite,
            suite.parameters.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
            other.parameters.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  }
  return differences;
}

nlohmann::json change_json(const CaseChange& change) {
  nlohmann::json object = {{"suite", change.suite},
                           {"name", change.name},
                           {"unit", change.unit},
                           {"median_a", change.median_a},
                           {"median_b", change.median_b},
                           {"judged_by", change.by_ratio ? "ratio" : "value"},
                           {"chance", change.chance},
                           {"chance_among_all", change.in_family},
                           {"verdict", verdict_name(change.verdict)}};
  object["speed"] = change.speed ? nlohmann::json(*change.speed) : nlohmann::json();
  object["judged_speed"] =
      change.judged_speed ? nlohmann::json(*change.judged_speed) : nlohmann::json();
  return object;
}

std::string speed_text(const std::optional<double>& speed) {
  return speed ? fmt::format("{:.3f}", *speed) : "-";
}

}  // namespace

std::string_view verdict_name(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::kSame:
      return "no change shown";
    case Verdict::kFaster:
      return "better";
    case Verdict::kSlower:
      return "worse";
    case Verdict::kTooFew:
      return "too few rounds to tell";
  }
  return "";
}

std::size_t Comparison::count(Verdict verdict) const {
  return static_cast<std::size_t>(std::ranges::count(cases, verdict, &CaseChange::verdict));
}

Result<Comparison> compare(const ResultFile& a, const ResultFile& b, double factor) {
  Comparison comparison{.date_a = a.date,
                        .date_b = b.date,
                        .version_a = a.wsync_version,
                        .version_b = b.wsync_version,
                        .factor = factor};
  std::vector<Judged> judged;
  for (const SuiteResult& suite : a.suites) {
    const SuiteResult* other = same_suite(b, suite);
    if (other == nullptr) continue;
    for (const CaseResult& one : suite.cases) {
      const CaseResult* same = same_case(*other, one.name);
      if (same == nullptr) continue;
      if (same->unit != one.unit || same->higher_is_better != one.higher_is_better)
        return fail(
            ErrorCode::kInvalidInput,
            fmt::format("{}: {}: in A {} and {} is better, in B {} and {}: not one measure",
                        suite.suite, one.name, one.unit, one.higher_is_better ? "more" : "less",
                        same->unit, same->higher_is_better ? "more" : "less"));
      judged.push_back(change_of(suite.suite, one, *same));
    }
  }
  comparison.cases = judge_together(std::move(judged), factor);
  comparison.only_a = cases_left(a, b);
  comparison.only_b = cases_left(b, a);
  comparison.machine_differs = machine_differences(a.machine, b.machine);
  comparison.parameters_differ = parameter_differences(a, b);
  if (!comparison.cases.empty()) return comparison;
  std::string sentence = "no case is in both files with the same parameters: nothing is compared";
  for (const std::string& difference : comparison.parameters_differ) sentence += "; " + difference;
  return fail(ErrorCode::kInvalidInput, sentence);
}

nlohmann::json to_json(const Comparison& comparison) {
  nlohmann::json cases = nlohmann::json::array();
  for (const CaseChange& change : comparison.cases) cases.push_back(change_json(change));
  return {{"a", {{"date", comparison.date_a}, {"wsync_version", comparison.version_a}}},
          {"b", {{"date", comparison.date_b}, {"wsync_version", comparison.version_b}}},
          {"factor", comparison.factor},
          {"cases", std::move(cases)},
          {"chance_most", kChanceMost},
          {"better", comparison.count(Verdict::kFaster)},
          {"worse", comparison.count(Verdict::kSlower)},
          {"only_a", comparison.only_a},
          {"only_b", comparison.only_b},
          {"machine_differs", comparison.machine_differs},
          {"parameters_differ", comparison.parameters_differ}};
}

std::string to_text(const Comparison& comparison) {
  std::string text = fmt::format("A: wsync {}, {}\nB: wsync {}, {}\n", comparison.version_a,
                                 comparison.date_a, comparison.version_b, comparison.date_b);
  for (const std::string& one : comparison.machine_differs)
    text += "machine differs: " + one + "\n";
  for (const std::string& one : comparison.parameters_differ)
    text += "parameters differ, not compared: " + one + "\n";
  std::size_t width = 4;
  for (const CaseChange& change : comparison.cases)
    width = std::max(width, change.suite.size() + change.name.size() + 2);
  text += fmt::format("\n{:<{}} {:>12} {:>12} {:<6} {:>7} {:>7} {:<6} {:>8} {:>8}  {}\n", "case",
                      width, "A", "B", "", "speed", "judged", "by", "chance", "of all", "");
  for (const CaseChange& change : comparison.cases)
    text +=
        fmt::format("{:<{}} {:>12.4g} {:>12.4g} {:<6} {:>7} {:>7} {:<6} {:>8.2g} {:>8.2g}  {}\n",
                    fmt::format("{}: {}", change.suite, change.name), width, change.median_a,
                    change.median_b, change.unit, speed_text(change.speed),
                    speed_text(change.judged_speed), change.by_ratio ? "ratio" : "value",
                    change.chance, change.in_family, verdict_name(change.verdict));
  text += "\n";
  for (const std::string& one : comparison.only_a) text += "only in A: " + one + "\n";
  for (const std::string& one : comparison.only_b) text += "only in B: " + one + "\n";
  return text +
         fmt::format(
             "{} compared: {} better, {} worse, {} with too few rounds to tell; speed is B's by "
             "A's\n"
             "Changed is what differs by {:.3g} times and by more than chance explains (Mann and "
             "Whitney's rank sums, over all cases by Holm's procedure: any false alarm with a "
             "probability of {:g} at most). A machine that was slower in one of the runs looks "
             "like a change.\n",
             counted(comparison.cases.size(), "case"), comparison.count(Verdict::kFaster),
             comparison.count(Verdict::kSlower), comparison.count(Verdict::kTooFew),
             comparison.factor, kChanceMost);
}

}  // namespace wsync::bench
