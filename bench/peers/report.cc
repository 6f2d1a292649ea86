#include "bench/peers/report.h"

#include <algorithm>
#include <optional>

#include "bench/harness/catalogue.h"
#include "bench/harness/report.h"
#include "shared/base/format.h"
#include "shared/observe/trace/progress.h"

namespace wsync::bench {
namespace {

using PeersJson = nlohmann::json;

// a[i] / b[i] for the rounds that both have.
std::vector<double> ratios_of(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (a[i] > 0 && b[i] > 0) ratios.push_back(a[i] / b[i]);
  return ratios;
}

std::string_view floor_how() {
  return "one streaming copy into each engine's memory, without verification";
}
std::string_view wsync_how() {
  return "snapshot, stage and switch, as in normal use; every byte verified";
}

// A line of the table.
struct ContenderRow {
  std::string title;
  std::string how;
  std::string why_not;  // reason if skipped or failed
  const std::vector<double>* seconds = nullptr;
};

std::vector<ContenderRow> contender_rows(const PeersBenchResult& result) {
  std::vector<ContenderRow> rows{{.title = "floor of the copies",
                                  .how = std::string(floor_how()),
                                  .why_not = {},
                                  .seconds = &result.floor_seconds},
                                 {.title = "wsync",
                                  .how = std::string(wsync_how()),
                                  .why_not = {},
                                  .seconds = &result.wsync_seconds}};
  for (const PeerRow& row : result.rows)
    rows.push_back(
        {.title = std::string(row.peer->title),
         .how = std::string(row.peer->how),
         .why_not = row.skipped.empty()
                        ? (row.failed.empty() ? std::string() : "failed in " + row.failed)
                        : "skipped: " + row.skipped,
         .seconds = &row.seconds});
  return rows;
}

std::string table_row(const ContenderRow& row, const PeersBenchResult& result) {
  if (row.seconds->empty()) return fmt::format("{:<40} {}\n", row.title, row.why_not);
  const Spread spread = spread_of(*row.seconds);
  const double floor = spread_of(ratios_of(result.floor_seconds, *row.seconds)).median;
  const double ours = spread_of(ratios_of(*row.seconds, result.wsync_seconds)).median;
  return fmt::format("{:<40} {:>9.3f} s   {:<17} {:>13.3f} {:>12.2f}{}\n", row.title, spread.median,
                     fmt::format("{:.3f} - {:.3f}", spread.min, spread.max), floor, ours,
                     row.why_not.empty() ? std::string() : "   " + row.why_not);
}

std::optional<CaseResult> peer_case(const PeersBenchResult& result, std::string_view variant,
                                    const std::vector<double>& samples) {
  if (samples.empty()) return std::nullopt;
  CaseResult made = case_of("peers", "verified copies", variant, samples);
  made.bytes = result.bytes * result.engines;
  set_baseline_of("peers", "verified copies", made, result.floor_seconds);
  return made;
}

}  // namespace

std::vector<std::string> notes_of(const PeersBenchResult& result) {
  std::vector<std::string> notes = load_sentences(result.others_busy, result.stolen);
  for (const PeerRow& row : result.rows) {
    if (!row.skipped.empty())
      notes.push_back(fmt::format("{} was skipped: {}", row.peer->name, row.skipped));
    if (!row.failed.empty())
      notes.push_back(fmt::format("{} failed in {}", row.peer->name, row.failed));
  }
  return notes;
}

PeersJson to_json(const PeersBenchResult& result) {
  PeersJson peers = PeersJson::array();
  for (const PeerRow& row : result.rows) {
    PeersJson& peer = peers.emplace_back(PeersJson{{"peer", row.peer->name},
                                                   {"title", row.peer->title},
                                                   {"how", row.peer->how},
                                                   {"versions", row.versions},
                                                   {"skipped", row.skipped},
                                                   {"failed", row.failed},
                                                   {"rounds", row.seconds}});
    if (row.seconds.empty()) continue;
    peer["seconds"] = spread_json(spread_of(row.seconds));
    peer["of_floor"] = spread_json(spread_of(ratios_of(result.floor_seconds, row.seconds)));
    peer["of_wsync"] = spread_json(spread_of(ratios_of(row.seconds, result.wsync_seconds)));
  }
  return {
      {"machine", machine_json(result.machine)},
      {"bytes", result.bytes},
      {"tensors", result.tensors},
      {"engines", result.engines},
      {"rounds", result.rounds},
      {"disk", result.disk},
      {"floor",
       {{"seconds", spread_json(spread_of(result.floor_seconds))},
        {"rounds", result.floor_seconds}}},
      {"wsync",
       {{"seconds", spread_json(spread_of(result.wsync_seconds))},
        {"staged_s", spread_json(spread_of(result.wsync_staged_seconds))},
        {"paused_s", spread_json(spread_of(result.wsync_paused_seconds))},
        {"of_floor", spread_json(spread_of(ratios_of(result.floor_seconds, result.wsync_seconds)))},
        {"rounds", result.wsync_seconds}}},
      {"peers", std::move(peers)},
      {"notes", notes_of(result)},
      {"others_busy", result.others_busy},
      {"stolen", result.stolen}};
}

std::string to_text(const PeersBenchResult& result) {
  const Machine& machine = result.machine;
  std::string text = fmt::format(
      "{}\n{}; {}\n{} in {} from a trainer's memory to the memory of {}, {}; the bytes of every "
      "engine have the model's XXH3-128\n\n",
      processor_text(machine), machine.layout, machine.kernel, trace::format_bytes(result.bytes),
      counted(result.tensors, "tensor"), counted(result.engines, "engine"),
      counted(result.rounds, "round"));
  text += fmt::format("{:<40} {:>11}   {:<17} {:>13} {:>12}\n", "", "median", "min - max",
                      "x floor speed", "x wsync time");
  for (const ContenderRow& row : contender_rows(result)) text += table_row(row, result);
  text += fmt::format(
      "\nx floor speed: speed as a share of the floor's speed; x wsync time: time as a multiple of "
      "wsync's time; both in the same round (medians)\nwsync's engines served during the update, "
      "except for a pause of {:.1f} ms (median; max {:.1f} ms); staged in {:.3f} s\n",
      1e3 * spread_of(result.wsync_paused_seconds).median,
      1e3 * spread_of(result.wsync_paused_seconds).max,
      spread_of(result.wsync_staged_seconds).median);
  for (const std::string& note : notes_of(result)) text += "note: " + note + "\n";
  return text;
}

SuiteResult to_suite(const PeersBenchResult& result) {
  SuiteResult suite{.suite = "peers",
                    .parameters = {{"bytes", result.bytes}, {"engines", result.engines}},
                    .notes = notes_of(result),
                    .details = to_json(result)};
  suite.cases.push_back(case_of("peers", "floor", {}, result.floor_seconds));
  suite.cases.back().bytes = result.bytes * result.engines;
  if (auto ours = peer_case(result, "wsync", result.wsync_seconds))
    suite.cases.push_back(std::move(*ours));
  for (const PeerRow& row : result.rows)
    // A failed contender has a note and no figure.
    if (auto peer = row.failed.empty() ? peer_case(result, row.peer->name, row.seconds)
                                       : std::optional<CaseResult>())
      suite.cases.push_back(std::move(*peer));
  suite.cases.push_back(case_of("peers", "staged", "wsync", result.wsync_staged_seconds));
  suite.cases.push_back(case_of("peers", "paused", "wsync", result.wsync_paused_seconds));
  return suite;
}

}  // namespace wsync::bench
