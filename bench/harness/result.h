// The common form of the results of all `wsync bench` suites. --output writes it as a file and
// `wsync bench compare` reads it. As JSON: deploy/cli/schema/bench-result.json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/harness/spread.h"
#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr std::string_view kResultSchema = "wsync-bench";
inline constexpr std::uint64_t kResultSchemaVersion = 1;

// The baseline of a case, in the case's unit and from the same run.
struct Baseline {
  std::string name;
  std::vector<double> samples;
};

// A target for a figure.
struct Target {
  enum class Of : std::uint8_t {
    kRatio,   // median of the ratios, as a minimum
    kMedian,  // median of the samples: a minimum if higher is better, otherwise a maximum
    kMax,     // all samples, as a maximum
  };
  Of of = Of::kRatio;
  double value = 0;
};

struct CaseResult {
  std::string name;  // unique in its suite: "paused, 2 engines"
  std::string what;  // a sentence about what it measures
  std::string unit;  // unit of the samples
  bool higher_is_better = false;
  // bytes that one sample moves or reads; 0: the case does not move bytes
  std::uint64_t bytes = 0;
  std::vector<double> samples;  // one per round; at least one
  std::optional<Baseline> baseline;
  // Speed as a share of the baseline's speed in each round: sample / baseline if higher is better,
  // otherwise baseline / sample. 1 is as fast as the baseline, and more is better. Empty without a
  // baseline.
  std::vector<double> ratios;
  std::optional<Target> target;
  [[nodiscard]] bool met() const;  // true without a target
};

struct SuiteResult {
  std::string suite;
  // Parameters of the measurement. Results with different parameters are not compared.
  nlohmann::json parameters = nlohmann::json::object();
  std::vector<CaseResult> cases;
  std::vector<std::string> notes;  // disturbances, omissions and deviations
  nlohmann::json details;          // all further results of the suite in its own form; or null
};

struct ResultFile {
  std::string date;  // when it was written: "2026-11-22T18:45:09Z"
  std::string wsync_version;
  nlohmann::json machine = nlohmann::json::object();  // as machine_json()
  std::vector<SuiteResult> suites;
};

// Sets the baseline and the ratios: pair by pair if both have the same number of samples, otherwise
// each sample against the baseline's median. Samples that are not above 0 have no ratio.
void set_baseline(CaseResult& result, std::string name, std::vector<double> samples);

// Includes the spread of all samples.
[[nodiscard]] nlohmann::json to_json(const ResultFile& file);
[[nodiscard]] nlohmann::json to_json(const SuiteResult& suite);
// "ratio", "median", "most"
[[nodiscard]] std::string_view target_name(Target::Of of) noexcept;
// A table of all cases with median, minimum and maximum, and the ratio to the baseline, followed by
// the notes.
[[nodiscard]] std::string to_text(const SuiteResult& suite);
// The current time in UTC, in the format of ResultFile.
[[nodiscard]] std::string date_now();

}  // namespace wsync::bench
