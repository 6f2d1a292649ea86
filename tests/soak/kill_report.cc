#include "tests/soak/kill_report.h"

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "shared/base/format.h"
#include "tests/soak/harness.h"

namespace wsync::soak {
namespace {

using nlohmann::json;

constexpr std::size_t kWrongKillsTold = 8;
constexpr double kKibibyte = 1024;

// Spread of one figure over all kills.
template <class Figure>
Spread kills_spread(std::span<const Kill> kills, const Figure& figure) {
  std::vector<double> values;
  for (const Kill& kill : kills) values.push_back(figure(kill));
  return spread_of(values);
}

struct KillSpreads {
  Spread lost_ms, recovered_ms, resumed_ms, recovery_ms, bytes;
};
KillSpreads spreads_of(std::span<const Kill> kills) {
  return {.lost_ms = kills_spread(kills, [](const Kill& kill) { return 1e3 * kill.lost_seconds; }),
          .recovered_ms =
              kills_spread(kills, [](const Kill& kill) { return 1e3 * kill.recovered_seconds; }),
          .resumed_ms =
              kills_spread(kills, [](const Kill& kill) { return 1e3 * kill.resumed_seconds; }),
          .recovery_ms =
              kills_spread(kills, [](const Kill& kill) { return 1e3 * kill.recovery_seconds; }),
          .bytes = kills_spread(kills,
                                [](const Kill& kill) { return static_cast<double>(kill.bytes); })};
}

Spread milliseconds_of(std::vector<double> sample) {
  for (double& value : sample) value *= 1e3;
  return spread_of(sample);
}

// Returns 0 if `whole` is 0.
double ratio_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

template <class Key>
std::map<std::string, std::vector<Kill>> grouped(std::span<const Kill> kills, const Key& key) {
  std::map<std::string, std::vector<Kill>> groups;
  for (const Kill& kill : kills) groups[key(kill)].push_back(kill);
  return groups;
}

json tail_json(const Spread& spread) {
  json object = spread_json(spread);
  object["p99"] = spread.p99;
  return object;
}

json divergence_json(const Divergence& divergence) {
  return {
      {"compared", divergence.compared}, {"diverged", divergence.count}, {"told", divergence.told}};
}

json counts_json(const std::map<std::string, std::vector<Kill>>& groups) {
  json object = json::object();
  for (const auto& [name, kills] : groups) object[name] = kills.size();
  return object;
}

std::string phase_of(const Kill& kill) { return kill.phase; }
std::string again_text(const Kill& kill) { return fmt::format("{}", kill.steps_run_again()); }
std::string source_of(const Kill& kill) { return kill.from; }

std::vector<std::size_t> kills_by_rank(const KillResult& result) {
  std::vector<std::size_t> counts(result.options.sizes.ranks());
  for (const Kill& kill : result.kills) ++counts[kill.rank];
  return counts;
}

json phases_json(std::span<const Kill> kills) {
  json object = json::object();
  for (const auto& [phase, hit] : grouped(kills, phase_of)) {
    const KillSpreads spreads = spreads_of(hit);
    object[phase] = {{"kills", hit.size()},
                     {"recovered_ms", tail_json(spreads.recovered_ms)},
                     {"resumed_ms", tail_json(spreads.resumed_ms)}};
  }
  return object;
}

json kills_json(std::span<const Kill> kills) {
  json list = json::array();
  for (const Kill& kill : kills)
    list.push_back({{"rank", kill.rank},
                    {"phase", kill.phase},
                    {"step", kill.step},
                    {"resumed_step", kill.resumed_step},
                    {"from", kill.from},
                    {"bytes", kill.bytes},
                    {"lost_ms", 1e3 * kill.lost_seconds},
                    {"recovered_ms", 1e3 * kill.recovered_seconds},
                    {"resumed_ms", 1e3 * kill.resumed_seconds},
                    {"recovery_ms", 1e3 * kill.recovery_seconds}});
  return list;
}

std::string spread_line(std::string_view name, const Spread& spread) {
  return fmt::format("{:<26} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f}\n", name,
                     spread.min, spread.lower_quartile, spread.median, spread.upper_quartile,
                     spread.p99, spread.max);
}

std::string times_table(const KillResult& result) {
  const KillSpreads spreads = spreads_of(result.kills);
  std::string text = fmt::format("{:<26} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "ms after SIGKILL",
                                 "min", "quartile", "median", "quartile", "p99", "max");
  text += spread_line("loss seen", spreads.lost_ms);
  text += spread_line("all can go on", spreads.recovered_ms);
  text += spread_line("first step has ended", spreads.resumed_ms);
  text += spread_line("rank 0, from its new group", spreads.recovery_ms);
  Spread kibibytes = spreads.bytes;
  for (double* value : {&kibibytes.min, &kibibytes.lower_quartile, &kibibytes.median,
                        &kibibytes.upper_quartile, &kibibytes.p99, &kibibytes.max})
    *value /= kKibibyte;
  text += spread_line("KiB given", kibibytes);
  text += "\nbeside them, in the same run, ms\n";
  text += spread_line("a step", milliseconds_of(result.step_seconds));
  return text + spread_line("a start from a checkpoint", milliseconds_of(result.restart_seconds));
}

std::string counts_text(std::string_view name,
                        const std::map<std::string, std::vector<Kill>>& groups) {
  std::vector<std::string> parts;
  for (const auto& [key, kills] : groups) parts.push_back(fmt::format("{}: {}", key, kills.size()));
  return fmt::format("{:<16} {}\n", name, fmt::join(parts, ", "));
}

std::string phases_text(std::span<const Kill> kills) {
  const auto groups = grouped(kills, phase_of);
  std::vector<std::string> parts;
  for (const std::string_view phase : kPhases)
    if (const auto hit = groups.find(std::string(phase)); hit != groups.end())
      parts.push_back(fmt::format("{}: {} (first step after {:.1f} ms, median)", phase,
                                  hit->second.size(), spreads_of(hit->second).resumed_ms.median));
  return fmt::format("{:<16} {}\n", "hit in", fmt::join(parts, ", "));
}

std::string divergences_text(std::string_view what, const Divergence& divergence) {
  std::string text;
  if (divergence.count != 0)
    text = fmt::format("{} otherwise than by the run without kills: {} of {}, the first:\n", what,
                       divergence.count, divergence.compared);
  for (const std::string& told : divergence.told) text += fmt::format("  {}\n", told);
  return text;
}

}  // namespace

json to_json(const KillResult& result) {
  const KillOptions& options = result.options;
  const KillSpreads spreads = spreads_of(result.kills);
  const Spread step = milliseconds_of(result.step_seconds);
  const Spread restart = milliseconds_of(result.restart_seconds);
  return {{"machine", machine_json(result.machine)},
          {"passed", result.passed()},
          {"pp", options.sizes.pp},
          {"vpp", options.sizes.vpp},
          {"dp", options.sizes.dp},
          {"ep", options.sizes.ep},
          {"seed", options.seed},
          {"between", options.between},
          {"kills", result.kills.size()},
          {"steps", result.steps},
          {"seconds", result.seconds},
          {"lost_ms", tail_json(spreads.lost_ms)},
          {"recovered_ms", tail_json(spreads.recovered_ms)},
          {"resumed_ms", tail_json(spreads.resumed_ms)},
          {"recovery_ms", tail_json(spreads.recovery_ms)},
          {"bytes", tail_json(spreads.bytes)},
          {"by_phase", phases_json(result.kills)},
          {"by_rank", kills_by_rank(result)},
          {"by_source", counts_json(grouped(result.kills, source_of))},
          {"by_steps_run_again", counts_json(grouped(result.kills, again_text))},
          {"steps_told_again", result.steps_told_again},
          {"step_ms", tail_json(step)},
          {"restart_ms", tail_json(restart)},
          {"resumed_by_restart", ratio_of(spreads.resumed_ms.median, restart.median)},
          {"resumed_by_step", ratio_of(spreads.resumed_ms.median, step.median)},
          {"told_steps", divergence_json(result.steps_diverged)},
          {"saved_files", divergence_json(result.files_diverged)},
          {"each", kills_json(result.kills)},
          {"others_busy", result.others_busy},
          {"stolen", result.stolen}};
}

std::string to_text(const KillResult& result) {
  const KillOptions& options = result.options;
  const training::ParallelSizes& sizes = options.sizes;
  const Machine& machine = result.machine;
  const KillSpreads spreads = spreads_of(result.kills);
  std::string text =
      fmt::format("{}\n{}; {}\n", processor_text(machine), machine.layout, machine.kernel);
  text += fmt::format(
      "{} in {} of {} (pp {}, vpp {}, dp {}, ep {}), each within the time of {} (seed {})\n\n",
      counted(result.kills.size(), "kill"), counted(result.steps, "step"),
      counted(sizes.ranks(), "rank"), sizes.pp, sizes.vpp, sizes.dp, sizes.ep,
      counted(options.between, "step"), options.seed);
  text += times_table(result);
  text += fmt::format(
      "a killed rank costs {:.2f} of a start from a checkpoint, or {:.1f} steps (medians, until "
      "the first step has ended)\n\n",
      ratio_of(spreads.resumed_ms.median, milliseconds_of(result.restart_seconds).median),
      ratio_of(spreads.resumed_ms.median, milliseconds_of(result.step_seconds).median));
  text += phases_text(result.kills);
  text += fmt::format("{:<16} {}\n", "by rank, from 0", fmt::join(kills_by_rank(result), ", "));
  text += counts_text("given by", grouped(result.kills, source_of));
  text += counts_text("steps run again", grouped(result.kills, again_text));
  text += fmt::format("{:<16} {} of {} told, {} of {} saved\n", "diverged",
                      result.steps_diverged.count, counted(result.steps_diverged.compared, "step"),
                      result.files_diverged.count, counted(result.files_diverged.compared, "file"));
  return text + load_notes(result.others_busy, result.stolen);
}

std::string complaint_of(const KillResult& result) {
  std::string text = divergences_text("steps told", result.steps_diverged) +
                     divergences_text("files saved", result.files_diverged);
  std::size_t told = 0;
  for (std::size_t i = 0; i < result.kills.size() && told < kWrongKillsTold; ++i) {
    const Kill& kill = result.kills[i];
    if (kill.recovered_within_a_step()) continue;
    ++told;
    text += fmt::format(
        "kill {}, of rank {} in step {} ({}): all went on at step {}, from {}; expected at most "
        "one step to be run again, from peers\n",
        i + 1, kill.rank, kill.step, kill.phase, kill.resumed_step, kill.from);
  }
  return text;
}

}  // namespace wsync::soak
