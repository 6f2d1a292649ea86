// The results of `wsync bench gpu` as JSON and as a table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/gpu/gpu_bench.h"
#include "bench/harness/result.h"

namespace wsync::bench {

[[nodiscard]] bool targets_met(const GpuBenchResult& result);
[[nodiscard]] nlohmann::json to_json(const GpuBenchResult& result);
[[nodiscard]] std::string to_text(const GpuBenchResult& result);

// Converts the result to the common form of all suites.
[[nodiscard]] SuiteResult to_suite(const GpuBenchResult& result);

}  // namespace wsync::bench
