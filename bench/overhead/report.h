// What `wsync bench overhead` prints: the documented schema of --json, and tables for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/result.h"
#include "bench/overhead/overhead_bench.h"

namespace wsync::bench {

[[nodiscard]] nlohmann::json to_json(const OverheadBenchResult& result);
[[nodiscard]] std::string to_text(const OverheadBenchResult& result);
// In the form of all suites.
[[nodiscard]] SuiteResult to_suite(const OverheadBenchResult& result);

}  // namespace wsync::bench
