// `wsync bench delta --trajectory` measures the updates of a real training run: its checkpoints are
// published one after the other, as the run had published them.
//
// In each round, for each step, three updates are published. After the first one, in which every
// element has other bits, all of the weights before the step are loaded: the baseline. Then comes
// the step. The fleet is that of delta_bench.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/harness/paired.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::bench {

struct TrajectoryOptions {
  std::string executable;                // wsync
  std::string directory;                 // for all created files; the owner removes it
  std::vector<std::string> checkpoints;  // directories, in the order of the steps; at least two
  unsigned engines = 1;
  unsigned rounds = 3;
  std::string transport = "memfd";  // by which the sidecar receives versions
};

// The update to one checkpoint from the one before. Times: the median of the rounds.
struct TrajectoryStep {
  std::string name;           // of the checkpoint's directory
  double changed = 0;         // elements whose bits differ, in percent
  double patch = 0;           // size of the patch in percent of the model; 0: loaded in full
  double pause_ms = 0;        // of the engines
  double full_pause_ms = 0;   // likewise, of the update in which everything was loaded
  double update_ms = 0;       // from the beginning of the publish until all engines serve it
  double full_update_ms = 0;  // likewise
};

struct Trajectory {
  SuiteResult suite;  // a sample for each step
  std::vector<TrajectoryStep> steps;
};

// The subdirectories NAME_N and NAME_vN of `directory`, in the order of N. kNotFound if there are
// fewer than two; kIo if it cannot be read.
[[nodiscard]] Result<std::vector<std::string>> find_trajectory(const std::string& directory);

// Errors as run_delta_bench(); kInvalidInput if the checkpoints have different layouts.
[[nodiscard]] Result<Trajectory> run_trajectory(const TrajectoryOptions& options,
                                                const Interrupt& interrupt, const OnTurn& on_turn);

// A table with a row for each step. Of a long run every n-th is shown, and it says so.
[[nodiscard]] std::string trajectory_table(const std::vector<TrajectoryStep>& steps);
// Draws share, patch, pause and update over the steps, as SVG.
[[nodiscard]] Result<> write_trajectory_picture(const std::string& path, const std::string& title,
                                                const std::vector<TrajectoryStep>& steps);

}  // namespace wsync::bench
