// The one form in which every suite of `wsync bench` gives its figures: a file of it is what
// --output writes and `wsync bench compare` reads. As JSON:
// deploy/cli/schema/bench-result.json.
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

// What a case is measured against, in the case's unit and in the same run.
struct Baseline {
  std::string name;
  std::vector<double> samples;
};

// What a figure should reach.
struct Target {
  enum class Of : std::uint8_t {
    kRatio,   // the median of the ratios, at least
    kMedian,  // of the samples: at least where higher is better, at most otherwise
    kMax,     // all samples, at most
  };
  Of of = Of::kRatio;
  double value = 0;
};

struct CaseResult {
  std::string name;  // of one case of a suite only: "paused, 2 engines"
  std::string what;  // it measures: a sentence
  std::string unit;  // of the samples
  bool higher_is_better = false;
  std::uint64_t bytes = 0;      // that one sample moves or reads; 0: it is not about bytes
  std::vector<double> samples;  // one of each round; at least one
  std::optional<Baseline> baseline;
  // Speed as a share of the baseline's, of each round: sample / baseline where higher is better,
  // baseline / sample otherwise. 1: as fast; more is better. Empty without a baseline.
  std::vector<double> ratios;
  std::optional<Target> target;
  [[nodiscard]] bool met() const;  // true without a target
};

struct SuiteResult {
  std::string suite;
  // What changes what is measured: results with other parameters are not compared.
  nlohmann::json parameters = nlohmann::json::object();
  std::vector<CaseResult> cases;
  std::vector<std::string> notes;  // what was disturbed, left out or not as it should be
  nlohmann::json details;          // all that the suite has to say, in a form of its own; or null
};

struct ResultFile {
  std::string date;  // "2026-11-22T18:45:09Z", when it was written
  std::string wsync_version;
  nlohmann::json machine = nlohmann::json::object();  // of machine_json()
  std::vector<SuiteResult> suites;
};

// Sets the baseline and the ratios: pair by pair where both have as many samples, else each sample
// against the baseline's median. Samples that are not above 0 have no ratio.
void set_baseline(CaseResult& result, std::string name, std::vector<double> samples);

// With the spread of all samples beside them.
[[nodiscard]] nlohmann::json to_json(const ResultFile& file);
[[nodiscard]] nlohmann::json to_json(const SuiteResult& suite);
// "ratio", "median", "most"
[[nodiscard]] std::string_view target_name(Target::Of of) noexcept;
// A table of all cases: medians, least and most, and the share of the baseline; then the notes.
[[nodiscard]] std::string to_text(const SuiteResult& suite);
// Now, in UTC, as ResultFile has it.
[[nodiscard]] std::string date_now();

}  // namespace wsync::bench
