// What `wsync bench recovery` reports of ranks that were killed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/result.h"
#include "bench/recovery/kill_bench.h"

namespace wsync::bench {

[[nodiscard]] nlohmann::json to_json(const KillBenchResult& result);
// Tables.
[[nodiscard]] std::string to_text(const KillBenchResult& result);
// What was wrong, one line each; empty when nothing was.
[[nodiscard]] std::string complaint_of(const KillBenchResult& result);

// In the form of all suites, as the suite "recovery".
[[nodiscard]] SuiteResult to_suite(const KillBenchResult& result);

}  // namespace wsync::bench
