// The report of `wsync demo`: a table for people, an object for --json.
#include <nlohmann/json.hpp>

#include "deploy/demo/demo_scenario.h"
#include "shared/base/format.h"
#include "shared/command/context.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

// Bytes into the engines for each second of the longest pause.
double rate_of(const DemoUpdate& update) {
  return update.paused_ns == 0 ? 0
                               : static_cast<double>(update.loaded_bytes) /
                                     (static_cast<double>(update.paused_ns) * 1e-9);
}

double share_of(const DemoUpdate& update, const DemoReport& report) {
  return report.floor.bytes_per_s() == 0 ? 0 : rate_of(update) / report.floor.bytes_per_s();
}

json updates_json(const DemoReport& report) {
  json list = json::array();
  for (const DemoUpdate& update : report.updates)
    list.push_back({{"version", update.version.to_string()},
                    {"bytes", update.bytes},
                    {"loaded_bytes", update.loaded_bytes},
                    {"snapshot_ns", update.snapshot_ns},
                    {"staged_ns", update.staged_ns},
                    {"paused_ns", update.paused_ns},
                    {"bytes_per_s", rate_of(update)},
                    {"floor_share", share_of(update, report)},
                    {"content_digest", update.digest.to_string()},
                    {"verified_bytes", update.verified_bytes}});
  return list;
}

}  // namespace

std::string demo_text(const DemoReport& report, const DemoOptions& options) {
  std::string text = fmt::format("\n{:<9}{:>12}{:>10}{:>11}{:>8}{:>8}  {}\n", "version", "bytes",
                                 "staged s", "paused ms", "GB/s", "floor", "content digest");
  for (const DemoUpdate& update : report.updates)
    text += fmt::format("{:<9}{:>12}{:>10.3f}{:>11.1f}{:>8.2f}{:>7.0f}%  {}{}\n",
                        update.version.to_string(), human_bytes(update.bytes),
                        static_cast<double>(update.staged_ns) * 1e-9,
                        static_cast<double>(update.paused_ns) * 1e-6, rate_of(update) * 1e-9,
                        share_of(update, report) * 100, update.digest.to_string(),
                        update.version.to_string() == report.kill.version ? " *" : "");
  text += fmt::format(
      "* one engine was killed in this switch: {} engines took the version\n"
      "GB/s: bytes into all engines, by the longest pause. floor: its share of the copy floor of "
      "this run, {:.1f} GB/s\n({:.1f} to {:.1f}; {} threads copy {} each from one shared mapping; "
      "median of {} rounds, half of them before and half after).\nSeparate devices copy each byte "
      "{} more times on the way: to an H2D buffer and to an IPC buffer of each device.\n\n",
      report.engines.size() - 1, report.floor.bytes_per_s() * 1e-9, report.floor.slowest() * 1e-9,
      report.floor.fastest() * 1e-9, report.floor.copiers(),
      human_bytes(report.floor.copied_bytes()), report.floor.rounds(), options.devices + 1);
  std::uint64_t steps = 0;
  for (const EngineResult& engine : report.engines) steps += engine.steps;
  text += fmt::format("torn steps: {} of {}\n", report.torn(), steps);
  text += fmt::format("picture:    {}\ntrace:      {} (open it at https://ui.perfetto.dev)\n",
                      report.picture, report.trace);
  text += fmt::format("done in {:.1f} s\n", report.elapsed_s);
  return text;
}

json demo_json(const DemoReport& report, const DemoOptions& options) {
  return {{"bytes", report.bytes},
          {"tensors", report.tensors},
          {"sidecars", kDemoSidecars},
          {"devices", options.devices},
          {"buffer_bytes", report.buffer_bytes},
          {"same_bytes", report.same_bytes},
          {"versions", updates_json(report)},
          {"refusal", {{"tensor", report.refusal.tensor}, {"reason", report.refusal.reason}}},
          {"kill",
           {{"replica", report.kill.replica},
            {"version", report.kill.version},
            {"pid", report.kill.pid},
            {"buckets_taken", report.kill.taken},
            {"buckets_acknowledged_at_least", report.kill.taken - 1},
            {"buckets", report.kill.buckets},
            {"state", report.kill.state},
            {"reason", report.kill.reason},
            {"repaired_ns", report.kill.repaired_ns}}},
          {"rollback",
           {{"from", report.rollback.from.to_string()},
            {"to", report.rollback.to.to_string()},
            {"paused_ns", report.rollback.paused_ns}}},
          {"engines", engines_json(report.engines)},
          {"torn", report.torn()},
          {"floor",
           {{"bytes_per_s", report.floor.bytes_per_s()},
            {"slowest_bytes_per_s", report.floor.slowest()},
            {"fastest_bytes_per_s", report.floor.fastest()},
            {"copiers", report.floor.copiers()},
            {"copied_bytes", report.floor.copied_bytes()},
            {"rounds", report.floor.rounds()}}},
          {"picture", report.picture},
          {"trace", report.trace},
          {"elapsed_ms", static_cast<std::uint64_t>(report.elapsed_s * 1000)}};
}

}  // namespace wsync::cli
