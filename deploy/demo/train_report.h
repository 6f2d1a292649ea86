// The report of `wsync demo --train`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deploy/demo/training_scenario.h"

namespace wsync::cli {

struct TrainReport {
  nlohmann::json training;  // output of `wsync train --json`
  std::vector<TrainedStep> steps;
  std::uint64_t bytes = 0;  // bytes of one version
  // Versions that were read back from an engine, without duplicates.
  std::vector<std::string> verified;
  std::uint64_t verified_bytes = 0;  // sum over all verifications
  std::string exported_digest;       // digest of the saved state in bfloat16
  std::vector<fleet::EngineResult> engines;
  std::string picture;  // paths
  std::string trace;
  double elapsed_s = 0;

  // Number of steps whose weights every engine served.
  [[nodiscard]] std::uint64_t committed() const;
  [[nodiscard]] double staged_seconds_median() const;
  [[nodiscard]] double paused_seconds_max() const;
  // Share of the total step time that was spent waiting for snapshots.
  [[nodiscard]] double waited_share() const;
};

// Returns the report as text with a table, and as a JSON object for --json.
[[nodiscard]] std::string train_text(const TrainReport& report);
[[nodiscard]] nlohmann::json train_json(const TrainReport& report);

}  // namespace wsync::cli
