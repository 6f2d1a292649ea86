// Output of `wsync bench overhead`: the documented schema of --json, and tables.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/result.h"
#include "bench/overhead/overhead_bench.h"

namespace wsync::bench {

[[nodiscard]] nlohmann::json to_json(const OverheadBenchResult& result);
[[nodiscard]] std::string to_text(const OverheadBenchResult& result);
// Converts the result to the common form of all suites.
[[nodiscard]] SuiteResult to_suite(const OverheadBenchResult& result);

}  // namespace wsync::bench
