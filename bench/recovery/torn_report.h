// What `wsync bench recovery --torn` reports.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/result.h"
#include "bench/recovery/torn_bench.h"

namespace wsync::bench {

[[nodiscard]] nlohmann::json to_json(const TornBenchResult& result);
// A table.
[[nodiscard]] std::string to_text(const TornBenchResult& result);
// What was wrong and where, one line each; empty when nothing was.
[[nodiscard]] std::string complaint_of(const TornBenchResult& result);

// In the form of all suites, as the suite "torn".
[[nodiscard]] SuiteResult to_suite(const TornBenchResult& result);

}  // namespace wsync::bench
