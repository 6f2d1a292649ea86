// What `wsync bench sync` prints: the documented schema of --json, and a table for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/harness/result.h"
#include "bench/sync/sync_bench.h"

namespace wsync::bench {

[[nodiscard]] nlohmann::json to_json(const SyncBenchResult& result);
[[nodiscard]] std::string to_text(const SyncBenchResult& result);
[[nodiscard]] bool targets_met(const SyncBenchResult& result);

// In the form of all suites: "paused, 2 engines" and the like.
[[nodiscard]] SuiteResult to_suite(const SyncBenchResult& result);

}  // namespace wsync::bench
