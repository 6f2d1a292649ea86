// What `wsync demo --train` shows: rank processes train a model by the overlapped schedule, engines
// take every step's weights while the next one is computed, and what they hold at the end is what
// the trainer has saved.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deploy/demo/fleet.h"
#include "shared/base/error.h"
#include "shared/loop/child_process.h"

namespace wsync::cli {

struct TrainDemoOptions {
  std::uint32_t steps = 150;
  std::uint32_t engines = 2;
  std::string run_dir;    // sockets; short
  std::string state_dir;  // of the coordinator
  std::string work_dir;   // checkpoints
  std::string trace_dir;  // what is traced
};

inline constexpr std::uint32_t kTrainDemoStepsMin = 4;  // the picture shows two of them
inline constexpr std::uint32_t kTrainDemoStepsMax = 10'000;

// A step, and how its weights came to the engines.
struct TrainedStep {
  std::uint64_t step = 0;
  double loss = 0;
  double seconds = 0;
  double waited_seconds = 0;  // of them for the snapshot of the step before
  std::string state;          // of its publish: "committed"
  std::string version;
  std::string content_digest;
  double staged_seconds = 0;
  double paused_seconds = 0;  // of the engine that was paused longest
};

struct TrainDemoReport {
  nlohmann::json training;  // what `wsync train --json` has said
  std::vector<TrainedStep> steps;
  std::uint64_t bytes = 0;            // of a version
  std::vector<std::string> verified;  // versions that were read back from an engine, each once
  std::uint64_t verified_bytes = 0;   // in all of that
  std::string exported_digest;        // of the saved state, in bfloat16
  std::vector<EngineResult> engines;
  std::string picture;  // paths
  std::string trace;
  double elapsed_s = 0;

  [[nodiscard]] std::uint64_t torn() const;
  [[nodiscard]] std::uint64_t engine_steps() const;
  [[nodiscard]] std::uint64_t committed() const;
  [[nodiscard]] double staged_seconds_median() const;
  [[nodiscard]] double paused_seconds_most() const;
  // Of the time of all steps: what they waited for snapshots.
  [[nodiscard]] double waited_share() const;
};

// The steps in the `result` that `wsync train --json` has printed. kInternal when it is otherwise
// than README.md of this folder says.
[[nodiscard]] Result<std::vector<TrainedStep>> trained_steps(const nlohmann::json& result);

// As run_demo_scenario(). kDigestMismatch: an engine holds other bytes than the trainer; kInternal:
// a step was not served, or something else went otherwise.
[[nodiscard]] Result<TrainDemoReport> run_train_demo(
    ChildProcesses& children, const TrainDemoOptions& options,
    const std::function<Result<std::string>()>& output,
    const std::function<void(const std::string&)>& say);

// The report's table and sums, for people and for --json.
[[nodiscard]] std::string train_demo_text(const TrainDemoReport& report);
[[nodiscard]] nlohmann::json train_demo_json(const TrainDemoReport& report);

}  // namespace wsync::cli
