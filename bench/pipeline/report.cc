#include "bench/pipeline/report.h"

#include "bench/harness/catalogue.h"
#include "bench/harness/report.h"
#include "shared/base/format.h"
#include "shared/config/units.h"

namespace wsync::bench {
namespace {

std::string milliseconds(const Spread& spread) {
  return fmt::format("{:.1f} ({:.1f} to {:.1f})", 1e3 * spread.median, 1e3 * spread.min,
                     1e3 * spread.max);
}
std::string ratio(const Spread& spread) {
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", spread.median, spread.lower_quartile,
                     spread.upper_quartile);
}

nlohmann::json taken_json(const Taken& taken) {
  return {{"wall_s", taken.wall_s}, {"cpu_s", taken.cpu_s}};
}
nlohmann::json round_json(const HostPipelineRound& round) {
  return {{"h2d", taken_json(round.h2d)},
          {"broadcast", taken_json(round.broadcast)},
          {"reload", taken_json(round.reload)},
          {"together", round.together.wall_s > 0 ? taken_json(round.together) : nlohmann::json()},
          {"hand_overs", taken_json(round.hand_overs)},
          {"two_stages_s", round.two_s},
          {"three_stages_s", round.three_s},
          {"predicted_two_stages_s", round.predicted_two_s},
          {"predicted_three_stages_s", round.predicted_three_s}};
}
nlohmann::json case_json(const HostPipelineCase& one) {
  nlohmann::json rounds = nlohmann::json::array();
  for (const HostPipelineRound& round : one.rounds) rounds.push_back(round_json(round));
  nlohmann::json rates;
  if (const LinkRates& links = one.options.rates; links.given())
    rates = {{"h2d_bytes_per_s", links.h2d},
             {"broadcast_bytes_per_s", links.broadcast},
             {"reload_bytes_per_s", links.reload}};
  return {
      {"devices", one.options.devices},
      {"bytes", one.options.bytes},
      {"buffer_bytes", one.options.buffer_bytes},
      {"rates", std::move(rates)},
      {"buckets", one.buckets},
      {"h2d_s", spread_json(one.h2d_s)},
      {"broadcast_s", spread_json(one.broadcast_s)},
      {"reload_s", spread_json(one.reload_s)},
      {"hand_over_s", spread_json(one.hand_over_s)},
      {"two_stages_s", spread_json(one.two_s)},
      {"three_stages_s", spread_json(one.three_s)},
      {"two_stages_ratio", spread_json(one.two_ratio)},
      {"three_stages_ratio", spread_json(one.three_ratio)},
      {"contention", one.options.rates.given() ? nlohmann::json() : spread_json(one.contention)},
      {"checked_bytes", one.checked_bytes},
      {"met", one.met()},
      {"rounds", std::move(rounds)}};
}

}  // namespace

std::string to_text(const PipelineBenchResult& result) {
  std::string text = fmt::format(
      "{}, {} cores. Separate host devices, one engine for each.\nMilliseconds: median (min to "
      "max) of {} rounds; predicted / measured: median (quartiles).\n\n",
      processor_text(result.machine), result.machine.cores, result.options.rounds);
  for (const HostPipelineCase& one : result.cases) {
    text += fmt::format(
        "{}: {} in {} buckets\n"
        "  alone      H2D {}, broadcast {}, reload {}; a hand-over {:.3f}\n",
        case_label(one.options), config::format_size(one.options.bytes), one.buckets,
        milliseconds(one.h2d_s), milliseconds(one.broadcast_s), milliseconds(one.reload_s),
        1e3 * one.hand_over_s.median);
    if (!one.options.rates.given())
      text += fmt::format(
          "  at once    {} times the processor time of the stages one after the other\n",
          ratio(one.contention));
    text += fmt::format(
        "  2 stages   {}, predicted / measured {}\n"
        "  3 stages   {}, predicted / measured {}\n"
        "  target     within {:.0f} %: {}\n",
        milliseconds(one.two_s), ratio(one.two_ratio), milliseconds(one.three_s),
        ratio(one.three_ratio), 100 * kPredictionTarget, one.met() ? "met" : "missed");
  }
  return text + load_notes(result.others_busy, result.stolen);
}

nlohmann::json to_json(const PipelineBenchResult& result) {
  nlohmann::json cases = nlohmann::json::array();
  bool met = true;
  for (const HostPipelineCase& one : result.cases) {
    cases.push_back(case_json(one));
    met = met && one.met();
  }
  return {{"machine", machine_json(result.machine)},
          {"ratio_target", kPredictionTarget},
          {"cases", std::move(cases)},
          {"targets_met", met},
          {"others_busy", result.others_busy},
          {"stolen", result.stolen}};
}

SuiteResult to_suite(const PipelineBenchResult& result) {
  SuiteResult suite{.suite = "pipeline", .cases = {}, .details = to_json(result)};
  // Sizes over links are derived from these.
  suite.parameters = {{"bytes", result.options.bytes},
                      {"buffer_bytes", result.options.buffer_bytes}};
  for (const HostPipelineCase& one : result.cases) {
    const auto add = [&](const char* name, auto seconds, auto predicted) {
      std::vector<double> samples;
      std::vector<double> baseline;
      for (const HostPipelineRound& round : one.rounds) {
        samples.push_back(1e3 * seconds(round));
        if (const double s = predicted(round); s > 0) baseline.push_back(1e3 * s);
      }
      CaseResult made = case_of("pipeline", name, case_label(one.options), std::move(samples));
      made.bytes = one.options.bytes;
      if (!baseline.empty()) {
        set_baseline_of("pipeline", name, made, std::move(baseline));
        made.target = Target{.of = Target::Of::kRatio, .value = 1 - kPredictionTarget};
      }
      suite.cases.push_back(std::move(made));
    };
    using Round = HostPipelineRound;
    const auto none = [](const Round&) { return 0.0; };
    add("H2D alone", [](const Round& r) { return r.h2d.wall_s; }, none);
    add("broadcasts alone", [](const Round& r) { return r.broadcast.wall_s; }, none);
    add("reload alone", [](const Round& r) { return r.reload.wall_s; }, none);
    add(
        "two stages", [](const Round& r) { return r.two_s; },
        [](const Round& r) { return r.predicted_two_s; });
    add(
        "three stages", [](const Round& r) { return r.three_s; },
        [](const Round& r) { return r.predicted_three_s; });
  }
  suite.notes = load_sentences(result.others_busy, result.stolen);
  return suite;
}

}  // namespace wsync::bench
