#include "bench/sync/report.h"

#include <algorithm>

#include "bench/harness/catalogue.h"
#include "bench/harness/report.h"
#include "shared/base/format.h"
#include "shared/observe/trace/progress.h"

namespace wsync::bench {
namespace {

using nlohmann::json;

json way_json(const FloorWay& way) {
  return {{"copy_kind", copy_kind_name(way.kind)}, {"threads", way.threads}};
}

json copies_json(const CopiesPerByte& copies) {
  return {
      {"snapshot", copies.snapshot}, {"sent", copies.sent},           {"received", copies.received},
      {"h2d", copies.h2d},           {"broadcast", copies.broadcast}, {"loaded", copies.loaded},
      {"all", copies.all()}};
}

json round_json(const Round& round, bool has_floor) {
  json line = {{"paused_ns", round.pushed.paused_ns},
               {"load_ns", round.pushed.load_ns},
               {"span_ns", round.pushed.span_ns},
               {"staged_ns", round.pushed.staged_ns},
               {"cpu_ns", round.cpu.count()},
               {"copies_per_byte", copies_json(round.copies)},
               {"checked_bytes", round.pushed.checked_bytes},
               {"sidecar_pss_bytes", round.sidecar.pss_bytes},
               {"sidecar_rss_bytes", round.sidecar.rss_bytes}};
  if (!has_floor) return line;
  line["verified_copy_ns"] = round.verified.ns;
  line["floor_first"] = round.floor_first;
  line["floor_ns"] = round.floor.ns;
  line["ratio"] = round.ratio();
  return line;
}

// Bytes that all engines together loaded, divided by the duration of the pause.
double paused_rate(const SyncCase& done) {
  return done.paused_ns.median > 0
             ? 1e9 * static_cast<double>(done.expected_bytes) / done.paused_ns.median
             : 0;
}

json case_json(const SyncCase& done) {
  json line = {{"engines", done.engines},
               {"adopt", done.adopt},
               {"devices", done.devices},
               {"tcp", done.tcp},
               {"copies_per_byte", copies_json(done.copies)},
               {"buffer_bytes", done.buffer_bytes},
               {"staged_ns", spread_json(done.staged_ns)},
               {"cpu_s_per_gb", spread_json(done.cpu_per_gigabyte)},
               {"paused_bytes_per_s", paused_rate(done)},
               {"trainer_peak_rss_bytes", done.peak.trainer_bytes},
               {"sidecar_peak_rss_bytes", done.peak.sidecar_bytes},
               {"engine_peak_rss_bytes", done.peak.engine_bytes},
               {"predicted_paused_ns", done.predicted_ns},
               {"paused_ns", spread_json(done.paused_ns)},
               {"load_ns", spread_json(done.load_ns)},
               {"span_ns", spread_json(done.span_ns)},
               {"checked_bytes", done.checked_bytes},
               {"expected_bytes", done.expected_bytes},
               {"sidecar_pss_bytes", done.pss_bytes},
               {"sidecar_rss_bytes", done.rss_bytes},
               {"sidecar_pss_limit_bytes", done.pss_limit_bytes},
               {"others_busy", done.others_busy},
               {"stolen", done.stolen},
               {"speed_met", done.speed_met()},
               {"memory_met", done.memory_met()},
               {"rounds", json::array()}};
  for (const Round& round : done.rounds)
    line["rounds"].push_back(round_json(round, done.has_floor()));
  if (done.adopt) line["paused_target_ns"] = kAdoptTargetNs;
  if (!done.has_floor()) return line;
  line["verified_copy_ns"] = spread_json(done.verified_ns);
  line["ratio_target"] = kRatioTarget;
  line["ratio"] = spread_json(done.ratio);
  line["floor_ns"] = spread_json(done.floor_ns);
  line["floor_way"] = way_json(done.floor_way);
  line["floor_ways"] = json::array();
  for (const WayTime& timed : done.ways) {
    json way = way_json(timed.way);
    way["median_ns"] = timed.median_ns;
    line["floor_ways"].push_back(std::move(way));
  }
  return line;
}

std::string duration(double ns) {
  return trace::format_duration(std::chrono::nanoseconds(static_cast<std::int64_t>(ns)));
}

// "2", "2 mapping", "2 on 2, 4.0 MiB"
std::string who_of(const SyncCase& done) {
  std::string who = fmt::format("{}{}", done.engines, done.adopt ? " mapping" : "");
  if (done.devices > 0) who += fmt::format(" on {}", done.devices);
  if (done.tcp) who += ", TCP";
  if (done.buffer_bytes > 0) who += ", " + trace::format_bytes(done.buffer_bytes);
  return who;
}

std::string case_text(const SyncCase& done) {
  std::string text = fmt::format("{:<16} {:>10}", who_of(done), duration(done.predicted_ns));
  if (!done.has_floor())
    text += fmt::format(" {:>10} {:>10} {:>6} {:<12} {:<12}", "-", duration(done.paused_ns.median),
                        "-", "-", fmt::format("<= {}", duration(done.paused_ns.max)));
  else
    text += fmt::format(
        " {:>10} {:>10} {:>6.3f} {:<12} {:<12}", duration(done.floor_ns.median),
        duration(done.paused_ns.median), done.ratio.median,
        fmt::format("{:.3f}-{:.3f}", done.ratio.lower_quartile, done.ratio.upper_quartile),
        fmt::format("{:.3f}-{:.3f}", done.ratio.min, done.ratio.max));
  text += fmt::format(" {:>10} {:>10}  {}\n", trace::format_bytes(done.pss_bytes),
                      trace::format_bytes(done.pss_limit_bytes),
                      done.devices > 0                        ? "no target"
                      : done.speed_met() && done.memory_met() ? "met"
                      : done.speed_met()                      ? "memory missed"
                                                              : "missed");
  return text;
}

// Costs of an update other than the pause.
std::string costs_text(const SyncBenchResult& result) {
  std::string text = fmt::format("{:<16} {:>10} {:>12} {:>12} {:>10} {:>8} {:>10} {:>10} {:>10}\n",
                                 "engines", "staged", "GB/s paused", "checked copy", "CPU s/GB",
                                 "copies", "trainer", "sidecar", "engine");
  for (const SyncCase& done : result.cases)
    text += fmt::format(
        "{:<16} {:>10} {:>12.1f} {:>12} {:>10.3f} {:>8.2f} {:>10} {:>10} {:>10}\n", who_of(done),
        duration(done.staged_ns.median), paused_rate(done) / 1e9,
        done.has_floor() ? duration(done.verified_ns.median) : "-", done.cpu_per_gigabyte.median,
        done.copies.all(), trace::format_bytes(done.peak.trainer_bytes),
        trace::format_bytes(done.peak.sidecar_bytes), trace::format_bytes(done.peak.engine_bytes));
  return text;
}

std::string notes_text(const SyncBenchResult& result) {
  std::string text;
  double busy = 0;
  double stolen = 0;
  for (const SyncCase& done : result.cases) {
    busy = std::max(busy, done.others_busy);
    stolen = std::max(stolen, done.stolen);
    const CopiesPerByte& copies = done.copies;
    text += fmt::format(
        "copies of a byte, {}: {:.2f} into the snapshot, {:.2f} sent, {:.2f} received, {:.2f} to a "
        "device, {:.2f} broadcast, {:.2f} into an engine\n",
        who_of(done), copies.snapshot, copies.sent, copies.received, copies.h2d, copies.broadcast,
        copies.loaded);
    if (done.has_floor())
      text += fmt::format("floor of {}: {}, {} in each process\n", done.engines,
                          copy_kind_name(done.floor_way.kind),
                          counted(done.floor_way.threads, "thread"));
  }
  if (std::ranges::any_of(result.cases, &SyncCase::has_floor))
    text +=
        "checked copy: the floor with checksums in the same pass. It shows the cost of "
        "verification in a pause; wsync has no option to disable verification.\n";
  return text + load_notes(busy, stolen);
}

constexpr double kNsOfMs = 1e6;

std::vector<double> round_ms(const SyncCase& done, std::uint64_t (*of)(const Round&)) {
  std::vector<double> values;
  for (const Round& round : done.rounds) values.push_back(static_cast<double>(of(round)) / kNsOfMs);
  return values;
}

void add_sync_cases(const SyncCase& done, double copy_rate, std::vector<CaseResult>& cases) {
  std::string who = counted(done.engines, "engine") + (done.adopt ? " that map" : "");
  if (done.devices > 0) who += " on " + counted(done.devices, "device");
  if (done.tcp) who += " by TCP";
  if (done.buffer_bytes > 0)
    who += fmt::format(", buffers of {}", trace::format_bytes(done.buffer_bytes));
  const auto floor = round_ms(done, [](const Round& r) { return r.floor.ns; });
  auto paused = case_of("sync", "paused", who,
                        round_ms(done, [](const Round& r) { return r.pushed.paused_ns; }));
  auto load =
      case_of("sync", "load", who, round_ms(done, [](const Round& r) { return r.pushed.load_ns; }));
  paused.bytes = load.bytes = done.adopt ? 0 : done.expected_bytes;
  if (done.adopt) {
    paused.target =
        Target{.of = Target::Of::kMax, .value = static_cast<double>(kAdoptTargetNs) / kNsOfMs};
  } else if (done.has_floor()) {
    set_baseline_of("sync", "paused", paused, floor);
    set_baseline_of("sync", "load", load, floor);
    paused.target = Target{.of = Target::Of::kRatio, .value = kRatioTarget};
  } else {
    // Engines on separate devices do not copy directly from the arena. The baseline is one process
    // that copies the same number of bytes.
    const double alone = static_cast<double>(done.expected_bytes) / copy_rate * 1e3;
    for (CaseResult* result : {&paused, &load})
      set_baseline(*result, "streaming copy of as many bytes on all cores, measured before",
                   {alone});
  }
  cases.push_back(std::move(paused));
  cases.push_back(std::move(load));
  cases.push_back(case_of("sync", "staged", who,
                          round_ms(done, [](const Round& r) { return r.pushed.staged_ns; })));
  cases.back().bytes = done.expected_bytes / done.engines;
  std::vector<double> cpu;
  for (const Round& round : done.rounds)
    cpu.push_back(1e9 * seconds(round.cpu) / static_cast<double>(done.expected_bytes));
  cases.push_back(case_of("sync", "CPU", who, std::move(cpu)));
  std::vector<double> copies;
  for (const Round& round : done.rounds) copies.push_back(round.copies.all());
  cases.push_back(case_of("sync", "copies", who, std::move(copies)));
  if (!done.has_floor()) return;
  auto verified = case_of("sync", "checked copy", who,
                          round_ms(done, [](const Round& r) { return r.verified.ns; }));
  verified.bytes = done.expected_bytes;
  set_baseline_of("sync", "checked copy", verified, floor);
  cases.push_back(std::move(verified));
}

}  // namespace

bool targets_met(const SyncBenchResult& result) {
  return std::ranges::all_of(result.cases, [](const SyncCase& done) {
    return done.checked() && done.speed_met() && done.memory_met();
  });
}

json to_json(const SyncBenchResult& result) {
  json cases = json::array();
  for (const SyncCase& done : result.cases) cases.push_back(case_json(done));
  return {{"machine", machine_json(result.machine)},
          {"bytes", result.bytes},
          {"copy_bytes_per_s", result.copy_rate},
          {"cases", std::move(cases)},
          {"targets_met", targets_met(result)}};
}

std::string to_text(const SyncBenchResult& result) {
  const Machine& machine = result.machine;
  std::string text =
      fmt::format("{}\n{}; {}; huge pages {}, of shared memory {}\n", processor_text(machine),
                  machine.layout, machine.kernel, machine.huge_pages, machine.shared_huge_pages);
  text += fmt::format("{} of weights, {} rounds, every byte of each load checked\n\n",
                      trace::format_bytes(result.bytes), result.cases.front().rounds.size());
  text +=
      fmt::format("{:<16} {:>10} {:>10} {:>10} {:>6} {:<12} {:<12} {:>10} {:>10}\n", "engines",
                  "predicted", "floor", "paused", "ratio", "quartiles", "min-max", "PSS", "limit");
  for (const SyncCase& done : result.cases) text += case_text(done);
  return text + "\n" + costs_text(result) + "\n" + notes_text(result);
}

SuiteResult to_suite(const SyncBenchResult& result) {
  SuiteResult suite{
      .suite = "sync", .parameters = {{"bytes", result.bytes}}, .details = to_json(result)};
  double busy = 0;
  double stolen = 0;
  for (const SyncCase& done : result.cases) {
    add_sync_cases(done, result.copy_rate, suite.cases);
    busy = std::max(busy, done.others_busy);
    stolen = std::max(stolen, done.stolen);
  }
  suite.notes = load_sentences(busy, stolen);
  return suite;
}

}  // namespace wsync::bench
