#include "tests/soak/torn_report.h"

#include <chrono>

#include "shared/base/format.h"
#include "shared/observe/trace/progress.h"
#include "tests/soak/harness.h"

namespace wsync::soak {
namespace {

double steps_per_second(const TornResult& result) {
  return result.seconds > 0 ? static_cast<double>(result.steps) / result.seconds : 0;
}

std::string span_of(double seconds) {
  return trace::format_duration(std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * seconds)));
}

std::string line_of(std::string_view name, const std::string& value, const std::string& more) {
  return fmt::format("{:<16} {:>14}  {}\n", name, value, more);
}

}  // namespace

nlohmann::json to_json(const TornResult& result) {
  const TornOptions& options = result.options;
  return {{"machine", machine_json(result.machine)},
          {"passed", result.passed()},
          {"ranks", options.ranks},
          {"layers", result.layers},
          {"requests_at_once", options.requests},
          {"switch_ms", options.switch_ms},
          {"steps_asked", options.steps},
          {"steps", result.steps},
          {"seconds", result.seconds},
          {"steps_per_s", steps_per_second(result)},
          {"layers_compared", result.layers_compared},
          {"torn", result.torn},
          {"torn_told", result.torn_told},
          {"aborted", result.aborted},
          {"switches", result.switches},
          {"loads_by_patch", result.loads_by_patch},
          {"loads_in_full", result.loads_in_full},
          {"patches_failed", result.patches_failed},
          {"versions", result.versions},
          {"paused_ms", spread_json(result.paused_ms)},
          {"requests", result.load.answers},
          {"tokens", result.load.tokens},
          {"requests_met", result.load.met},
          {"requests_wrong", result.load.wrong},
          {"requests_recomputed", result.load.recomputed},
          {"tokens_recomputed", result.load.recomputed_tokens},
          {"difference_most", result.load.difference_max},
          {"wrong_told", result.load.faults},
          {"others_busy", result.others_busy},
          {"stolen", result.stolen}};
}

std::string to_text(const TornResult& result) {
  const TornOptions& options = result.options;
  const Machine& machine = result.machine;
  const auto number = [](std::uint64_t value) { return fmt::format("{}", value); };
  std::string text =
      fmt::format("{}\n{}; {}\n", processor_text(machine), machine.layout, machine.kernel);
  text += fmt::format("{} at once at a replica of {}, a switch every {} ms\n\n",
                      counted(options.requests, "request"), counted(options.ranks, "rank"),
                      options.switch_ms);
  text += line_of(
      "steps", number(result.steps),
      fmt::format("in {}, {:.0f} a second", span_of(result.seconds), steps_per_second(result)));
  text +=
      line_of("torn", number(result.torn),
              fmt::format("of {} layers compared: {} on {} in each step", result.layers_compared,
                          result.layers, counted(options.ranks, "rank")));
  text +=
      line_of("switches", number(result.switches),
              fmt::format("paused {} (median), {} (most)", span_of(1e-3 * result.paused_ms.median),
                          span_of(1e-3 * result.paused_ms.max)));
  text += line_of(
      "loads by patch", number(result.loads_by_patch),
      fmt::format("of ranks, {} in full, {} failed", result.loads_in_full, result.patches_failed));
  text += line_of("versions", number(result.versions), "that steps were run with");
  text += line_of(
      "requests", number(result.load.answers),
      fmt::format("of {}; {} met by a switch, {} wrong", counted(result.load.tokens, "token"),
                  result.load.met, result.load.wrong));
  text += line_of(
      "computed anew", number(result.load.recomputed),
      fmt::format("of {}; a log-probability differs by at most {:.1e}",
                  counted(result.load.recomputed_tokens, "token"), result.load.difference_max));
  return text + load_notes(result.others_busy, result.stolen);
}

std::string complaint_of(const TornResult& result) {
  std::string text;
  if (result.torn != 0)
    text += fmt::format("{} of {} were torn, the first of them:\n", result.torn,
                        counted(result.steps, "step"));
  for (const std::string& told : result.torn_told) text += fmt::format("  {}\n", told);
  if (result.patches_failed != 0)
    text += fmt::format("{} failed although nothing was damaged: the log of the sidecar says why\n",
                        counted(result.patches_failed, "patch"));
  if (result.load.wrong != 0)
    text += fmt::format("{} of {} were wrong, the first of them:\n", result.load.wrong,
                        counted(result.load.answers, "answer"));
  for (const std::string& told : result.load.faults) text += fmt::format("  {}\n", told);
  return text;
}

}  // namespace wsync::soak
