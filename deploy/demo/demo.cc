#include "deploy/demo/demo.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "shared/config/units.h"
#include "shared/observe/trace/chrome_trace_reader.h"
#include "shared/observe/trace/update_flows.h"

namespace wsync::cli {

std::string demo_sidecar(std::uint32_t index) { return fmt::format("host{}", index); }

fleet::FleetOptions demo_fleet(const DemoOptions& options, const DemoFleetShape& shape) {
  fleet::FleetOptions made{.executable = {},
                           .prefix = {},
                           .run_dir = options.run_dir,
                           .state_dir = options.state_dir,
                           .sidecars = {},
                           .engines = {},
                           .trainer = {}};
  for (std::uint32_t i = 0; i < shape.sidecars; ++i)
    made.sidecars.push_back(
        {.name = demo_sidecar(i),
         .settings = {"devices.kind=separate", fmt::format("devices.count={}", shape.devices),
                      "devices.buffer_bytes=" + config::format_size(shape.buffer_bytes),
                      fmt::format("trace_file={}/{}", options.trace_dir, demo_sidecar(i))}});
  for (std::uint32_t i = 0; i < options.engines; ++i) {
    const std::string sidecar = demo_sidecar(i % shape.sidecars);
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

nlohmann::json engines_json(const std::vector<fleet::EngineResult>& engines) {
  nlohmann::json list = nlohmann::json::array();
  for (const fleet::EngineResult& engine : engines)
    list.push_back({{"replica", engine.replica},
                    {"steps", engine.steps},
                    {"torn", engine.torn},
                    {"versions", engine.steps_by_version}});
  return list;
}

StepCounts steps_of(const std::vector<fleet::EngineResult>& engines) {
  StepCounts counts;
  for (const fleet::EngineResult& engine : engines) {
    counts.steps += engine.steps;
    counts.torn += engine.torn;
  }
  return counts;
}

std::vector<std::size_t> sampled_rows(std::size_t count, std::size_t rows) {
  rows = std::min(count, rows);
  std::vector<std::size_t> sampled;
  for (std::size_t row = 0; row < rows; ++row)
    sampled.push_back(rows == 1 ? 0 : row * (count - 1) / (rows - 1));
  return sampled;
}

std::uint64_t bytes_of(const std::vector<control::VerifyRank>& ranks) {
  std::uint64_t bytes = 0;
  for (const control::VerifyRank& rank : ranks) bytes += rank.bytes;
  return bytes;
}

Result<std::vector<trace::ProcessTrace>> read_traces(const std::string& directory,
                                                     const std::vector<std::string>& names) {
  std::vector<trace::ProcessTrace> processes;
  for (const std::string& name : names) {
    auto read = WSYNC_TRY(trace::read_chrome_trace(fmt::format("{}/{}.json", directory, name)));
    std::move(read.begin(), read.end(), std::back_inserter(processes));
  }
  return processes;
}

Result<> write_traces(const std::string& path, std::vector<trace::ProcessTrace> processes) {
  trace::Trace trace{.processes = std::move(processes)};
  trace.flows = trace::update_flows(trace.processes);
  return trace::write_chrome_trace(path, trace);
}

std::string machine_text() {
  std::string model = "an unknown processor";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (!line.starts_with("model name") || colon == std::string::npos) continue;
    model = line.substr(colon + 2);
    break;
  }
  return fmt::format("{} cores of {}", std::thread::hardware_concurrency(), model);
}

std::string ending_text(const std::string& picture, const std::string& trace, double elapsed_s) {
  std::string text = fmt::format("picture:    {}\n", picture);
  if (!trace.empty())
    text += fmt::format("trace:      {} (open it at https://ui.perfetto.dev)\n", trace);
  return text + fmt::format("done in {:.1f} s\n", elapsed_s);
}

}  // namespace wsync::cli
