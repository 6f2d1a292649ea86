// What the scenarios of `wsync demo` share: options, surroundings, their fleet, parts of a report.
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

inline constexpr std::uint32_t kDemoSidecars = 2;   // of the main scenario
inline constexpr std::uint32_t kTrainStepsMin = 4;  // the picture shows two of them
inline constexpr std::uint32_t kTrainStepsMax = 10'000;
inline constexpr std::uint32_t kRlStepsMax = 100'000;

struct DemoOptions {
  std::uint32_t engines = 4;
  // Of the main scenario.
  std::string checkpoint;  // empty: one is made
  std::uint64_t size = 0;  // of the one that is made, bytes
  std::uint32_t devices = 4;
  // Of the scenarios that train.
  std::uint32_t steps = 150;  // with --rl, those that train on generated answers
  std::uint32_t warm_start_steps = 90;
  std::uint32_t max_staleness = 0;
  std::uint32_t seed = 1;
  bool sync = true;  // without, the engines keep the first weights that they are given

  std::string run_dir;    // sockets; its path is short
  std::string state_dir;  // of the coordinator
  std::string work_dir;   // checkpoints
  std::string trace_dir;  // what the processes trace
};

// Where a scenario runs. Borrowed: all of it outlives the scenario.
struct DemoContext {
  ChildProcesses& children;
  const DemoOptions& options;
  std::function<Result<std::string>()> output;  // the directory of pictures and traces
  std::function<void(const std::string&)> on_line;

  // One line for each thing that happened.
  template <class... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) const {
    on_line(fmt::format(format, std::forward<Args>(args)...));
  }
};

// The scenarios. Every process has ended when they return. Errors: as ChildProcesses::until();
// kDigestMismatch: an engine holds other bytes than it should; kInternal: another step did not
// hold. The outcome's exit code is 1 when a step of an engine was torn.
[[nodiscard]] Result<Outcome> run_demo_scenario(const DemoContext& context);
[[nodiscard]] Result<Outcome> run_train_demo(const DemoContext& context);
[[nodiscard]] Result<Outcome> run_rl_demo(const DemoContext& context);

// What those do: runs a scenario while its processes can still explain an error.
template <class Scenario>
[[nodiscard]] Result<Outcome> run_scenario(const DemoContext& context) {
  Scenario scenario(context);
  auto outcome = scenario.run();
  if (!outcome) return fail(context.children.explained(std::move(outcome).error()));
  return outcome;
}

// "host0"
[[nodiscard]] std::string demo_sidecar(std::uint32_t index);
// A fleet in these directories. Each sidecar has `devices` separate devices; engines are shared out
// between the sidecars. `model`: options of an engine that say what it holds.
struct DemoFleetShape {
  std::uint32_t sidecars = 1;
  std::uint32_t devices = 2;
  std::uint64_t buffer_bytes = limits::kMiB;
  std::vector<std::string> model;
};
[[nodiscard]] fleet::FleetOptions demo_fleet(const DemoOptions& options,
                                             const DemoFleetShape& shape);

// ---- parts of reports ----

// For --json: a list, in this order.
[[nodiscard]] nlohmann::json engines_json(const std::vector<fleet::EngineResult>& engines);
struct StepCounts {
  std::uint64_t steps = 0;
  std::uint64_t torn = 0;
};
[[nodiscard]] StepCounts steps_of(const std::vector<fleet::EngineResult>& engines);
// At most `rows` indexes below `count`, evenly spaced from the first to the last.
[[nodiscard]] std::vector<std::size_t> sampled_rows(std::size_t count, std::size_t rows);
// Bytes that were read back.
[[nodiscard]] std::uint64_t bytes_of(const std::vector<control::VerifyRank>& ranks);

// Processes of the traces <name>.json of a directory. Errors as trace::read_chrome_trace().
[[nodiscard]] Result<std::vector<trace::ProcessTrace>> read_traces(
    const std::string& directory, const std::vector<std::string>& names);
// One Chrome trace of all of them, with the flows of updates.
[[nodiscard]] Result<> write_traces(const std::string& path,
                                    std::vector<trace::ProcessTrace> processes);
// "2 cores of AMD EPYC 7B13"
[[nodiscard]] std::string machine_text();
// The last lines of a report. `trace`: empty without one.
[[nodiscard]] std::string ending_text(const std::string& picture, const std::string& trace,
                                      double elapsed_s);

}  // namespace wsync::cli
