#include "bench/overhead/report.h"

#include <algorithm>

#include "bench/harness/catalogue.h"
#include "bench/harness/report.h"
#include "shared/base/format.h"
#include "shared/observe/trace/progress.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

constexpr double kMillisecond = 1e6;  // in nanoseconds

struct WatchedPair {
  Watching watching;
  Watching beside;
};
constexpr std::array kOverheadPairs = {WatchedPair{Watching::kAsked, Watching::kKept},
                                       WatchedPair{Watching::kKept, Watching::kNot},
                                       WatchedPair{Watching::kAsked, Watching::kNot}};

std::vector<double> cpu_ms(const OverheadBenchResult& result, Watching watching) {
  std::vector<double> values;
  for (const OverheadRound& round : result.rounds)
    values.push_back(static_cast<double>(round.of(watching).cpu.count()) / kMillisecond);
  return values;
}

std::vector<double> command_ms(const OverheadBenchResult& result, Watching watching) {
  std::vector<double> values;
  for (const OverheadRound& round : result.rounds)
    values.push_back(static_cast<double>(round.of(watching).command_cpu.count()) / kMillisecond);
  return values;
}

std::string_view what_is(Watching watching) {
  switch (watching) {
    case Watching::kNot:
      return "no spans, no pages";
    case Watching::kKept:
      return "spans kept, pages served";
    case Watching::kAsked:
      return "scraped, traced into a file";
  }
  return "";
}

std::string pair_text(const Overhead& overhead) {
  const std::string interval =
      overhead.interval
          ? fmt::format("{:+.2f} to {:+.2f} %", overhead.interval->low, overhead.interval->high)
          : "too few pairs";
  const std::string target =
      !overhead.has_target() ? "no target (two fleets)"
      : overhead.verdict() == OverheadVerdict::kOpen
          ? fmt::format("at most {:g} %: open (the interval contains it)", kOverheadTargetPercent)
          : fmt::format("at most {:g} %: {}", kOverheadTargetPercent,
                        verdict_name(overhead.verdict()));
  return fmt::format("{:<28} {:<25} {:>+7.2f} % {:>20} {:>20}  {}\n", what_is(overhead.watching),
                     what_is(overhead.beside), overhead.percent.median, interval,
                     fmt::format("{:+.2f} to {:+.2f} %", overhead.percent.lower_quartile,
                                 overhead.percent.upper_quartile),
                     target);
}

json overhead_json(const Overhead& overhead) {
  json object = {{"watching", watching_name(overhead.watching)},
                 {"beside", watching_name(overhead.beside)},
                 {"percent", spread_json(overhead.percent)}};
  if (overhead.interval)
    object["interval"] = {{"low", overhead.interval->low},
                          {"high", overhead.interval->high},
                          {"confidence", overhead.interval->confidence}};
  if (overhead.has_target()) {
    object["target_percent"] = kOverheadTargetPercent;
    object["verdict"] = verdict_name(overhead.verdict());
  }
  return object;
}

std::vector<std::string> notes_of(const OverheadBenchResult& result) {
  std::vector<std::string> notes = load_sentences(result.others_busy, result.stolen);
  if (result.rounds.size() < kOverheadPairsWanted)
    notes.push_back(fmt::format("{} rounds are too few for a reliable figure; run at least {}",
                                result.rounds.size(), kOverheadPairsWanted));
  return notes;
}

std::vector<double> making_ms(const OverheadBenchResult& result) {
  std::vector<double> values;
  for (const OverheadRound& round : result.rounds)
    values.push_back(static_cast<double>(round.making.count()) / kMillisecond);
  return values;
}

double pages_of_update(const OverheadBenchResult& result) {
  std::vector<double> pages;
  for (const OverheadRound& round : result.rounds)
    pages.push_back(round.of(Watching::kAsked).pages);
  return spread_of(pages).median;
}

}  // namespace

json to_json(const OverheadBenchResult& result) {
  json object = {{"machine", machine_json(result.machine)},
                 {"bytes", result.bytes},
                 {"engines", result.engines},
                 {"overheads", json::array()},
                 {"rounds", json::array()},
                 {"others_busy", result.others_busy},
                 {"stolen", result.stolen}};
  for (const WatchedPair& pair : kOverheadPairs)
    object["overheads"].push_back(overhead_json(result.overhead(pair.watching, pair.beside)));
  for (const OverheadRound& round : result.rounds) {
    json line = {{"fleets", round.fleets},
                 {"spans", round.spans},
                 {"making_spans_ns", round.making.count()}};
    for (const Watching watching : kWatchings) {
      const WatchedUpdate& update = round.of(watching);
      line[std::string(watching_name(watching))] = {{"cpu_ns", update.cpu.count()},
                                                    {"command_cpu_ns", update.command_cpu.count()},
                                                    {"paused_ns", update.paused_ns},
                                                    {"pages", update.pages}};
    }
    object["rounds"].push_back(std::move(line));
  }
  return object;
}

std::string to_text(const OverheadBenchResult& result) {
  std::string text = fmt::format(
      "{}\n{}; {}\n{} of weights, {}; {} rounds of two updates of each kind, with {} of fleets one "
      "after the other\n\n",
      processor_text(result.machine), result.machine.layout, result.machine.kernel,
      trace::format_bytes(result.bytes), counted(result.engines, "engine"), result.rounds.size(),
      counted(result.rounds.back().fleets + 1, "pair"));
  text += fmt::format("{:<28} {:>12} {:<23} {:>12}\n", "an update", "CPU", "   quartiles",
                      "wsync push");
  for (const Watching watching : kWatchings) {
    const Spread cpu = spread_of(cpu_ms(result, watching));
    text +=
        fmt::format("{:<28} {:>9.2f} ms {:<23} {:>9.2f} ms\n", what_is(watching), cpu.median,
                    fmt::format("   {:.2f} to {:.2f} ms", cpu.lower_quartile, cpu.upper_quartile),
                    spread_of(command_ms(result, watching)).median);
  }
  const Overhead first = result.overhead(Watching::kAsked, Watching::kKept);
  text += fmt::format(
      "\n{:<28} {:<25} {:>9} {:>20} {:>20}  {}\n", "additional CPU, pairwise", "than", "median",
      first.interval ? fmt::format("{:.1f} % interval", 100 * first.interval->confidence)
                     : "interval",
      "quartiles", "target");
  for (const WatchedPair& pair : kOverheadPairs)
    text += pair_text(result.overhead(pair.watching, pair.beside));
  const double made = spread_of(making_ms(result)).median;
  text += fmt::format(
      "\nCreating and storing the {} of an update once more takes {:.3f} ms: {:.3f} % of its CPU. "
      "This copies their texts instead of composing them, and excludes counters and waiting page "
      "threads.\nCPU is the user and system time of trainer, sidecar and engines, without `wsync "
      "push`. {:g} pages were requested in each scraped update.\nThe interval is for the median, "
      "by order statistics (Thompson 1936).\n",
      counted(result.rounds.back().spans, "span"), made,
      100 * made / spread_of(cpu_ms(result, Watching::kKept)).median, pages_of_update(result));
  for (const std::string& note : notes_of(result)) text += "note: " + note + "\n";
  return text;
}

SuiteResult to_suite(const OverheadBenchResult& result) {
  SuiteResult suite{.suite = "overhead",
                    .parameters = {{"bytes", result.bytes}, {"engines", result.engines}},
                    .notes = notes_of(result),
                    .details = to_json(result)};
  const auto add = [&](const char* name, std::vector<double> samples,
                       std::vector<double> baseline) -> CaseResult& {
    suite.cases.push_back(case_of("overhead", name, "", std::move(samples)));
    set_baseline_of("overhead", name, suite.cases.back(), std::move(baseline));
    return suite.cases.back();
  };
  CaseResult& asked =
      add("scraped and traced", cpu_ms(result, Watching::kAsked), cpu_ms(result, Watching::kKept));
  // The median alone proves nothing while the interval contains the target.
  if (result.overhead(Watching::kAsked, Watching::kKept).verdict() != OverheadVerdict::kOpen)
    asked.target = Target{.of = Target::Of::kRatio, .value = 100 / (100 + kOverheadTargetPercent)};
  else
    suite.notes.push_back(fmt::format(
        "whether the overhead is at most {:g} % is open, because its interval contains the target",
        kOverheadTargetPercent));
  (void)add("spans kept, pages served", cpu_ms(result, Watching::kKept),
            cpu_ms(result, Watching::kNot));
  suite.cases.push_back(case_of("overhead", "making spans", "", making_ms(result)));
  (void)add("push that traces", command_ms(result, Watching::kAsked),
            command_ms(result, Watching::kKept));
  return suite;
}

}  // namespace wsync::bench
