// What `wsync demo --rl` shows: a policy learns a task from its own answers. Two engines answer
// over HTTP, trainer processes learn from what the answers are worth, and each step's weights
// generate the next answers.
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

struct RlDemoOptions {
  std::uint32_t steps = 300;            // that train on generated answers
  std::uint32_t warm_start_steps = 90;  // before them, on given ones
  std::uint32_t engines = 2;
  std::uint32_t max_staleness = 0;
  std::uint32_t seed = 1;
  bool sync = true;       // without, the engines keep the first weights that they are given
  std::string run_dir;    // sockets; short
  std::string state_dir;  // of the coordinator
  std::string work_dir;   // checkpoints
  std::string trace_dir;  // of sidecars
};

inline constexpr std::uint32_t kRlDemoStepsMax = 100'000;

// A step that trained on generated answers.
struct RlStep {
  std::uint64_t step = 0;
  double reward = 0;  // mean over its answers
  double loss = 0;
  std::uint64_t staleness = 0;  // of its oldest answers, in steps
  double mismatch = 0;          // most of all tokens of versions that the trainer still has
  bool compared = false;        // there was such a token
  double drift = 0;
  double seconds = 0;           // of training
  double answers_seconds = 0;   // that it waited for answers
  double snapshot_seconds = 0;  // that it waited for the snapshot of the step before
  std::string version;          // of its weights; empty: they were not served
  double staged_seconds = 0;
  double paused_seconds = 0;  // of the engine that was paused longest
};

struct RlDemoReport {
  nlohmann::json training;  // what `wsync train --json` has said
  std::vector<RlStep> steps;
  std::vector<EngineResult> engines;
  std::uint64_t verified_bytes = 0;
  std::string picture;  // path
  double elapsed_s = 0;

  [[nodiscard]] std::uint64_t torn() const;
  // Means that the trainer has taken, of its first and last steps with answers.
  [[nodiscard]] double reward_first() const;
  [[nodiscard]] double reward_last() const;
  // Of the time of all steps: training that waited for snapshots, and engines that stood still.
  [[nodiscard]] double sync_share() const;
};

// As run_train_demo().
[[nodiscard]] Result<RlDemoReport> run_rl_demo(ChildProcesses& children,
                                               const RlDemoOptions& options,
                                               const std::function<Result<std::string>()>& output,
                                               const std::function<void(const std::string&)>& say);

// The steps in the `result` of `wsync train --json`; kInternal when it is otherwise.
[[nodiscard]] Result<std::vector<RlStep>> rl_steps(const nlohmann::json& result);
// The report's table and sums, for people and for --json; and its picture.
[[nodiscard]] std::string rl_demo_text(const RlDemoReport& report, const RlDemoOptions& options);
[[nodiscard]] nlohmann::json rl_demo_json(const RlDemoReport& report, const RlDemoOptions& options);
[[nodiscard]] Result<> write_rl_picture(const std::string& path, const RlDemoReport& report,
                                        const RlDemoOptions& options);

}  // namespace wsync::cli
