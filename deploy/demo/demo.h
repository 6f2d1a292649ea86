// Shared parts of the `wsync demo` scenarios: options, context, fleet and parts of the report.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "deploy/fleet/fleet.h"
#include "shared/base/error.h"
#include "shared/base/format.h"
#include "shared/base/units.h"
#include "shared/command/context.h"
#include "shared/command/outcome.h"
#include "shared/observe/trace/chrome_trace.h"

namespace wsync::cli {

inline constexpr std::uint32_t kDemoSidecars = 2;   // in the main scenario
inline constexpr std::uint32_t kTrainStepsMin = 4;  // the picture shows two steps
inline constexpr std::uint32_t kTrainStepsMax = 10'000;
inline constexpr std::uint32_t kRlStepsMax = 100'000;

struct DemoOptions {
  std::uint32_t engines = 4;
  // Options of the main scenario:
  std::string checkpoint;  // empty: generate one
  std::uint64_t size = 0;  // bytes of a generated checkpoint
  std::uint32_t devices = 4;
  // Options of the training scenarios:
  std::uint32_t steps = 150;  // with --rl: steps that train on generated answers
  std::uint32_t warm_start_steps = 90;
  std::uint32_t max_staleness = 0;
  std::uint32_t seed = 1;
  bool sync = true;  // false: engines keep the first weights

  std::string run_dir;    // for sockets; must be a short path
  std::string state_dir;  // of the coordinator
  std::string work_dir;   // for checkpoints
  std::string trace_dir;  // for the traces of the processes
};

// Environment of a scenario. All references are borrowed and outlive the scenario.
struct DemoContext {
  ChildProcesses& children;
  const DemoOptions& options;
  std::function<Result<std::string>()> output;  // directory of pictures and traces
  std::function<void(const std::string&)> on_line;

  // Reports one event as a line of text.
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) const {
    on_line(fmt::format(format, std::forward<Args>(args)...));
  }
};

// Run a scenario. All of its processes have ended on return. Errors: those of
// ChildProcesses::until(); kDigestMismatch if an engine holds other bytes than it should; kInternal
// if another check of the scenario failed. The exit code of the outcome is 1 if a generation step
// of an engine was torn.
[[nodiscard]] Result<Outcome> run_demo_scenario(const DemoContext& context);
[[nodiscard]] Result<Outcome> run_train_demo(const DemoContext& context);
[[nodiscard]] Result<Outcome> run_rl_demo(const DemoContext& context);

// Runs a scenario class. An error is explained from the output of the processes, so this happens
// before the scenario is destroyed.
template <class Scenario>
[[nodiscard]] Result<Outcome> run_scenario(const DemoContext& context) {
  Scenario scenario(context);
  auto outcome = scenario.run();
  if (!outcome) return fail(context.children.explained(std::move(outcome).error()));
  return outcome;
}

// Returns the name of a sidecar, such as "host0".
[[nodiscard]] std::string demo_sidecar(std::uint32_t index);
// Shape of a demo fleet. Each sidecar has `devices` separate devices. Engines are distributed over
// the sidecars. `model`: options of an engine that define its weights.
struct DemoFleetShape {
  std::uint32_t sidecars = 1;
  std::uint32_t devices = 2;
  std::uint64_t buffer_bytes = limits::kMiB;
  std::vector<std::string> model;
};
[[nodiscard]] fleet::FleetOptions demo_fleet(const DemoOptions& options,
                                             const DemoFleetShape& shape);

// ---- parts of reports ----

// Returns a JSON list for --json, in the given order.
[[nodiscard]] nlohmann::json engines_json(const std::vector<fleet::EngineResult>& engines);
struct StepCounts {
  std::uint64_t steps = 0;
  std::uint64_t torn = 0;
};
[[nodiscard]] StepCounts steps_of(const std::vector<fleet::EngineResult>& engines);
// Returns at most `rows` indexes below `count`, evenly spaced from the first to the last.
[[nodiscard]] std::vector<std::size_t> sampled_rows(std::size_t count, std::size_t rows);
// Returns the number of bytes that were read back.
[[nodiscard]] std::uint64_t bytes_of(const std::vector<control::VerifyRank>& ranks);

// Reads the traces <name>.json of a directory. Errors as trace::read_chrome_trace().
[[nodiscard]] Result<std::vector<trace::ProcessTrace>> read_traces(
    const std::string& directory, const std::vector<std::string>& names);
// Writes one Chrome trace of all processes, with the flows of updates.
[[nodiscard]] Result<> write_traces(const std::string& path,
                                    std::vector<trace::ProcessTrace> processes);
// Describes this machine, such as "2 cores of AMD EPYC 7B13".
[[nodiscard]] std::string machine_text();
// Returns the last lines of a report. `trace` is empty if there is no trace file.
[[nodiscard]] std::string ending_text(const std::string& picture, const std::string& trace,
                                      double elapsed_s);

}  // namespace wsync::cli
