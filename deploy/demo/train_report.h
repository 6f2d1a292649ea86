// The report of `wsync demo --train`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deploy/demo/training_scenario.h"

namespace wsync::cli {

struct TrainReport {
  nlohmann::json training;  // what `wsync train --json` printed
  std::vector<TrainedStep> steps;
  std::uint64_t bytes = 0;            // of a version
  std::vector<std::string> verified;  // versions that were read back from an engine, each once
  std::uint64_t verified_bytes = 0;   // in all of that
  std::string exported_digest;        // of the saved state, in bfloat16
  std::vector<fleet::EngineResult> engines;
  std::string picture;  // paths
  std::string trace;
  double elapsed_s = 0;

  // Steps whose weights every engine served.
  [[nodiscard]] std::uint64_t committed() const;
  [[nodiscard]] double staged_seconds_median() const;
  [[nodiscard]] double paused_seconds_max() const;
  // Of the time of all steps: what they waited for snapshots.
  [[nodiscard]] double waited_share() const;
};

// A table and sums for people, an object for --json.
[[nodiscard]] std::string train_text(const TrainReport& report);
[[nodiscard]] nlohmann::json train_json(const TrainReport& report);

}  // namespace wsync::cli
