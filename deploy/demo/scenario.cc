#include "deploy/demo/scenario.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "bench/harness/report.h"
#include "shared/config/units.h"
#include "shared/observe/trace/chrome_trace_reader.h"
#include "shared/observe/trace/update_flows.h"

namespace wsync::cli {

Result<Outcome> Scenario::run() {
  try {
    auto outcome = play_and_report();
    // Explained here, because the destructor ends the other processes as well.
    if (!outcome) return fail(context_.children.explained(std::move(outcome).error()));
    return outcome;
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::kInternal,
                fmt::format("a program reported what the demo cannot read: {}", error.what()));
  }
}

Result<Outcome> Scenario::play_and_report() {
  WSYNC_TRY(play());
  const auto engines = WSYNC_TRY(fleet_->stop());
  std::uint64_t steps = 0;
  for (const fleet::EngineResult& engine : engines) {
    steps += engine.steps;
    torn_ += engine.torn;
    report_["engines"].push_back({{"replica", engine.replica},
                                  {"steps", engine.steps},
                                  {"torn", engine.torn},
                                  {"versions", engine.steps_by_version}});
  }
  context_.say("stopped: the engines served {} steps, {} of them torn", steps, torn_);
  std::string text = WSYNC_TRY(report());
  const double elapsed_s = seconds(now() - begin_);
  report_["torn"] = torn_;
  report_["elapsed_ms"] = static_cast<std::uint64_t>(elapsed_s * 1000);
  text += fmt::format("torn steps: {} of {}\npicture:    {}\n", torn_, steps,
                      report_.at("picture").get<std::string>());
  if (report_.contains("trace"))
    text += fmt::format("trace:      {} (open it at https://ui.perfetto.dev)\n",
                        report_["trace"].get<std::string>());
  text += fmt::format("done in {:.1f} s\n", elapsed_s);
  return Outcome{.result = report_,
                 .text = std::move(text),
                 .complaint = {},
                 .exit_code = torn_ == 0 ? kExitOk : kExitFailed};
}

// ---- the fleet ----

std::string Scenario::sidecar_name(std::uint32_t index) { return fmt::format("host{}", index); }

fleet::FleetOptions Scenario::fleet_options(const FleetShape& shape) const {
  fleet::FleetOptions made{.executable = {},
                           .prefix = {},
                           .run_dir = options_.run_dir,
                           .state_dir = options_.state_dir,
                           .sidecars = {},
                           .engines = {},
                           .trainer = {}};
  for (std::uint32_t i = 0; i < shape.sidecars; ++i)
    made.sidecars.push_back(
        {.name = sidecar_name(i),
         .settings = {"devices.kind=separate", fmt::format("devices.count={}", shape.devices),
                      "devices.buffer_bytes=" + config::format_size(shape.buffer_bytes),
                      fmt::format("trace_file={}/{}", options_.trace_dir, sidecar_name(i))}});
  for (std::uint32_t i = 0; i < options_.engines; ++i) {
    const std::string sidecar = sidecar_name(i % shape.sidecars);
    const std::uint32_t on_sidecar = i / shape.sidecars;
    const std::string replica = fmt::format("{}-{}", sidecar, on_sidecar);
    std::vector<std::string> command{"engine",         "--json",
                                     "--stats-ms",     "0",
                                     "--device-index", std::to_string(on_sidecar % shape.devices)};
    command.insert(command.end(), shape.model.begin(), shape.model.end());
    made.engines.push_back({.name = "engine-" + replica,
                            .sidecar = sidecar,
                            .replica = replica,
                            .command = std::move(command)});
  }
  return made;
}

Result<> Scenario::start_fleet(fleet::FleetOptions options) {
  fleet_ = std::make_unique<fleet::Fleet>(context_.children, std::move(options));
  return fleet_->start();
}

Result<Scenario::Verified> Scenario::verify(const Version& version, std::size_t engines) const {
  const auto ranks = fleet_->verify(version, engines);
  if (!ranks) return fail(ranks.error().with_context("verify"));
  Verified verified;
  for (const control::VerifyRank& rank : *ranks) {
    verified.bytes += rank.bytes;
    const std::string held = rank.version.to_string();
    if (std::ranges::find(verified.versions, held) == verified.versions.end())
      verified.versions.push_back(held);
  }
  context_.say("  verified: {} engines hold {}, every tensor equal ({} read back)", engines,
               fmt::join(verified.versions, " and "), human_bytes(verified.bytes));
  return verified;
}

// ---- the report ----

Result<std::vector<trace::ProcessTrace>> Scenario::read_traces(
    const std::vector<std::string>& names) const {
  std::vector<trace::ProcessTrace> processes;
  for (const std::string& name : names) {
    auto read =
        WSYNC_TRY(trace::read_chrome_trace(fmt::format("{}/{}.json", options_.trace_dir, name)));
    std::move(read.begin(), read.end(), std::back_inserter(processes));
  }
  return processes;
}

Result<> Scenario::write_trace(const std::string& output,
                               std::vector<trace::ProcessTrace> processes) {
  trace::Trace trace{.processes = std::move(processes)};
  trace.flows = trace::update_flows(trace.processes);
  const std::string path = output + "/trace.json";
  report_["trace"] = path;
  return trace::write_chrome_trace(path, trace);
}

std::string Scenario::machine_text() {
  const bench::Machine machine = bench::this_machine();
  return fmt::format("{} cores of {}", machine.cores, bench::processor_text(machine));
}

}  // namespace wsync::cli
