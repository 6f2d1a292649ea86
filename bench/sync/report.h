// Output of `wsync bench sync`: the documented schema of --json, and a table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/result.h"
#include "bench/sync/sync_bench.h"

namespace wsync::bench {

[[nodiscard]] nlohmann::json to_json(const SyncBenchResult& result);
[[nodiscard]] std::string to_text(const SyncBenchResult& result);
[[nodiscard]] bool targets_met(const SyncBenchResult& result);

// Converts the result to the common form of all suites: "paused, 2 engines" etc.
[[nodiscard]] SuiteResult to_suite(const SyncBenchResult& result);

}  // namespace wsync::bench
